"""lm-eval's view of a model (EleutherAI's lm-evaluation-harness): log-likelihoods and greedy answers. Extra `eval`."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from onehop.base.errors import MissingExtra, OnehopError, RequestError
from onehop.lm import scoring
from onehop.lm.language_model import LanguageModel
from onehop.parts.linear import pack

LONGEST = 256  # tokens of an answer, where a task does not say
SAMPLING = ("temperature", "top_k", "top_p")


class Asked(Protocol):
    """A request of lm-eval; `args` by its kind: (context, continuation), (text,) or (context, options)."""

    @property
    def args(self) -> tuple[Any, ...]: ...


class Answers:
    """The three questions of lm-eval's `LM`, answered by a LanguageModel; needs nothing of lm-eval."""

    def __init__(self, lm: LanguageModel):
        self.lm = lm
        if lm.prepare:
            pack(lm.model)

    def loglikelihood(self, requests: Sequence[Asked]) -> list[tuple[float, bool]]:
        """Of each (context, continuation): the log-probability, and whether greedy decoding would say it."""
        found = scoring.score_all(self.lm, [self._pair(*request.args) for request in requests])
        return [(score.logprob, score.is_greedy) for score in found]

    def loglikelihood_rolling(self, requests: Sequence[Asked]) -> list[float]:
        """The log-probability of each whole (text,)."""
        return scoring.rolling(self.lm, [request.args[0] for request in requests])

    def generate_until(self, requests: Sequence[Asked]) -> list[str]:
        """The answer to each (context, options), up to its first stop string; long contexts are cut from the left."""
        out = [""] * len(requests)
        kinds: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            kinds.setdefault(repr(sorted(request.args[1].items())), []).append(i)
        for numbers in kinds.values():
            options = answer_options(requests[numbers[0]].args[1])
            room = self.lm.limits.max_len - options["max_new_tokens"]
            if room < 1:
                raise RequestError(
                    f"max_gen_toks={options['max_new_tokens']} leaves this model's context of {self.lm.limits.max_len} "
                    "no room for a question. Set fewer in the task's generation_kwargs."
                )
            prompts = [self.lm.encode(requests[i].args[0])[-room:] for i in numbers]
            for i, done in zip(numbers, self.lm.generate(prompts, **options), strict=True):
                out[i] = done.text
        return out

    def _pair(self, context: str, continuation: str) -> tuple[Any, Any]:
        """An empty context is the begin token, or an end token where there is none."""
        if context or self.lm.start_id is not None or not self.lm.eos_ids:
            return context, continuation
        return [min(self.lm.eos_ids)], self.lm.encode(continuation)


def answer_options(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `generate` for lm-eval's generation_kwargs. Raises RequestError for one that has no counterpart."""
    given = dict(asked)
    until, longest = given.pop("until", []), given.pop("max_gen_toks", LONGEST)
    sampled = given.pop("do_sample", given.get("temperature", 0.0) > 0)
    options = {name: given.pop(name) for name in SAMPLING if name in given}
    if given:
        raise RequestError(f"generation_kwargs holds {', '.join(given)}, which onehop does not have. Leave it out.")
    if not sampled:
        options = {"temperature": 0.0}
    stop = [until] if isinstance(until, str) else list(until)
    return {"max_new_tokens": longest, "stop": [text for text in stop if text], **options}


def need_lm_eval(include_path: Path | None = None) -> None:
    """Whether tasks can be run here at all. Raises MissingExtra without lm-eval, OnehopError without the folder."""
    if importlib.util.find_spec("lm_eval") is None:
        raise MissingExtra("lm-eval", extra="eval", needed_for="eval --tasks")
    if include_path is not None and not include_path.is_dir():
        raise OnehopError(f"--include-path {include_path} is no folder. Give the one that holds the tasks' YAML files.")


def run_tasks(
    lm: LanguageModel,
    tasks: Sequence[str],
    *,
    include_path: Path | None = None,
    limit: int | None = None,
    num_fewshot: int | None = None,
) -> dict[str, Any]:
    """lm-eval's results on its tasks, or on those that are written as YAML files in the folder `include_path`.

    limit: documents of each task. num_fewshot: solved examples before each question. Raises MissingExtra without
    lm-eval.
    """
    need_lm_eval(include_path)
    from lm_eval import simple_evaluate
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=None if include_path is None else str(include_path))
    unknown = [task for task in tasks if not manager.match_tasks([task])]
    if unknown:
        where = "" if include_path is None else f" nor in {include_path}"
        raise OnehopError(f"task {', '.join(unknown)} is not in lm-eval{where}. Its `lm-eval ls tasks` lists them.")

    class Adapter(Answers, LM):
        def __init__(self) -> None:
            LM.__init__(self)
            Answers.__init__(self, lm)

    found: dict[str, Any] = simple_evaluate(
        Adapter(), tasks=list(tasks), task_manager=manager, limit=limit, num_fewshot=num_fewshot, log_samples=False
    )
    return {key: found[key] for key in ("results", "n-shot", "n-samples", "versions") if key in found}
