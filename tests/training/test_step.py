"""One optimizer step: the mean over all targets of the step, one clipping, and nothing at all for a broken gradient."""

import copy
import math

import pytest
import torch

from onehop.config.recipe import TrainConfig
from onehop.data.loader import Batch
from onehop.training.optimizer import make_optimizer
from onehop.training.setup import computing
from onehop.training.step import training_step
from tests.small_models import VOCABULARY, decoder, small_model

MOE = {"kind": "moe", "d_ff": 8, "n_experts": 4, "n_active": 2}


def settings(**own):
    return TrainConfig(**{"steps": 10, "batch_size": 4, "lr": 1e-2, "clip": None, "weight_decay": 0.0, **own})


def batch(n_targets, *, rows=1, length=4, seed=0):
    """Rows of random tokens, of which the first n_targets places are targets."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCABULARY, (rows, length + 1), generator=generator)
    targets = tokens[:, 1:].clone().flatten()
    targets[n_targets:] = -100
    at = torch.arange(length).expand(rows, length)
    doc = torch.zeros(rows, length, dtype=torch.int32)
    return Batch(tokens[:, :-1], targets.view(rows, length), doc, at, n_targets, packed=False, padded=False)


def joined(batches):
    """The same rows as one batch."""
    fields = {name: torch.cat([getattr(b, name) for b in batches]) for name in ("tokens", "targets", "doc", "at")}
    return Batch(**fields, n_targets=sum(b.n_targets for b in batches), packed=False, padded=False)


def gradients_of(model, batches, **own):
    """The gradient that a step sees (by an optimizer that only looks), and its result."""
    seen = {}

    class Look(torch.optim.SGD):
        def step(self):
            seen.update({name: p.grad.clone() for name, p in model.named_parameters()})

    result = training_step(model, Look(model.parameters(), lr=0.0), batches, index=0, cfg=settings(**own))
    return seen, result


@pytest.mark.parametrize("head", [{"tied": False}, {"tied": True, "bias": True, "softcap": 3.0}])
@pytest.mark.parametrize("own", [{}, {"loss_chunk": 3}, {"loss_chunk": 3, "z_loss": 0.1}])
def test_micro_batches_of_1_4_0_and_3_targets_weigh_each_target_alike(head, own):
    """Whatever the head, and however the loss is computed: at once it is the definition."""
    model = small_model(decoder(head=head))
    parts = [batch(n, seed=n) for n in (1, 4, 0, 3)]
    apart, cut = gradients_of(model, parts, **own)
    together, whole = gradients_of(model, [joined(parts)], **own | {"loss_chunk": None})
    assert cut.targets == whole.targets == 8
    assert cut.loss == pytest.approx(whole.loss, rel=1e-12)  # float64, the order of the sums differs
    for name, gradient in apart.items():
        torch.testing.assert_close(gradient, together[name], rtol=0, atol=1e-12)


def test_a_step_without_targets_has_no_loss_and_no_gradient():
    model = small_model(decoder())
    seen, result = gradients_of(model, [batch(0), batch(0)])
    assert math.isnan(result.loss)
    assert not any(gradient.any() for gradient in seen.values())


@pytest.mark.parametrize("balance", ["loss", "bias"])
def test_a_step_without_targets_moves_nothing_though_the_moments_would(balance):
    model = small_model(decoder(ffn=MOE | {"balance": balance}))
    cfg = settings(weight_decay=0.1)
    optimizer = make_optimizer(model, cfg)
    training_step(model, optimizer, [batch(4)], index=0, cfg=cfg)
    before = copy.deepcopy((model.state_dict(), optimizer.state))
    result = training_step(model, optimizer, [batch(0, seed=1), batch(0, seed=2)], index=1, cfg=cfg)
    assert (result.targets, math.isnan(result.loss), result.skipped) == (0, True, False)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[0][name]), name
    for state, was in zip(optimizer.state.values(), before[1].values(), strict=True):
        assert all(torch.equal(state[key], was[key]) for key in was)
    training_step(model, optimizer, [batch(4, seed=3)], index=2, cfg=cfg)
    assert not all(torch.equal(tensor, before[0][name]) for name, tensor in model.state_dict().items())


def test_the_accumulated_gradient_is_clipped_once():
    """Micro-gradients (3, -4, 0) and (1, 2, -2): the sum (4, -2, -2) has norm √24, and is clipped to norm 1."""
    x = torch.zeros(3, requires_grad=True)
    for gradient in ([3.0, -4.0, 0.0], [1.0, 2.0, -2.0]):
        (x @ torch.tensor(gradient)).backward()
    assert float(torch.nn.utils.clip_grad_norm_([x], 1.0)) == pytest.approx(math.sqrt(24))
    torch.testing.assert_close(x.grad, torch.tensor([0.8164964, -0.4082482, -0.4082482]), rtol=0, atol=1e-6)

    model = small_model(decoder())
    free, result = gradients_of(model, [batch(4, seed=1), batch(3, seed=2)])
    clipped = {}

    class Look(torch.optim.SGD):
        def step(self):
            clipped.update({name: p.grad.clone() for name, p in model.named_parameters()})

    cfg = settings(clip=result.grad_norm / 4)
    training_step(model, Look(model.parameters(), lr=0.0), [batch(4, seed=1), batch(3, seed=2)], index=0, cfg=cfg)
    for name, gradient in free.items():
        torch.testing.assert_close(clipped[name], gradient / 4, rtol=1e-5, atol=0)  # the norm's own 1e-6


def test_adamw_follows_its_published_steps():
    """Five steps by hand (numpy): learning rates 0.1, 0.1, 0.05, 0.05, 0.025, decay 0.1, betas 0.9 and 0.95."""
    model = torch.nn.Module()
    model.x = torch.nn.Parameter(torch.tensor([[1.0, -2.0]], dtype=torch.float64))  # a matrix: decay applies
    optimizer = make_optimizer(model, settings(weight_decay=0.1))
    want = [
        (0.890000002, -1.880000001),
        (0.8542630578558, -1.834363056524),
        (0.8171115891477, -1.814684607134),
        (0.7839970428722, -1.799611126821),
        (0.7848789394173, -1.802373764459),
    ]
    gradients = [(0.5, -1.0), (-0.25, 0.5), (1.5, 0.0), (0.1, 0.1), (-2.0, 1.0)]
    for gradient, lr, x in zip(gradients, (0.1, 0.1, 0.05, 0.05, 0.025), want, strict=True):
        for group in optimizer.param_groups:
            group["lr"] = lr
        model.x.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
        torch.testing.assert_close(model.x.data, torch.tensor([x], dtype=torch.float64), rtol=0, atol=1e-10)


def test_a_z_loss_adds_its_share_of_the_gradient_but_not_of_the_reported_loss():
    """The gradient is that of loss + w · mean (log Σ exp)², over micro-batches of 3 and 1 targets alike."""
    rows, weight = [batch(3, seed=1), batch(1, seed=2)], 0.3
    plain, without = gradients_of(small_model(decoder()), rows)
    found, with_it = gradients_of(small_model(decoder()), rows, z_loss=weight)
    model = small_model(decoder())
    for rows_of in rows:
        real = rows_of.targets.flatten() >= 0
        logits = model(rows_of.tokens).flatten(0, 1)[real]
        (weight * logits.logsumexp(-1).square().sum() / 4).backward()
    assert with_it.loss == without.loss
    for name, p in model.named_parameters():
        torch.testing.assert_close(found[name], plain[name] + p.grad, rtol=0, atol=1e-12)


def test_the_routers_entropy_is_the_mean_over_tokens_layers_and_micro_batches():
    """ln 4 where the routers, their weights being 0, prefer none of the four."""
    model = small_model(decoder(ffn=MOE))
    _, result = gradients_of(model, [batch(4), batch(4, seed=1)])
    assert 0 < result.router_entropy < math.log(4)
    with torch.no_grad():
        for layer in model.layers:
            layer.ffn.router.weight.zero_()
    assert gradients_of(model, [batch(4)])[1].router_entropy == pytest.approx(math.log(4), rel=1e-6)
    assert gradients_of(small_model(decoder()), [batch(4)])[1].router_entropy is None


def test_weight_decay_is_for_matrices_only():
    optimizer = make_optimizer(small_model(decoder(attention={"sinks": True})), settings(weight_decay=0.1))
    decayed, others = optimizer.param_groups
    assert decayed["weight_decay"] == 0.1
    assert others["weight_decay"] == 0.0
    assert all(p.dim() >= 2 for p in decayed["params"])
    assert all(p.dim() < 2 for p in others["params"])


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_step_whose_gradient_is_not_finite_changes_nothing(bad):
    """No weight, no moment, no count of the optimizer, and the next step learns at the rate that this one had."""
    cfg = settings(warmup=5)
    model = small_model(decoder(ffn={**MOE, "balance": "bias"}), dtype=torch.float32)
    optimizer = make_optimizer(model, cfg)
    training_step(model, optimizer, [batch(4)], index=0, cfg=cfg)
    before = copy.deepcopy((model.state_dict(), [optimizer.state[p] for p in model.parameters()]))
    handle = model.final_norm.weight.register_hook(lambda gradient: gradient.fill_(bad))
    broken = training_step(model, optimizer, [batch(4)], index=1, cfg=cfg)
    handle.remove()
    assert broken.skipped
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[0][name]), name
    for parameter, old in zip(model.parameters(), before[1], strict=True):
        assert all(torch.equal(value, old[key]) for key, value in optimizer.state[parameter].items())
    after = training_step(model, optimizer, [batch(4)], index=2, cfg=cfg, n_skipped=1)
    assert after.lr == broken.lr
    assert not after.skipped


def test_balancing_by_loss_adds_to_the_gradient_but_not_to_the_reported_loss():
    rows = [batch(4, rows=1, seed=1), batch(2, rows=1, seed=2)]
    found = {}
    for weight in (1e-9, 1.0):
        model = small_model(decoder(ffn={**MOE, "balance": "loss", "balance_weight": weight}))
        found[weight] = gradients_of(model, rows)
    (without, low), (with_it, high) = found[1e-9], found[1.0]
    assert low.loss == pytest.approx(high.loss, rel=1e-12)
    router = next(name for name in without if "router" in name)
    assert not torch.allclose(without[router], with_it[router])


def test_balancing_by_bias_moves_the_biases_by_their_rate_towards_an_even_load():
    cfg = settings()
    model = small_model(decoder(ffn={**MOE, "balance": "bias", "balance_rate": 0.01}), dtype=torch.float32)
    before = [layer.ffn.router.choice_bias.clone() for layer in model.layers]
    result = training_step(model, make_optimizer(model, cfg), [batch(4, seed=1), batch(4, seed=2)], index=0, cfg=cfg)
    for layer, old, load in zip(model.layers, before, result.loads, strict=True):
        assert int(load.sum()) == 8 * 2  # 8 tokens, two experts each
        moved = layer.ffn.router.choice_bias - old
        want = 0.01 * torch.sign(load.float().mean() - load.float())
        torch.testing.assert_close(moved, want, rtol=0, atol=1e-7)  # one float32 sum near 0.3


def test_sixteen_bit_products_learn_as_float32_does():
    """Twelve steps on the same rows; the losses stay within 2 % of each other, the size of bfloat16's rounding."""
    found = []
    for precision in (torch.float32, torch.bfloat16):
        cfg = settings(lr=3e-3)
        model = small_model(decoder(attention={"d_head": 64}), dtype=torch.float32)
        optimizer = make_optimizer(model, cfg)
        rows = [batch(16, rows=2, length=8, seed=1)]
        found.append(
            [training_step(model, optimizer, rows, index=i, cfg=cfg, precision=precision).loss for i in range(12)]
        )
    exact, rounded = map(torch.tensor, found)
    assert exact[-1] < 0.8 * exact[0]
    torch.testing.assert_close(rounded, exact, rtol=0.02, atol=0)


def test_computing_in_float32_is_no_autocast():
    with computing(torch.device("cpu"), torch.float32):
        assert not torch.is_autocast_enabled("cpu")
    with computing(torch.device("cpu"), torch.bfloat16):
        assert torch.is_autocast_enabled("cpu")
