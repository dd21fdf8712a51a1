"""What a refusal of the Hugging Face hub means, in words. No torch."""


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
