"""What became of the text: documents, tokens, bytes per token, what the packing cut, the share of each source."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from onehop.base.units import human_count
from onehop.data.loader import PACKINGS, Loader
from onehop.data.mixture import Mixture
from onehop.data.prepare import Prepared
from onehop.data.rows import MixedRows, ShardRows
from onehop.data.shards import Shards

Report = dict[str, Any]


def data_report(data: Prepared, loader: Loader) -> Report:
    """The report as JSON has it: `packing`, `streamed`, and a row for each of `sources`.

    A row has the source's share of the tokens that are trained on; documents, tokens, bytes of text and duplicates
    dropped, of both sides; with each packing the share of tokens behind a cut, which do not see their document's
    beginning, on the training side; and of its epoch: tokens, rows, the share of their places that holds tokens, tokens
    in no row (cropped), documents in more than one row. Of a streamed text the validation side is told instead.
    """
    names, shares = (data.train.names, data.train.shares) if isinstance(data.train, Mixture) else (("text",), (1.0,))
    held = data.validation.parts if isinstance(data.validation, Mixture) else (data.validation,)
    rows = loader.rows.parts if isinstance(loader.rows, MixedRows) else (loader.rows,)
    sources = []
    for name, share, dropped, side, part in zip(names, shares, data.n_duplicates, held, rows, strict=True):
        known = part if isinstance(part, ShardRows) else None
        counts = _counts([side, *([known.shards] if known else [])])
        counts |= {"cut_share": _cut_share(known.shards if known else side, loader.length)}
        sources.append(
            {"name": name, "share": share, "duplicates": dropped, **counts, **(_packed(known) if known else {})}
        )
    return {"packing": loader.packing, "streamed": not isinstance(rows[0], ShardRows), "sources": sources}


def report_lines(report: Report) -> Iterator[str]:
    """The report for people."""
    rows = report["sources"]
    total = {key: sum(row[key] for row in rows) for key in ("documents", "tokens", "bytes", "duplicates")}
    side = " on the validation side" if report["streamed"] else ""
    dropped = f", {human_count(total['duplicates'])} duplicates dropped" if total["duplicates"] else ""
    yield f"data: {_size(total)}{side}{dropped}"
    behind = {p: sum(row["cut_share"][p] * row["tokens"] for row in rows) / total["tokens"] for p in PACKINGS}
    told = ", ".join(f"{share:.1%} with packing={packing}" for packing, share in behind.items())
    cropped = "" if report["streamed"] else f"{_cropped(rows):.1%} of the tokens cropped; "
    yield f"packing: {cropped}behind a cut in their document: {told}"
    for row in rows if len(rows) > 1 else ():
        by_size = row["tokens"] / total["tokens"]
        yield f"  {row['name']}: {row['share']:.1%} of the tokens by weight, {by_size:.1%} by size; {_size(row)}"


def _size(row: Report) -> str:
    documents, tokens = human_count(row["documents"]), human_count(row["tokens"])
    return f"{documents} documents, {tokens} tokens, {row['bytes'] / row['tokens']:.2f} bytes per token"


def _counts(sides: Sequence[Shards]) -> Report:
    n_tokens, n_bytes = sum(side.n_tokens for side in sides), sum(side.n_bytes for side in sides)
    return {
        "documents": sum(side.n_documents for side in sides),
        "tokens": n_tokens,
        "bytes": n_bytes,
        "bytes_per_token": round(n_bytes / n_tokens, 4),
    }


def _cropped(rows: Sequence[Report]) -> float:
    return sum(row["cropped_tokens"] for row in rows) / sum(row["epoch_tokens"] for row in rows)


def _cut_share(shards: Shards, length: int) -> dict[str, float]:
    return {p: round(float(behind_cuts(shards.starts, length, p).sum()) / shards.n_tokens, 6) for p in PACKINGS}


def _packed(rows: ShardRows) -> Report:
    behind = behind_cuts(rows.shards.starts, rows.length, "stream" if rows.whole is None else "whole")
    return {
        "rows": rows.n_rows,
        "filled": round(rows.filled, 6),
        "epoch_tokens": rows.shards.n_tokens,
        "cropped_tokens": rows.shards.n_tokens - rows.n_used,
        "cut_documents": int((behind > 0).sum()),
    }


def behind_cuts(starts: np.ndarray, length: int, packing: str) -> np.ndarray:
    """Of each document, with starts (n + 1,), the tokens in other rows than its first, (n,).

    By packing "whole" only what is longer than a row is cut; by "stream" what lies across the borders of rows.
    """
    first = np.diff(starts) * 0 if packing == "whole" else starts[:-1] % length
    return np.maximum(first + np.diff(starts) - length, 0)
