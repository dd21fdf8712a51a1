"""onehop: describe a transformer, price it, train it, look inside it, run it, with one definition of the model."""

__version__ = "0.1.0"
