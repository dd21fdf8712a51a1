"""OPT as Hugging Face folders: arXiv:2205.01068. No torch."""

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
    """The width of a token's row, which is another than the model's in the OPT of 350M."""
    width = raw.get("word_embed_proj_dim")
    return {"embed.width": None if width == raw.get("hidden_size") else width}


def write_width(config: ModelConfig) -> Json:
    """The same as a number."""
    return {"word_embed_proj_dim": config.embed.width or config.d_model}


def before(site: Site) -> bool:
    """Whether the norms stand before the sublayers."""
    return site.block.norm_in


def after(site: Site) -> bool:
    """Whether the norms stand after the residual sums."""
    return not site.block.norm_in


def projected(site: Site) -> bool:
    """Whether a token's row has another width than the model."""
    return site.config.embed.width is not None


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
        Keys("word_embed_proj_dim", read_width, write_width),
        Key("dropout", "dropout.residual", default=0.1),
        Key("attention_dropout", "dropout.attention", default=0.0),
        Key("init_std", "init_std", default=0.02),
        kin.tie(default=True),
        Harmless("layerdrop activation_dropout", "training only"),
    ),
    tensors=(
        Move(f"{_DECODER}embed_tokens.weight", "embed.tokens.weight"),
        Move(f"{_DECODER}embed_positions.weight", "embed.positions.weight"),
        Move(f"{_DECODER}project_in.weight", "embed.widen.weight", when=projected),
        Move(f"{_DECODER}project_out.weight", "head.narrow.weight", when=projected),
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
