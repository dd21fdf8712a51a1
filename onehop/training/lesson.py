"""What a run learns from, as its task has it, and what every kind of task is made of."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from onehop.base.errors import ConfigError
from onehop.base.files import atomic_folder, atomic_write
from onehop.base.units import human_count
from onehop.config.data import TextConfig
from onehop.config.recipe import Recipe
from onehop.data.example_rows import Make, RowLoader, evaluation_rows
from onehop.data.examples import Example, Examples, write_examples
from onehop.data.loader import Batch, Loader, evaluation_batches
from onehop.data.pairs import Borders, Width
from onehop.data.prepare import TRAINED, Prepared, prepare
from onehop.data.records import digest, record_files
from onehop.data.report import Report
from onehop.data.shards import FORMAT, SIDES
from onehop.text.tokenizer import Tokenizer

Notify = Callable[[str], None]
DONE = "source.json"  # written last


class Batches(Protocol):
    """Batches in an order that depends on the seed alone."""

    @property
    def n_rows(self) -> int | None: ...

    def batches(self, start: int = 0) -> Iterator[Batch]: ...

    def batch(self, number: int) -> Batch: ...

    def summary(self) -> str: ...


@dataclass(frozen=True, eq=False)
class Lesson:
    """The tokenizer and both sides of the text, the batches to learn from, and those to evaluate on.

    report: of the data, as JSON has it.
    prompt: `train.sample` as the token ids that a sample goes on from (None: the model cannot go on with a text).
    borders: for encoder-decoders, the token that an answer begins with and the one that ends it.
    packs: whether a row may hold several documents. widths: of an encoder-decoder's sources and targets.
    """

    data: Prepared
    loader: Batches
    report: Report
    evaluation: Callable[[], Iterator[Batch]]
    prompt: Callable[[str], Sequence[int]] | None
    borders: Borders | None = None
    packs: bool = False
    widths: tuple[Width, Width] | None = None


@dataclass(frozen=True, eq=False)
class Making:
    """What the lessons are made of."""

    recipe: Recipe
    folder: Path
    notify: Notify
    tokenizer: Tokenizer | None
    start_id: int | None

    @property
    def rows(self) -> int:
        """Rows of a forward pass."""
        return self.recipe.train.micro_batch or self.recipe.train.batch_size

    @property
    def length(self) -> int:
        """Tokens of a row."""
        return self.recipe.train.context or self.recipe.model.max_len

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Say how far it is."""
        self.notify(f"{what}: {human_count(done)}" + (f" of {human_count(total)}" if total else ""))

    def plain(self, special: Sequence[str] = ()) -> Prepared:
        """The recipe's text as a tokenizer and token shards; one that is trained here gets these control tokens too."""
        d = self.recipe.data
        data = prepare(
            **d.model_dump(include=set(TextConfig.model_fields)),
            folder=self.folder,
            mixture=d.mixture,
            deduplicate=d.deduplicate,
            stream=d.stream,
            tokenizer=self.tokenizer or d.tokenizer,
            vocab_size=d.vocab_size,
            validation=d.validation,
            seed=d.seed,
            progress=self.progress,
        )
        trained = self.tokenizer is None and d.tokenizer in TRAINED
        return replace(data, tokenizer=data.tokenizer.with_special(special)) if trained and special else data

    def packed(self, data: Prepared) -> tuple[Loader, Callable[[], Iterator[Batch]]]:
        """Rows of packed documents, to learn from and to evaluate on."""
        cfg, packing = self.recipe.train, self.recipe.data.packing
        size: dict[str, Any] = {"batch_size": self.rows, "length": self.length, "packing": packing}
        return Loader(data.train, seed=cfg.seed, **size), lambda: evaluation_batches(
            data.validation, n_rows=cfg.eval_rows, **size
        )

    def loader(self, make: Make, numbers: np.ndarray, *, about: str) -> RowLoader:
        """Rows that a task makes itself."""
        return RowLoader(make, numbers, batch_size=self.rows, seed=self.recipe.train.seed, about=about)

    def evaluation(self, make: Make, numbers: np.ndarray) -> Callable[[], Iterator[Batch]]:
        """The same rows of the other side each time."""
        return lambda: evaluation_rows(make, numbers, batch_size=self.rows, n_rows=self.recipe.train.eval_rows)

    def borders(self, tokenizer: Tokenizer) -> Borders:
        """Start and end of an answer: the checkpoint's own, else the tokenizer's begin and end. Raises ConfigError."""
        start = self.start_id if self.start_id is not None else tokenizer.bos_id
        end = tokenizer.eos_id
        if start is None or end is None:
            lacks = "begin" if start is None else "end"
            raise ConfigError(
                f"task={self.recipe.task.kind} needs a token that {lacks}s an answer, which this tokenizer lacks. Use "
                "data.tokenizer=bpe, or a tokenizer that names it in tokenizer_config.json."
            )
        return Borders(start, end)

    def store(self, facts: Sequence[Any], tokenizer: Tokenizer, examples: Callable[[], Iterator[Example]]) -> Prepared:
        """Examples, kept on disk under a name made of everything that they depend on, as Prepared."""
        d = self.recipe.data
        files = record_files(d.files)
        task = self.recipe.task.model_dump()
        made_of = [FORMAT, digest(files), d.corpus, d.n_documents, d.validation, d.seed, tokenizer.fingerprint, task]
        key = hashlib.sha256(json.dumps([*made_of, *facts]).encode()).hexdigest()[:16]
        place = self.folder / key
        about = d.corpus or ", ".join(file.name for file in files)
        reused = (place / DONE).is_file()
        if not reused:
            with atomic_folder(place) as temporary:
                found = list(_told(examples(), self.progress))
                write_examples(temporary, found, validation=d.validation, seed=d.seed)
                atomic_write(temporary / DONE, json.dumps({"text": about, "task": task}) + "\n")
        train, held = (Examples.open(place, side) for side in SIDES)
        return Prepared(
            tokenizer,
            train,
            held,
            about,
            n_skipped=0,
            n_duplicates=(0,),
            folder=place,
            identity=place.name,
            reused=reused,
        )


def _told(examples: Iterator[Example], progress: Callable[[str, int, int | None], None]) -> Iterator[Example]:
    for n, example in enumerate(examples, start=1):
        yield example
        if n % 1000 == 0:
            progress("examples encoded", n, None)
