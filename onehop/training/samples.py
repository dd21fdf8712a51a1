"""Text that the model writes while it learns."""

from pathlib import Path

from onehop.base.files import append, atomic_write
from onehop.generate import Engine, Limits, Request, run
from onehop.model.transformer import Transformer
from onehop.text.tokenizer import Tokenizer

TEMPERATURE = 0.8
_HEAD = "--- step "


def sample(model: Transformer, tokenizer: Tokenizer, prompt: str, *, n_tokens: int, seed: int = 0) -> str:
    """The prompt and up to `n_tokens` more, drawn at temperature 0.8 from `seed`; ends where the model ends it."""
    limits = Limits(
        n_ids=tokenizer.vocab_size,
        max_len=model.config.max_len,
        start_id=tokenizer.bos_id if tokenizer.bos_id is not None else 0,
        eos_ids=frozenset(tokenizer.eos_ids),
    )
    request = Request(tuple(tokenizer.encode(prompt)), max_new_tokens=n_tokens, temperature=TEMPERATURE, seed=seed)
    was_training = model.training
    model.eval()
    text = "".join(piece.text for piece in run(Engine(model), [request], limits=limits, tokenizer=tokenizer))
    model.train(was_training)
    return prompt + text


def write_sample(path: Path, text: str, *, step: int, val_loss: float) -> None:
    """Add a sample to samples.txt."""
    append(path, f"{_HEAD}{step}, validation loss {val_loss:.3f}\n{text}\n")


def drop_samples(path: Path, *, after: int) -> None:
    """Forget the samples of later steps, which a resumed run writes again."""
    if not path.exists():
        return
    kept, keep = [], True
    for line in path.read_bytes().decode().splitlines(keepends=True):
        step = line.removeprefix(_HEAD).partition(",")[0]
        if line.startswith(_HEAD) and step.isdigit():
            keep = int(step) <= after
        if keep:
            kept.append(line)
    atomic_write(path, "".join(kept))
