"""A learning rate that was found for a narrow model, used for a wide one: `train.width_transfer`.

The rules are those of Yang et al. 2022, Tensor Programs V, arXiv:2203.03466, table 8, for Adam. With n = d_model / base
width, against the same recipe without the option:

    role                 start           rate      besides
    matrices             std / √n        lr / n    weight decay · n, so that rate · decay stays
    embeddings           std             lr
    head, tied or not    std             lr        logits / n (head.scale)
    norms, biases        as they are     lr

At the base width nothing changes. `std` is model.init_std; where it is far below 1/√base width (0.125 for 64) the
first hundred steps are spent in leaving the start, at every width, and the best rate for them says little. Widen a
model by more heads and a wider feed-forward: `d_head` has to stay, because the scores' scale 1/√d_head is the paper's
1/d_head only then. Adam's epsilon stays as it is.
"""

import torch
from torch import nn

from onehop.config.model import ModelConfig
from onehop.config.recipe import Recipe
from onehop.training.roles import roles


def transferred(recipe: Recipe) -> ModelConfig:
    """The model that is built: with `train.width_transfer` its logits are divided by n."""
    base, model = recipe.train.width_transfer, recipe.model
    if base is None:
        return model
    head = model.head.model_copy(update={"scale": model.head.scale * base / model.d_model})
    return model.model_copy(update={"head": head})


@torch.no_grad()
def start_narrow(model: nn.Module, base: int, width: int) -> None:
    """Fresh matrices times √(base / width)."""
    by_name = roles(model)
    for name, parameter in model.named_parameters():
        if by_name[name] == "matrices":
            parameter.mul_((base / width) ** 0.5)
