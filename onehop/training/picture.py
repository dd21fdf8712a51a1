"""A picture of where a model looks from one word."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from onehop.base.files import atomic_file
from onehop.data.pairs import Borders, pair_example
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


def look_across(
    model: Transformer, tokenizer: Tokenizer, pair: tuple[str, str], *, borders: Borders
) -> tuple[list[str], list[str], Tensor]:
    """The tokens of a source and of its answer, and the weights (L, T, S) with which each of these looks at those.

    The mean of a layer's heads; a row is what the model looks at while it chooses that token.
    """
    example = pair_example(pair, tokenizer, borders)
    source, said = [list(ids) for ids in (example.source, example.tokens)]
    device = next(model.parameters()).device
    read = [borders.start, *said[:-1]]
    names = [f"layers.{i}.cross.weights" for i in range(len(model.layers))]
    was_training = model.training
    model.eval()
    heard = capture(model, names, torch.tensor([source], device=device), torch.tensor([read], device=device))
    model.train(was_training)
    shown, answer = ([tokenizer.decode([i], skip_special=False) for i in ids] for ids in (source, said))
    return shown, answer, torch.stack([heard[name][0].mean(0) for name in names]).float().cpu()


def draw_across(source: list[str], said: list[str], weights: Tensor, path: Path) -> None:
    """Draw one panel for each layer: the answer's tokens as rows, the source's as columns, dark where one looks."""
    import matplotlib.figure

    n_layers = len(weights)
    size = (0.24 * len(source) * n_layers + 1.4, 0.24 * len(said) + 1.2)
    figure = matplotlib.figure.Figure(figsize=size, dpi=120, layout="constrained")
    for i, axes in enumerate(figure.subplots(1, n_layers, squeeze=False)[0]):
        axes.imshow(np.asarray(weights[i]), aspect="auto", cmap="Blues", vmin=0, vmax=1)
        axes.set_xticks(range(len(source)), [piece.strip() or "␣" for piece in source], rotation=60, fontsize=8)
        axes.set_yticks(range(len(said)), [piece.strip() or "␣" for piece in said], fontsize=8)
        axes.tick_params(length=0)
        axes.set_title(f"layer {i + 1}", fontsize=9)
    figure.suptitle("where the answer looks, token by token (mean of the heads)", fontsize=10)
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png")
