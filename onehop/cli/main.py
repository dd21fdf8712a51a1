"""`onehop VERB …`: finds the verb's file and runs it. Help and refusals come without loading torch."""

import contextlib
import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import ModuleType

import typer
from typer.exceptions import TyperException

from onehop import __version__
from onehop.base.errors import OnehopError, did_you_mean
from onehop.base.interrupt import INTERRUPTED, ended_cleanly, leave

# verb -> the module that holds it, and what it is for
COMMANDS = {
    "train": ("onehop.cli.train", "train a model by a recipe, or compare recipes"),
    "generate": ("onehop.cli.generate", "continue a prompt"),
    "chat": ("onehop.cli.chat", "talk with a model in the terminal"),
    "eval": ("onehop.cli.eval", "loss, perplexity and bits per byte on text, or lm-eval's tasks"),
    "plan": (
        "onehop.cli.plan",
        "what a model costs before it is paid for: parameters, FLOPs, cache, memory, time, loss",
    ),
    "convert": ("onehop.cli.convert", "write a model as a Hugging Face folder, a onehop folder or a GGUF file"),
    "verify": ("onehop.cli.verify", "check on this machine that every fast path equals the plain definition"),
    "list": (
        "onehop.cli.listing",
        "what ships with onehop: recipes, presets, corpora, models; and every key of a recipe",
    ),
}


def main(words: Sequence[str]) -> int:
    """Run one command line -> its exit code: 0, 2 for a user's error (one line on stderr), 130 after Ctrl-C."""
    try:
        with ended_cleanly():
            return _dispatch(list(words))
    except OnehopError as error:
        return _refuse(str(error), words, code=error.exit_code)
    except TyperException as error:
        return _refuse(_usage(error, words), words, code=2)
    except KeyboardInterrupt:
        typer.echo(INTERRUPTED, err=True)
        return 130
    except (MemoryError, RuntimeError) as error:
        if not _is_about_memory(error):
            raise
        return _refuse(_no_memory(error), words, code=2)
    except BrokenPipeError:  # the reader of our output has gone, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # no permission, a disk that fills up, a name too long: the machine's, not ours
        return _refuse(_no_access(error), words, code=2)


def _dispatch(words: list[str]) -> int:
    verb = words[0] if words else "--help"
    if verb in ("--help", "-h", "help"):
        typer.echo(_help())
        return 0
    if verb in ("--version", "version"):
        typer.echo(f"onehop {__version__}")
        return 0
    if verb not in COMMANDS:
        raise OnehopError(f"{verb!r} is no command. {did_you_mean(verb, COMMANDS)}")
    app = _imported(COMMANDS[verb][0]).app
    command = typer.main.get_command(app)
    try:  # not command.main(), which has answers of its own to Ctrl-C and to a closed pipe
        with command.make_context(f"onehop {verb}", words[1:]) as context:
            return int(command.invoke(context) or 0)
    except typer.Exit as end:  # after --help
        return end.exit_code


def _imported(module: str) -> ModuleType:
    """A command's module. Ctrl-C ends the process at once: in the midst of numpy's import it becomes another error."""
    aside = threading.current_thread() is not threading.main_thread()
    if aside or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return importlib.import_module(module)
    before = signal.signal(signal.SIGINT, leave)
    try:
        return importlib.import_module(module)
    finally:
        signal.signal(signal.SIGINT, before)


def _help() -> str:
    width = max(map(len, COMMANDS))
    rows = [f"  {verb:<{width}}  {about}" for verb, (_, about) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: onehop VERB …      (onehop VERB --help explains one; --json gives machine-readable output)",
            "",
            *rows,
            "",
            'start here: onehop train quickstart, then: onehop generate out/quickstart "Once upon a time"',
        ]
    )


def _usage(error: TyperException, words: Sequence[str]) -> str:
    """What is wrong with the words, in one line; a recipe key written as a flag is answered with its spelling."""
    flag = getattr(error, "option_name", None)
    if flag and words and words[0] == "train":
        after = [words[i + 1] for i, word in enumerate(words[:-1]) if word == flag]
        from onehop.config.overrides import spelling  # here: plain help does not wait for the config's classes

        hint = spelling(flag, after[0] if after else None)
        if hint is not None:
            return f"{flag} is a key of the recipe: {hint}"
    format_message = getattr(error, "format_message", error.__str__)
    verb = words[0] if words else ""
    return f"{format_message()} (onehop {verb} --help shows what there is)"


def _is_about_memory(error: Exception) -> bool:
    """Whether memory ran out; torch says so in a RuntimeError, by its class (GPU) or in words (CPU)."""
    words = ("can't allocate memory", "not enough memory")
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or any(text in str(error) for text in words)
    )


def _no_memory(error: Exception) -> str:
    reason = (str(error).strip().splitlines() or ["no figure given"])[0].rstrip(".")
    return (
        f"the memory does not suffice ({reason}). Use a smaller model, a shorter text, or, in training, a smaller "
        "train.micro_batch."
    )


def _no_access(error: OSError) -> str:
    reason = error.strerror or str(error)
    if error.filename is None:
        return f"reading or writing failed: {reason}. Free some space, or use another place."
    return f"{os.fsdecode(error.filename)} cannot be used: {reason}. Check the path and who may read or write there."


def _refuse(message: str, words: Sequence[str], *, code: int) -> int:
    line = " ".join(message.split())
    if "--json" in words:
        with contextlib.suppress(OSError):  # which may be what went wrong
            typer.echo(json.dumps({"error": line}))
    typer.echo(f"onehop: {line}", err=True)
    return code
