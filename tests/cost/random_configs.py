"""Random configs over every option that decides a count, for properties that must hold for all of them."""

from hypothesis import strategies as st

from onehop.base.errors import ConfigError
from onehop.config import ModelConfig

NORMS = st.sampled_from([
    "rms", "layer", "none", {"kind": "rms", "affine": False}, {"kind": "layer", "bias": False},
    {"kind": "layer", "affine": False},
])  # fmt: skip
SOME_NORM = st.sampled_from(["rms", "layer", {"kind": "layer", "bias": False}])
POSITIONS = st.sampled_from(["rope", "alibi", "t5", "none", {"kind": "t5", "n_buckets": 16, "max_distance": 32}])
FLAG = st.booleans()


@st.composite
def attentions(draw, sees="causal"):
    heads = draw(st.sampled_from([1, 2, 4]))
    table = {
        "n_heads": heads,
        "n_kv_heads": draw(st.sampled_from([n for n in (1, 2, 4) if heads % n == 0])),
        "d_head": draw(st.sampled_from([4, 8])),
        "bias": draw(FLAG),
        "bias_out": draw(FLAG),
        "sinks": draw(FLAG),
        "sees": sees,
        "window": draw(st.sampled_from([None, 3, 40])),
    }
    if sees == "causal" and draw(st.integers(0, 3)) == 0:
        narrow = {
            "d_latent": 12,
            "d_latent_q": draw(st.sampled_from([None, 8])),
            "d_value": draw(st.sampled_from([4, 6])),
        }
        return table | narrow | {"kind": "latent", "position": {"kind": "rope", "width": 2}, "norm": draw(SOME_NORM)}
    if draw(FLAG):
        own, span = draw(FLAG), draw(st.sampled_from(["head", "all"]))
        table["qk_norm"] = {"norm": draw(SOME_NORM), "span": span, "own_weights": own and span == "head"}
    return table | {"position": draw(POSITIONS)}


@st.composite
def ffns(draw):
    kind = draw(st.sampled_from(["plain", "gated", "moe"]))
    table = {"kind": kind, "d_ff": draw(st.sampled_from([8, 24])), "bias": draw(FLAG)}
    if kind != "moe":
        return table
    table |= {"n_experts": 4, "n_active": draw(st.sampled_from([1, 2, 4])), "router_bias": draw(FLAG)}
    table |= {"expert": draw(st.sampled_from(["gated", "plain"])), "d_ff_shared": draw(st.sampled_from([None, 12]))}
    table["balance"] = draw(st.sampled_from(["loss", "bias", "none"]))
    return table | {"shared_gate": table["d_ff_shared"] is not None and draw(FLAG)}


@st.composite
def blocks(draw, sees="causal", cross=False):
    norm_in = draw(FLAG)
    norm_out = draw(st.sampled_from(["none", "inside", "outside"]))
    table = {
        "attention": draw(attentions(sees)),
        "ffn": draw(ffns()),
        "norm": draw(NORMS) if norm_in and norm_out == "none" else draw(SOME_NORM),
        "norm_in": norm_in or norm_out == "none",
        "norm_out": norm_out,
    }
    if cross:
        table["cross"] = {"n_heads": 2, "n_kv_heads": draw(st.sampled_from([1, 2])), "bias": draw(FLAG)}
    else:
        table["parallel"] = draw(st.sampled_from(["no", "one norm", "two norms"]))
    return table


@st.composite
def embeds(draw, segments=True):
    return {
        "width": draw(st.sampled_from([None, 4])),
        "position": draw(st.sampled_from(["none", "learned", "sinusoidal"])),
        "segments": draw(st.sampled_from([None, 2])) if segments else None,
        "norm": draw(NORMS),
    }


@st.composite
def configs(draw):
    """A model of one or two kinds of block, perhaps with an encoder; None where a rule refuses what was drawn."""
    encoder = draw(st.integers(0, 3)) == 0
    names = draw(st.sampled_from([["a"], ["a", "b"]]))
    table = {
        "vocab_size": 11,
        "d_model": 16,
        "n_layers": draw(st.integers(len(names), 4)),
        "max_len": 32,
        "blocks": {name: draw(blocks(cross=encoder)) for name in names},
        "embed": draw(embeds(segments=not encoder)),
        "final_norm": draw(NORMS),
        "head": {
            "tied": draw(FLAG),
            "bias": draw(FLAG),
            "transform": draw(st.sampled_from([None, {"norm": "layer"}, {"norm": "none"}])),
        },
    }
    if encoder:
        share = draw(FLAG)
        embed = draw(embeds(segments=False)) | ({"width": table["embed"]["width"]} if share else {})
        table["encoder"] = {"n_layers": draw(st.integers(1, 2)), "embed": embed, "share_embedding": share}
        table["encoder"] |= draw(blocks(sees="all"))
    try:
        return ModelConfig(**table)
    except ConfigError:
        return None
