"""The public face: a model with its tokenizer, its defaults and its engine."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from onehop.base.errors import RequestError
from onehop.config.model import ModelConfig
from onehop.generate.batch import Piece, run
from onehop.generate.engine import Engine
from onehop.generate.request import Limits, Request
from onehop.lm import scoring
from onehop.lm.completion import Completion
from onehop.lm.options import resolve
from onehop.model.transformer import Transformer
from onehop.parts.linear import pack
from onehop.text.chat import Message, encode_chat
from onehop.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]


class LanguageModel:
    """`model` (an ordinary nn.Module: lm.model(tokens) -> logits), its `tokenizer`, and how it likes to be sampled.

    Options of `generate`, `stream` and `chat`: max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty,
    presence_penalty, frequency_penalty, stop, seed, logprobs, ignore_eos. Each is the argument, else what the
    checkpoint's generation_config.json says, else onehop's default (temperature 0.8 with a fresh seed); `resolve` tells.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer | None = None,
        *,
        defaults: Mapping[str, Any] | None = None,
        eos_ids: frozenset[int] | None = None,
        start_id: int | None = None,
        provenance: Mapping[str, Any] | None = None,
        kernel: str = "auto",
        prepare: bool = True,
    ):
        """defaults: the contents of a generation_config.json. start_id: None is the tokenizer's begin token.

        prepare: keep a second copy of the weights in the layout that the CPU multiplies fastest (`parts.linear.pack`).
        """
        self.model, self.tokenizer = model, tokenizer
        self.defaults, self.provenance = dict(defaults or {}), dict(provenance or {})
        self.eos_ids = eos_ids if eos_ids is not None else tokenizer.eos_ids if tokenizer is not None else frozenset()
        self.start_id = start_id if start_id is not None else tokenizer.bos_id if tokenizer is not None else None
        self.kernel, self.prepare = kernel, prepare

    @property
    def config(self) -> ModelConfig:
        """The architecture."""
        return self.model.config

    @property
    def limits(self) -> Limits:
        """What a request may ask of this model. A head may have more rows than there are tokens: those are no tokens."""
        rows = self.model.embed.tokens.num_embeddings
        return Limits(
            n_ids=rows if self.tokenizer is None else min(rows, self.tokenizer.vocab_size),
            max_len=self.config.max_len,
            start_id=self.start_id,
            eos_ids=self.eos_ids,
            has_source=self.config.encoder is not None,
        )

    def generate(self, prompts: Prompt | Sequence[Prompt], **options: Any) -> list[Completion]:
        """Continue each prompt, a text or token ids (encoder-decoder: answer it); no chat template is applied.

        `seed` is one number for all prompts or a list with one for each. Prompts do not influence each other.
        """
        requests = self.requests(prompts, **options)
        pieces: list[list[Piece]] = [[] for _ in requests]
        for piece in run(self.engine(), requests, limits=self.limits, tokenizer=self.tokenizer):
            pieces[piece.request].append(piece)
        return [_completion(request, found) for request, found in zip(requests, pieces)]

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[Piece]:
        """`generate` for one prompt, piece by piece: each token with the text that may be shown by now."""
        (request,) = self.requests([prompt], **options)
        return run(self.engine(), [request], limits=self.limits, tokenizer=self.tokenizer)

    def chat(self, messages: Sequence[Message], **options: Any) -> Completion:
        """The next message of a conversation, [{"role": "user", "content": "…"}, …], by the checkpoint's own template.

        Raises TextError, naming `generate`, where the checkpoint has none.
        """
        return self.generate([self.encode_chat(messages)], **options)[0]

    def encode_chat(self, messages: Sequence[Message], **extra: Any) -> list[int]:
        """The token ids of a conversation that the assistant is to go on with; `extra` is for the template."""
        return encode_chat(self._need_tokenizer("a conversation"), messages, **extra)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, begun as the checkpoint's own rule says."""
        return self._need_tokenizer("text").encode(text)

    def resolve(self, **options: Any) -> dict[str, tuple[Any, str]]:
        """Every option's value and where it comes from: argument, generation_config.json or default."""
        return resolve(options, self.defaults)

    def requests(self, prompts: Prompt | Sequence[Prompt], **options: Any) -> list[Request]:
        """The requests that `generate` runs, seeds drawn."""
        each = [prompts] if isinstance(prompts, str) or _is_ids(prompts) else list(prompts)
        values = {name: value for name, (value, _) in self.resolve(**options).items()}
        seeds = values.pop("seed")
        seeds = list(seeds) if isinstance(seeds, (list, tuple)) else [seeds] * len(each)
        if len(seeds) != len(each):
            raise RequestError(f"seed has {len(seeds)} numbers for {len(each)} prompts. Give one, or one for each.")
        limits = self.limits
        return [
            Request(self._ids(prompt), seed=seed, **values).for_model(limits).seeded()
            for prompt, seed in zip(each, seeds)
        ]

    def engine(self) -> Engine:
        """The engine, its weights prepared."""
        if self.prepare:
            pack(self.model)
        return Engine(self.model, kernel=self.kernel)

    def score(self, context: Prompt, continuation: Prompt) -> scoring.Score:
        """The log-probability of a continuation after a context; see `scoring.score`."""
        return scoring.score(self, context, continuation)

    def evaluate(self, texts: Sequence[Prompt], *, stride: int | None = None) -> scoring.Evaluation:
        """Loss, perplexity and bits per byte of texts; see `scoring.evaluate`."""
        return scoring.evaluate(self, texts, stride=stride)

    def _ids(self, prompt: Prompt) -> tuple[int, ...]:
        return tuple(self.encode(prompt)) if isinstance(prompt, str) else tuple(prompt)

    def _need_tokenizer(self, what: str) -> Tokenizer:
        if self.tokenizer is None:
            raise RequestError(f"this model has no tokenizer, so {what} cannot be encoded. Give token ids.")
        return self.tokenizer


def _is_ids(prompts: Any) -> bool:
    """Whether this is one prompt of ids and not several prompts."""
    return len(prompts) > 0 and all(hasattr(item, "__index__") for item in prompts)


def _completion(request: Request, pieces: list[Piece]) -> Completion:
    reason = pieces[-1].finish_reason
    assert reason is not None
    logprobs = [piece.logprob for piece in pieces if piece.logprob is not None]
    return Completion(
        text="".join(piece.text for piece in pieces),
        token_ids=[piece.token_id for piece in pieces],
        logprobs=None if request.logprobs is None else logprobs,
        finish_reason=reason,
        n_prompt_tokens=len(request.prompt),
        seed=request.seed,
    )
