"""Rules across fields: what cannot be built is refused here, with a way out, and never again further up.

A rule is a generator of broken-rule texts; each begins with the path of a field. Keys that have no effect are in
`effect.py`.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from onehop.base.errors import did_you_mean
from onehop.config.attention import AttentionConfig, LatentConfig
from onehop.config.effect import without_effect
from onehop.config.ffn import MoEConfig
from onehop.config.position import Llama3Scaling, LongRopeScaling, RopeConfig, T5Config, YarnScaling

if TYPE_CHECKING:
    from onehop.config.model import BlockConfig, EmbedConfig, EncoderConfig, ModelConfig, StackConfig

Faults = Iterator[str]
MANY_HEADS = 1024  # beyond any model's: a damaged file may claim billions, whose divisors nobody waits for


def faults(cfg: "ModelConfig") -> Faults:
    """Every broken rule as one line: path, what was given, what is needed, a way out."""
    yield from _stack(cfg, "")
    yield from _model(cfg)
    if cfg.encoder is not None:
        yield from _encoder(cfg.encoder)
    yield from without_effect(cfg)
    yield from _hashable(cfg)


def _stack(cfg: "StackConfig", where: str) -> Faults:
    names = [block.name for block in cfg.blocks]
    if not names:
        yield f"{where}blocks is empty: a stack needs at least one block"
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            yield f"{where}blocks: {name!r} is no name for a block. Use letters, digits, - and _."
    for name in dict.fromkeys(cfg.pattern):
        if name not in names:
            yield f"{where}pattern names the block {name!r}, which does not exist. {did_you_mean(name, names)}"
    for name in dict.fromkeys(names):
        if name not in cfg.pattern:
            pattern = ",".join(cfg.pattern)
            yield f"{where}blocks.{name} is not used: {where}pattern={pattern} never names it. Add or remove it."
    if len(cfg.pattern) > cfg.n_layers:
        yield (
            f"{where}pattern has {len(cfg.pattern)} blocks for n_layers={cfg.n_layers}: the last would never be built. "
            f"Use n_layers={len(cfg.pattern)} or a shorter pattern."
        )
    yield from each_block(cfg, where, BLOCK_RULES)


def each_block(cfg: "StackConfig", where: str, rules: "Iterable[BlockRule]") -> Faults:
    """Rules for each block; what all blocks break alike is told once, by the path that sets it in all of them."""
    for rule in rules:
        alike = {tuple(rule(block, where)) for block in cfg.blocks}
        if len(alike) == 1:
            yield from alike.pop()
            continue
        for block in cfg.blocks:
            yield from rule(block, f"{where}blocks.{block.name}.")


def _heads(block: "BlockConfig", path: str) -> Faults:
    for name, a in _attentions(block, path):
        if a.n_heads % a.n_kv_heads:
            few = a.n_heads <= MANY_HEADS
            fit = _or([d for d in range(1, a.n_heads + 1) if a.n_heads % d == 0]) if few else "a divisor of it"
            yield (
                f"{name}.n_kv_heads={a.n_kv_heads} cannot share n_heads={a.n_heads}: "
                f"it must divide {a.n_heads}. Use {fit}."
            )


def _rotary(block: "BlockConfig", path: str) -> Faults:
    for name, a in _attentions(block, path):
        if not isinstance(a.position, RopeConfig):
            continue
        width = a.position.width or a.d_head
        if width > a.d_head:
            most = a.d_head // 2 * 2 or 2
            yield f"{name}.position.width={width} is wider than a head (d_head={a.d_head}). Use at most {most}."
        elif width % 2:
            field = f"{name}.position.width={width}" if a.position.width else f"{name}.d_head={width}"
            even = [w for w in (width - 1, width + 1) if w and (w <= a.d_head or not a.position.width)]
            yield f"{field} is odd: rotary positions turn pairs of dims. Use {_or(even)}."
        yield from _scaling(a.position, width, f"{name}.position.scaling")


def _scaling(position: RopeConfig, width: int, path: str) -> Faults:
    scaling = position.scaling
    if isinstance(scaling, LongRopeScaling):
        for field in ("short_factor", "long_factor"):
            n = len(getattr(scaling, field))
            if n != width // 2:
                yield f"{path}.{field} has {n} factors for {width // 2} rotary pairs. Give {width // 2}."
        if scaling.factor is None and scaling.attention_factor is None:
            yield f"{path}=longrope needs factor or attention_factor: one of them says how to warm the scores"
    if isinstance(scaling, YarnScaling) and scaling.beta_fast <= scaling.beta_slow:
        yield (
            f"{path}: beta_fast={scaling.beta_fast:g} must be above beta_slow={scaling.beta_slow:g}, or the ramp "
            "turns round. Swap them."
        )
    if isinstance(scaling, Llama3Scaling) and scaling.high_freq_factor <= scaling.low_freq_factor:
        yield (
            f"{path}: high_freq_factor={scaling.high_freq_factor:g} must be above "
            f"low_freq_factor={scaling.low_freq_factor:g}. Swap them."
        )
    if scaling is not None and scaling.kind in ("ntk", "dynamic") and width <= 2:
        yield f"{path}={scaling.kind} needs a rotary width above 2, not {width}. Use linear."


def _buckets(block: "BlockConfig", path: str) -> Faults:
    for name, a in _attentions(block, path):
        if isinstance(a.position, T5Config):
            one_side = a.position.n_buckets // (2 if a.sees == "all" else 1)
            if one_side < 2 or a.position.max_distance <= one_side // 2:
                yield (
                    f"{name}.position: n_buckets={a.position.n_buckets} and max_distance={a.position.max_distance} "
                    f"leave no room to grow. Use n_buckets>={4 if a.sees == 'all' else 2}, "
                    f"max_distance>{max(one_side // 2, 1)}."
                )


def _window(block: "BlockConfig", path: str) -> Faults:
    for name, a in _attentions(block, path):
        if a.window is not None and a.sees == "prefix":
            yield f"{name}.window={a.window} and sees=prefix contradict: a window would hide the prefix. Leave one out."


def _cross(block: "BlockConfig", path: str) -> Faults:
    cross = block.cross
    if cross is None:
        return
    if cross.sees != "all" or cross.window is not None:
        yield f"{path}cross attends over the whole encoder output: it needs sees=all and no window"
    if cross.position.kind != "none":
        yield f"{path}cross.position={cross.position.kind}: encoder and decoder positions are not comparable. Use none."
    if cross.kind != "grouped":
        yield f"{path}cross.kind={cross.kind}: cross-attention comes in one kind. Use grouped."
    if cross.score is not None:
        yield f"{path}cross.score={cross.score.kind}: cross-attention takes no score rule. Leave it out."
    if block.parallel != "no":
        yield f"{path}parallel={block.parallel!r} cannot place cross-attention. Use parallel='no'."


def _norms(block: "BlockConfig", path: str) -> Faults:
    if block.parallel != "no" and block.norm_out == "outside":
        yield (
            f"{path}norm_out=outside normalises one sum after another; parallel={block.parallel!r} has only one. "
            "Use inside."
        )
    if block.parallel == "two norms" and not block.norm_in:
        yield (
            f"{path}parallel='two norms' and norm_in=false contradict: there is no input norm. Use parallel='one norm'."
        )
    if block.norm.kind == "none" and block.norm_out != "none":
        yield f"{path}norm_out={block.norm_out} asks for a norm, but norm.kind is none. Choose rms or layer."
    if block.norm.kind != "none" and not block.norm_in and block.norm_out == "none":
        yield f"{path}norm.kind={block.norm.kind} is used nowhere: norm_in=false and norm_out=none. Use norm=none."


def _experts(block: "BlockConfig", path: str) -> Faults:
    ffn = block.ffn
    if isinstance(ffn, MoEConfig) and ffn.n_active > ffn.n_experts:
        yield f"{path}ffn.n_active={ffn.n_active} is more than n_experts={ffn.n_experts}. Use at most {ffn.n_experts}."
    if isinstance(ffn, MoEConfig) and (ffn.n_groups, ffn.n_active_groups) != (1, 1):
        yield from _expert_groups(ffn, path)


def _expert_groups(ffn: MoEConfig, path: str) -> Faults:
    size, rest = divmod(ffn.n_experts, ffn.n_groups)
    if rest:
        yield f"{path}ffn.n_groups={ffn.n_groups} must divide n_experts={ffn.n_experts}. Use a divisor of it."
    elif ffn.n_active_groups >= ffn.n_groups:
        yield (
            f"{path}ffn.n_active_groups={ffn.n_active_groups} excludes none of n_groups={ffn.n_groups}. Use fewer, or "
            "leave both out."
        )
    elif ffn.n_active > ffn.n_active_groups * size:
        room = ffn.n_active_groups * size
        yield (
            f"{path}ffn.n_active={ffn.n_active} experts do not fit into n_active_groups={ffn.n_active_groups} of "
            f"{size}. Use n_active<={room}, or more groups."
        )
    elif ffn.group_score == "best two" and size < 2:
        yield f"{path}ffn.group_score='best two' needs groups of 2 experts or more, not of {size}. Use best."


def _latent(block: "BlockConfig", path: str) -> Faults:
    a = block.attention
    if not isinstance(a, LatentConfig):
        return
    if not isinstance(a.position, RopeConfig) or a.position.width is None or a.position.width >= a.d_head:
        yield (
            f"{path}attention.position: latent attention keeps the turning dims apart from the others. Use rope with a "
            f"width below d_head={a.d_head}."
        )
    if a.qk_norm is not None:
        yield f"{path}attention.qk_norm: latent attention normalises its latents (attention.norm). Leave it out."
    if a.clip is not None:
        yield f"{path}attention.clip={a.clip:g}: latent attention cuts nothing off. Leave it out."


BlockRule = Callable[["BlockConfig", str], Faults]
BLOCK_RULES: tuple[BlockRule, ...] = (
    _heads,
    _rotary,
    _buckets,
    _window,
    _cross,
    _norms,
    _experts,
    _latent,
    without_effect,
)


def _model(cfg: "ModelConfig") -> Faults:
    cross = [block for block in cfg.blocks if block.cross is not None]
    if cross and cfg.encoder is None:
        where = "" if len(cfg.blocks) == 1 else f"blocks.{cross[0].name}."
        yield f"{where}cross needs an encoder to read. Add encoder, or remove cross."
    if cfg.encoder is not None and not cross:
        yield "encoder is given, but no block has cross-attention: its output would be ignored. Add cross to a block."
    if cfg.encoder is not None:
        yield from _share(cfg.encoder, cfg.embed)
    for where, embed in (("", cfg.embed), ("encoder.", cfg.encoder.embed if cfg.encoder else None)):
        if embed is not None:
            yield from _absolute(embed, cfg.d_model, f"{where}embed")
            if embed.segments is not None and cfg.encoder is not None:
                yield (
                    f"{where}embed.segments={embed.segments}: source and target are told apart by their stacks. "
                    "Leave it out (or none)."
                )


def _share(encoder: "EncoderConfig", embed: "EmbedConfig") -> Faults:
    if encoder.share_embedding and encoder.embed.width != embed.width:
        yield (
            f"encoder.embed.width={encoder.embed.width or 'none'} and embed.width={embed.width or 'none'} differ, but "
            "one embedding serves both. Give both the same."
        )


def _absolute(embed: "EmbedConfig", d_model: int, path: str) -> Faults:
    if embed.position == "sinusoidal" and d_model % 2:
        yield f"{path}.position=sinusoidal pairs sines and cosines: d_model={d_model} must be even"
    if embed.position_offset and embed.position == "none":
        given = f"{path}.position_offset={embed.position_offset}"
        yield f"{given} has no effect: it needs an absolute {path}.position. Leave it out (or 0)."
    if embed.waves != "interleaved" and embed.position != "sinusoidal":
        yield (
            f"{path}.waves={embed.waves} has no effect: it needs {path}.position=sinusoidal. "
            "Leave it out (or waves=interleaved)."
        )
    if embed.waves == "fairseq" and d_model < 4:
        yield f"{path}.waves=fairseq needs two wavelengths: d_model={d_model} must be at least 4. Use interleaved."


def _encoder(cfg: "StackConfig") -> Faults:
    yield from _stack(cfg, "encoder.")
    yield from each_block(cfg, "encoder.", (_reads_both_ways,))


def _reads_both_ways(block: "BlockConfig", path: str) -> Faults:
    if block.cross is not None:
        yield f"{path}cross: an encoder has nothing to cross-attend to. Remove it."
    if block.attention.sees != "all":
        yield f"{path}attention.sees={block.attention.sees}: an encoder reads in both directions. Use all."


def _hashable(cfg: "ModelConfig") -> Faults:
    try:
        hash(cfg)
    except TypeError as error:
        yield f"blocks: a part of your own has a value that can change ({error}). Use tuples and frozen values in it."


def _attentions(block: "BlockConfig", path: str) -> Iterator[tuple[str, AttentionConfig]]:
    yield f"{path}attention", block.attention
    if block.cross is not None:
        yield f"{path}cross", block.cross


def _or(values: list[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{', '.join(map(str, values[:-1]))} or {values[-1]}"
