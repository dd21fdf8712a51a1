"""Falcon as Hugging Face folders: arXiv:2311.16867. No torch.

Three forms: RW (ALiBi, one block after the other), 7B (one key and value head, one norm for attention and feed-forward
side by side), and the new decoder architecture of 40B and 180B (grouped heads, a norm for each of the two).
"""

from onehop.base.errors import CheckpointError
from onehop.config.model import ModelConfig
from onehop.formats import classic, kin
from onehop.formats.keys import Harmless, Json, Key, Keys, Only
from onehop.formats.layout import Family
from onehop.formats.rope_keys import LENGTH, Rope
from onehop.formats.table import GROUPED_QKV, Drop, Move, Site

BODY = "transformer."
_H = f"{BODY}h.{{i}}."
ROPE = Rope(length=2048)
# Added before the scores are divided by the root of the head's width, and in bfloat16.
ALIBI = {"kind": "alibi", "scaled": True, "rounded": True}
FORM = "num_ln_in_parallel_attn new_decoder_architecture multi_query parallel_attn num_kv_heads"


def read_form(raw: Json) -> Json:
    """How many key and value heads, and how attention and feed-forward stand to each other."""
    new, norms = bool(raw.get("new_decoder_architecture")), raw.get("num_ln_in_parallel_attn")
    parallel, multi_query = (raw.get(key, True) is not False for key in ("parallel_attn", "multi_query"))
    if norms not in (None, 1, 2) or (norms == 2 and not new and parallel) or (new and not parallel):
        raise CheckpointError(
            f"config.json: num_ln_in_parallel_attn={norms!r} and parallel_attn={parallel} have no meaning with "
            f"new_decoder_architecture={new}. Needed: parallel_attn=true, and 2 norms in the new architecture only."
        )
    heads = raw.get("num_attention_heads")
    kv_heads = (raw.get("num_kv_heads") or heads) if new else 1 if multi_query else heads
    side_by_side = "two norms" if new and norms != 1 else "one norm" if parallel else "no"
    return {"attention.n_kv_heads": kv_heads, "parallel": side_by_side}


def write_form(config: ModelConfig) -> Json:
    """The form of the first years wherever it can say the same."""
    block = next(config.layers())
    a = block.attention
    new = block.parallel == "two norms" or a.n_kv_heads not in (1, a.n_heads)
    return {
        "new_decoder_architecture": new,
        "multi_query": a.n_kv_heads == 1,
        "num_kv_heads": a.n_kv_heads,
        "parallel_attn": new or block.parallel != "no",
        "num_ln_in_parallel_attn": None if not new else 2 if block.parallel == "two norms" else 1,
    }


def read_position(raw: Json) -> Json:
    """ALiBi, or rotary positions."""
    if raw.get("alibi"):
        return {"max_len": raw.get(LENGTH) or ROPE.length, **{f"attention.position.{k}": v for k, v in ALIBI.items()}}
    return {"attention.position.kind": "rope", **ROPE.read(raw)}


def write_position(config: ModelConfig) -> Json:
    """The same as keys."""
    if next(config.layers()).attention.position.kind == "rope":
        return {"alibi": False, **ROPE.write(config)}
    return {"alibi": True, LENGTH: config.max_len}


def two_norms(site: Site) -> bool:
    """The new decoder architecture's two norms side by side."""
    return site.block.parallel == "two norms"


FALCON = Family(
    name="falcon",
    title="Hugging Face Falcon",
    architecture="FalconForCausalLM",
    structure=classic.STRUCTURE,
    keys=(
        Key("vocab_size", "vocab_size"),
        Key("hidden_size", "d_model"),
        Key("num_hidden_layers", "n_layers"),
        Key("num_attention_heads", "attention.n_heads"),
        Keys(FORM, read_form, write_form),
        Keys(" ".join(("alibi", *ROPE.names)), read_position, write_position),
        Key("bias", ("attention.bias", "attention.bias_out", "ffn.bias"), default=False),
        classic.inner("ffn_hidden_size", "hidden_size"),
        classic.activation("activation", "gelu"),
        classic.eps("layer_norm_epsilon"),
        Key("attention_dropout", "dropout.attention", default=0.0),
        Key("hidden_dropout", "dropout.residual", default=0.0),
        Key("initializer_range", "init_std", default=0.02),
        kin.tie(default=True),
        Only("apply_residual_connection_post_layernorm", (False,), "the residual stream is what was not normalised"),
        Harmless("ff_factor", "ffn_hidden_size says it"),
        Harmless("pretraining_tp slow_but_exact", "in how many pieces a product is summed"),
    ),
    tensors=(
        Move(f"{BODY}word_embeddings.weight", "embed.tokens.weight"),
        *kin.block_norm(f"{_H}ln_attn", "layers.{i}.attention_norm", when=two_norms),
        *kin.block_norm(f"{_H}ln_mlp", "layers.{i}.ffn_norm", when=two_norms),
        *kin.block_norm(f"{_H}input_layernorm", "layers.{i}.attention_norm", when=lambda s: not two_norms(s)),
        *kin.block_norm(
            f"{_H}post_attention_layernorm", "layers.{i}.ffn_norm", when=lambda s: s.block.parallel == "no"
        ),
        *classic.fused(f"{_H}self_attention.query_key_value", GROUPED_QKV),
        *classic.linear(f"{_H}self_attention.dense", "layers.{i}.attention.wo", bias=kin.biased_out),
        *classic.mlp(f"{_H}mlp.dense_h_to_4h", f"{_H}mlp.dense_4h_to_h"),
        *kin.final_norm(f"{BODY}ln_f"),
        *classic.head(of=f"{BODY}word_embeddings.weight"),
        Drop(f"{_H}self_attention.rotary_emb.inv_freq", "rotary frequencies of old files: computed from the config"),
    ),
    limits=classic.heads_fill,
    aliases={"n_embed": "hidden_size"},
    prefix=BODY,
)
