"""Documents from plain text and from JSON lines, read in bounded memory."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from onehop.base.errors import DataError
from onehop.data.compressed import COMPRESSED, reading

_PART = 1 << 20  # bytes of text that are read at once
_MARK = b"\xef\xbb\xbf"  # UTF-8's byte order mark
_OTHER_MARKS = {  # of other encodings: the longer ones first, which begin alike
    b"\xff\xfe\x00\x00": "utf-32",
    b"\x00\x00\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}


def text_documents(path: Path, separator: str | None) -> Iterator[str]:
    """The whole text, or what stands between its separators; line ends stay as they are."""
    with reading(path) as handle:
        for offset, data in _between(handle, separator):
            yield decode(data, where=path, offset=offset)


def _between(handle: BinaryIO, separator: str | None) -> Iterator[tuple[int, bytes]]:
    """(where it begins, the bytes) of each document. UTF-8 has no character inside another, so bytes may be cut."""
    if separator is None:
        yield 0, handle.read()
        return
    border, offset, rest = separator.encode(), 0, bytearray()
    while part := handle.read(_PART):
        searched = max(len(rest) - len(border) + 1, 0)  # no border begins before that
        rest += part
        if rest.find(border, searched) < 0:
            continue
        *whole, last = bytes(rest).split(border)
        for data in whole:
            yield offset, data
            offset += len(data) + len(border)
        rest = bytearray(last)
    yield offset, bytes(rest)


def json_documents(path: Path, field: str) -> Iterator[str]:
    """The `field` of every line that is not empty."""
    for where, line in lines_of(path):
        yield whole_characters(_field_of(line, field, where=where), where=where)


def lines_of(path: Path) -> Iterator[tuple[str, str]]:
    """("file:number", line) of every line that is more than white space."""
    offset = 0
    with reading(path) as handle:
        for number, line in enumerate(handle, start=1):
            text = decode(line, where=path, offset=offset)
            offset += len(line)
            if not text.isspace():
                yield f"{path}:{number}", text


def parsed(line: str, *, where: str) -> Any:
    """A line of JSON lines. Refuses broken JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON ({error}). Each line must be one JSON object.") from error


def _field_of(line: str, field: str, *, where: str) -> str:
    row = parsed(line, where=where)
    if isinstance(row, dict) and isinstance(row.get(field), str):
        return row[field]
    if not isinstance(row, dict):
        raise DataError(f'{where} is {shown(row)}, no JSON object. Each line must be one, like {{"{field}": "…"}}.')
    if field in row:
        raise DataError(
            f"{where}: the field {field!r} is {shown(row[field])}, no text. Give a text, or drop that line."
        )
    known = next((key for key, value in row.items() if isinstance(value, str)), "NAME")
    raise DataError(
        f"{where} has no field {field!r}. Say which field holds the text, for example data.text_field={known}."
    )


def shown(value: Any) -> str:
    """A value as JSON writes it, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:60]}…"


def decode(data: bytes, *, where: Path, offset: int = 0) -> str:
    """UTF-8 text, a byte order mark at the file's beginning dropped. Refuses other bytes, with their place."""
    try:
        return (data.removeprefix(_MARK) if offset == 0 else data).decode("utf-8")
    except UnicodeDecodeError as error:
        at = data.index(error.object) + error.start
        inside = " of the decompressed text" if where.suffix in COMPRESSED else ""
        begins = data[:4] if offset == 0 else b""
        coding = next((name for mark, name in _OTHER_MARKS.items() if begins.startswith(mark)), "latin1")
        raise DataError(
            f"{where} is not UTF-8 text: byte 0x{data[at]:02x} at offset {offset + at}{inside}. Convert it "
            f"(iconv -f {coding} -t utf-8), or leave it out."
        ) from error


def whole_characters(text: str, *, where: str) -> str:
    """The text, unless JSON's escapes spell half a character in it (as cutting a text can leave), which is no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise DataError(f"{where} holds half a character ({half}). Remove it there, or leave that line out.") from error
    return text
