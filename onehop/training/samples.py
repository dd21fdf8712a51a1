"""Text that the model writes while it learns."""

from collections.abc import Sequence
from pathlib import Path

from onehop.base.files import append, atomic_write
from onehop.data.pairs import Borders
from onehop.generate import Engine, Limits, Request, run
from onehop.model.transformer import Transformer
from onehop.text.tokenizer import Tokenizer

TEMPERATURE = 0.8
_HEAD = "--- step "


def sample(
    model: Transformer,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    *,
    n_tokens: int,
    seed: int = 0,
    borders: Borders | None = None,
) -> str:
    """The prompt and up to `n_tokens` more, drawn at temperature 0.8 from `seed`; ends where the model ends it.

    With `borders` the prompt is a source, and what follows its answer.
    """
    request = Request(tuple(prompt), max_new_tokens=n_tokens, temperature=TEMPERATURE, seed=seed)
    (text,) = answers(model, tokenizer, [request], borders=borders)
    shown = tokenizer.decode(prompt)
    return shown + text if borders is None else f"{shown} → {text}"


def answers(
    model: Transformer, tokenizer: Tokenizer, requests: Sequence[Request], *, borders: Borders | None = None
) -> list[str]:
    """What a model that is being trained says to each request."""
    start = tokenizer.bos_id if tokenizer.bos_id is not None else 0
    limits = Limits(
        n_ids=tokenizer.vocab_size,
        max_len=model.config.max_len,
        start_id=start if borders is None else borders.start,
        eos_ids=tokenizer.eos_ids if borders is None else frozenset([borders.end]),
        has_source=borders is not None,
    )
    was_training = model.training
    model.eval()
    texts = [""] * len(requests)
    for piece in run(Engine(model), requests, limits=limits, tokenizer=tokenizer):
        texts[piece.request] += piece.text
    model.train(was_training)
    return texts


def write_sample(path: Path, text: str, *, step: int, val_loss: float) -> None:
    """Add a sample to samples.txt."""
    append(path, f"{_HEAD}{step}, validation loss {val_loss:.3f}\n{text}\n")


def drop_samples(path: Path, *, after: int) -> None:
    """Forget the samples of later steps, which a resumed run writes again."""
    if not path.exists():
        return
    kept, keep = [], True
    for line in path.read_bytes().splitlines(keepends=True):  # bytes: what is no text any more stays as it is
        if line.startswith(_HEAD.encode()):
            step = line.removeprefix(_HEAD.encode()).partition(b",")[0]
            keep = int(step) <= after if step.isdigit() else keep
        if keep:
            kept.append(line)
    atomic_write(path, b"".join(kept))
