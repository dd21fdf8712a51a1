"""onehop eval MODEL FILE …"""

from pathlib import Path
from typing import Annotated

import typer

from onehop.base.errors import DataError
from onehop.cli import options as o
from onehop.cli.common import Json, machines, new_app, people
from onehop.data.sources import open_source
from onehop.lm import load

app = new_app()


@app.command("eval")
def evaluate(
    model: o.Model,
    files: Annotated[list[Path] | None, typer.Argument(help="text files, folders or globs")] = None,
    corpus: Annotated[str | None, typer.Option(help="a built-in corpus instead: fables or python-stdlib")] = None,
    documents: Annotated[int, typer.Option(help="how many documents of the corpus")] = 200,
    seed: Annotated[int, typer.Option(help="of the corpus; another than training's gives unseen documents")] = 12345,
    stride: Annotated[int | None, typer.Option(help="tokens between windows over long texts")] = None,
    dtype: o.DType = None,
    device: o.Device = "cpu",
    kernel: o.KernelName = "auto",
    parts: o.Parts = None,
    json: Json = False,
) -> int:
    """Loss (nats per token), perplexity and bits per byte on text."""
    if bool(files) == (corpus is not None):
        raise DataError("give a text to read: onehop eval MODEL FILE …, or --corpus fables (one of the two)")
    source = open_source(files=files or (), corpus=corpus, n_documents=documents if corpus else None, seed=seed)
    lm = load(model, dtype=dtype, device=device, kernel=kernel, parts=parts or [])
    console = people(json)
    with console.status(f"reading {source.description}"):
        texts = list(source)
        found = lm.evaluate(texts, stride=stride)
    if json:
        machines(
            {
                "text": source.description,
                "loss": found.loss,
                "perplexity": found.perplexity,
                "bits_per_byte": found.bits_per_byte,
                "n_tokens": found.n_tokens,
                "n_bytes": found.n_bytes,
                "how": found.how,
            }
        )
        return 0
    console.print(f"{source.description}: {found.n_tokens} tokens, {found.how}")
    console.print(f"loss {found.loss:.4f} nats per token, perplexity {found.perplexity:.3f}")
    if found.bits_per_byte is not None:
        console.print(f"{found.bits_per_byte:.4f} bits per byte")
    return 0
