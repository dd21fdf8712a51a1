"""A model in several GGUF files, as llama.cpp's gguf-split cuts it, under one header. No torch.

Each part says how many there are (split.count) and which it is (split.no, from 0), and its name says so too, from 1.
All else that is said about the model stands in the first.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from onehop.base.errors import CheckpointError
from onehop.formats.gguf.header import Header, Place, read_header

PART = re.compile(r"(?P<name>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
COUNT, NO, TENSORS = "split.count", "split.no", "split.tensors.count"
SHOWN = 4  # names of missing files


def parts_of(file: Path) -> list[Path]:
    """All files of the set that a file's name puts it in, whether they are there or not; else the file alone."""
    found = PART.fullmatch(file.name)
    if found is None:
        return [file]
    name, count = found["name"], int(found["count"])
    return [file.with_name(f"{name}-{no:05}-of-{count:05}.gguf") for no in range(1, count + 1)]


def firsts(names: Iterable[str]) -> list[str]:
    """Of files by name, those that a model begins with: whole ones, and of each set of parts the first."""
    return [name for name in names if (part := PART.fullmatch(name)) is None or int(part["no"]) == 1]


def read_model(file: Path) -> Header:
    """The header of a GGUF file; where it is one part of several, of all of them as one.

    Raises CheckpointError naming the files that are missing, and a part that is another than its name says.
    """
    given = read_header(file)
    count = given.metadata.get(COUNT, 1)
    if count in (0, 1):
        return given
    files = parts_of(file)
    if len(files) != count or file not in files:
        raise CheckpointError(
            f"{file} is one of {count} parts of a model, but its name does not say which. Give each part the name that "
            f"it had (NAME-00001-of-{count:05}.gguf), or put them together (llama-gguf-split --merge)."
        )
    missing = [part.name for part in files if not part.is_file()]
    if missing:
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        raise CheckpointError(
            f"{file} is one of {count} parts of a model; its folder lacks {', '.join(missing[:SHOWN])}{more}. Get "
            "what is missing from the same source."
        )
    headers = [given if part == file else read_header(part) for part in files]
    for no, header in enumerate(headers):
        told = header.metadata.get(NO), header.metadata.get(COUNT)
        if told != (no, count):
            raise CheckpointError(
                f"{header.file} should be part {no} of {count} (from 0), but says {NO}={told[0]}, {COUNT}={told[1]}. "
                "Get it again from its source."
            )
    return Header(files[0], headers[0].metadata, _together(headers))


def _together(headers: list[Header]) -> dict[str, Place]:
    """The tensors of all parts. Raises CheckpointError where one is there twice, or their number is another."""
    tensors: dict[str, Place] = {}
    for header in headers:
        twice = tensors.keys() & header.tensors.keys()
        if twice:
            raise CheckpointError(f"{header.file} holds {min(twice)} too, which another part has. Get the parts again.")
        tensors |= header.tensors
    announced = headers[0].metadata.get(TENSORS, len(tensors))
    if announced != len(tensors):
        raise CheckpointError(
            f"{headers[0].file}: {TENSORS}={announced}, but its {len(headers)} parts hold {len(tensors)} tensors. "
            "Get the parts again from one source."
        )
    return tensors
