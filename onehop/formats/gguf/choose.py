"""Which GGUF file of several: the kind that was asked for; else Q4_K_M, then Q8_0, then the only one."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from onehop.base.errors import CheckpointError
from onehop.formats.gguf.header import read_header
from onehop.formats.gguf.split import firsts

PREFERRED = ("Q4_K_M", "Q8_0")
# general.file_type of quantised files, and of those that are not; a file without it has no name for its mixture.
MIXTURES: Mapping[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 25: "IQ4_NL", 30: "IQ4_XS",
    32: "BF16", 38: "MXFP4",
}  # fmt: skip
UNNAMED = "of an unnamed kind"
# What file names call it: gemma-3-270m-it-Q4_K_M.gguf, model.q8_0.gguf, Phi-3-mini-4k-instruct-fp16.gguf
LABEL = re.compile(
    r"(?<![A-Z0-9])((?:UD-)?I?Q[1-8](?:_[A-Z0-9]+)*|TQ[12]_0|MXFP4(?:_[A-Z]+)*|B?F16|FP16|F32|FP32)(?![A-Z0-9_])"
)
SAME = {"FP16": "F16", "FP32": "F32"}
SEES = "mmproj"  # in the names of files that hold the part of a model which sees images

File = TypeVar("File", str, Path)


def choose(kinds: Mapping[File, tuple[str, ...]], wanted: str | None, *, where: str) -> File:
    """The file of the kind `wanted`; None: the one that is preferred, or the only one.

    kinds: of each file, what it is called, the surest name first. Raises CheckpointError naming all that there are.
    """
    known = ", ".join(dict.fromkeys(names[0] for names in kinds.values()))
    if wanted is not None:
        found = [file for file, names in kinds.items() if spelt(wanted) in names]
        if not found:
            raise CheckpointError(f"{where} holds no GGUF file of the kind {wanted}. There are: {known or 'none'}.")
        return _only(found, where, f"several GGUF files of the kind {wanted}")
    for kind in PREFERRED:
        found = [file for file, names in kinds.items() if names[0] == kind]
        if len(found) == 1:
            return found[0]
    return _only(list(kinds), where, "several GGUF files", kinds)


def _only(files: list[File], where: str, what: str, kinds: Mapping[File, tuple[str, ...]] | None = None) -> File:
    if len(files) == 1:
        return files[0]
    shown = [f"{Path(file).name}{f' ({kinds[file][0]})' if kinds else ''}" for file in files]
    more = f" and {len(shown) - 8} more" if len(shown) > 8 else ""
    one = next((kinds[file][0] for file in files if kinds[file][0] != UNNAMED), None) if kinds else None
    way = f", or its kind ({where}:{one})" if one is not None else ""
    raise CheckpointError(f"{where} holds {what}: {', '.join(shown[:8])}{more}. Name one{way}.")


def pick(folder: Path, wanted: str | None = None) -> Path | None:
    """The GGUF file to take in a folder; None where there is none and none is wanted.

    A file's own general.file_type tells what it is, then its name. Of a model in several files it is the first.
    """
    names = candidates(file.name for file in folder.glob("*.gguf"))
    if len(names) <= 1 and wanted is None:  # nothing to choose, so no header is read for it
        return folder / names[0] if names else None
    return choose({folder / name: _kinds(folder / name) for name in names}, wanted, where=str(folder))


def candidates(names: Iterable[str]) -> list[str]:
    """Of files by name, the GGUF files that a language model begins with."""
    found = (name for name in names if name.endswith(".gguf") and SEES not in name.lower())
    return firsts(sorted(found))


def _kinds(file: Path) -> tuple[str, ...]:
    told, label = mixture(file), label_of(file.name)
    return tuple(name for name in (told, label) if name is not None) or (UNNAMED,)


def mixture(file: Path) -> str | None:
    """What most of a file's tensors are, in llama.cpp's words; None where it does not say."""
    return MIXTURES.get(read_header(file).metadata.get("general.file_type", -1))


def label_of(name: str) -> str | None:
    """What a file's name says that it is, in capitals; None where it says nothing."""
    found = LABEL.findall(Path(name).name.removesuffix(".gguf").upper())
    return spelt(found[-1]) if found else None


def spelt(kind: str) -> str:
    """A kind in capitals, by the name that llama.cpp has for it."""
    return SAME.get(kind.upper(), kind.upper())
