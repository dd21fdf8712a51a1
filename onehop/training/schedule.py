"""The learning rate of each step."""

import math

from onehop.config.recipe import TrainConfig


def learning_rate(step: int, cfg: TrainConfig) -> float:
    """Linear warm-up, then half a cosine down to lr · lr_end (Loshchilov and Hutter 2016, arXiv:1608.03983, eq. 5).

    `step` counts from 0: the first step already moves, the last one ends at lr · lr_end.
    """
    if step < cfg.warmup:
        return cfg.lr * (step + 1) / (cfg.warmup + 1)
    progress = (step - cfg.warmup) / max(1, cfg.steps - 1 - cfg.warmup)
    low = cfg.lr * cfg.lr_end
    return low + (cfg.lr - low) * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
