"""The same folder opened by transformers, where it is installed: layer by layer, each given the truth's own input.

All of their model is in memory meanwhile: it renames and fuses tensors as it loads them, each family in its own way,
and cannot be asked for a layer. Where it does not fit beside ours, nothing is compared and the note says so.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from onehop.base.units import human_bytes
from onehop.config.position import AlibiConfig
from onehop.lm.probe import SOURCE, Finding, Probe, skipped, unit
from onehop.lm.yardstick import FLOOR, Laid, Part, Truth, bound, distance, truth_of
from onehop.weights.memory import free_bytes

# Angles and ALiBi biases are float32 there, whatever the dtype: at position p an angle is wrong by up to p · 2^-24 rad,
# half an eps for each position, and queries and keys whose product is 4 pass that on to the weights fourfold.
EPS_PER_POSITION = 2.0


class TheirFault(Exception):
    """Their code ended in an error: nothing is known about ours."""


@contextmanager
def their_code(doing: str) -> Iterator[None]:
    """What is raised inside is theirs, and is told as such."""
    try:
        yield
    except Exception as error:  # a library may raise anything
        reason = (str(error).strip().splitlines() or ["no reason given"])[0]
        raise TheirFault(f"transformers, {doing}, ends in {type(error).__name__}: {reason}") from error


def transformers(probe: Probe) -> Finding:
    """Their model in float32 against the truth: the embedding, each layer from the same input, and the logits."""
    lm = probe.lm
    if lm.folder is None or lm.family is None or not lm.folder.is_dir():
        return skipped("this model did not come from a Hugging Face folder")
    needed, free = 4 * sum(p.numel() for p in probe.model.parameters()), free_bytes(torch.device("cpu"))
    if free is not None and needed > free:
        return skipped(f"their model in float32 takes {human_bytes(needed)}; {human_bytes(free)} are free")
    try:
        import transformers as library
    except ImportError:
        return skipped("transformers is not installed: pip install 'onehop-lm[eval]'")
    # Falcon's two kernels disagree about ALiBi, and its default is not the plain one; elsewhere the plain one decides,
    # because the other leaves soft caps out.
    alibi = any(isinstance(block.attention.position, AlibiConfig) for block in probe.model.config.blocks)
    try:
        found = _compared(probe, _open(library, probe, "eager"))
    except TheirFault as fault:
        return skipped(f"could not be compared: {fault}")
    if found.passed or not alibi:
        return found
    try:
        return _compared(probe, _open(library, probe, "sdpa"))
    except TheirFault:  # this architecture has the plain one only
        return found


def _open(library: Any, probe: Probe, kernel: str) -> nn.Module:
    """Their model in float32, its 16-bit weights rounded as ours are."""
    family, folder = probe.lm.family, probe.lm.folder
    assert family is not None
    with quiet(), their_code("opening the folder"):
        theirs = getattr(library, family.architecture).from_pretrained(
            folder, dtype=torch.float32, attn_implementation=kernel
        )
    if hasattr(theirs, "set_experts_implementation"):
        theirs.set_experts_implementation("eager")
    if probe.dtype.itemsize == 2:  # weights only: numbers that their code computes stay as they are
        for weight in theirs.parameters():
            weight.data.copy_(weight.data.to(probe.dtype))
    module: nn.Module = theirs.eval().to(probe.device)
    return module


@contextmanager
def quiet() -> Iterator[None]:
    """Their progress bars and warnings are not this command's output."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _compared(probe: Probe, theirs: nn.Module) -> Finding:
    inputs = probe.inputs(0, probe.length)
    truth = truth_of(probe.model, *inputs, dtype=torch.float32)
    part = Part(truth, 0, 0, probe.length)
    lost = probe.lost_in(torch.float32, Laid([[part]], [[Part(truth, 0, 0, SOURCE)]]))
    found = _differences(theirs, inputs, truth)
    slack = FLOOR + EPS_PER_POSITION * probe.length
    bounds = {name: bound(_within(name, lost), slack) for name in found}
    over = [name for name in found if not found[name] <= bounds[name]]
    at = over[0] if over else max(found, key=lambda name: found[name] / max(bounds[name], slack))
    reason = (
        f"3 × the {_within(at, lost):.2g} that the definition loses in float32, and {slack:.0f}: "
        f"angles are float32 there, over {probe.length} positions"
    )
    n = sum(name.endswith(".in") for name in found)
    note = f"{n} layers, each from the same input" if n else "their layers were not found, so logits only"
    note += f"; also over: {', '.join(over[1:6])}" if len(over) > 1 else ""
    return Finding(found[at], bounds[at], reason, note, at, unit(torch.float32))


def _within(name: str, lost: Mapping[str, float]) -> float:
    """What the definition loses on the way to `name` from the input that was given: a whole layer's sublayers."""
    head, _, last = name.rpartition(".")
    if last == "in":
        return 0.0
    if last == "out":
        return sum(units for inner, units in lost.items() if inner.startswith(f"{head}."))
    layers = [units for inner, units in lost.items() if inner.rpartition(".")[2] == "out"]
    return max(layers) + lost["final_norm"] + lost["logits"]


def _differences(theirs: nn.Module, inputs: tuple[Tensor, ...], truth: Truth) -> dict[str, float]:
    """What each of their layers differs by, in eps of float32, in the order in which they compute."""
    eps, found = torch.finfo(torch.float32).eps, {}
    handles: list[RemovableHandle] = []
    named = dict(zip(("input_ids", "decoder_input_ids") if len(inputs) > 1 else ("input_ids",), inputs))

    def before(name: str, _: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        given = truth.given[f"{name}.in"].float()
        hidden = args[0] if args else named["hidden_states"]
        if name.endswith("layers.0"):
            found[f"{name}.in"] = distance(hidden.to(torch.float64), given.to(torch.float64)) / eps
        else:
            found[f"{name}.in"] = 0.0  # given
        return ((given, *args[1:]), named) if args else (args, {**named, "hidden_states": given})

    def after(name: str, _: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        out = output[0] if isinstance(output, tuple) else output
        found[f"{name}.out"] = distance(out.to(torch.float64), truth.values[f"{name}.out"]) / eps

    for name, layer in _layers(theirs, truth):
        handles += [
            layer.register_forward_pre_hook(partial(before, name), with_kwargs=True),
            layer.register_forward_hook(partial(after, name)),
        ]
    try:
        logits = theirs(**named).logits
    except Exception:  # either their code's fault, which it then has without our hooks too, or ours
        _remove(handles)
        with their_code("reading the text"):
            theirs(**named)
        raise
    finally:
        _remove(handles)
    wanted = truth.values["logits"]
    found["logits"] = distance(logits[..., : wanted.size(-1)].to(torch.float64), wanted) / eps
    return found


def _remove(handles: Iterable[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()


def _layers(theirs: nn.Module, truth: Truth) -> list[tuple[str, nn.Module]]:
    """Their layers under our names; none where no list of so many modules is there."""
    found = []
    lists = [(name, m) for name, m in theirs.named_modules() if isinstance(m, nn.ModuleList)]
    for prefix in ("encoder.", ""):
        n = sum(name.startswith(f"{prefix}layers.") and name.endswith(".in") for name in truth.given)
        mine = [
            m
            for name, m in lists
            if len(m) == n > 0 and ("encoder." in f".{name}".replace("decoder.", "")) == bool(prefix)
        ]
        if mine:  # the outermost comes first
            found += [(f"{prefix}layers.{i}", layer) for i, layer in enumerate(mine[0])]
    return found
