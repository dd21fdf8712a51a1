"""What would change if one thing did: the textbook's comparisons, each as another config, or another wish."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onehop.base.errors import ConfigError
from onehop.config.attention import AttentionConfig
from onehop.config.ffn import GatedConfig, MoEConfig, PlainConfig
from onehop.config.model import ModelConfig
from onehop.config.position import RopeConfig
from onehop.config.raw import merge_stacks
from onehop.cost.devices import Device
from onehop.cost.planned import Asked, Plan
from onehop.cost.scaling import DEFAULT, law


@dataclass(frozen=True)
class Figures:
    """What a comparison compares; `loss` under the law `scaling.DEFAULT`, for equal training FLOPs.

    None where the law promises more than that of a guess, log(vocab_size): it was not made for models so small.
    """

    params: int
    active: int
    train_flops_per_token: float
    kv_bytes_per_token: int
    kv_bytes: int
    inference_bytes: float
    training_bytes: float
    decode_tokens_per_s: float | None
    latency_s: float | None
    loss: float | None


@dataclass(frozen=True)
class WhatIf:
    """One change and its figures."""

    name: str
    figures: Figures


def figures(plan: Plan, asked: Asked, device: Device | None, budget: float) -> Figures:
    """The figures of one model; `budget`: training FLOPs that all compared models may spend."""
    n = plan.parameters
    on_cpu = device is not None and device.kind == "cpu"
    phase = plan.times(device, asked).get("decode") if device is not None and device.flops else None
    per_token = plan.train_flops_per_token(plan.train_context(asked))
    loss = law(DEFAULT).loss(n.active, budget / per_token)
    return Figures(
        params=n.total,
        active=n.active,
        train_flops_per_token=per_token,
        kv_bytes_per_token=plan.kv_cache(asked.caches).bytes_per_token,
        kv_bytes=plan.kv_cache_bytes(batch=asked.batch, context=plan.context(asked), dtype=asked.caches),
        inference_bytes=plan.inference_memory(asked, on_cpu=on_cpu).total,
        training_bytes=plan.training_memory(asked, on_cpu=on_cpu).total,
        decode_tokens_per_s=None if phase is None else phase.tokens_per_s,
        latency_s=None if phase is None else phase.seconds,
        loss=loss if loss < math.log(plan.config.need_vocab()) else None,
    )


def training_flops(plan: Plan, asked: Asked) -> float:
    """FLOPs of all training: of the tokens asked for, or of those for which the model's size is the best."""
    tokens = law(DEFAULT).tokens_for(plan.parameters.active) if asked.tokens is None else asked.tokens
    return plan.train_flops_per_token(plan.train_context(asked)) * tokens


def swept(rows: Sequence[tuple[ModelConfig, Asked]], device: Device | None) -> list[Figures]:
    """The figures of each; all may spend what the first does on training, unless each was given its own tokens."""
    plans = [(Plan(config), asked) for config, asked in rows]
    budgets = [training_flops(*pair) for pair in plans]
    if len({asked.tokens for _, asked in rows}) == 1:
        budgets = budgets[:1] * len(plans)
    return [figures(*pair, device, budget) for pair, budget in zip(plans, budgets, strict=True)]


def what_ifs(config: ModelConfig, asked: Asked, device: Device | None) -> list[WhatIf]:
    """The model as it is, then each change that it allows."""
    plan = Plan(config)
    budget = training_flops(plan, asked)
    out = [WhatIf("as it is", figures(plan, asked, device, budget))]
    for name, make in _changes(config, asked):
        try:
            other, wish = make()
            changed_plan = Plan(other)
            if wish.stored is not None:  # bytes of a file: of another model in proportion, of another type not at all
                scale = changed_plan.parameters.total / plan.parameters.total
                wish = replace(wish, stored=wish.stored * scale if wish.dtype == asked.dtype else None)
            out.append(WhatIf(name, figures(changed_plan, wish, device, budget)))
        except ConfigError:
            continue  # a rule of the config forbids it, or it is more than a plan counts: nothing to compare
    return out


Changed = tuple[ModelConfig, Asked]
Change = tuple[str, Callable[[], Changed]]


def _changes(config: ModelConfig, asked: Asked) -> Iterator[Change]:
    first = config.blocks[0]
    yield from _heads(config, asked)
    if all(isinstance(block.ffn, PlainConfig | GatedConfig) for block in config.blocks):
        yield "8 experts, 2 active", lambda: (_as_moe(config), asked)
    if any(isinstance(block.ffn, MoEConfig) for block in config.blocks):
        yield "dense, for the same FLOPs", lambda: (_as_dense(config), asked)
    yield "twice as deep, as large", lambda: (reshaped(config, 2.0), asked)
    if config.n_layers >= 2 * len(config.pattern):
        yield "half as deep, as large", lambda: (reshaped(config, 0.5), asked)
    context = asked.context or config.max_len
    longest = max(config.max_len, context, asked.train_context or 1)
    yield (
        "twice the context",
        lambda: (
            changed(config, {"max_len": max(config.max_len, 2 * context)}),
            replace(asked, context=2 * context),
        ),
    )
    if asked.dtype in ("float32", "bfloat16", "float16"):
        yield "weights in 8 bits (q8_0)", lambda: (config, replace(asked, dtype="q8_0", cache_dtype=asked.caches))
        yield "weights in 4 bits (q4_k)", lambda: (config, replace(asked, dtype="q4_k", cache_dtype=asked.caches))
    if asked.cache_dtype != "int8" and not config.both_ways:
        yield "the cache in 8 bits", lambda: (config, replace(asked, cache_dtype="int8"))
    if isinstance(first.attention.position, RopeConfig) and type(first.attention) is AttentionConfig:
        yield "ALiBi in place of RoPE", lambda: (changed(config, {"attention.position": {"kind": "alibi"}}), asked)
    if config.embed.position == "none" and type(first.attention) is AttentionConfig:
        learned = {"attention.position": {"kind": "none"}, "embed.position": "learned", "max_len": longest}
        yield "learned positions", lambda: (changed(config, learned), asked)
    for times in (4, 16):
        more = asked.batch * times
        yield f"{more} texts at once", lambda more=more: (config, replace(asked, batch=more))  # type: ignore[misc]


def _heads(config: ModelConfig, asked: Asked) -> Iterator[Change]:
    """Multi-head, grouped and multi-query attention, without the one that the model has."""
    if any(type(block.attention) is not AttentionConfig for block in config.blocks):
        return
    heads = [(block.attention.n_heads, block.attention.n_kv_heads) for block in config.blocks]
    few = 8 if all(h % 8 == 0 and h > 8 for h, _ in heads) else 2
    for name, n in (("multi-head attention", None), (f"{few} key/value heads", few), ("multi-query attention", 1)):
        if all(kv == (h if n is None else n) for h, kv in heads) or (n == 2 and any(h % 2 or h <= 2 for h, _ in heads)):
            continue
        wanted = {block.name: {"attention": {"n_kv_heads": n or block.attention.n_heads}} for block in config.blocks}
        yield name, lambda wanted=wanted: (_with_blocks(config, wanted), asked)  # type: ignore[misc]


def _as_moe(config: ModelConfig) -> ModelConfig:
    """Each feed-forward layer as 8 experts of half its width: a token meets two of them."""
    wanted = {}
    for block in config.blocks:
        ffn: Any = block.ffn
        form = "gated" if isinstance(ffn, GatedConfig) else "plain"
        same = {"activation": ffn.activation, "bias": ffn.bias, "d_ff": max(1, ffn.d_ff // 2)}
        wanted[block.name] = {"ffn": {"kind": "moe", "n_experts": 8, "n_active": 2, "expert": form, **same}}
    return _with_blocks(config, wanted)


def _as_dense(config: ModelConfig) -> ModelConfig:
    """Each mixture as one layer of the width that a token meets."""
    wanted = {}
    for block in config.blocks:
        ffn = block.ffn
        if isinstance(ffn, MoEConfig):
            width = ffn.d_ff * ffn.n_active + (ffn.d_ff_shared or 0)
            wanted[block.name] = {
                "ffn": {"kind": ffn.expert, "d_ff": width, "activation": ffn.activation, "bias": ffn.bias}
            }
    return _with_blocks(config, wanted)


def reshaped(config: ModelConfig, depth: float) -> ModelConfig:
    """`depth` times the layers, widths smaller by its root, and feed-forwards so wide that parameters agree.

    Embeddings are left out of the comparison, as a law for the shape has it (Kaplan et al. 2020, section 3.1).
    """
    if config.encoder is not None or any(type(b.attention) is not AttentionConfig for b in config.blocks):
        raise ConfigError("reshaping an encoder-decoder or another attention is not one change")
    narrow = depth**-0.5
    whole = config.d_model // config.blocks[0].attention.n_heads
    first = config.blocks[0].attention
    shared = 1 if first.group == 1 else first.n_kv_heads
    heads = shared * max(1, round(first.n_heads * narrow / shared))
    wanted: dict[str, Any] = {}
    for block in config.blocks:
        kv = heads if block.attention.group == 1 else shared
        wanted[block.name] = {"attention": {"n_heads": heads, "n_kv_heads": kv}}
    table = {"n_layers": max(1, round(config.n_layers * depth)), "d_model": whole * heads, "blocks": wanted}
    target = Plan(config).parameters.non_embedding

    def made(scale: float) -> ModelConfig:
        for block in config.blocks:
            wanted[block.name]["ffn"] = {"d_ff": max(1, round(getattr(block.ffn, "d_ff", 1) * scale))}
        return changed(config, table)

    low, high = 0.05, 8.0
    for _ in range(14):
        middle = (low + high) / 2
        low, high = (middle, high) if Plan(made(middle)).parameters.non_embedding < target else (low, middle)
    return made(high)


def _with_blocks(config: ModelConfig, wanted: Mapping[str, Any]) -> ModelConfig:
    return changed(config, {"blocks": dict(wanted)})


def changed(config: ModelConfig, keys: Mapping[str, Any]) -> ModelConfig:
    """The config with other values at dotted keys ('attention.n_kv_heads': 2, in all blocks). Raises ConfigError."""
    layer: dict[str, Any] = {}
    for key, value in keys.items():
        table, words = layer, key.split(".")
        for word in words[:-1]:
            table = table.setdefault(word, {})
        table[words[-1]] = value
    return ModelConfig.model_validate(merge_stacks([config.model_dump(), layer]))
