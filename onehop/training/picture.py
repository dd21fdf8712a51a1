"""A picture of where a model looks from one word."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from onehop.base.files import atomic_file
from onehop.model.taps import capture
from onehop.model.transformer import Transformer
from onehop.text.tokenizer import Tokenizer


def look_from(model: Transformer, tokenizer: Tokenizer, text: str, *, word: str) -> tuple[list[str], Tensor] | None:
    """The text's tokens and the weights (L, H, S) with which the last occurrence of `word` looks at each of them.

    None where no token is that word.
    """
    ids = tokenizer.encode(text)
    pieces = [tokenizer.decode([i], skip_special=False) for i in ids]
    here = max((i for i, piece in enumerate(pieces) if piece.strip() == word), default=None)
    if here is None:
        return None
    tokens = torch.tensor([ids], device=next(model.parameters()).device)
    names = [f"layers.{i}.attention.weights" for i in range(len(model.layers))]
    heard = capture(model, names, tokens)
    return pieces[: here + 1], torch.stack([heard[name][0, :, here, : here + 1] for name in names]).float().cpu()


def draw_look(pieces: list[str], weights: Tensor, path: Path, *, word: str, last: int = 40) -> None:
    """Draw the last tokens of the text as columns and every head as a row: dark where `word` looks."""
    import matplotlib.figure

    n_layers, n_heads, _ = weights.shape
    pieces, shown = pieces[-last:], np.asarray(weights)[..., -last:].reshape(n_layers * n_heads, -1)
    figure = matplotlib.figure.Figure(figsize=(0.32 * len(pieces) + 1.6, 0.2 * n_layers * n_heads + 1.6), dpi=120)
    axes = figure.subplots()
    axes.imshow(shown, aspect="auto", cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(pieces)), [piece.strip() or "␣" for piece in pieces], rotation=60, ha="right", fontsize=8)
    middles = [i * n_heads + (n_heads - 1) / 2 for i in range(n_layers)]
    axes.set_yticks(middles, [f"layer {i + 1}" for i in range(n_layers)], fontsize=8)
    for i in range(1, n_layers):
        axes.axhline(i * n_heads - 0.5, color="#999999", linewidth=0.6)
    axes.set_title(f"where “{word}” looks (one row per head)", fontsize=10)
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png", bbox_inches="tight")
