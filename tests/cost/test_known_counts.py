"""Figures of published shapes, worked out elsewhere: by arithmetic, and by counting models on the meta device."""

import pytest

from onehop.config import ModelConfig
from onehop.cost import Asked, plan

LENGTH = 4096


def shape(d_model, n_layers, d_head, d_ff, vocab_size, *, heads=32, kv=8, tied=False, experts=0, qk_norm=False):
    norm = {"qk_norm": {"span": "head", "norm": "rms"}} if qk_norm else {}
    ffn = {"kind": "gated", "d_ff": d_ff}
    if experts:
        ffn = {"kind": "moe", "d_ff": d_ff, "n_experts": experts, "n_active": 2}
    return ModelConfig(
        vocab_size=vocab_size, d_model=d_model, n_layers=n_layers, max_len=LENGTH, ffn=ffn, head={"tied": tied},
        attention={"n_heads": heads, "n_kv_heads": kv, "d_head": d_head, **norm},
    )  # fmt: skip


# Of each: total, active and non-embedding parameters; those that a token is multiplied with (the tied head too, the
# look-up not); bytes of a token's keys and values in bfloat16; FLOPs of a trained token in rows of 4096, with all pairs
# of queries and keys, and with half of them.
KNOWN = {
    "grouped heads": (
        shape(4096, 32, 128, 14336, 128256),
        8030261248, 8030261248, 6979588096, 7504658432, 131072, 51470401536, 48249176064,
    ),
    "tied, narrow heads": (
        shape(2048, 16, 64, 8192, 128256, tied=True),
        1235814400, 1235814400, 973146112, 1235746816, 32768, 9025093632, 8219787264,
    ),
    "a small vocabulary": (
        shape(4096, 32, 128, 14336, 32000),
        7241732096, 7241732096, 6979588096, 7110393856, 131072, 49104814080, 45883588608,
    ),
    "two of eight experts": (
        shape(4096, 32, 128, 14336, 32000, experts=8),
        46702792704, 12879925248, 46440648704, 12748587008, 131072, 82933972992, 79712747520,
    ),
    "heads wider than the model, normed": (
        shape(1024, 28, 128, 3072, 151936, heads=16, tied=True, qk_norm=True),
        596049920, 596049920, 440467456, 595984384, 114688, 6394478592, 4985192448,
    ),
    "multi-query": (
        shape(96, 3, 20, 200, 1000, heads=6, kv=1, tied=True),
        350112, 350112, 254112, 349440, 240, 19791360, 10944000,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_a_shape_has_the_figures_that_are_known(name):
    config, total, active, non_embedding, met, per_token, trained, halved = KNOWN[name]
    one = plan(config)
    found = one.parameters
    assert (found.total, found.active, found.non_embedding) == (total, active, non_embedding)
    assert one.kv_cache().bytes_per_token == per_token
    assert one.kv_cache_bytes(batch=8, context=LENGTH) == 8 * LENGTH * per_token
    flops = one.flops(new=LENGTH)
    assert 3 * flops.products == 6 * met * LENGTH
    assert one.train_flops_per_token(LENGTH) == trained
    assert 3 * (flops.products + flops.attention / 2) == halved * LENGTH
    assert flops.attention_seen == flops.attention * (LENGTH + 1) / (2 * LENGTH)  # the diagonal is seen whole
    memory = one.training_memory(Asked(precision="float32"))
    assert memory.weights + memory.optimizer == 12 * total  # in float32: a weight and two moments
    assert one.inference_memory(Asked()).weights == 2 * total


def test_a_window_bounds_the_pairs_and_the_cache_but_not_the_products():
    """Rows of 4096 with a window of 1000: the first 1000 queries see 1, 2, … 1000 keys, the others 1000 each."""
    wide, narrow = plan(shape(96, 3, 20, 200, 1000, heads=6, kv=1)), plan(windowed(1000))
    pairs = 1000 * 1001 // 2 + (LENGTH - 1000) * 1000
    assert narrow.flops(new=LENGTH).attention_seen == 3 * pairs * 6 * 20 * 4  # layers, heads, q·k and weight·v
    assert narrow.flops(new=LENGTH).products == wide.flops(new=LENGTH).products
    assert narrow.kv_cache_bytes(context=LENGTH) == 240 * 1001  # a ring keeps one place for what it does not keep
    assert wide.kv_cache_bytes(context=LENGTH) == 240 * LENGTH


def windowed(window):
    raw = shape(96, 3, 20, 200, 1000, heads=6, kv=1).model_dump()
    raw["blocks"][0]["attention"]["window"] = window
    return ModelConfig.model_validate(raw)
