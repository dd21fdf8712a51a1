"""Documents from a column of Parquet and Arrow files, some rows at a time. Nothing that comes with them is ever run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onehop.base.errors import DataError, MissingExtra

_ROWS = 1024  # that are read at once


def parquet_documents(path: Path, column: str) -> Iterator[str]:
    """The texts in `column` of a Parquet file. Refuses a damaged file, a missing column, a row without text."""
    with _readable(path), path.open("rb") as file:
        import pyarrow.parquet as pq

        table = pq.ParquetFile(file, page_checksum_verification=True)
        _check_column(table.schema_arrow, column, path)
        yield from _texts(table.iter_batches(_ROWS, columns=[column]), column, path)


def arrow_documents(path: Path, column: str) -> Iterator[str]:
    """The texts in `column` of an Arrow file, as `datasets.save_to_disk` writes it (a stream) or with an index."""
    with _readable(path), path.open("rb") as file:
        import pyarrow as pa

        indexed = file.read(6) == b"ARROW1"
        file.seek(0)
        opened = (pa.ipc.open_file if indexed else pa.ipc.open_stream)(file)
        _check_column(opened.schema, column, path)
        batches = map(opened.get_batch, range(opened.num_record_batches)) if indexed else iter(opened)
        yield from _texts(map(_checked, batches), column, path)


READERS: dict[str, Callable[[Path, str], Iterator[str]]] = {
    ".parquet": parquet_documents,
    ".arrow": arrow_documents,
}


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingExtra("pyarrow", extra="train", needed_for=f"reading {path.name}") from None
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's fault, not the file's
        reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise DataError(f"{path} is damaged or cut off ({reason}). Fetch it again, or leave it out.") from error


def _check_column(schema: Any, column: str, path: Path) -> None:
    import pyarrow as pa

    types = {field.name: field.type for field in schema}
    is_text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    values = {name: t.value_type if pa.types.is_dictionary(t) else t for name, t in types.items()}
    texts = [name for name, value in values.items() if any(check(value) for check in is_text)]
    if column not in texts:
        what = f"holds {types[column]}, no text, in the column" if column in types else "has no column"
        known = f"Columns with text: data.text_field={' or '.join(texts)}." if texts else "It has no column with text."
        raise DataError(f"{path} {what} {column!r}. {known}")


def _checked(batch: Any) -> Any:
    """The rows, unless their places in memory are impossible: Arrow hands them out as the file says them."""
    batch.validate(full=True)
    return batch


def _texts(batches: Iterator[Any], column: str, path: Path) -> Iterator[str]:
    before = 0
    for batch in batches:
        for row, value in enumerate(batch.column(column), start=before + 1):
            yield _text(value, f"{path}: row {row}", column)
        before += batch.num_rows


def _text(value: Any, where: str, column: str) -> str:
    try:
        text = value.as_py()
    except UnicodeDecodeError as error:
        raise DataError(f"{where} is not UTF-8 text: byte {error.start} of it. Repair it, or leave it out.") from error
    if text is None:
        raise DataError(f"{where} has no text in the column {column!r}. Drop the rows without text from the file.")
    return str(text)
