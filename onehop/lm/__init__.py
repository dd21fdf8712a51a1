"""Floor 6: a model, its tokenizer and its engine in one hand."""

from onehop.lm.completion import Completion
from onehop.lm.language_model import LanguageModel
from onehop.lm.load import load
from onehop.lm.scoring import Evaluation, Loss, Score
from onehop.lm.verify import Check, verify

__all__ = ["Check", "Completion", "Evaluation", "LanguageModel", "Loss", "Score", "load", "verify"]
