"""What comes back from a request."""

from dataclasses import dataclass
from typing import Literal

from onehop.generate.sample import TokenLogprob


@dataclass(frozen=True)
class Completion:
    """One answer. token_ids are all that was generated, an end token included, which the text does not show.

    logprobs: one entry per token, where asked for. finish_reason: "stop" (an end token or a stop string) or "length".
    seed: repeats the answer; none where nothing was drawn. n_prompt_tokens counts what the model read.
    """

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None
    finish_reason: Literal["stop", "length"]
    n_prompt_tokens: int
    seed: int | None
