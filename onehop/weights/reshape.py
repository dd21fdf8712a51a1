"""A model with fewer key and value heads, or for longer texts: what the architecture becomes, and its weights.

Both are beginnings: the result has to be trained on before it is as good as the model that it came from.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from onehop.base.errors import ConfigError
from onehop.config.model import BlockConfig, ModelConfig
from onehop.config.stretch import stretched
from onehop.model.build import build
from onehop.model.transformer import Transformer

POOLED = ("attention.wk.weight", "attention.wk.bias", "attention.wv.weight", "attention.wv.bias")


def fewer_kv_heads(model: Transformer, n_kv_heads: int) -> Transformer:
    """Key and value heads averaged in groups of neighbours, for uptraining. Ainslie et al. 2023, 2305.13245, 2.1.

    Raises ConfigError where `n_kv_heads` does not divide the heads that there are.
    """
    blocks = tuple(_with_heads(block, n_kv_heads) for block in model.config.blocks)
    config = ModelConfig.model_validate({**dict(model.config), "blocks": blocks})
    weights = dict(model.state_dict())
    for i, block in enumerate(model.config.layers()):
        attention = block.attention
        for end in POOLED:
            name = f"layers.{i}.{end}"
            if name in weights:
                weights[name] = mean_heads(weights[name], attention.n_kv_heads, n_kv_heads)
    return _made(config, weights)


def _made(config: ModelConfig, weights: Mapping[str, Tensor]) -> Transformer:
    """A model of these weights."""
    new = build(config, device="meta")
    new.load_state_dict(weights, assign=True)
    return new.eval()


def mean_heads(rows: Tensor, have: int, want: int) -> Tensor:
    """Rows of `have` heads -> rows of `want`, each the mean of have/want neighbours: (K · D, …) -> (N · D, …)."""
    heads = rows.unflatten(0, (want, have // want, -1))  # (N, K / N, D, …)
    return heads.mean(dim=1, dtype=torch.float32 if rows.itemsize < 4 else rows.dtype).to(rows.dtype).flatten(0, 1)


def _with_heads(block: BlockConfig, n: int) -> BlockConfig:
    attention = block.attention
    have = attention.n_kv_heads
    if attention.kind != "grouped" or block.cross is not None:
        raise ConfigError("kv_heads averages the heads of decoders with grouped attention only. Leave it out.")
    if n < 1 or have % n:
        fit = ", ".join(str(k) for k in range(1, have + 1) if have % k == 0)
        raise ConfigError(
            f"kv_heads={n} cannot be averaged from {have} key/value heads: it must divide {have}. Use {fit}."
        )
    return block.model_copy(update={"attention": attention.model_copy(update={"n_kv_heads": n})})


def longer(model: Transformer, max_len: int, *, rope: str) -> Transformer:
    """Rotary positions stretched to `max_len` tokens, as `config.stretch` has it; weights stay as they are."""
    return _made(stretched(model.config, max_len, rope=rope), model.state_dict())
