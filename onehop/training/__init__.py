"""Floor 6: a run, from data to a saved model."""

from onehop.training.run import LiveStep, Run, steps, train
from onehop.training.trainer import Trainer

__all__ = ["LiveStep", "Run", "Trainer", "steps", "train"]
