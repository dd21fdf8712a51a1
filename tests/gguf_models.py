"""Small configs that each GGUF architecture can hold, with options that bite."""

from onehop.config import ModelConfig

FULL_TURN = {"kind": "rope", "theta": 5e5}
YARN = {"kind": "yarn", "factor": 4.0, "original_max_len": 16}
LLAMA3 = {"kind": "llama3", "factor": 8.0, "original_max_len": 8192}
LONGROPE = {
    "kind": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.5], "long_factor": [1.0, 2.0, 3.5, 5.0],
    "original_max_len": 16, "attention_factor": 1.25,
}  # fmt: skip


def _rms(eps=1e-5, offset=0):
    return {"kind": "rms", "eps": eps, "offset": offset}


def _model(**own):
    return ModelConfig.model_validate({"vocab_size": 61, "d_model": 32, "n_layers": 3, "max_len": 64, "init_std": 0.3,
                                       **own})  # fmt: skip


def llama(*, attention=None, position=FULL_TURN, ffn=None, **own):
    """The architecture of most: RMSNorm, gated, rotary."""
    heads = {"n_heads": 4, "n_kv_heads": 2, "position": position}
    norms = {"norm": _rms(), "final_norm": _rms()}
    return _model(**{"attention": heads | (attention or {}), "ffn": {"kind": "gated", "d_ff": 48} | (ffn or {}),
                     **norms, "head": {"tied": False}, **own})  # fmt: skip


def gemma(*, period=None, attention=None, qk=False, post=False, **own):
    """Norm weights around 0, a scaled embedding; `period`: every so many layers one without a window."""
    norm = _rms(1e-6, 1)
    attention = {"n_heads": 4, "n_kv_heads": 1, "d_head": 16} | (attention or {})
    if qk:
        attention["qk_norm"] = {"norm": norm, "span": "head"}
    far = {"attention": {"position": {"kind": "rope", "theta": 1e6 if qk else 1e4}}}
    near = {"attention": {"window": 5, "position": {"kind": "rope", "theta": 1e4}}}
    layers = {} if period is None else {
        "blocks": {"near": near, "far": far}, "pattern": ["near"] * (period - 1) + ["far"], "n_layers": 7,
    }  # fmt: skip
    return _model(**{
        "attention": attention, "ffn": {"kind": "gated", "d_ff": 48, "activation": "gelu_tanh"}, "norm": norm,
        "final_norm": norm, "embed": {"scale": 32**0.5}, "norm_out": "inside" if post else "none", **layers, **own,
    })  # fmt: skip


def classic(*, attention=None, ffn=None, bias=True, **own):
    """LayerNorm and a plain feed-forward layer, with biases or without."""
    norm = {"kind": "layer", "eps": 1e-5}
    biases = {"bias": bias, "bias_out": bias}
    return _model(**{
        "attention": {"n_heads": 4, **biases} | (attention or {}), "norm": norm, "final_norm": norm,
        "ffn": {"kind": "plain", "d_ff": 128, "activation": "gelu", "bias": bias} | (ffn or {}), **own,
    })  # fmt: skip


NONE, ALIBI, ROPE = ({"position": {"kind": kind}} for kind in ("none", "alibi", "rope"))
TANH = {"activation": "gelu_tanh"}
NO_BIAS = {"kind": "layer", "eps": 1e-5, "bias": False}
BIASED = {"bias": True, "bias_out": True}
QK = {"qk_norm": {"norm": _rms(), "span": "head"}}

# The architecture, and a config for it.
CASES = {
    "llama": ("llama", llama()),
    "llama, tied, biases, odd heads": ("llama", llama(attention={"d_head": 6, **BIASED}, ffn={"bias": True},
                                                      head={"tied": True})),
    "llama, one key head": ("llama", llama(attention={"n_kv_heads": 1})),
    "llama, linear": ("llama", llama(position={"kind": "rope", "scaling": {"kind": "linear", "factor": 2.5}})),
    "llama, yarn": ("llama", llama(position={"kind": "rope", "scaling": YARN})),
    "llama, yarn with its own warmth": ("llama", llama(position={"kind": "rope", "scaling": YARN | {
        "beta_fast": 24.0, "beta_slow": 2.0, "factor": 3.5}})),
    "llama, llama3": ("llama", llama(attention={"d_head": 16}, position=FULL_TURN | {"scaling": LLAMA3})),
    "llama, longrope": ("llama", llama(position={"kind": "rope", "scaling": LONGROPE})),
    "llama, experts": ("llama", llama(ffn={"kind": "moe", "n_experts": 5, "n_active": 3, "d_ff": 24})),
    "qwen2": ("qwen2", llama(attention={"bias": True})),
    "qwen3": ("qwen3", llama(attention={"d_head": 12, **QK})),
    "gemma": ("gemma", gemma()),
    "gemma2": ("gemma2", gemma(period=2, post=True, attention={"softcap": 7.0}, head={"softcap": 5.0})),
    "gemma3": ("gemma3", gemma(period=6, post=True, qk=True)),
    "gemma3, another pattern": ("gemma3", gemma(period=3, post=True, qk=True, head={"tied": False})),
    "gemma3, no windows": ("gemma3", gemma(post=True, qk=True)),
    "phi3": ("phi3", llama(attention={"window": 9})),
    "phi3, longrope": ("phi3", llama(position={"kind": "rope", "scaling": LONGROPE})),
    "gpt2": ("gpt2", classic(attention=NONE, ffn=TANH, embed={"position": "learned"})),
    "starcoder2": ("starcoder2", classic(attention={"n_kv_heads": 2, **ROPE}, ffn=TANH)),
    "gptneox": ("gptneox", classic(attention={"position": {"kind": "rope", "width": 4}}, parallel="two norms",
                                   head={"tied": False})),
    "gptneox, one after the other": ("gptneox", classic(attention=ROPE, head={"tied": False})),
    "falcon": ("falcon", classic(bias=False, attention={"n_kv_heads": 1, **ROPE}, parallel="one norm")),
    "falcon, two norms": ("falcon", classic(bias=False, attention={"n_kv_heads": 2, **ROPE}, parallel="two norms")),
    "bloom": ("bloom", classic(attention=ALIBI, ffn=TANH, embed={"norm": {"kind": "layer", "eps": 1e-5}})),
    "mpt, other slopes, clipped": ("mpt", classic(
        bias=False, attention={"position": {"kind": "alibi", "max_exponent": 6.0}, "clip": 0.7}, norm=NO_BIAS,
        final_norm=NO_BIAS)),
    "mpt": ("mpt", classic(bias=False, attention=ALIBI, norm=NO_BIAS, final_norm=NO_BIAS)),
}  # fmt: skip
