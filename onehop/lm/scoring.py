"""How likely a model finds given text: log-probabilities, loss, perplexity, bits per byte."""

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from onehop.base.errors import DataError, RequestError
from onehop.generate.engine import left_padded
from onehop.generate.sample import wide
from onehop.parts.linear import pack

if TYPE_CHECKING:
    from onehop.lm.language_model import LanguageModel, Prompt

READ_AT_ONCE = 8192  # tokens
HEAD_ROWS = 1024  # positions whose logits are in memory at once


@dataclass(frozen=True)
class Score:
    """A continuation's log-probability in nats, token by token, and whether greedy decoding would have said it."""

    token_ids: list[int]
    token_logprobs: list[float]
    greedy_ids: list[int]  # the likeliest token at each of these places

    @property
    def logprob(self) -> float:
        """The sum over the tokens."""
        return math.fsum(self.token_logprobs)

    @property
    def is_greedy(self) -> bool:
        """Whether each token is the likeliest at its place."""
        return self.token_ids == self.greedy_ids


@dataclass(frozen=True)
class Loss:
    """Mean loss in nats per token over n_tokens scored tokens; n_bytes: their UTF-8 bytes (needs a tokenizer)."""

    loss: float
    n_tokens: int
    n_bytes: int | None

    @property
    def perplexity(self) -> float:
        """exp(loss); infinite beyond the largest float."""
        return math.exp(self.loss) if self.loss < math.log(sys.float_info.max) else math.inf

    @property
    def bits_per_byte(self) -> float | None:
        """Bits that the model needs per byte of text: comparable between tokenizers."""
        return None if not self.n_bytes else self.loss * self.n_tokens / math.log(2) / self.n_bytes


@dataclass(frozen=True)
class Evaluation(Loss):
    """The loss of all texts, of each by itself (None: it has no token to score), and by the place in the context.

    `positions`: (fewest, most, loss): the tokens that were predicted from so many tokens before them.
    """

    how: str
    documents: tuple[Loss | None, ...] = ()
    positions: tuple[tuple[int, int, Loss], ...] = ()


def score(lm: "LanguageModel", context: "Prompt", continuation: "Prompt") -> Score:
    """Log-probability of `continuation` after `context`, both texts or both token ids; its first token counts.

    Texts are encoded together; where a token spans the join, the scored part begins with it, so it is never empty. What
    exceeds the context length is cut from the left of `context`; `continuation` stays whole. An empty context needs a
    start token. Encoder-decoder: `context` is the source.
    """
    return score_all(lm, [(context, continuation)])[0]


def score_all(lm: "LanguageModel", pairs: "Sequence[tuple[Prompt, Prompt]]") -> list[Score]:
    """`score` of many pairs (context, continuation); those of similar length are read together."""
    lm.limits.need_next("a continuation has no score")
    asked = [_asked(lm, *pair) for pair in pairs]
    if lm.limits.has_source:
        return [_score_answer(lm, before, after) for before, after in asked]
    windows = [
        _Window([*before, *after][-lm.limits.max_len :], len(after), 0, i) for i, (before, after) in enumerate(asked)
    ]
    found: dict[int, Score] = {}
    for batch in _batches(sorted(windows, key=lambda window: len(window.ids))):
        for window, (logprobs, best) in zip(batch, _read(lm, batch), strict=True):
            found[window.document] = Score(asked[window.document][1], logprobs.tolist(), best.tolist())
    return [found[i] for i in range(len(asked))]


def rolling(lm: "LanguageModel", texts: "Sequence[Prompt]") -> list[float]:
    """The log-probability of each whole text, in nats; every token is scored once, after as many others as fit.

    A text longer than the context is read in windows that do not overlap, but for the last, which is full too. Before
    the first token stands the begin token, else an end token; without either the first token is not scored.
    """
    lm.limits.need_next("a text has no log-probability")
    windows = []
    for number, text in enumerate(texts):
        ids = _begun(lm, text)
        if lm.start_id is None and lm.eos_ids:
            ids = [min(lm.eos_ids), *ids]
        _check_ids(lm, ids)
        context = lm.limits.max_len
        for done in range(1, len(ids), context):
            end = min(done + context, len(ids))
            windows.append(_Window(ids[max(0, end - 1 - context) : end], end - done, 0, number))
    sums: list[list[float]] = [[] for _ in texts]
    for batch in _batches(sorted(windows, key=lambda window: len(window.ids))):
        for window, losses in zip(batch, _losses(lm, batch), strict=True):
            sums[window.document].append(-float(losses.sum()))
    return [math.fsum(parts) for parts in sums]


def evaluate(lm: "LanguageModel", texts: "Iterable[Prompt]", *, stride: int | None = None) -> Evaluation:
    """Mean loss over texts (or token ids), each read by itself from its begin token.

    A text longer than the context is read in windows of the context's length that move on by `stride` tokens (none:
    half of it); each token is scored once, in the first window that holds it, so that all but those of the first window
    have at least context - stride tokens before them. The first token of a text is scored only if a begin token
    precedes it.
    """
    if lm.config.encoder is not None:
        raise RequestError("an encoder-decoder has no loss on plain text. Use score(source, answer).")
    lm.limits.need_next("a text has no loss")
    context = lm.config.max_len
    stride = max(1, context // 2) if stride is None else stride
    if not isinstance(stride, int) or not 1 <= stride <= context:
        raise RequestError(f"stride={stride} must be a whole number between 1 and this model's context of {context}")
    if lm.prepare:
        pack(lm.model)
    by_document: dict[int, _Sums] = {}
    by_place: dict[int, _Sums] = {}
    windows = _windows(lm, _numbered(texts, by_document), context=context, stride=stride)
    for batch in _batches(windows):
        for window, losses in zip(batch, _losses(lm, batch), strict=True):
            by_document[window.document].add(losses, window.n_bytes)
            _add_by_place(by_place, losses, n_before=len(window.ids) - window.n_scored)
    whole = _Sums([x for sums in by_document.values() for x in sums.losses])
    whole.n_tokens = sum(sums.n_tokens for sums in by_document.values())
    whole.n_bytes = sum(sums.n_bytes for sums in by_document.values())
    found = whole.mean(lm.tokenizer is not None)
    if found is None:
        raise DataError("no token to score: the texts are empty, or hold one token each. Give longer texts.")
    documents = tuple(sums.mean(lm.tokenizer is not None) for sums in by_document.values())
    positions = tuple(
        (1 << power, min((2 << power) - 1, context), loss)
        for power, sums in sorted(by_place.items())
        if (loss := sums.mean(known=False)) is not None
    )
    return Evaluation(found.loss, found.n_tokens, found.n_bytes, _how(lm, context, stride), documents, positions)


@dataclass
class _Sums:
    """Losses on their way to a mean."""

    losses: list[float] = field(default_factory=list)
    n_tokens: int = 0
    n_bytes: int = 0

    def add(self, losses: Tensor, n_bytes: int = 0) -> None:
        self.losses.append(float(losses.sum()))
        self.n_tokens += losses.numel()
        self.n_bytes += n_bytes

    def mean(self, known: bool) -> Loss | None:
        """The mean loss; known: whether the bytes are."""
        if not self.n_tokens:
            return None
        return Loss(math.fsum(self.losses) / self.n_tokens, self.n_tokens, self.n_bytes if known else None)


def _numbered(texts: "Iterable[Prompt]", by_document: dict[int, _Sums]) -> "Iterator[tuple[int, Prompt]]":
    """Each text with its number, and a place for its sums."""
    for number, text in enumerate(texts):
        by_document[number] = _Sums()
        yield number, text


def _add_by_place(by_place: dict[int, _Sums], losses: Tensor, *, n_before: int) -> None:
    """Sort losses by how many tokens were before them, n_before at the first: 1, 2-3, 4-7 and so on."""
    done = 0
    while done < losses.numel():
        power = (n_before + done).bit_length() - 1
        end = (2 << power) - n_before
        by_place.setdefault(power, _Sums()).add(losses[done:end])
        done = min(end, losses.numel())


def _read_off(lm: "LanguageModel", hidden: Tensor, targets: Tensor, n_ids: int) -> tuple[Tensor, Tensor]:
    found, best = [], []
    step = max(1, HEAD_ROWS // hidden.size(0))
    for start in range(0, hidden.size(1), step):
        part = slice(start, start + step)
        logits = wide(lm.model.head(hidden[:, part])[..., :n_ids])  # (B, t, V)
        found.append(logits.log_softmax(dim=-1).gather(-1, targets[:, part].unsqueeze(-1)).squeeze(-1))
        best.append(logits.argmax(dim=-1))
    return torch.cat(found, dim=1), torch.cat(best, dim=1)


def _asked(lm: "LanguageModel", context: "Prompt", continuation: "Prompt") -> tuple[list[int], list[int]]:
    """The ids of both, checked."""
    limits = lm.limits
    before, after = _split(lm, context, continuation)
    if not after:
        raise RequestError("the continuation is empty: there is nothing to score")
    if limits.has_source:
        return before, after
    if not before:
        if limits.start_id is None:
            if len(context):
                raise RequestError(
                    f"one token spans {context!r} and the continuation's begin, so no token is before it, and this "
                    "model has no start token. Give a longer context."
                )
            raise RequestError("the context is empty and this model has no start token. Give a context.")
        before = [limits.start_id]
    _check_ids(lm, [*before, *after])
    if len(after) >= limits.max_len:
        raise RequestError(
            f"the continuation has {len(after)} tokens, and with one token before it this model's context of "
            f"{limits.max_len} is exceeded. Shorten it."
        )
    return before, after


def _score_answer(lm: "LanguageModel", source: list[int], answer: list[int]) -> Score:
    limits, device = lm.limits, lm.model.embed.tokens.weight.device
    if not source or limits.start_id is None:
        raise RequestError("an encoder-decoder needs a source that is not empty and a decoder start token")
    _check_ids(lm, [*source, *answer])
    for what, ids in (("source", source), ("answer", answer)):
        if len(ids) > limits.max_len:
            raise RequestError(
                f"the {what} has {len(ids)} tokens, and this model's context is {limits.max_len}. Shorten it."
            )
    target = torch.tensor([[limits.start_id, *answer[:-1]]], device=device)
    with torch.inference_mode():
        hidden = lm.model.states(torch.tensor([source], device=device), target, kernel=lm.kernel).hidden
        found, best = _read_off(lm, hidden, torch.tensor([answer], device=device), limits.n_ids)
    return Score(answer, found[0].tolist(), best[0].tolist())


def _split(lm: "LanguageModel", context: "Prompt", continuation: "Prompt") -> tuple[list[int], list[int]]:
    """The ids of both parts."""
    if not isinstance(context, str) and not isinstance(continuation, str):
        return list(lm.ids(context)), list(lm.ids(continuation))
    if not (isinstance(context, str) and isinstance(continuation, str)):
        raise RequestError("context and continuation must both be text or both be token ids")
    if lm.limits.has_source:
        return lm.encode(context), lm.encode(continuation)
    if not continuation:
        return [], []
    first, whole = lm.encode(context), lm.encode(context + continuation)
    same = 0
    while same < min(len(first), len(whole)) and first[same] == whole[same]:
        same += 1
    return whole[:same], whole[same:]


def _begun(lm: "LanguageModel", text: "Prompt") -> list[int]:
    """A text's ids behind the begin token, if there is one."""
    ids = list(lm.ids(text))
    start = lm.start_id
    return ids if start is None or ids[:1] == [start] else [start, *ids]


@dataclass(frozen=True)
class _Window:
    """A stretch of a text: what is read, and how many of its last targets are scored here."""

    ids: list[int]  # the last one is a target only
    n_scored: int
    n_bytes: int  # of the whole text, counted with its first window
    document: int


def _windows(
    lm: "LanguageModel", texts: "Iterable[tuple[int, Prompt]]", *, context: int, stride: int
) -> Iterator[_Window]:
    for number, text in texts:
        ids = _begun(lm, text)
        _check_ids(lm, ids)
        n_bytes, done = _scored_bytes(lm, text, ids), 1
        for start in range(0, len(ids), stride):
            if done >= len(ids):
                break
            part = ids[start : start + context + 1]
            yield _Window(part, start + len(part) - done, n_bytes, number)
            n_bytes, done = 0, start + len(part)


def _batches(windows: Iterable[_Window]) -> Iterator[list[_Window]]:
    """Windows that are read at once."""
    batch: list[_Window] = []
    for window in windows:
        if batch and (len(batch) + 1) * max(len(w.ids) for w in [*batch, window]) > READ_AT_ONCE:
            yield batch
            batch = []
        batch.append(window)
    if batch:
        yield batch


def _losses(lm: "LanguageModel", batch: list[_Window]) -> list[Tensor]:
    """The losses (n_scored,) in float64 of what each window scores."""
    return [-logprobs.double() for logprobs, _ in _read(lm, batch)]


def _read(lm: "LanguageModel", batch: list[_Window]) -> list[tuple[Tensor, Tensor]]:
    """Of each window, the log-probabilities (n_scored,) of what it scores, and the likeliest ids there."""
    device = lm.model.embed.tokens.weight.device
    tokens, at = left_padded([window.ids[:-1] for window in batch], device)
    targets, _ = left_padded([window.ids[1:] for window in batch], device)
    n = max(window.n_scored for window in batch)
    with torch.inference_mode():
        hidden = lm.model.states(tokens, at=at, kernel=lm.kernel).hidden[:, -n:]  # (B, n, C)
        found, best = _read_off(lm, hidden, targets[:, -n:], lm.limits.n_ids)
    rows = zip(found.cpu(), best.cpu(), batch, strict=True)
    return [(row[-window.n_scored :], ids[-window.n_scored :]) for row, ids, window in rows]


def _scored_bytes(lm: "LanguageModel", text: "Prompt", ids: list[int]) -> int:
    """UTF-8 bytes of what is scored; the first token's do not count where it is not."""
    if lm.tokenizer is None or not ids:
        return 0
    text = text if isinstance(text, str) else lm.tokenizer.decode(text)
    unscored = 0 if lm.start_id is not None else len(lm.tokenizer.token_bytes(ids[0]))
    return len(text.encode("utf-8", errors="replace")) - unscored


def _check_ids(lm: "LanguageModel", ids: Sequence[int]) -> None:
    n_ids = lm.limits.n_ids
    wrong = next((i for i in ids if not 0 <= i < n_ids), None)
    if wrong is not None:
        raise RequestError(f"the text holds token id {wrong}, but this model's ids end at {n_ids - 1}")


def _how(lm: "LanguageModel", context: int, stride: int) -> str:
    begin = "the begin token" if lm.start_id is not None else "its own first token, which is not scored"
    return (
        f"each text by itself, from {begin}; windows of {context} tokens, stride {stride}: beyond the first window "
        f"every token has at least {context - stride} tokens before it"
    )
