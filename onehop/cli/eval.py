"""onehop eval MODEL FILE …"""

from pathlib import Path
from typing import Annotated, Any

import typer

from onehop.base.errors import DataError, RequestError
from onehop.cli import eval_tasks as t
from onehop.cli import options as o
from onehop.cli.common import Json, beside, machines, new_app, people, place_of, table
from onehop.data.sources import Source, open_source
from onehop.lm import Evaluation, LanguageModel, Loss, load
from onehop.lm.language_model import need_tokenizer

app = new_app()
DOCUMENTS = 200  # of a corpus, where no number is given
UNSEEN = 12345  # a seed that no shipped recipe trains on


@app.command("eval")
def evaluate(
    model: o.Model,
    files: Annotated[list[Path] | None, typer.Argument(help="text files, folders or globs")] = None,
    corpus: Annotated[str | None, typer.Option(help="a built-in corpus instead: fables or python-stdlib")] = None,
    documents: Annotated[int | None, typer.Option(help="how many documents of the corpus (left out: 200)")] = None,
    seed: Annotated[int | None, typer.Option(help="of the corpus (left out: 12345, unlike training's)")] = None,
    stride: Annotated[int | None, typer.Option(help="tokens between windows over long texts")] = None,
    by_document: Annotated[bool, typer.Option("--by-document", help="tell the loss of each document too")] = False,
    by_position: Annotated[bool, typer.Option("--by-position", help="tell the loss by the tokens before")] = False,
    tasks: t.Tasks = None,
    include_path: t.IncludePath = None,
    limit: t.Limit = None,
    num_fewshot: t.Shots = None,
    dtype: o.DType = None,
    device: o.Device = "cpu",
    kernel: o.KernelName = "auto",
    parts: o.Parts = None,
    adapter: o.Adapter = None,
    json: Json = False,
) -> int:
    """Loss (nats per token), perplexity and bits per byte on text; or lm-eval's tasks."""
    if sum((bool(files), corpus is not None, tasks is not None)) != 1:
        raise DataError("give a text to read: onehop eval MODEL FILE …, or --corpus fables, or --tasks (one of them)")
    asks: dict[str, Any] = {"include_path": include_path, "limit": limit, "num_fewshot": num_fewshot}
    reads = {"documents": documents, "seed": seed, "stride": stride}
    reads |= {"by_document": by_document or None, "by_position": by_position or None}
    t.refuse(reads if tasks is not None else asks, for_tasks=tasks is None)
    how: dict[str, Any] = {"dtype": dtype, "device": device, "kernel": kernel, "parts": parts or [], "adapter": adapter}
    if tasks is not None:
        names = t.names_of(tasks, **asks)
        t.tell_tasks(_open(model, json, **how), names, json=json, **asks)
        return 0
    if stride is not None and stride < 1:
        raise RequestError(f"--stride {stride} must be a whole number, 1 or more")
    source = _corpus(corpus, documents, seed) if corpus else _files(files or [], documents, seed)
    lm = _open(model, json, **how)
    with people(json).status(f"reading {source.description}"):
        found = lm.evaluate(list(source), stride=stride)
    _tell(source.description, found, json=json, by_document=by_document, by_position=by_position)
    return 0


def _open(model: str, json: bool, **how: Any) -> LanguageModel:
    """A model that reads text."""
    return load(
        place_of(model), check=lambda tokenizer, _: need_tokenizer(tokenizer, "text"), report=beside(json), **how
    )


def _files(files: list[Path], documents: int | None, seed: int | None) -> Source:
    if (documents, seed) != (None, None):
        raise DataError("--documents and --seed choose from a built-in corpus; files are read whole. Leave them out.")
    try:
        return open_source(files=files)
    except DataError as error:  # names the key of a recipe, which no one gave here
        raise DataError(str(error).replace("data.files=", "")) from error


def _corpus(name: str, documents: int | None, seed: int | None) -> Source:
    return open_source(
        corpus=name,
        n_documents=DOCUMENTS if documents is None else documents,
        seed=UNSEEN if seed is None else seed,
    )


def _tell(text: str, found: Evaluation, *, json: bool, by_document: bool, by_position: bool) -> None:
    if json:
        documents = [None if loss is None else _numbers(loss) for loss in found.documents]
        positions = [{"from": first, "to": last, **_numbers(loss)} for first, last, loss in found.positions]
        more = ({"documents": documents} if by_document else {}) | ({"positions": positions} if by_position else {})
        machines({"text": text, **_numbers(found), "how": found.how, **more})
    say = people(json).print
    say(f"{text}: {found.n_tokens} tokens, {found.how}")
    say(f"loss {found.loss:.4f} nats per token, perplexity {found.perplexity:.3f}")
    if found.bits_per_byte is not None:
        say(f"{found.bits_per_byte:.4f} bits per byte")
    if by_document:
        rows = [(i, *_shown(loss)) for i, loss in enumerate(found.documents, start=1) if loss is not None]
        say(table("document", "tokens", "loss", "bits per byte", rows=rows))
    if by_position:
        places = [
            (f"{first}-{last}" if last > first else str(first), *_shown(loss)[:2])
            for first, last, loss in found.positions
        ]
        say(table("tokens before", "tokens", "loss", rows=places))


def _numbers(found: Loss) -> dict[str, Any]:
    return {
        "loss": found.loss,
        "perplexity": found.perplexity,
        "bits_per_byte": found.bits_per_byte,
        "n_tokens": found.n_tokens,
        "n_bytes": found.n_bytes,
    }


def _shown(found: Loss) -> tuple[int, str, str]:
    bits = found.bits_per_byte
    return found.n_tokens, f"{found.loss:.4f}", "" if bits is None else f"{bits:.4f}"
