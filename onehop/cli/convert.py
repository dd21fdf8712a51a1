"""onehop convert SRC DST"""

from typing import Annotated

import typer

from onehop.cli import options as o
from onehop.cli.common import Json, machines, new_app, people, place_of, table
from onehop.lm.convert import Converted, Moved
from onehop.lm.convert import convert as run

app = new_app()

Format = Annotated[
    str | None,
    typer.Option(help="hf, onehop or gguf (left out: gguf for a name that ends in .gguf, else hf if it fits)"),
]
DType = Annotated[str | None, typer.Option(help="float32, bfloat16, float16; in GGUF also q8_0 (left out: as it is)")]
KVHeads = Annotated[int | None, typer.Option(help="average key/value heads to so many (GQA, 1: MQA), to be trained on")]
Context = Annotated[int | None, typer.Option(help="stretch rotary positions to so many tokens, to be trained on")]
RopeKind = Annotated[str | None, typer.Option(help="how they are stretched: yarn (if left out), linear, ntk or llama3")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="replace a file or a model that is there, or write among other files")
]


@app.command()
def convert(
    source: o.Model,
    target: Annotated[str, typer.Argument(help="a folder, or a file that ends in .gguf")],
    format: Format = None,
    dtype: DType = None,
    kv_heads: KVHeads = None,
    extend_context: Context = None,
    rope: RopeKind = None,
    parts: o.Parts = None,
    adapter: o.Adapter = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> int:
    """Write a model in another layout: Hugging Face's, onehop's own or GGUF; and tell what became of every tensor."""
    done = run(
        place_of(source), target, format=format, dtype=dtype, kv_heads=kv_heads, context=extend_context, rope=rope,
        parts=parts or [], adapter=adapter, overwrite=overwrite,
    )  # fmt: skip
    if json:
        machines(_machine(done))
        return 0
    console = people(json)
    rows = [(", ".join(_short(m.source)), ", ".join(m.target), m.operation) for m in done.tensors]
    console.print(table("from", "to", "operation", rows=rows), markup=False)
    console.print(f"wrote {done.path} ({done.format}, {done.dtype}, {len(done.tensors)} tensors)", markup=False)
    for note in done.notes:
        console.print(note, markup=False)
    return 0


def _short(names: tuple[str, ...]) -> tuple[str, ...]:
    """The first and the last of many (experts)."""
    return names if len(names) <= 4 else (names[0], "…", names[-1])


def _machine(done: Converted) -> dict[str, object]:
    return {
        "path": str(done.path),
        "format": done.format,
        "dtype": done.dtype,
        "notes": done.notes,
        "tensors": [_row(moved) for moved in done.tensors],
    }


def _row(moved: Moved) -> dict[str, object]:
    return {"from": list(moved.source), "to": list(moved.target), "operation": moved.operation}
