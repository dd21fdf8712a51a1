"""Floor 6: a model, its tokenizer and its engine in one hand."""

from onehop.lm.completion import Completion
from onehop.lm.language_model import LanguageModel
from onehop.lm.load import load
from onehop.lm.scoring import Evaluation, Score

__all__ = ["Completion", "Evaluation", "LanguageModel", "Score", "load"]
