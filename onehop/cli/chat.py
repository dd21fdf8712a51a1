"""onehop chat MODEL"""

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from onehop.cli import options as o
from onehop.cli.common import Json, beside, machines, new_app, place_of, standard_input
from onehop.cli.generate import checked, note_seed, show_settings
from onehop.lm import LanguageModel, load
from onehop.lm.language_model import need_tokenizer
from onehop.text.chat import encode_chat
from onehop.text.tokenizer import Tokenizer
from onehop.weights.open import Check

app = new_app()


@app.command()
def chat(
    model: o.Model,
    message: Annotated[str | None, typer.Argument(help="one message to answer; left out: a conversation")] = None,
    system: Annotated[str | None, typer.Option(help="what the model is told before the conversation")] = None,
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
    dtype: o.DType = None,
    device: o.Device = "cpu",
    kernel: o.KernelName = "auto",
    compile: o.Compile = False,
    parts: o.Parts = None,
    adapter: o.Adapter = None,
    verbose: o.Verbose = False,
    json: Json = False,
) -> int:
    """Talk with a model by the checkpoint's own chat template. An empty line or Ctrl-D ends the conversation."""
    options = o.given(
        max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        repetition_penalty=repetition_penalty, presence_penalty=presence_penalty, frequency_penalty=frequency_penalty,
        stop=stop, seed=seed,
    )  # fmt: skip
    said: list[dict[str, Any]] = [{"role": "system", "content": system}] if system is not None else []
    lm = load(
        place_of(model), dtype=dtype, device=device, kernel=kernel, compile=compile, parts=parts or [],
        adapter=adapter, check=_checked(options, said), report=beside(json),
    )  # fmt: skip
    if verbose:
        show_settings(lm, options)
    options |= {} if json else _seeded(lm, said, options)
    if json or message is not None:
        return _once(lm, said, message if message is not None else standard_input(), options, json)
    return _talk(lm, said, options)


def _checked(options: dict[str, Any], said: list[dict[str, Any]]) -> Check:
    """As for `generate`, and that there is a template which takes the conversation's begin."""
    check_options = checked(options)

    def check(tokenizer: Tokenizer | None, settings: Mapping[str, Any]) -> None:
        encode_chat(need_tokenizer(tokenizer, "a conversation"), [*said, {"role": "user", "content": ""}])
        check_options(tokenizer, settings)

    return check


def _talk(lm: LanguageModel, said: list[dict[str, Any]], options: dict[str, Any]) -> int:
    while (text := _ask()) is not None:
        said.append({"role": "user", "content": text})
        said.append({"role": "assistant", "content": _answer(lm, said, options)})
    return 0


def _once(lm: LanguageModel, said: list[dict[str, Any]], message: str, options: dict[str, Any], json: bool) -> int:
    said = [*said, {"role": "user", "content": message}]
    if not json:
        _answer(lm, said, options)
        return 0
    done = lm.chat(said, **options)
    machines({"text": done.text, "finish_reason": done.finish_reason, "seed": done.seed})
    return 0


def _seeded(lm: LanguageModel, said: list[dict[str, Any]], options: dict[str, Any]) -> dict[str, Any]:
    """The seed of the whole conversation; a drawn one is told, beside any output."""
    (request,) = lm.requests([lm.encode_chat([*said, {"role": "user", "content": ""}])], **options)
    if "seed" not in options:
        note_seed(request.seed)
    return {"seed": request.seed}


def _ask() -> str | None:
    try:
        text = input("> ")
    except EOFError:
        return None
    return text if text.strip() else None


def _answer(lm: LanguageModel, said: list[dict[str, Any]], options: dict[str, Any]) -> str:
    """Print the next message as it comes -> its text."""
    parts = []
    for piece in lm.stream(lm.encode_chat(said), **options):
        parts.append(piece.text)
        typer.echo(piece.text, nl=False)
        sys.stdout.flush()
    typer.echo()
    return "".join(parts)
