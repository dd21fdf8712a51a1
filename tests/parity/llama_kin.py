"""Families of Llama's kin, without experts."""

from tests.parity.theirs import Case

CASES = {
    "mistral": Case("mistral", {"sliding_window": None}),
    "mistral, window": Case("mistral", {"sliding_window": 7}),
    "mistral, odd heads": Case("mistral", {"sliding_window": 5, "head_dim": 10, "num_key_value_heads": 1}),
}
