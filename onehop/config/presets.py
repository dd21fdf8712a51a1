"""Named shapes of published models, and tiny ones: what `model.preset` starts from. The only families named here."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

Raw = dict[str, Any]


def _rms_gated(**own: Any) -> Raw:
    """RMSNorm, rotary positions, grouped heads and a gated SiLU feed-forward, no biases: the common open recipe."""
    heads, kv_heads, theta, eps = own.pop("n_heads"), own.pop("n_kv_heads"), own.pop("theta"), own.pop("eps")
    norm = {"kind": "rms", "eps": eps}
    return {
        "attention": {"n_heads": heads, "n_kv_heads": kv_heads, "position": {"kind": "rope", "theta": theta}},
        "ffn": {"kind": "gated", "d_ff": own.pop("d_ff"), "activation": "silu"},
        "norm": norm,
        "final_norm": norm,
        "head": {"tied": False},
        **own,
    }


def _gpt2(**own: Any) -> Raw:
    """Radford et al. 2019, "Language models are unsupervised multitask learners", with the released code's biases."""
    norm = {"kind": "layer", "eps": 1e-5}
    return {
        "vocab_size": 50257,
        "d_model": own["d_model"],
        "n_layers": own["n_layers"],
        "max_len": 1024,
        "embed": {"position": "learned"},
        "attention": {"n_heads": own["n_heads"], "bias": True, "bias_out": True, "position": {"kind": "none"}},
        "ffn": {"kind": "plain", "d_ff": 4 * own["d_model"], "activation": "gelu_tanh", "bias": True},
        "norm": norm,
        "final_norm": norm,
        "head": {"tied": True},
        **own.get("more", {}),
    }


def _llama2() -> Raw:
    """Touvron et al. 2023, arXiv:2307.09288."""
    return _rms_gated(
        vocab_size=32000, d_model=4096, n_layers=32, n_heads=32, n_kv_heads=32, d_ff=11008, max_len=4096,
        theta=10000.0, eps=1e-5,
    )  # fmt: skip


def _llama3(**own: Any) -> Raw:
    """Grattafiori et al. 2024, arXiv:2407.21783, table 3, with the first release's context of 8192."""
    return _rms_gated(vocab_size=128256, n_kv_heads=8, max_len=8192, theta=500000.0, eps=1e-5, **own)


def _mistral() -> Raw:
    """Jiang et al. 2023, arXiv:2310.06825, table 1 (version 0.1: every layer sees 4096 keys)."""
    table = _rms_gated(
        vocab_size=32000, d_model=4096, n_layers=32, n_heads=32, n_kv_heads=8, d_ff=14336, max_len=32768,
        theta=10000.0, eps=1e-5,
    )  # fmt: skip
    return {**table, "attention": {**table["attention"], "window": 4096}}


def _mixtral() -> Raw:
    """Jiang et al. 2024, arXiv:2401.04088, table 1; the balance loss's weight is the released configuration's."""
    table = _rms_gated(
        vocab_size=32000, d_model=4096, n_layers=32, n_heads=32, n_kv_heads=8, d_ff=14336, max_len=32768,
        theta=1e6, eps=1e-5,
    )  # fmt: skip
    experts = {"kind": "moe", "d_ff": 14336, "n_experts": 8, "n_active": 2, "gate": "softmax", "renormalise": True}
    return {**table, "ffn": {**experts, "balance": "loss", "balance_weight": 0.02}}


def _gemma3_270m() -> Raw:
    """The Gemma 3 report, arXiv:2503.19786, section 2, in the 270M release's sizes: five local blocks to one global."""
    norm = {"kind": "rms", "eps": 1e-6, "offset": 1}
    attention = {
        "n_heads": 4, "n_kv_heads": 1, "d_head": 256, "scale": 256**-0.5, "qk_norm": {"norm": norm, "span": "head"},
    }  # fmt: skip
    return {
        "vocab_size": 262144,
        "d_model": 640,
        "n_layers": 18,
        "max_len": 32768,
        "embed": {"scale": 640**0.5},
        "attention": attention,
        "ffn": {"kind": "gated", "d_ff": 2048, "activation": "gelu_tanh"},
        "norm": norm,
        "norm_out": "inside",
        "final_norm": norm,
        "head": {"tied": True},
        "blocks": {
            "local": {"attention": {"window": 512, "position": {"kind": "rope", "theta": 10000.0}}},
            "global": {"attention": {"position": {"kind": "rope", "theta": 1e6}}},
        },
        "pattern": ["local"] * 5 + ["global"],
    }


def _original(**own: Any) -> Raw:
    """Vaswani et al. 2017, arXiv:1706.03762, table 3; as in the authors' code, only the feed-forward has biases."""
    block: Raw = {
        "attention": {"n_heads": own["n_heads"], "position": {"kind": "none"}},
        "ffn": {"kind": "plain", "d_ff": own["d_ff"], "activation": "relu", "bias": True},
        "norm": {"kind": "layer", "eps": 1e-6},
        "norm_in": False,
        "norm_out": "outside",
    }
    embed = {"position": "sinusoidal", "scale": own["d_model"] ** 0.5}
    stack = {"n_layers": own["n_layers"], "final_norm": {"kind": "none"}, "embed": embed}
    encoder = {**stack, **block, "attention": {**block["attention"], "sees": "all"}, "share_embedding": True}
    return {
        "vocab_size": own["vocab_size"],
        "d_model": own["d_model"],
        "max_len": own["max_len"],
        **stack,
        **block,
        "cross": {"n_heads": own["n_heads"]},
        "encoder": encoder,
        "head": {"tied": True},
        "dropout": own.get("dropout", {}),
    }


PRESETS: Mapping[str, Raw] = MappingProxyType(
    {
        "gpt2": _gpt2(d_model=768, n_layers=12, n_heads=12),
        "gpt2-medium": _gpt2(d_model=1024, n_layers=24, n_heads=16),
        "gpt2-large": _gpt2(d_model=1280, n_layers=36, n_heads=20),
        "gpt2-xl": _gpt2(d_model=1600, n_layers=48, n_heads=25),
        "llama-2-7b": _llama2(),
        "llama-3-8b": _llama3(d_model=4096, n_layers=32, n_heads=32, d_ff=14336),
        "llama-3-70b": _llama3(d_model=8192, n_layers=80, n_heads=64, d_ff=28672),
        "mistral-7b": _mistral(),
        "mixtral-8x7b": _mixtral(),
        "gemma-3-270m": _gemma3_270m(),
        # the paper gives no longest text (sinusoids have none): 512 tokens hold its sentence pairs
        "original-transformer-base": _original(
            vocab_size=37000, d_model=512, n_layers=6, n_heads=8, d_ff=2048, max_len=512,
            dropout={"embed": 0.1, "residual": 0.1},
        ),
        "tiny": _rms_gated(
            vocab_size=1024, d_model=64, n_layers=4, n_heads=4, n_kv_heads=2, d_ff=192, max_len=256,
            theta=10000.0, eps=1e-5, head={"tied": True},
        ),
        "tiny-moe": {
            **_rms_gated(
                vocab_size=1024, d_model=64, n_layers=4, n_heads=4, n_kv_heads=2, d_ff=64, max_len=256,
                theta=10000.0, eps=1e-5, head={"tied": True},
            ),
            "ffn": {"kind": "moe", "d_ff": 64, "n_experts": 8, "n_active": 2},
        },
        "tiny-gpt2": _gpt2(d_model=64, n_layers=4, n_heads=4, more={"vocab_size": 1024, "max_len": 256}),
        "tiny-encoder-decoder": _original(
            vocab_size=1024, d_model=64, n_layers=2, n_heads=4, d_ff=256, max_len=256
        ),
    }
)  # fmt: skip
