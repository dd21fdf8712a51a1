"""Whether the rows of a recipe's text will hold several documents, from the first of them. No torch."""

from collections.abc import Iterator
from itertools import accumulate, islice

import numpy as np

from onehop.base.errors import OnehopError
from onehop.config.data import DataConfig, TextConfig
from onehop.config.ffn import GatedConfig, PlainConfig
from onehop.config.position import RopeConfig
from onehop.config.recipe import Recipe
from onehop.cost.serving import BY_LENGTH
from onehop.data.pack import pack_whole
from onehop.data.sources import open_source
from onehop.text.bpe import train_bpe
from onehop.text.tokenizer import Tokenizer

DOCUMENTS, CHARACTERS = 256, 200_000  # that are looked at


def have_places(recipe: Recipe) -> bool:
    """Whether rows get places of their own: of several documents, or of a model that counts padding.

    As `training/loss.py` decides it for a batch; rows of pairs hold one text each.
    """
    if recipe.task.encoder:
        return False
    padded = recipe.data.packing == "whole"
    return (padded and _counts(recipe)) or (recipe.data.documents == "separate" and _shared(recipe))


def _counts(recipe: Recipe) -> bool:
    """Whether padding matters to a model: it has experts, sees both ways, or angles by a text's length."""
    blocks = list(recipe.model.layers())
    scaled = [b.attention.position.scaling for b in blocks if isinstance(b.attention.position, RopeConfig)]
    by_length = any(scaling is not None and scaling.kind in BY_LENGTH for scaling in scaled)
    dense = all(isinstance(block.ffn, PlainConfig | GatedConfig) for block in blocks)
    return recipe.model.both_ways or by_length or not dense


def _shared(recipe: Recipe) -> bool:
    """Whether several documents share some of the rows; taken to be so where the text does not tell."""
    if recipe.task.kind != "next" or recipe.data.mixture:
        return True
    length = recipe.train.context or recipe.model.max_len
    try:
        starts = np.array([0, *accumulate(_sizes(recipe.data))], dtype=np.int64)
    except OnehopError:
        return True
    if recipe.data.packing == "stream":
        return bool((starts[1:-1] % length > 0).any())
    return pack_whole(starts, length, seed=0).packs


def _sizes(data: DataConfig) -> list[int]:
    """Tokens of the first documents, each with its end, by a tokenizer like the one that will be there."""
    texts = list(_first(data))
    if data.tokenizer == "characters":
        return [len(text) + 1 for text in texts]
    known = data.tokenizer != "bpe"
    tokenizer = Tokenizer.load(data.tokenizer) if known else train_bpe(texts, vocab_size=data.vocab_size)
    return [len(tokenizer.encode(text)) + 1 for text in texts]


def _first(data: DataConfig) -> Iterator[str]:
    left = CHARACTERS
    text = data.model_dump(include=set(TextConfig.model_fields))
    for document in islice(open_source(**text, seed=data.seed, stream=True), DOCUMENTS):
        yield document[:left]
        left -= len(document)
        if left <= 0:
            return
