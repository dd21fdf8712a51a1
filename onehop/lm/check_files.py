"""The model against its own files: complete, finite, what they hold, and the same after writing and reading again."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from onehop.formats.folder import describe
from onehop.lm.language_model import LanguageModel
from onehop.lm.probe import Finding, Probe, simply, skipped
from onehop.model.build import build
from onehop.weights.hf import load_hf, save_hf
from onehop.weights.native import load_native, save_native
from onehop.weights.ops import OPS
from onehop.weights.source import claims_of, tensors_of

SHOWN = 3  # complaints that are printed


def complete(lm: LanguageModel) -> Finding:
    """Every tensor that the config asks for, of the shape that it asks for, without NaN or infinity."""
    model, wrong = lm.model, []
    ours, asked = model.state_dict(), build(lm.config, device="meta").state_dict()
    wrong += [f"{name} is missing" for name in asked.keys() - ours.keys()]
    wrong += [f"{name} is not in the config" for name in ours.keys() - asked.keys()]
    for name in ours.keys() & asked.keys():
        if ours[name].shape != asked[name].shape:
            wrong.append(f"{name} has the shape {tuple(ours[name].shape)}, not {tuple(asked[name].shape)}")
    for name, tensor in ours.items():
        if not tensor.isfinite().all():
            wrong.append(f"{name} holds {int((~tensor.isfinite()).sum())} NaN or infinite numbers")
    n = sum(tensor.numel() for tensor in ours.values())
    return simply(not wrong, _few(sorted(wrong)) or f"{len(ours)} tensors, {n:,} finite numbers")


def as_in_the_files(lm: LanguageModel) -> Finding:
    """Each tensor in memory is what the file holds under the name that the table gives it, one tensor at a time."""
    if lm.folder is None or not any(lm.folder.glob("*.safetensors")):
        return skipped("this model did not come from safetensors files")
    ours = lm.model.state_dict()
    described = describe(lm.folder, parts=lm.parts)
    with tensors_of(described) as tensors:
        claims = claims_of(described, tensors, lm.model)
        wrong, n = [], 0
        for claim in claims:
            read = OPS.get(claim.op).load([tensors.read(name) for name in claim.theirs], claim.sizes)
            for name, tensor in zip(claim.ours, read, strict=True):
                held = ours.get(name)
                n += 1
                if held is None or not torch.equal(held.cpu(), tensor.to(held.dtype)):
                    wrong.append(f"{name} is not {', '.join(claim.theirs[:2])} of the file")
    return simply(not wrong, _few(wrong) or f"{n} tensors are bit for bit what the files hold")


def saved(probe: Probe) -> Finding:
    """Onehop's own folder, written and read."""
    with tempfile.TemporaryDirectory() as folder:
        save_native(probe.model, Path(folder) / "model")
        return _same_bits(probe, load_native(Path(folder) / "model", parts=probe.lm.parts))


def exported(probe: Probe) -> Finding:
    """The Hugging Face layout that the model came in, written and read."""
    with tempfile.TemporaryDirectory() as folder:
        save_hf(probe.model, Path(folder) / "model", family=probe.lm.family)
        return _same_bits(probe, load_hf(Path(folder) / "model"))


def _same_bits(probe: Probe, again: nn.Module) -> Finding:
    wrong = list(_differences(probe.model, again))
    return simply(not wrong, _few(wrong) or f"{len(again.state_dict())} tensors, the same bits", reason="the same bits")


def _differences(a: nn.Module, b: nn.Module) -> Iterator[str]:
    ours, theirs = a.state_dict(), b.state_dict()
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours or name not in theirs:
            yield f"{name} is on one side only"
        elif not torch.equal(ours[name].cpu(), theirs[name]):
            yield f"{name} came back changed"


def _few(wrong: list[str]) -> str:
    more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
    return "; ".join(wrong[:SHOWN]) + more
