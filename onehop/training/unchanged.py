"""Whether a resumed run is the same run: what was recorded of its recipe, its text and its machine is compared."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from onehop import __version__
from onehop.base.errors import ConfigError
from onehop.config.origins import leaves
from onehop.config.recipe import Recipe
from onehop.machine.here import processor

# These may change: no sum of a step depends on them (train.steps moves the end, and with it the rate's curve).
FREE = {
    "out", "about", "train.steps", "train.eval_every", "train.eval_rows", "train.save_every", "train.log_every",
    "train.sample", "train.sample_tokens", "train.keep", "train.max_skipped", "train.spike", "train.dead_after",
    "train.tensorboard", "train.wandb", "train.measure_peak",
}  # fmt: skip
# These make the text, which is compared by what it holds: they may change as long as it does not.
IN_THE_TEXT = {
    "data.corpus", "data.files", "data.n_documents", "data.separator", "data.text_field", "data.tokenizer",
    "data.vocab_size", "data.validation", "data.seed",
    "data.deduplicate",
}  # fmt: skip
# Without these the state does not fit the run, or the rows are others: never. What is left needs a word of the user.
FIXED = {
    "text", "base", "train.batch_size", "train.micro_batch", "train.context", "train.seed", "train.optimizer",
    "train.batch_start", "train.batch_warmup", "train.width_transfer", "train.ema",
}  # fmt: skip
FIXED_TABLES = ("model.", "data.", "task.", "tune.")
TEXT_TABLES = ("data.mixture.",)
Record = Mapping[str, Any]


def record(
    recipe: Recipe, *, text: str, base: str | None, device: torch.device, precision: torch.dtype
) -> dict[str, Any]:
    """All that decides the bits of a run, as JSON holds it: {"recipe": …, "machine": …}.

    base: what the model under adapters is told by, which a checkpoint does not hold again.
    """
    keys = {"text": text, "base": base, **{key: value for key, value in leaves(recipe).items() if key != "model.parts"}}
    found = {"recipe": keys, "machine": machine(device) | {"precision": str(precision).removeprefix("torch.")}}
    as_json: dict[str, Any] = json.loads(json.dumps(found))
    return as_json


def machine(device: torch.device) -> dict[str, Any]:
    """What else decides the bits: versions, processor, threads, and how products are rounded."""
    cpu = f"{processor()}, {torch.backends.cpu.get_cpu_capability()}"  # with the instructions that PyTorch uses of it
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu
    return {
        "onehop": __version__,
        "torch": torch.__version__,
        "device": f"{device.type}, {name}",
        "threads": torch.get_num_threads(),
        "float32 products": torch.get_float32_matmul_precision(),
    }


def check_same(before: Record, now: Record, *, folder: Path, allow_changes: bool) -> list[str]:
    """What has changed and may, a line each: keys of the recipe that no sum depends on; the others with allow_changes.

    Raises ConfigError for anything else.
    """
    notes, asked = [], []
    for key, was, wanted in _differences(before["recipe"], now["recipe"]):
        if key in FREE or key in IN_THE_TEXT or key.startswith(TEXT_TABLES):
            notes.append(f"{key} was {was} and is now {wanted}")
        elif key in FIXED or key.startswith(FIXED_TABLES):
            changed = {"text": "the text has changed", "base": "the weights of tune.init have changed"}
            told = changed.get(key, f"it has {key}={was}, and the recipe now says {key}={wanted}")
            raise ConfigError(
                f"{folder} cannot be resumed: {told}. Resume with what it began with, or train into another `out`."
            )
        else:
            asked.append(f"{key} was {was} and is now {wanted}")
    asked += [
        f"{key} was {was} and is now {wanted}" for key, was, wanted in _differences(before["machine"], now["machine"])
    ]
    if asked and not allow_changes:
        raise ConfigError(
            f"{folder} cannot be resumed bit for bit: {'; '.join(asked)}. Go back to what it was, or add "
            "--allow-changes to go on all the same (in Python: allow_changes=True)."
        )
    return notes + asked


def _differences(before: Record, now: Record) -> Iterator[tuple[str, str, str]]:
    """Key, old and new value of all that differs; short keys first."""
    for key in sorted({*before, *now}, key=lambda key: (key.count("."), key)):
        if before.get(key) != now.get(key):
            yield key, _shown(before.get(key)), _shown(now.get(key))


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else "none" if value is None else str(value)
