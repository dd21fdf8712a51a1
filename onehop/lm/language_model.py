"""The public face: a model with its tokenizer, its defaults and its engine."""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from operator import index
from pathlib import Path
from typing import Any

from onehop.base.errors import RequestError
from onehop.config.model import ModelConfig
from onehop.formats.layout import Family
from onehop.generate.batch import Piece, run
from onehop.generate.compiled import OneToken, Say
from onehop.generate.engine import Engine
from onehop.generate.request import Limits, Request
from onehop.lm import scoring
from onehop.lm.asked import fixed, never_first, never_said, not_done
from onehop.lm.completion import Completion
from onehop.lm.options import NAMES, resolve
from onehop.model.transformer import Transformer
from onehop.parts.linear import pack
from onehop.parts.score import check_kernel
from onehop.text.chat import Message, encode_chat
from onehop.text.sources import tokenizer_file
from onehop.text.tokenizer import Tokenizer
from onehop.weights.gguf import save_gguf
from onehop.weights.hf import save_hf
from onehop.weights.native import save_native
from onehop.weights.target import check_name, check_run

Prompt = str | Sequence[int]


class LanguageModel:
    """`model` (an ordinary nn.Module: lm.model(tokens) -> logits), its `tokenizer`, and how it likes to be sampled.

    Options of `generate`, `stream` and `chat`: max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty,
    presence_penalty, frequency_penalty, stop, seed, logprobs, ignore_eos. Each is the argument, else what the
    checkpoint's generation_config.json says, else onehop's default (temperature 0.8, a fresh seed); `resolve` tells.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer | None = None,
        *,
        eos_ids: frozenset[int] | None = None,
        start_id: int | None = None,
        generation_config: Mapping[str, Any] | None = None,
        provenance: Mapping[str, Any] | None = None,
        folder: Path | None = None,
        family: Family | None = None,
        parts: Iterable[str | Path] = (),
        kernel: str = "auto",
        prepare: bool | None = None,
        compile: bool = False,
        say: Say | None = None,
    ):
        """A model by itself, or with what `load` found in its folder; `save` keeps all of it.

        eos_ids and start_id None: the tokenizer's. generation_config: the contents of a generation_config.json.
        prepare: keep a second copy of the weights in the layout that this CPU multiplies fastest (`parts.linear.pack`);
        None: if it takes no more than a quarter of the machine's memory. compile: take each further token through
        torch.compile: up to a minute, and a copy of the weights, for each number of rows and size of the cache, up to
        four of them (see `OneToken`); `say` shows it.
        """
        self.model, self.tokenizer = model, tokenizer
        self.generation_config = dict(generation_config or {})
        self.provenance, self.folder, self.family = provenance, folder, family
        self.eos_ids = eos_ids if eos_ids is not None else tokenizer.eos_ids if tokenizer is not None else frozenset()
        self.start_id = start_id if start_id is not None else tokenizer.bos_id if tokenizer is not None else None
        check_kernel(kernel)
        self.kernel, self.parts = kernel, tuple(parts)
        self.prepare = _is_small(model) if prepare is None else prepare
        self.compile, self.say = compile, say
        self._one_token = OneToken(model, kernel=kernel, say=say) if compile else None

    @property
    def config(self) -> ModelConfig:
        """The architecture."""
        return self.model.config

    @property
    def limits(self) -> Limits:
        """What a request may ask of this model. Rows of the head beyond the tokenizer's last id are no tokens."""
        asks, encodes = self.generation_config, self.config.encoder is not None
        rows = self.model.embed.tokens.num_embeddings
        n_ids = rows if self.tokenizer is None else min(rows, self.tokenizer.vocab_size)
        return Limits(
            n_ids=n_ids,
            max_len=self.config.max_len,
            start_id=self.start_id,
            eos_ids=self.eos_ids,
            has_source=encodes,
            both_ways=self.config.both_ways,
            never=never_said(asks),
            never_first=never_first(asks),
            first=fixed(asks, "forced_bos_token_id", n_ids=n_ids) if encodes else None,
            last=fixed(asks, "forced_eos_token_id", n_ids=n_ids),
        )

    @property
    def not_done(self) -> dict[str, tuple[Any, str]]:
        """What the checkpoint's settings ask for and generation here does not do: the value, and what it would do."""
        has_source, max_len = self.config.encoder is not None, self.config.max_len
        return not_done(self.generation_config, options=NAMES, has_source=has_source, max_len=max_len)

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
        return encode_chat(need_tokenizer(self.tokenizer, "a conversation"), messages, **extra)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, begun as the checkpoint's own rule says."""
        return need_tokenizer(self.tokenizer, "text").encode(text)

    def ids(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of a prompt, which may be ids already. Raises RequestError for what is neither."""
        return tuple(self.encode(prompt)) if isinstance(prompt, str) else _ids_of(prompt)

    def resolve(self, **options: Any) -> dict[str, tuple[Any, str]]:
        """Every option's value and where it comes from: "argument", a file of the checkpoint, or "default"."""
        return resolve(options, self.generation_config)

    def requests(self, prompts: Prompt | Sequence[Prompt], **options: Any) -> list[Request]:
        """The requests that `generate` runs, seeds drawn."""
        each = _each(prompts)
        values = {name: value for name, (value, _) in self.resolve(**options).items()}
        seeds = values.pop("seed")
        seeds = list(seeds) if isinstance(seeds, (list, tuple)) else [seeds] * len(each)
        if len(seeds) != len(each):
            raise RequestError(f"seed has {len(seeds)} numbers for {len(each)} prompts. Give one, or one for each.")
        limits = self.limits
        return [
            Request(self.ids(prompt), seed=seed, **values).for_model(limits).seeded()
            for prompt, seed in zip(each, seeds)
        ]

    def engine(self) -> Engine:
        """The engine, its weights prepared."""
        if self.prepare:
            pack(self.model)
        one = self._one_token
        if one is not None and (one.model is not self.model or one.kernel != self.kernel):
            one = self._one_token = OneToken(self.model, kernel=self.kernel, say=self.say)
        return Engine(self.model, kernel=self.kernel, one_token=one)

    def score(self, context: Prompt, continuation: Prompt) -> scoring.Score:
        """The log-probability of a continuation after a context; see `scoring.score`."""
        return scoring.score(self, context, continuation)

    def evaluate(self, texts: Iterable[Prompt], *, stride: int | None = None) -> scoring.Evaluation:
        """Loss, perplexity and bits per byte of texts (or one); see `scoring.evaluate`."""
        return scoring.evaluate(self, [texts] if isinstance(texts, str) else texts, stride=stride)

    def save(
        self,
        path: str | Path,
        *,
        format: str = "onehop",
        dtype: str | None = None,
    ) -> None:
        """Write the model and all that belongs to it.

        As onehop's own folder, one that `transformers` opens too ("hf"), or a file that llama.cpp runs ("gguf"). dtype
        None: the model's own; a GGUF file may also be q8_0. A file, or another model's files, of the same names are
        replaced; the folder of a run is refused. Raises ConfigError, naming what, where the layout cannot express the
        model, or `path` is the name of another format.
        """
        check_name(path, format)
        if format != "gguf":
            check_run(path)
        copied = self.folder is not None and tokenizer_file(self.folder) is not None
        tokenizer = self.folder if copied else self.tokenizer
        more: dict[str, Any] = {"tokenizer": tokenizer, "generation": self._generation_config(), "dtype": dtype}
        if format == "hf":
            save_hf(self.model, path, family=self.family, **more)
        elif format == "onehop":
            save_native(self.model, path, provenance=self.provenance, **more)
        else:
            ends = tuple(sorted(self.eos_ids))
            save_gguf(self.model, path, tokenizer=self.tokenizer, dtype=dtype, family=self.family, end_ids=ends)

    def _generation_config(self) -> dict[str, Any]:
        """What the model came with, and its own end and start tokens."""
        found = dict(self.generation_config)
        start = "bos_token_id" if self.config.encoder is None else "decoder_start_token_id"
        if self.start_id is not None:
            found.setdefault(start, self.start_id)
        if self.eos_ids:
            ids = sorted(self.eos_ids)
            found["eos_token_id"] = ids[0] if len(ids) == 1 else ids
        return found


def need_tokenizer(tokenizer: Tokenizer | None, what: str) -> Tokenizer:
    """The tokenizer that `what` is encoded with. Raises RequestError where there is none."""
    if tokenizer is None:
        raise RequestError(f"this model has no tokenizer, so {what} cannot be encoded. Give token ids.")
    return tokenizer


def _each(prompts: Any) -> list[Prompt]:
    """Several prompts as a list; one, a text or ids (also in an array), as a list of one."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise RequestError(f"prompts are texts or lists of token ids, not {prompts!r}")
    prompts = prompts.tolist() if hasattr(prompts, "tolist") else list(prompts)
    return [prompts] if prompts and all(isinstance(item, Integral) for item in prompts) else prompts


def _ids_of(prompt: Any) -> tuple[int, ...]:
    try:
        return tuple(index(item) for item in (prompt.tolist() if hasattr(prompt, "tolist") else prompt))
    except TypeError as error:
        raise RequestError(f"a prompt is a text or a list of token ids, not {prompt!r}") from error


def _is_small(model: Transformer) -> bool:
    """Whether a copy of the weights takes no more than a quarter of the machine's memory (where that is known)."""
    known = hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if known else math.inf
    return sum(p.numel() * p.element_size() for p in model.parameters()) <= memory / 4


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
