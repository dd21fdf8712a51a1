"""What a part of a user's own says about its cost, by methods of its config; what it leaves out is named, not guessed.

A config class may define any of

    parameters(given) -> int     numbers that it learns
    flops(given) -> float        of one token's forward pass, a multiplication and an addition counted as two
    saved(given) -> float        numbers that training keeps for the gradient, per token
    cached(given) -> int         numbers that a cache keeps, per token (attention only)

where `given` is what its constructor gets: the width (norm), d_model (ffn, attention), the attention's config (position
scheme, score rule).
"""

from typing import Any

from onehop.base.errors import ConfigError

UNKNOWN = None
WHOLE = ("parameters", "cached")


def own_count(cfg: Any, what: str, given: Any) -> float | None:
    """The figure `what` of a part, or UNKNOWN where its config has no such method. Raises ConfigError for nonsense."""
    method = getattr(type(cfg), what, None)
    if method is None:
        return UNKNOWN
    try:
        count = method(cfg, given)
    except Exception as error:
        raise ConfigError(
            f"{type(cfg).__name__}.{what} fails ({type(error).__name__}: {error}). Correct it in your own file."
        ) from error
    if isinstance(count, bool) or not isinstance(count, int | float) or not 0 <= count < float("inf"):
        raise ConfigError(
            f"{type(cfg).__name__}.{what} gives {count!r}: it needs a number that is not negative. Correct it in your "
            "own file."
        )
    if what in WHOLE and count != int(count):
        raise ConfigError(
            f"{type(cfg).__name__}.{what} gives {count!r}: it needs a whole number. Correct it in your own file."
        )
    return count
