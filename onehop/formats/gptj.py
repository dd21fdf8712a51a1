"""GPT-J as Hugging Face folders: Wang and Komatsuzaki 2021, the Mesh Transformer JAX release. No torch."""

from onehop.config.model import ModelConfig
from onehop.config.position import RopeConfig
from onehop.formats import classic, kin
from onehop.formats.keys import Json, Key, Keys, Only
from onehop.formats.layout import Family
from onehop.formats.table import Move, turned

BODY = "transformer."
_H = f"{BODY}h.{{i}}."
TURNED = turned(lambda site: site.block.attention.n_heads)


def read_width(raw: Json) -> Json:
    """How many dims of a head turn: 64 where nothing is said, all of them where it is null."""
    return {"attention.position.width": raw.get("rotary_dim", 64)}


def write_width(config: ModelConfig) -> Json:
    """The same, as a number."""
    a = next(config.layers()).attention
    width = a.position.width if isinstance(a.position, RopeConfig) else None
    return {"rotary_dim": width or a.d_head}


GPTJ = Family(
    name="gptj",
    title="Hugging Face GPT-J",
    architecture="GPTJForCausalLM",
    structure={
        **classic.STRUCTURE,
        "attention.position.kind": "rope",
        "ffn.bias": True,
        "head.bias": True,
        "parallel": "one norm",
    },
    keys=(
        *classic.gpt_keys("gelu_new", dropout=0.0),
        Key("n_positions", "max_len", default=2048),
        Keys("rotary_dim", read_width, write_width),
        kin.tie(default=False),
        Only("rotary", (True,), "this layout has rotary positions"),
        Only("scale_attn_weights", (True,), "scores are scaled"),
    ),
    tensors=(
        Move(f"{BODY}wte.weight", "embed.tokens.weight"),
        *kin.block_norm(f"{_H}ln_1", "layers.{i}.attention_norm"),
        Move(f"{_H}attn.q_proj.weight", "layers.{i}.attention.wq.weight", TURNED),
        Move(f"{_H}attn.k_proj.weight", "layers.{i}.attention.wk.weight", TURNED),
        Move(f"{_H}attn.v_proj.weight", "layers.{i}.attention.wv.weight"),
        Move(f"{_H}attn.out_proj.weight", "layers.{i}.attention.wo.weight"),
        *classic.mlp(f"{_H}mlp.fc_in", f"{_H}mlp.fc_out"),
        *kin.final_norm(f"{BODY}ln_f"),
        *classic.head(of=f"{BODY}wte.weight"),
        Move("lm_head.bias", "head.projection.bias"),
        *classic.masks(f"{_H}attn"),
    ),
    limits=classic.heads_fill,
    aliases=classic.GPT_NAMES,
    prefix=BODY,
)
