"""What can be asked of a model in one request, and what is refused before any work is done."""

import math
import secrets
from dataclasses import dataclass, replace

from onehop.base.errors import RequestError

GREEDY_BELOW = 1e-6  # temperatures up to here are greedy: differences of float32 logits are coarser
LARGEST_SEED = 2**63 - 1
HUGE = 1e6  # largest penalty: far beyond any logit, and what it makes of one still fits float32


@dataclass(frozen=True)
class Limits:
    """What a model can take. n_ids: ids below it are real tokens; max_len: tokens that it can read.

    start_id begins an empty prompt (decoder-only) or every answer (encoder-decoder, has_source); eos_ids end one.
    both_ways: it sees what comes, so that it has nothing to say about the next token. never: ids that are not drawn,
    however likely; never_first: not at an answer's begin. first: the id that is drawn there, however unlikely; last: at
    the last place that an answer has room for (not with ignore_eos).
    """

    n_ids: int
    max_len: int
    start_id: int | None = None
    eos_ids: frozenset[int] = frozenset()
    has_source: bool = False
    both_ways: bool = False
    never: frozenset[int] = frozenset()
    never_first: frozenset[int] = frozenset()
    first: int | None = None
    last: int | None = None

    def need_next(self, what: str) -> None:
        """Raises RequestError where `what` takes a model of the next token, and this is none."""
        if self.both_ways:
            raise RequestError(
                f"this model reads both ways (attention.sees=all): at each place it predicts that token, not the next, "
                f"so {what}. Take its predictions from model(tokens), or use a model with attention.sees=causal."
            )

    def need_words(self) -> None:
        """Raises RequestError where no token may begin an answer."""
        kept_out = self.never | self.never_first
        if len(kept_out) >= self.n_ids and kept_out.issuperset(range(self.n_ids)):
            raise RequestError(
                "the checkpoint's settings keep every token out of an answer (suppress_tokens, begin_suppress_tokens, "
                "bad_words_ids). Remove some of them."
            )


@dataclass(frozen=True)
class Request:
    """One text to continue (encoder-decoder: to answer), and how. Impossible values raise RequestError.

    temperature 0 (up to 1e-6) takes the likeliest token, the lowest id among equals. top_k 0, top_p 1, min_p 0 and
    penalties of 1, 0 and 0 are off. seed None: a fresh one, see `seeded`. logprobs n: each token's log-probability and
    those of its n likeliest rivals. `max_new_tokens` may exceed what the context has left: the text then ends there.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop: tuple[str, ...] | str = ()
    seed: int | None = None
    logprobs: int | None = None
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", tuple(self.prompt))
        self._check_ids()
        _whole("max_new_tokens", self.max_new_tokens, low=1)
        _number("temperature", self.temperature, low=0.0, need="a finite number, 0 (greedy) or more")
        _whole("top_k", self.top_k, low=0, off="0 is off")
        _number("top_p", self.top_p, low=0.0, high=1.0, above=True, need="above 0 and at most 1 (1 is off)")
        _number("min_p", self.min_p, low=0.0, high=1.0, need="between 0 (off) and 1")
        need = f"between {1 / HUGE:g} and {HUGE:g} (1 is off)"
        _number("repetition_penalty", self.repetition_penalty, low=1 / HUGE, high=HUGE, need=need)
        for name in ("presence_penalty", "frequency_penalty"):
            _number(name, getattr(self, name), low=-HUGE, high=HUGE, need=f"between -{HUGE:g} and {HUGE:g} (0 is off)")
        _whole("seed", self.seed, low=0, high=LARGEST_SEED)
        _whole("logprobs", self.logprobs, low=0, off="0 gives the chosen token's alone")
        self._check_stop()
        if not isinstance(self.ignore_eos, bool):
            raise RequestError(f"ignore_eos={self.ignore_eos!r} must be true or false")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, without a draw."""
        return self.temperature <= GREEDY_BELOW

    @property
    def penalised(self) -> bool:
        """Whether what was said before changes the scores."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)

    def seeded(self) -> "Request":
        """The same request with a seed; a fresh one of 32 bits where it has none and draws."""
        return self if self.seed is not None or self.greedy else replace(self, seed=secrets.randbits(32))

    def for_model(self, limits: Limits) -> "Request":
        """The same request as this model can serve it, an empty prompt begun with the start token; or RequestError."""
        limits.need_next("it cannot continue a text")
        limits.need_words()
        prompt = self.prompt
        if not prompt:
            if limits.has_source:
                raise RequestError("the source is empty: this model answers a source text. Give one token or more.")
            if limits.start_id is None:
                raise RequestError("the prompt is empty and this model has no start token. Give one token or more.")
            prompt = (limits.start_id,)
        wrong = next((i for i in prompt if i >= limits.n_ids), None)
        if wrong is not None:
            raise RequestError(
                f"the prompt holds token id {wrong}, but this model's ids end at {limits.n_ids - 1}. "
                "Encode the text with the model's own tokenizer."
            )
        if len(prompt) > limits.max_len:
            what = "source" if limits.has_source else "prompt"
            raise RequestError(
                f"the {what} has {len(prompt)} tokens and this model's context holds {limits.max_len}. "
                f"Shorten it by {len(prompt) - limits.max_len} tokens, or use a model with a longer context."
            )
        if limits.has_source and limits.start_id is None:
            raise RequestError("this encoder-decoder has no decoder start token. Give decoder_start_id.")
        return self if prompt is self.prompt else replace(self, prompt=prompt)

    def room(self, limits: Limits) -> int:
        """How many tokens the answer may have: those asked for, as long as the text before each fits the context."""
        read = 1 if limits.has_source else len(self.prompt)
        left = limits.max_len - read + 1
        return left if self.max_new_tokens is None else min(self.max_new_tokens, left)

    def _check_ids(self) -> None:
        wrong = next((i for i in self.prompt if not _is_whole(i) or i < 0), None)
        if wrong is not None:
            raise RequestError(f"the prompt holds {wrong!r}, which is no token id. Give whole numbers from 0.")

    def _check_stop(self) -> None:
        stop: object = (self.stop,) if isinstance(self.stop, str) else self.stop
        if not isinstance(stop, (tuple, list)) or not all(isinstance(s, str) and s for s in stop):
            raise RequestError(f"stop={self.stop!r} must be a text that is not empty, or a list of such texts")
        object.__setattr__(self, "stop", tuple(stop))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole(name: str, value: int | None, *, low: int, high: int | None = None, off: str = "") -> None:
    if value is None and name in ("max_new_tokens", "seed", "logprobs"):
        return
    if not _is_whole(value) or value < low or (high is not None and value > high):  # type: ignore[operator]
        limit = f"{low} or more" if high is None else f"{low} to {high}"
        raise RequestError(f"{name}={value!r} must be a whole number, {limit}{f' ({off})' if off else ''}")


def _number(
    name: str, value: float, *, need: str, low: float = -math.inf, high: float = math.inf, above: bool = False
) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < low or value > high or (above and value == low):
        raise RequestError(f"{name}={value!r} must be {need}")
