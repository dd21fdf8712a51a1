"""Precision and repetition: what stays in float32, how float16 is scaled, and that a seed decides the whole run."""

import math
import random

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from onehop.base.errors import ConfigError
from onehop.config.recipe import TrainConfig
from onehop.data.loader import Batch, joined
from onehop.training.loss import batch_loss
from onehop.training.optimizer import make_optimizer
from onehop.training.randomness import Generators
from onehop.training.setup import computing, loss_scaler, repeating
from onehop.training.step import training_step
from onehop.training.trainer import Trainer
from tests.small_models import VOCABULARY, decoder, small_model
from tests.training.small_runs import recipe

MOE = {"kind": "moe", "d_ff": 8, "n_experts": 4, "n_active": 2, "balance": "loss"}
CPU = torch.device("cpu")
# What must not be rounded to 16 bits: sums of exponents, of squares and of probabilities, and angles.
SENSITIVE = {"_softmax", "_log_softmax", "nll_loss_forward", "logsumexp", "exp", "rsqrt", "mean", "sin", "cos", "sigmoid"}


class Dtypes(TorchDispatchMode):
    """Notes the dtypes of the operands of sensitive operations, and of products."""

    def __init__(self):
        super().__init__()
        self.seen, self.products = {}, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        floats = {x.dtype for x in args if isinstance(x, torch.Tensor) and x.is_floating_point()}
        if name in SENSITIVE:
            self.seen.setdefault(name, set()).update(floats)
        if name in ("mm", "addmm", "bmm"):
            self.products |= floats
        return function(*args, **(kwargs or {}))


def rows(n=2, length=8):
    tokens = torch.randint(VOCABULARY, (n, length + 1), generator=torch.Generator().manual_seed(0))
    at, doc = torch.arange(length).expand(n, length), torch.zeros(n, length, dtype=torch.int32)
    return Batch(tokens[:, :-1], tokens[:, 1:], doc, at, n * length, packed=False, padded=False)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_norms_softmax_angles_router_and_loss_stay_in_float32(precision, scores):
    model = small_model(decoder(ffn={**MOE, "scores": scores}), dtype=torch.float32)
    with Dtypes() as dtypes, computing(CPU, precision):
        loss = batch_loss(model, rows(), kernel="plain")
    wanted = {"_softmax", "_log_softmax", "nll_loss_forward", "rsqrt", "sin", "cos"}
    assert dtypes.seen.keys() >= wanted | ({"sigmoid"} if scores == "sigmoid" else set())
    assert all(found <= {torch.float32} for found in dtypes.seen.values()), dtypes.seen
    assert precision in dtypes.products
    assert loss.surprise.dtype == loss.router.dtype == torch.float32
    assert all(p.dtype == torch.float32 for p in model.parameters())
