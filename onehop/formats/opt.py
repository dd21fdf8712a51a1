"""OPT as Hugging Face folders: arXiv:2205.01068. No torch."""

from onehop.base.errors import CheckpointError
from onehop.config.model import ModelConfig
from onehop.formats import classic, kin
from onehop.formats.keys import Harmless, Json, Key, Keys
from onehop.formats.layout import Family
from onehop.formats.table import Move, Site

BODY = "model."
_DECODER = f"{BODY}decoder."
_L = f"{_DECODER}layers.{{i}}."


def read_norms(raw: Json) -> Json:
    """Norms before each sublayer and after the last layer, or (350M) after each residual sum."""
    before = raw.get("do_layer_norm_before") is not False
    affine = raw.get("layer_norm_elementwise_affine") is not False
    last = before and not raw.get("_remove_final_layer_norm")
    out: Json = {"norm_in": before, "norm_out": "none" if before else "outside", "norm.affine": affine}
    return {**out, **({"final_norm.kind": "layer", "final_norm.affine": affine} if last else {"final_norm": "none"})}


def write_norms(config: ModelConfig) -> Json:
    """The same as keys."""
    block = next(config.layers())
    return {
        "do_layer_norm_before": block.norm_in,
        "layer_norm_elementwise_affine": getattr(block.norm, "affine", True),
        "_remove_final_layer_norm": block.norm_in and config.final_norm.kind == "none",
    }


def read_width(raw: Json) -> Json:
    """The width of the token matrix, which is that of the model or refused."""
    width, d_model = raw.get("word_embed_proj_dim"), raw.get("hidden_size")
    if width not in (None, d_model):
        raise CheckpointError(
            f"config.json: word_embed_proj_dim={width!r} cannot be honoured: tokens are embedded at the model's width "
            f"here. Needed: {d_model!r}, as in every OPT but the one of 350M."
        )
    return {}


def before(site: Site) -> bool:
    """Whether the norms stand before the sublayers."""
    return site.block.norm_in


def after(site: Site) -> bool:
    """Whether the norms stand after the residual sums."""
    return not site.block.norm_in


OPT = Family(
    name="opt",
    title="Hugging Face OPT",
    architecture="OPTForCausalLM",
    structure={
        "attention.kind": "grouped",
        "ffn.kind": "plain",
        "norm.kind": "layer",
        "norm.eps": 1e-5,
        **classic.LEARNED,
        "embed.position_offset": 2,
    },
    keys=(
        Key("vocab_size", "vocab_size"),
        Key("hidden_size", "d_model"),
        Key("num_hidden_layers", "n_layers"),
        Key("num_attention_heads", "attention.n_heads"),
        Key("ffn_dim", "ffn.d_ff", default=3072),
        classic.activation("activation_function", "relu"),
        Key("max_position_embeddings", "max_len", default=2048),
        Keys("do_layer_norm_before layer_norm_elementwise_affine _remove_final_layer_norm", read_norms, write_norms),
        Key("enable_bias", ("attention.bias", "attention.bias_out", "ffn.bias"), default=True),
        Keys("word_embed_proj_dim", read_width, lambda config: {"word_embed_proj_dim": config.d_model}),
        Key("dropout", "dropout.residual", default=0.1),
        Key("attention_dropout", "dropout.attention", default=0.0),
        Key("init_std", "init_std", default=0.02),
        kin.tie(default=True),
        Harmless("layerdrop activation_dropout", "training only"),
    ),
    tensors=(
        Move(f"{_DECODER}embed_tokens.weight", "embed.tokens.weight"),
        Move(f"{_DECODER}embed_positions.weight", "embed.positions.weight"),
        *classic.four_maps(f"{_L}self_attn."),
        *classic.mlp(f"{_L}fc1", f"{_L}fc2"),
        *classic.pre_norms(f"{_L}self_attn_layer_norm", f"{_L}final_layer_norm"),
        *kin.block_norm(f"{_L}self_attn_layer_norm", "layers.{i}.outside.attention", when=after),
        *kin.block_norm(f"{_L}final_layer_norm", "layers.{i}.outside.ffn", when=after),
        *kin.final_norm(f"{_DECODER}final_layer_norm"),
        *classic.head(of=f"{_DECODER}embed_tokens.weight"),
    ),
    limits=classic.heads_fill,
    prefix=BODY,
)
