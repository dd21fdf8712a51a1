"""A config becomes a model: each constructor receives its own part of the config and finished collaborators."""

import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from onehop.base.errors import ConfigError
from onehop.config.attention import AttentionConfig
from onehop.config.model import BlockConfig, EmbedConfig, ModelConfig, StackConfig, TransformConfig
from onehop.config.named import presets
from onehop.config.norm import NormConfig
from onehop.model.block import Block, ParallelBlock, PlacedBlock
from onehop.model.init import initialise
from onehop.model.transformer import Embedding, Encoder, Head, Transform, Transformer
from onehop.parts.absolute import LearnedPositions, SinusoidalPositions
from onehop.parts.attention import ATTENTIONS, CrossAttention
from onehop.parts.ffn import FFNS
from onehop.parts.linear import Linear, Tied
from onehop.parts.norm import NORMS
from onehop.parts.own import SCORES
from onehop.parts.position import POSITIONS, PositionScheme


def build(
    config: ModelConfig | Mapping[str, Any] | str,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | str = torch.float32,
) -> Transformer:
    """A model with fresh weights drawn from `seed`; on the device "meta" it takes no memory and has no weights.

    config: a dict of a config's fields and the name of a preset do too.
    """
    config = _config(config)
    if config.vocab_size is None:
        raise ConfigError("model.vocab_size is not set. Give a number, or train: the tokenizer gives it.")
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        torch.default_generator.manual_seed(seed)  # for what parts of a user's own draw
        model = _transformer(config, config.vocab_size)
    model = model.to(torch_dtype(dtype))
    if str(device) == "meta":
        return _without_weights(model)
    check_device(device)
    empty = {name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.is_meta}
    model._apply(lambda x: torch.empty_like(x, device=device) if x.is_meta else x.to(device))
    initialise(model, config, torch.Generator().manual_seed(seed), empty=empty)
    return model


def _config(config: ModelConfig | Mapping[str, Any] | str) -> ModelConfig:
    if isinstance(config, str):
        return presets[config]
    if isinstance(config, Mapping):
        return ModelConfig.model_validate(dict(config))
    if not isinstance(config, ModelConfig):
        raise ConfigError(
            f"a model is built from a onehop.ModelConfig, a dict of its fields or a preset's name, not from {config!r}"
        )
    return config


def _without_weights(model: Transformer) -> Transformer:
    """The model with all parameters on meta, those of a user's own parts too."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.is_meta:
                setattr(module, name, nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad))
    return model


def torch_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """'bfloat16' -> torch.bfloat16."""
    known = ("bfloat16", "float16", "float32", "float64")
    name = str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else dtype
    if name not in known:
        no_type = "is no type of weights here" if isinstance(dtype, torch.dtype) else "does not exist"
        raise ConfigError(f"dtype {dtype!r} {no_type}. Known: {', '.join(known)}.")
    found: torch.dtype = getattr(torch, name)
    return found


def check_device(device: torch.device | str) -> None:
    """Raises ConfigError for a device that this machine or this build of torch does not have."""
    try:
        torch.empty(1, device=device).cpu()
    except (AssertionError, RuntimeError, TypeError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        if reason.startswith("Expected one of"):  # two dozen kinds, most of which no torch at hand can do
            reason = "no such kind is known. Known: cpu, cuda, mps"
        raise ConfigError(f"device={str(device)!r} cannot be used here: {reason}. Use cpu.") from error


def _transformer(cfg: ModelConfig, vocab_size: int) -> Transformer:
    width = cfg.embed.width or cfg.d_model
    embed = _embedding(cfg, cfg.embed, _rows(vocab_size, width))
    projection = (
        Tied(embed.tokens, bias=cfg.head.bias) if cfg.head.tied else Linear(width, vocab_size, bias=cfg.head.bias)
    )
    encoder = None
    if cfg.encoder is not None:
        shared = cfg.encoder.share_embedding
        rows = embed.tokens if shared else _rows(vocab_size, cfg.encoder.embed.width or cfg.d_model)
        own = _embedding(cfg, cfg.encoder.embed, rows, shared=shared)
        encoder = Encoder(**_stack(cfg, cfg.encoder, "encoder."), embed=own, dropout=cfg.dropout.embed)
    narrow = nn.Identity() if cfg.embed.width is None else Linear(cfg.d_model, width)
    head = Head(projection, cfg.head, transform=_transform(cfg.d_model, cfg.head.transform), narrow=narrow)
    return Transformer(cfg, **_stack(cfg, cfg, ""), embed=embed, head=head, encoder=encoder)


def _transform(d_model: int, cfg: TransformConfig | None) -> nn.Module:
    return nn.Identity() if cfg is None else Transform(d_model, cfg, norm=_norm(d_model, cfg.norm))


def _rows(n: int, width: int) -> nn.Embedding:
    """A table whose values come later: nn.Embedding's own draw, on the meta device, would load the compiler first."""
    return nn.Embedding(n, width, _weight=torch.empty(n, width))


def _embedding(cfg: ModelConfig, embed: EmbedConfig, rows: nn.Embedding, *, shared: bool = False) -> Embedding:
    positions: nn.Module | None = None
    if embed.position == "learned":
        positions = LearnedPositions(cfg.max_len, cfg.d_model, offset=embed.position_offset)
    elif embed.position == "sinusoidal":
        positions = SinusoidalPositions(cfg.d_model, waves=embed.waves, offset=embed.position_offset)
    norm = _norm(cfg.d_model, embed.norm)
    widen = nn.Identity() if embed.width is None else Linear(embed.width, cfg.d_model)
    segments = None if embed.segments is None else _rows(embed.segments, cfg.d_model)
    places: dict[str, Any] = {"positions": positions, "segments": segments}
    return Embedding(rows, **places, norm=norm, scale=embed.scale, widen=widen, shared=shared)


def _stack(cfg: ModelConfig, stack: StackConfig, prefix: str) -> dict[str, Any]:
    """Layers, shared position schemes and final norm of one stack."""
    schemes: dict[tuple[Any, ...], PositionScheme] = {}
    layers = []
    for i, block in enumerate(stack.layers()):
        layers.append(_block(cfg, block, schemes, f"{prefix}layers.{i}"))
    return {"layers": layers, "schemes": list(schemes.values()), "final_norm": _norm(cfg.d_model, stack.final_norm)}


def _block(cfg: ModelConfig, block: BlockConfig, schemes: dict[Any, PositionScheme], name: str) -> Block:
    d, norm = cfg.d_model, block.norm if block.norm_in else NormConfig()
    parts = (
        _norm(d, norm),
        _attention(cfg, block.attention, schemes, f"{name}.attention"),
        nn.Identity() if block.parallel == "one norm" else _norm(d, norm),
        FFNS.get(block.ffn.kind)(d, block.ffn),
    )
    rate = cfg.dropout.residual
    plain = block.norm_in and block.norm_out == "none" and block.parallel == "no" and block.cross is None
    if plain and block.residual_scale == 1.0 and rate == 0.0:
        return Block(*parts)
    sublayers = ["attention", "ffn"] if block.cross is None else ["attention", "cross", "ffn"]
    placed: dict[str, Any] = {
        "norms_inside": _norms(d, block.norm if block.norm_out == "inside" else NormConfig(), sublayers),
        "norms_outside": _norms(d, block.norm if block.norm_out == "outside" else NormConfig(), sublayers),
        "scale": block.residual_scale,
        "rate": rate,
        "site": zlib.crc32(name.encode()),
    }
    if block.parallel != "no":
        return ParallelBlock(*parts, one_norm=block.parallel == "one norm", **placed)
    if block.cross is not None:
        cross = CrossAttention(d, block.cross, dropout=cfg.dropout.attention, name=f"{name}.cross")
        placed["cross"] = (_norm(d, norm), cross)
    return PlacedBlock(*parts, **placed)


def _attention(cfg: ModelConfig, a: AttentionConfig, schemes: dict[Any, PositionScheme], name: str) -> nn.Module:
    """One layer's attention; equal position schemes of a stack are one module."""
    key = (a.position, a.d_head, a.n_heads, a.sees == "all", getattr(a.position, "scaled", False) and a.scale)
    if key not in schemes:
        schemes[key] = POSITIONS.get(a.position.kind)(a.position, a)
    change = None if a.score is None else SCORES.get(a.score.kind)(a.score, a)
    make = ATTENTIONS.get(a.kind)
    return make(cfg.d_model, a, position=schemes[key], change=change, dropout=cfg.dropout.attention, name=name)


def _norms(d_model: int, cfg: NormConfig, names: list[str]) -> nn.ModuleDict:
    return nn.ModuleDict({name: _norm(d_model, cfg) for name in names})


def _norm(width: int, cfg: NormConfig) -> nn.Module:
    return NORMS.get(cfg.kind)(width, cfg)
