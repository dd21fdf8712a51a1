"""The lesson of each kind of task."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from onehop.base.errors import ConfigError
from onehop.base.units import human_count
from onehop.config.data import DataConfig
from onehop.config.recipe import Recipe
from onehop.config.task import ChatConfig, MaskedConfig, PairsConfig, SpansConfig
from onehop.data.chat import chat_examples
from onehop.data.compressed import ending_of
from onehop.data.corpora import CORPORA
from onehop.data.example_rows import chat_rows
from onehop.data.examples import Examples
from onehop.data.loader import Batch
from onehop.data.masking import (
    MASK,
    MOST_SENTINELS,
    SENTINEL,
    Cover,
    CoveredLoader,
    Pieces,
    mask_id,
    ordinary_ids,
    sentinels,
    span_counts,
    span_rows,
    span_widths,
)
from onehop.data.pack import pack_whole
from onehop.data.pairs import fitting, pair_example, pair_rows, texts_of, widths_of
from onehop.data.prepare import Prepared
from onehop.data.records import TSV, read_records, record_files
from onehop.data.report import data_report
from onehop.data.shards import Shards
from onehop.text.bpe import train_bpe
from onehop.text.chat import encode_chat
from onehop.text.tokenizer import Tokenizer
from onehop.training.lesson import Lesson, Making, Notify

EVALUATED = -1  # instead of a batch's number: the gaps of evaluation


def make_lesson(
    recipe: Recipe, folder: Path, notify: Notify, *, tokenizer: Tokenizer | None = None, start_id: int | None = None
) -> Lesson:
    """The lesson of a recipe; what is encoded is kept in `folder`. tokenizer, start_id: those of a checkpoint."""
    return LESSONS[recipe.task.kind](Making(recipe, folder, notify, tokenizer, start_id))


def _next(making: Making) -> Lesson:
    data = making.plain()
    loader, evaluation = making.packed(data)
    return Lesson(data, loader, data_report(data, loader), evaluation, data.tokenizer.encode, packs=loader.packs)


def _masked(making: Making) -> Lesson:
    task = making.recipe.task
    assert isinstance(task, MaskedConfig), "the task's kind says so"
    data = making.plain([MASK])
    cover = Cover(
        task.rate,
        task.as_mask,
        task.as_random,
        mask=mask_id(data.tokenizer),
        ordinary=ordinary_ids(data.tokenizer),
        seed=making.recipe.train.seed,
    )
    loader, evaluation = making.packed(data)

    def covered() -> Iterator[Batch]:
        for number, batch in enumerate(evaluation(), start=1):
            yield cover(batch, EVALUATED - number)

    return Lesson(data, CoveredLoader(loader, cover), data_report(data, loader), covered, None, packs=loader.packs)


def _spans(making: Making) -> Lesson:
    task, length = making.recipe.task, making.length
    assert isinstance(task, SpansConfig), "the task's kind says so"
    n_out, n_spans = span_counts(length, task.rate, task.mean_span)
    needed, room = n_spans + 1, making.recipe.model.max_len
    if needed > MOST_SENTINELS:
        raise ConfigError(
            f"task.rate={task.rate:g} and task.mean_span={task.mean_span:g} cut {needed - 1} spans out of a row of "
            f"{length} tokens, and there are marks for {MOST_SENTINELS - 1}. Shorten train.context, or raise mean_span."
        )
    if n_out + needed + 1 > room:  # the spans, each behind its mark, a last mark and the end
        raise ConfigError(
            f"task.rate={task.rate:g} and task.mean_span={task.mean_span:g} make targets of {n_out + needed + 1} "
            f"tokens of rows of {length}, and model.max_len={room}. Shorten train.context, or lower task.rate."
        )
    data = making.plain([SENTINEL.format(i) for i in range(needed)])
    marks, borders = sentinels(data.tokenizer), making.borders(data.tokenizer)
    if len(marks) < needed:
        raise ConfigError(
            f"task=spans needs {needed} marks, and this tokenizer has {len(marks)}. Shorten train.context."
        )
    rates: dict[str, Any] = {"rate": task.rate, "mean_span": task.mean_span, "marks": marks, "borders": borders}
    sides, widths = [], []
    for shards in (data.train, data.validation):
        assert isinstance(shards, Shards), "one text, of which all is encoded"
        pieces = Pieces.of(shards, length)
        make = span_rows(shards, pieces, **rates, seed=making.recipe.train.seed, most=length)
        sides.append((make, np.arange(len(pieces.start))))
        widths.append(span_widths(pieces, task.rate, task.mean_span, most=length))
    about = f"{human_count(len(sides[0][1]))} pieces of at most {length} tokens, {task.rate:.0%} of each cut out"
    evaluation = making.evaluation(*sides[1])
    prompt = _source(data.tokenizer, evaluation)
    loader = making.loader(*sides[0], about=about)
    return Lesson(data, loader, {"rows": about}, evaluation, prompt, borders, widths=widths[0])


def _chat(making: Making) -> Lesson:
    recipe = making.recipe
    task, d = recipe.task, recipe.data
    assert isinstance(task, ChatConfig), "the task's kind says so"
    if making.tokenizer is None and d.tokenizer == "bpe":
        raise ConfigError("task=chat needs a tokenizer that exists: set tune.init=MODEL, or data.tokenizer=PATH.")
    tokenizer = making.tokenizer or Tokenizer.load(d.tokenizer)
    if task.template is not None:
        tokenizer = tokenizer.with_chat_template(_text(task.template))
    if tokenizer.chat_template is None:
        raise ConfigError("this tokenizer has no chat template. Set task.template=FILE, a Jinja template of your own.")
    if d.corpus is not None:
        raise ConfigError(f"data.corpus={d.corpus} holds no conversations. Set data.files=FILE.jsonl instead.")
    records = islice(read_records(record_files(d.files)), d.n_documents)
    data = making.store([tokenizer.chat_template], tokenizer, lambda: chat_examples(records, tokenizer))
    tables = [pack_whole(side.starts, making.length, seed=recipe.train.seed) for side in both(data)]
    sides = [(chat_rows(side, table), np.arange(table.n_rows)) for side, table in zip(both(data), tables, strict=True)]
    about = (
        f"{both(data)[0].n_documents} conversations, {human_count(both(data)[0].n_targets)} of "
        f"{human_count(both(data)[0].n_tokens)} tokens to learn, in {human_count(tables[0].n_rows)} rows of "
        f"{making.length}; {tables[0].n_cut} cut"
    )
    held = both(data)[1]

    def asked(text: str) -> Sequence[int]:
        """What a user says or, where that is nothing, the first conversation up to its first answer."""
        if text:
            return encode_chat(tokenizer, [{"role": "user", "content": text}])
        return [int(i) for i in held.tokens[: int(np.argmax(held.learned))]]

    loader, evaluation = making.loader(*sides[0], about=about), making.evaluation(*sides[1])
    return Lesson(data, loader, {"rows": about}, evaluation, asked, packs=tables[0].packs)


def _pairs(making: Making) -> Lesson:
    recipe = making.recipe
    task, d = recipe.task, recipe.data
    assert isinstance(task, PairsConfig), "the task's kind says so"
    read = _pairs_of(d, (task.source, task.target))
    tokenizer = making.tokenizer
    if tokenizer is None and d.tokenizer != "bpe":
        tokenizer = Tokenizer.load(d.tokenizer)
    if tokenizer is None:
        tokenizer = train_bpe((text for pair in read() for text in pair), vocab_size=d.vocab_size)
    borders = making.borders(tokenizer)
    ready = tokenizer
    data = making.store([borders.start, borders.end], ready, lambda: (pair_example(p, ready, borders) for p in read()))
    most = making.length
    sides = [(pair_rows(side, borders, most=most), fitting(side, most)) for side in both(data)]
    n = both(data)[0].n_documents
    longer = n - len(sides[0][1])
    about = f"{human_count(n)} pairs" + (f", {longer} longer than {making.length} tokens left out" if longer else "")
    evaluation = making.evaluation(*sides[1])
    loader, source = making.loader(*sides[0], about=about), _source(ready, evaluation)
    widths = widths_of(both(data)[0], sides[0][1], most)
    return Lesson(data, loader, {"rows": about}, evaluation, source, borders, widths=widths)


def _source(tokenizer: Tokenizer, evaluation: Callable[[], Iterator[Batch]]) -> Callable[[str], Sequence[int]]:
    """A text as a source; without one, the first source of the evaluation."""

    def ids(text: str) -> Sequence[int]:
        if text:
            return tokenizer.encode(text)
        batch = next(evaluation())
        assert batch.source is not None, "an encoder-decoder's batch"
        row: list[int] = batch.source[0].tolist()
        return row if batch.source_at is None else row[: int((batch.source_at[0] >= 0).sum())]

    return ids


def _pairs_of(d: DataConfig, fields: tuple[str, str]) -> Callable[[], Iterator[tuple[str, str]]]:
    """The pairs of the files or of the built-in corpus, as often as they are asked for."""
    if d.corpus is None:
        files = record_files(d.files)
        if all(ending_of(file) == TSV for file in files):
            _refuse_names(fields, f"both columns of a {TSV} file are told by their place")
        return lambda: islice(texts_of(read_records(files, columns=fields), fields), d.n_documents)
    corpus = CORPORA.get(d.corpus)
    if corpus.pairs is None:
        having = ", ".join(name for name, other in CORPORA.items() if other.pairs is not None)
        raise ConfigError(f"data.corpus={d.corpus} has no pairs of source and target. Use {having}, or data.files.")
    if d.n_documents is None:
        raise ConfigError(f"the corpus {d.corpus} is endless. Say how many pairs to take: data.n_documents=20000.")
    _refuse_names(fields, f"the corpus {d.corpus} makes its pairs itself")
    make = corpus.pairs
    return lambda: islice(make(d.seed), d.n_documents)


def _refuse_names(fields: tuple[str, str], why: str) -> None:
    """Refuse names of fields where nothing is looked up by them."""
    for key, field in zip(("source", "target"), fields, strict=True):
        if field != PairsConfig.model_fields[key].default:
            raise ConfigError(f"task.{key}={field} has no effect: {why}. Leave it out.")


def both(data: Prepared) -> tuple[Examples, Examples]:
    """The examples to learn from, and those to evaluate on."""
    assert isinstance(data.train, Examples), "stored as such"
    assert isinstance(data.validation, Examples), "stored as such"
    return data.train, data.validation


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"task.template={path} cannot be read: {error}. Name a text file in UTF-8.") from error


LESSONS: dict[str, Callable[[Making], Lesson]] = {
    "next": _next,
    "chat": _chat,
    "pairs": _pairs,
    "spans": _spans,
    "masked": _masked,
}
