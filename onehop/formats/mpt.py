"""MPT as Hugging Face folders: MosaicML 2023, the llm-foundry release. No torch."""

from collections.abc import Iterator

from onehop.base.errors import CheckpointError
from onehop.config.model import ModelConfig
from onehop.formats import classic, kin
from onehop.formats.keys import Harmless, Json, Key, Keys, Only, read_keys, write_keys
from onehop.formats.layout import Family
from onehop.formats.table import Move, rows

BODY = "transformer."
_B = f"{BODY}blocks.{{i}}."
TITLE = "Hugging Face MPT"

ATTENTION = (
    Only("attn_type", ("multihead_attention",), "every head has keys and values of its own here"),
    Only("alibi", (True,), "this layout has ALiBi"),
    Key("alibi_bias_max", "attention.position.max_exponent", default=8),
    Key("softmax_scale", "attention.scale", default=None),
    Only("clip_qkv", (), "queries, keys and values would be clipped"),
    Only("prefix_lm", (False,), "a prefix would be read in both directions"),
    Only("qk_ln", (False,), "queries and keys would be normalised"),
    Key("attn_pdrop", ("dropout.attention", "dropout.residual"), default=0),
    Harmless("attn_impl", "which kernel computes the same"),
    Harmless("attn_uses_sequence_id", "for callers that pack several texts into one row"),
)


def read_attention(raw: Json) -> Json:
    """The table attn_config."""
    found = raw.get("attn_config") or {}
    if not isinstance(found, dict):
        raise CheckpointError(f"config.json: attn_config={found!r} should be a table")
    return read_keys(ATTENTION, found, title=f"{TITLE}'s attn_config")


def write_attention(config: ModelConfig) -> Json:
    """The same, with whole numbers where their reader takes no others."""
    table = {"alibi": True, **write_keys(ATTENTION, config)}
    whole = {key: int(value) for key, value in table.items() if isinstance(value, float) and value == int(value)}
    return {"attn_config": {**table, **{key: whole[key] for key in whole if key != "softmax_scale"}}}


def limits(config: ModelConfig) -> Iterator[str]:
    """What its own code refuses."""
    yield from classic.four_times(config)
    largest = getattr(next(config.layers()).attention.position, "max_exponent", 8.0)
    for field, value in (
        ("dropout.attention", config.dropout.attention),
        ("attention.position.max_exponent", largest),
    ):
        if value != int(value):
            yield f"{field}={value} must be a whole number in a {TITLE}."


MPT = Family(
    name="mpt",
    title=TITLE,
    architecture="MptForCausalLM",
    structure={
        **classic.STRUCTURE,
        "norm.bias": False,
        "final_norm.bias": False,
        "attention.position.kind": "alibi",
        "ffn.activation": "gelu",
    },
    keys=(
        Key("vocab_size", "vocab_size"),
        Key("d_model", "d_model"),
        Key("n_layers", "n_layers"),
        Key("n_heads", "attention.n_heads"),
        classic.inner(None, "d_model"),
        Key("max_seq_len", "max_len", default=2048),
        Keys("attn_config", read_attention, write_attention),
        classic.eps("layer_norm_epsilon"),
        Key("initializer_range", "init_std", default=0.02),
        kin.tie(default=True),
        Only("no_bias", (True,), "linear maps and norms have no biases in this layout"),
        Only("norm_type", ("low_precision_layernorm", "layernorm"), "norms are LayerNorm in this layout"),
        Only("logit_scale", (), "logits would be scaled"),
        Harmless("expansion_ratio", "transformers' own code always takes 4; other widths are seen in the tensors"),
        Harmless("learned_pos_emb", "no learned positions beside ALiBi"),
        Harmless("emb_pdrop resid_pdrop embedding_fraction", "training only"),
        Harmless("init_device init_config verbose tokenizer_name", "how it was made"),
    ),
    tensors=(
        Move(f"{BODY}wte.weight", "embed.tokens.weight"),
        *classic.pre_norms(f"{_B}norm_1", f"{_B}norm_2"),
        *classic.fused(f"{_B}attn.Wqkv", rows(classic.qkv_sizes)),
        Move(f"{_B}attn.out_proj.weight", "layers.{i}.attention.wo.weight"),
        *classic.mlp(f"{_B}ffn.up_proj", f"{_B}ffn.down_proj"),
        *kin.final_norm(f"{BODY}norm_f"),
        *classic.head(of=f"{BODY}wte.weight"),
    ),
    limits=limits,
    aliases={"num_attention_heads": "n_heads", "hidden_size": "d_model", "num_hidden_layers": "n_layers"},
    prefix=BODY,
)
