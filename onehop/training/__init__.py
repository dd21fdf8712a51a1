"""Floor 6: a run, from data to a saved model."""

from onehop.training.run import LiveStep, steps, train
from onehop.training.session import Run
from onehop.training.trainer import Trainer

__all__ = ["LiveStep", "Run", "Trainer", "steps", "train"]
