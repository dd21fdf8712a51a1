"""A name for every activation, and a way to listen to it or to change it. Free while nobody listens.

Names: `embed` (B, T, C); in each layer i `layers.i.in`, `layers.i.attention_norm`, then inside attention
`layers.i.attention.k`, `.v` (B, T, K, D: the new tokens'), `.q` (B, T, H, D), `.weights` (B, H, T, S), `.mixed`
(B, T, H, D), and its output `layers.i.attention` (B, T, C); `layers.i.cross…` likewise, where there is cross-attention
(k and v are the source's); latent attention has `.latent` (B, T, L) and `.turning` (B, T, R) in place of k and v;
`layers.i.mid` (after the residual sums of attention; not in parallel blocks),
`layers.i.ffn_norm`, `layers.i.ffn.hidden` (B, T, F; not with experts), `layers.i.ffn`, `layers.i.out`; at the end
`final_norm` (B, T, C) and `logits` (B, T, V). An encoder's names begin with `encoder.`.

While its block runs, `listen` hears every pass of the model, whoever asked for it.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from onehop.base.errors import RequestError, did_you_mean
from onehop.model.block import ParallelBlock
from onehop.model.transformer import Stack, Transformer

Edit = Callable[[str, Tensor], Tensor | None]
READ_ONLY = {"weights": "mixed", "mid": "attention"}  # shown beside what is used, so to be changed elsewhere


def tap_names(model: Transformer) -> list[str]:
    """Every activation of `model` that has a name, in the order in which a forward pass makes them."""
    names = []
    if model.encoder is not None:
        names += ["encoder.embed", *_stack_names(model.encoder, "encoder."), "encoder.final_norm"]
    return [*names, "embed", *_stack_names(model, ""), "final_norm", "logits"]


def _stack_names(stack: Stack, prefix: str) -> Iterator[str]:
    for i, layer in enumerate(stack.layers):
        at = f"{prefix}layers.{i}"
        yield f"{at}.in"
        for sublayer in ("attention", "cross"):
            module = getattr(layer, sublayer, None)
            if module is not None:
                yield f"{at}.{sublayer}_norm"
                yield from (f"{at}.{sublayer}.{inner}" for inner in getattr(module, "taps", ()))
                yield f"{at}.{sublayer}"
        if not isinstance(layer, ParallelBlock):
            yield f"{at}.mid"
        yield f"{at}.ffn_norm"
        if isinstance(getattr(layer.ffn, "w2", None), nn.Module):
            yield f"{at}.ffn.hidden"
        yield from (f"{at}.ffn", f"{at}.out")


class Listening:
    """Listens to the activations that match `patterns` while its block runs; pass it as `listener=` to the model."""

    def __init__(self, model: Transformer, patterns: Iterable[str], edit: Edit):
        self.names = _matching(model, patterns)
        self.edit = edit

    def wants(self, name: str) -> bool:
        """Whether `name` is listened to."""
        return name in self.names

    def hear(self, name: str, value: Tensor) -> Tensor:
        """Show an activation; what the listener returns takes its place."""
        if name not in self.names:
            return value
        changed = self.edit(name, value)
        if changed is None:
            return value
        head, _, last = name.rpartition(".")
        if last in READ_ONLY:
            raise RequestError(f"{name} can be looked at but not changed: change {head}.{READ_ONLY[last]} instead")
        if (changed.shape, changed.dtype) != (value.shape, value.dtype):
            raise RequestError(
                f"{name} is {value.dtype} of shape {tuple(value.shape)}; its replacement is {changed.dtype} of "
                f"{tuple(changed.shape)}. Return one like it."
            )
        return changed


@contextmanager
def listen(model: Transformer, patterns: Iterable[str], edit: Edit) -> Iterator[Listening]:
    """Call edit(name, value) for each activation whose name matches (`layers.*.out`); a returned tensor replaces it.

    `with listen(model, ["layers.3.attention.weights"], look) as ear: model(tokens, listener=ear)`.
    Raises RequestError for a pattern that names nothing.
    """
    ear = Listening(model, patterns, edit)
    handles: list[RemovableHandle] = []
    try:
        for name in ear.names:
            found = _module(model, name)
            if found is not None:
                handles.append(_hook(*found, name, ear))
        yield ear
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def capture(model: Transformer, patterns: Iterable[str], *inputs: Tensor, **options: Any) -> dict[str, Tensor]:
    """Run the model and return the activations whose names match, by name."""
    heard: dict[str, Tensor] = {}

    def keep(name: str, value: Tensor) -> None:
        heard[name] = value.detach().clone()

    with listen(model, patterns, keep) as ear:
        model(*inputs, listener=ear, **options)
    return heard


def _matching(model: Transformer, patterns: Iterable[str]) -> set[str]:
    names, found = tap_names(model), set()
    for pattern in patterns:
        fits = [name for name in names if fnmatchcase(name, pattern)]
        if not fits:
            raise RequestError(f"no activation is called {pattern!r}. {did_you_mean(pattern, names)}")
        found.update(fits)
    return found


def _module(model: Transformer, name: str) -> tuple[nn.Module, bool] | None:
    """The module that makes an activation and whether it is its input; None for those inside attention."""
    if name == "logits":
        return model.head, False
    head, _, last = name.rpartition(".")
    above: Any = model.get_submodule(head)
    if last in ("in", "out"):
        return above, last == "in"
    if last in ("mid", "hidden"):
        return (above.ffn_norm if last == "mid" else above.w2), True
    return None if last in getattr(above, "taps", ()) else (model.get_submodule(name), False)


def _hook(module: nn.Module, is_input: bool, name: str, ear: Listening) -> RemovableHandle:
    if is_input:

        def before(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return (ear.hear(name, inputs[0]), *inputs[1:])

        return module.register_forward_pre_hook(before)

    def after(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        return (ear.hear(name, output[0]), *output[1:]) if isinstance(output, tuple) else ear.hear(name, output)

    return module.register_forward_hook(after)
