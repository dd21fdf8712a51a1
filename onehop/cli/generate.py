"""onehop generate MODEL PROMPT …"""

import math
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console

from onehop.base.errors import RequestError
from onehop.cli import options as o
from onehop.cli.common import Json, beside, machines, new_app, people, place_of, standard_input, table
from onehop.generate.request import Request
from onehop.generate.sample import TokenLogprob
from onehop.lm import Completion, LanguageModel, load
from onehop.lm.asked import FILE
from onehop.lm.language_model import need_tokenizer
from onehop.lm.options import resolve
from onehop.text.tokenizer import Tokenizer
from onehop.weights.open import Check

app = new_app()
Alternatives = Annotated[
    int | None, typer.Option("--alternatives", min=0, help="print each token's probability and its n rivals")
]


@app.command()
def generate(
    model: o.Model,
    prompts: Annotated[list[str] | None, typer.Argument(help="texts to continue; left out: standard input")] = None,
    max_new_tokens: o.MaxNewTokens = None,
    temperature: o.Temperature = None,
    top_k: o.TopK = None,
    top_p: o.TopP = None,
    min_p: o.MinP = None,
    repetition_penalty: o.RepetitionPenalty = None,
    presence_penalty: o.PresencePenalty = None,
    frequency_penalty: o.FrequencyPenalty = None,
    stop: o.Stop = None,
    seed: o.Seed = None,
    ignore_eos: o.IgnoreEos = False,
    alternatives: Alternatives = None,
    dtype: o.DType = None,
    device: o.Device = "cpu",
    kernel: o.KernelName = "auto",
    compile: o.Compile = False,
    parts: o.Parts = None,
    adapter: o.Adapter = None,
    verbose: o.Verbose = False,
    json: Json = False,
) -> int:
    """Continue prompts, streaming. No chat template is applied (see onehop chat)."""
    texts = prompts or [_standard_input()]
    options = o.given(
        max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        repetition_penalty=repetition_penalty, presence_penalty=presence_penalty, frequency_penalty=frequency_penalty,
        stop=stop, seed=seed, ignore_eos=ignore_eos, logprobs=alternatives,
    )  # fmt: skip
    check = checked(options)
    lm = load(
        place_of(model), dtype=dtype, device=device, kernel=kernel, compile=compile, parts=parts or [],
        adapter=adapter, check=check, report=beside(json),
    )  # fmt: skip
    if verbose:
        show_settings(lm, options)
    _answer(lm, texts, options, json=json)
    return 0


def checked(options: dict[str, Any]) -> Check:
    """Refuses impossible options at once -> the check of what the model's files say, for `load`."""
    Request((0,), **options)

    def check(tokenizer: Tokenizer | None, settings: Mapping[str, Any]) -> None:
        need_tokenizer(tokenizer, "text")
        Request((0,), **{name: value for name, (value, _) in resolve(options, settings).items()})

    return check


def _answer(lm: LanguageModel, texts: list[str], options: dict[str, Any], *, json: bool) -> None:
    """One text streams; several come when all are done; a machine gets one list."""
    if not json and len(texts) == 1 and "logprobs" not in options:
        _stream(lm, texts[0], options)
        return
    answers = lm.generate(texts, **options)
    if json:
        machines([_machine(text, done) for text, done in zip(texts, answers, strict=True)])
        return
    for text, done in zip(texts, answers, strict=True):
        typer.echo(f"{_begun(lm, text)}{done.text}\n")
        _show_alternatives(lm, done)
        note_seed(done.seed)


def show_settings(lm: LanguageModel, options: dict[str, Any]) -> None:
    """Each sampling value with its origin, and the ids that end a text; on standard error, beside any output."""
    rows = [(name, value, origin) for name, (value, origin) in lm.resolve(**options).items()]
    rows += [(name, value, f"{FILE}: not done here ({what})") for name, (value, what) in lm.not_done.items()]
    limits = lm.limits
    kept = {"never": limits.never, "not at the begin": limits.never_first, "end tokens": lm.eos_ids}
    rows += [(name, sorted(ids), "the checkpoint") for name, ids in kept.items() if ids or ids is lm.eos_ids]
    fixed = {"first token": limits.first, "last token, at the longest": limits.last}
    rows += [(name, token_id, FILE) for name, token_id in fixed.items() if token_id is not None]
    Console(stderr=True, highlight=False).print(table("setting", "value", "from", rows=rows), markup=False)


def _standard_input() -> str:
    if sys.stdin.isatty():
        raise RequestError('there is no prompt: onehop generate MODEL "Once upon a time", or pipe a text in')
    return standard_input()


def _stream(lm: LanguageModel, text: str, options: dict[str, Any]) -> None:
    """Print the prompt and the answer as it comes; a drawn seed goes to standard error, where it spoils no pipe."""
    (request,) = lm.requests([text], **options)
    pieces = lm.stream(text, **{**options, "seed": request.seed})
    typer.echo(_begun(lm, text), nl=False)
    for piece in pieces:
        typer.echo(piece.text, nl=False)
        sys.stdout.flush()
    typer.echo()
    if "seed" not in options:
        note_seed(request.seed)


def _begun(lm: LanguageModel, text: str) -> str:
    """What stands before an answer: the text that it goes on from, or the source that it answers."""
    return text if lm.config.encoder is None else f"{text} → "


def note_seed(seed: int | None) -> None:
    """Tell a seed that was drawn, on standard error."""
    if seed is not None:
        typer.echo(f"(seed {seed})", err=True)


def _show_alternatives(lm: LanguageModel, done: Completion) -> None:
    """One row per token: its probability, and what else was likely there."""
    if done.logprobs is None:
        return
    rows = [(repr(_piece(lm, t.id)), _percent(t.logprob), _rivals(lm, t)) for t in done.logprobs]
    people(False).print(table("token", "probability", "rivals", rows=rows), markup=False)


def _rivals(lm: LanguageModel, chosen: TokenLogprob) -> str:
    return "  ".join(f"{_piece(lm, i)!r} {_percent(logprob)}" for i, logprob in chosen.top if i != chosen.id)


def _piece(lm: LanguageModel, token_id: int) -> str:
    if lm.tokenizer is None:
        return str(token_id)
    return lm.tokenizer.token_bytes(token_id).decode("utf-8", "backslashreplace")


def _percent(logprob: float) -> str:
    return f"{100 * math.exp(logprob):.1f}%"


def _machine(prompt: str, done: Completion) -> dict[str, Any]:
    found = {
        "prompt": prompt,
        "text": done.text,
        "token_ids": done.token_ids,
        "finish_reason": done.finish_reason,
        "n_prompt_tokens": done.n_prompt_tokens,
        "seed": done.seed,
    }
    if done.logprobs is not None:
        found["logprobs"] = [{"id": t.id, "logprob": t.logprob, "top": t.top} for t in done.logprobs]
    return found
