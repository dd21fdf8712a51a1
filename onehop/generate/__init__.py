"""Floor 5: requests become tokens."""

from onehop.generate.batch import Piece, run
from onehop.generate.engine import Engine
from onehop.generate.request import Limits, Request
from onehop.generate.sample import TokenLogprob

__all__ = ["Engine", "Limits", "Piece", "Request", "TokenLogprob", "run"]
