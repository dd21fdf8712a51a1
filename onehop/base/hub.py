"""Names of models on the Hugging Face hub, and what its refusals mean, in words. No torch."""

import re
from dataclasses import dataclass

NAME = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*/[\w.-]+)(?:@(?P<revision>[\w./-]+))?(?::(?P<kind>[A-Za-z0-9_-]+))?")


@dataclass(frozen=True)
class HubName:
    """org/model, a revision (a branch, a tag or a commit; None: the newest), and which of its GGUF files."""

    given: str
    name: str
    revision: str | None
    kind: str | None

    @classmethod
    def of(cls, given: str) -> "HubName | None":
        """Taken apart; None for what is no such name."""
        found = NAME.fullmatch(given)
        return None if found is None else cls(given, found["name"], found["revision"], found["kind"])


def why_not_fetched(error: Exception, *, revision: str | None) -> str:
    """The reason that huggingface_hub's error gives and, where one is known, what to do about it."""
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, GatedRepoError):  # before the next, of which it is a kind
        return "its owner asks you to agree to terms on its page and to log in (hf auth login)"
    if isinstance(error, RepositoryNotFoundError):
        return "the hub has no such model, or it is private (hf auth login)"
    if isinstance(error, RevisionNotFoundError):
        return f"it has no revision {revision}. Leave @{revision} out for the newest"
    if isinstance(error, (LocalEntryNotFoundError, OfflineModeIsEnabled)):
        return "it is not in the local cache and the hub cannot be reached. Go online once"
    return (str(error).strip().splitlines() or ["no reason given"])[0].rstrip(".")
