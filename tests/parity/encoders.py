"""Families with an encoder."""

from tests.parity.theirs import Case, V

T5 = {"vocab_size": V, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
      "decoder_start_token_id": 0}  # fmt: skip


def t5(**keys):
    return Case("t5", {**T5, **keys}, base=False, kind="seq2seq")


CASES = {
    "t5, first form": t5(feed_forward_proj="relu"),
    "t5 1.1, gated": t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "t5, odd heads, few buckets, near": t5(
        d_kv=5,
        num_heads=3,
        relative_attention_num_buckets=6,
        relative_attention_max_distance=11,
    ),
    "t5, one depth for both": t5(num_decoder_layers=None, feed_forward_proj="gated-silu", tie_word_embeddings=False),
    "mt5": Case("mt5", {**T5, "feed_forward_proj": "gated-gelu"}, base=False, kind="seq2seq"),
}
