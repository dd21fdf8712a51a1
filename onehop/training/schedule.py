"""What follows from the number of a step: its learning rate and its rows."""

import math
from collections.abc import Callable

from onehop.config.recipe import TrainConfig


def learning_rate(step: int, cfg: TrainConfig) -> float:
    """Linear warm-up, then a fall from lr to lr · lr_end by `train.schedule`.

    `step` counts from 0: the first step already moves, the last one ends at lr · lr_end. cosine: half a cosine
    (Loshchilov and Hutter 2016, arXiv:1608.03983, equation 5); linear: a straight line; constant: lr to the end; wsd
    (warm-up, stable, decay; Hu et al. 2024, arXiv:2404.06395, section 4): lr, and a fall in the last `decay` steps.
    """
    if step < cfg.warmup:
        return cfg.lr * (step + 1) / (cfg.warmup + 1)
    low = cfg.lr * cfg.lr_end
    return low + (cfg.lr - low) * _share_left(step, cfg)


def decay_steps(cfg: TrainConfig) -> int:
    """How many steps at the end decay under wsd; the warm-up comes first where there is no room for both."""
    wanted = round(cfg.decay * cfg.steps) if cfg.decay < 1 else int(cfg.decay)
    return min(max(wanted, 1), max(cfg.steps - cfg.warmup, 1))


def _share_left(step: int, cfg: TrainConfig) -> float:
    """1 at the top of the schedule, 0 at its end."""
    if cfg.schedule == "constant":
        return 1.0
    if cfg.schedule == "wsd":
        n = decay_steps(cfg)
        stable = cfg.steps - n  # the first step that decays
        return SHAPES[cfg.decay_shape](min(max(step - stable + 1, 0) / n, 1.0))
    progress = (step - cfg.warmup) / max(1, cfg.steps - 1 - cfg.warmup)
    return SHAPES[cfg.schedule](min(progress, 1.0))


# progress from 0 to 1 -> what is left, from 1 to 0. sqrt: Hägele et al. 2024, arXiv:2405.18392, section 3.2
SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda progress: 1 - progress,
    "cosine": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
    "sqrt": lambda progress: 1 - math.sqrt(progress),
}


def parts(step: int, cfg: TrainConfig) -> int:
    """Micro-batches of a step (from 0): as many as `batch_size` has, or fewer while the batch grows in a line."""
    micro = cfg.micro_batch or cfg.batch_size
    if cfg.batch_start is None or step >= cfg.batch_warmup:
        return cfg.batch_size // micro
    return (cfg.batch_start + (cfg.batch_size - cfg.batch_start) * step // cfg.batch_warmup) // micro


def parts_before(step: int, cfg: TrainConfig) -> int:
    """Micro-batches of all steps before this one: what a run of so many steps reads."""
    growing = min(step, cfg.batch_warmup)
    full = cfg.batch_size // (cfg.micro_batch or cfg.batch_size)
    return sum(parts(i, cfg) for i in range(growing)) + (step - growing) * full
