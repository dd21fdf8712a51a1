"""What onehop says when it cannot do what was asked: one line, with what was given, what is needed and a way out."""

import difflib
from collections.abc import Iterable


class OnehopError(Exception):
    """A user's mistake or a missing thing: printed as one line, exit code 2. Tracebacks are for our own bugs."""

    exit_code = 2


class ConfigError(OnehopError):
    """A recipe or a config asks for something that cannot be built."""


class DataError(OnehopError):
    """Text or token shards are missing, empty, too small or damaged."""


class TextError(OnehopError):
    """A tokenizer or a chat template is missing or cannot do what was asked."""


class CheckpointError(OnehopError):
    """Weights on disk are missing, truncated, or do not match what their config says."""

    @classmethod
    def names(cls, *, absent: Iterable[str], unclaimed: Iterable[str], where: str) -> "CheckpointError":
        """The error that names every tensor (up to six of each kind) that is absent from `where` or unknown there."""
        parts = []
        for label, found in (("missing", sorted(absent)), ("unexpected", sorted(unclaimed))):
            if found:
                more = f" and {len(found) - 6} more" if len(found) > 6 else ""
                parts.append(f"{label} {', '.join(found[:6])}{more}")
        return cls(f"{where}: {'; '.join(parts)}. Check that the weights and the config belong to the same model.")


class Diverged(OnehopError):
    """A run's numbers are no longer finite: it will not come back."""


class RequestError(OnehopError):
    """A generation request that cannot be honoured (too long, an impossible value, a contradiction)."""


class MissingExtra(OnehopError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, *, extra: str, needed_for: str):
        super().__init__(f"{needed_for} needs the package {package}: pip install 'onehop-lm[{extra}]'")


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The candidate that looks most like `name`, in small letters and large, or None if none looks like it."""
    known = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.6)
    return known[close[0]] if close else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A sentence that helps after an unknown name: the nearest one, else all of them."""
    known = sorted(names)
    close = nearest(name, known)
    return f"Did you mean {close}?" if close else f"Known: {', '.join(known)}."
