"""SantaCoder and StarCoder as Hugging Face folders: arXiv:2301.03988, 2305.06161. No torch."""

from onehop.config.model import ModelConfig
from onehop.formats import classic, kin
from onehop.formats.keys import Harmless, Json, Key, Keys
from onehop.formats.layout import Family
from onehop.formats.table import GROUPED_QKV, Move, Site, rows

BODY = "transformer."
_H = f"{BODY}h.{{i}}."


def read_kv_heads(raw: Json) -> Json:
    """One key and value head for all, or one for each query head."""
    return {} if raw.get("multi_query") is False else {"attention.n_kv_heads": 1}


def write_kv_heads(config: ModelConfig) -> Json:
    """Whether one head serves all."""
    return {"multi_query": next(config.layers()).attention.n_kv_heads == 1}


def one_head(site: Site) -> bool:
    """One key and value head: three blocks of rows. Otherwise the three lie together head by head."""
    return site.block.attention.n_kv_heads == 1


GPT_BIGCODE = Family(
    name="gpt_bigcode",
    title="Hugging Face GPT-BigCode",
    architecture="GPTBigCodeForCausalLM",
    structure={
        **classic.STRUCTURE,
        **classic.LEARNED,
        "attention.bias": True,
        "attention.bias_out": True,
        "ffn.bias": True,
    },
    keys=(
        *classic.gpt_keys("gelu_pytorch_tanh", dropout=0.1),
        Key("n_positions", "max_len", default=1024),
        Keys("multi_query", read_kv_heads, write_kv_heads),
        classic.UNSCALED,
        kin.tie(default=True),
        Harmless("attention_softmax_in_fp32 scale_attention_softmax_in_fp32", "in which precision scores are computed"),
        Harmless("num_key_value_heads", "follows from multi_query"),
        Harmless("inference_runner validate_runner_input pre_allocate_kv_cache pad_key_length", "how it is run"),
        Harmless("max_batch_size", "how it is run"),
    ),
    tensors=(
        Move(f"{BODY}wte.weight", "embed.tokens.weight"),
        Move(f"{BODY}wpe.weight", "embed.positions.weight"),
        *classic.pre_norms(f"{_H}ln_1", f"{_H}ln_2"),
        *classic.fused(f"{_H}attn.c_attn", rows(classic.qkv_sizes), when=one_head),
        *classic.fused(f"{_H}attn.c_attn", GROUPED_QKV, when=lambda s: not one_head(s)),
        *classic.linear(f"{_H}attn.c_proj", "layers.{i}.attention.wo"),
        *classic.mlp(f"{_H}mlp.c_fc", f"{_H}mlp.c_proj"),
        *kin.final_norm(f"{BODY}ln_f"),
        *classic.head(of=f"{BODY}wte.weight"),
        *classic.masks(f"{_H}attn"),
    ),
    limits=classic.heads_fill,
    aliases=classic.GPT_NAMES,
    prefix=BODY,
)
