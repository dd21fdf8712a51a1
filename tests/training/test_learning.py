"""Whatever its shape, a model starts at guessing, learns a batch by heart, stays calm in depth, counts real targets."""

import math

import pytest
import torch

from onehop.config.recipe import TrainConfig
from onehop.data.loader import Batch
from onehop.model import build
from onehop.training.loss import batch_loss
from onehop.training.optimizer import make_optimizer
from onehop.training.step import training_step
from tests.small_models import CONFIGS, DYNAMIC, VOCABULARY, decoder


def rows(n=2, length=8, *, vocabulary=VOCABULARY):
    tokens = torch.randint(vocabulary, (n, length + 1), generator=torch.Generator().manual_seed(0))
    at, doc = torch.arange(length).expand(n, length), torch.zeros(n, length, dtype=torch.int32)
    return Batch(tokens[:, :-1], tokens[:, 1:], doc, at, n * length, packed=False, padded=False)


def learn(config, steps, **settings):
    """Losses and gradient norms of some steps on one batch."""
    cfg = TrainConfig(**{"steps": steps, "batch_size": 4, "lr": 1e-2, "weight_decay": 0.0, **settings})
    model = build(config)
    optimizer, batch = make_optimizer(model, cfg), rows(vocabulary=config.vocab_size)
    return [training_step(model, optimizer, [batch], index=i, cfg=cfg) for i in range(steps)]


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_kind_of_model_starts_at_guessing_and_learns_a_batch_by_heart(kind):
    results = learn(CONFIGS[kind].model_copy(update={"init_std": 0.05}), 60, lr=2e-2)
    assert results[0].loss == pytest.approx(math.log(VOCABULARY), abs=0.15)  # logits of about 0.05 · √16 = 0.2
    assert results[-1].loss < 0.2


def test_80_layers_learn_without_blowing_up():
    config = decoder(n_layers=80, init_std=0.02)
    results = learn(config, 16, lr=3e-3, warmup=4)
    assert not any(result.skipped for result in results)
    assert results[0].loss == pytest.approx(math.log(VOCABULARY), abs=0.05)
    assert max(result.loss for result in results) < 1.1 * results[0].loss
    assert max(result.grad_norm for result in results) < 10
    assert results[-1].loss < 0.9 * results[0].loss


def test_the_residual_stream_of_80_fresh_layers_is_no_wider_than_that_of_2():
    """What is written into it is scaled with depth: the sum of 160 outputs has the size of that of 4."""
    batch, sizes = rows(), {}
    for n_layers in (2, 80):
        model = build(decoder(n_layers=n_layers, init_std=0.02))
        stream = {}
        model.final_norm.register_forward_pre_hook(lambda module, inputs, stream=stream: stream.update(x=inputs[0]))
        with torch.no_grad():
            model(batch.tokens)
        sizes[n_layers] = float(stream["x"].std())
    assert sizes[80] < 1.5 * sizes[2]


def test_only_real_targets_count_where_padding_is_an_end_token():
    """Rows (5 3 2 0), (4 0) and (0 6 0 1 0), padded with the end token 0: 3 + 1 + 4 targets, ends inside included."""
    texts = [[5, 3, 2, 0], [4, 0], [0, 6, 0, 1, 0]]
    width = 5
    tokens, targets = torch.zeros(3, width, dtype=torch.int64), torch.full((3, width), -100)
    at = torch.full((3, width), -1)
    for b, text in enumerate(texts):
        tokens[b, : len(text)] = torch.tensor(text)
        targets[b, : len(text) - 1] = torch.tensor(text[1:])
        at[b, : len(text)] = torch.arange(len(text))
    doc = torch.where(at >= 0, 0, -1).to(torch.int32)
    for kind in ("rope", "learned", "experts", "rope of a length", "window", "t5"):
        model = build(CONFIGS.get(kind, decoder(scaling=DYNAMIC))).double()
        padded = batch_loss(model, Batch(tokens, targets, doc, at, 8, packed=False, padded=True))
        alone = 0.0
        for text in texts:
            logits = model(torch.tensor([text]))[0, :-1]
            alone += float(-logits.log_softmax(-1)[torch.arange(len(text) - 1), text[1:]].detach().sum())
        assert float(padded.surprise.detach()) == pytest.approx(alone, rel=1e-10), kind  # float64, other shapes
        if kind == "experts":
            assert all(int(load.sum()) == 11 * 2 for load in padded.loads)  # padding visits nobody


def test_packed_documents_cost_what_they_cost_alone():
    """Documents (5 3 2 6), (4 1) and (7 8 9) in a padded row: the sum of their losses, also for learned positions."""
    texts = [[5, 3, 2, 6], [4, 1], [7, 8, 9]]
    tokens = torch.tensor([[5, 3, 2, 6, 4, 1, 7, 8, 9, 0]])
    targets = torch.tensor([[3, 2, 6, -100, 1, -100, 8, 9, -100, -100]])
    doc = torch.tensor([[0, 0, 0, 0, 1, 1, 2, 2, 2, -1]], dtype=torch.int32)
    at = torch.tensor([[0, 1, 2, 3, 0, 1, 0, 1, 2, -1]])
    for config in (decoder(), CONFIGS["learned"]):
        model = build(config).double()
        packed = batch_loss(model, Batch(tokens, targets, doc, at, 6, packed=True, padded=True)).surprise
        alone = 0.0
        for text in texts:
            logits = model(torch.tensor([text]))[0, :-1]
            alone += float(-logits.log_softmax(-1)[torch.arange(len(text) - 1), text[1:]].detach().sum())
        assert float(packed) == pytest.approx(alone, rel=1e-10)  # float64, other shapes
