"""Mixture of experts: solved by hand, equal to a loop over tokens, and nothing but the chosen experts does work."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from onehop.config import GatedConfig, MoEConfig
from onehop.parts.activation import ACTIVATIONS
from onehop.parts.dense import GatedFFN
from onehop.parts.moe import MoE

LOGITS = [[2.0, 1.0, 0.5, -1.0], [0.1, 0.2, 0.3, 0.4], [-3.0, -2.9, -9.0, -9.5], [40.0, -40.0, 39.0, 0.0]]


def _config(**options):
    return MoEConfig(**{"d_ff": 12, "n_experts": 5, "n_active": 2, **options})


def _moe(cfg, d_model=8, dtype=torch.float64, std=1.0):
    moe = MoE(d_model, cfg)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in moe.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
    return moe.to(dtype)


def _x(*shape, dtype=torch.float64, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def _token_by_token(moe, x):
    """The definition, one token and one expert at a time."""
    cfg, rows = moe.router.cfg, []
    for token in x.flatten(0, 1):  # (C,)
        logits = F.linear(token, moe.router.weight, moe.router.bias)
        scores = logits.softmax(-1) if cfg.gate == "softmax" else logits.sigmoid()
        chosen = (
            (scores if moe.router.choice_bias is None else scores + moe.router.choice_bias).topk(cfg.n_active).indices
        )
        weights = scores[chosen] / (scores[chosen].sum() if cfg.renormalise else 1.0) * cfg.routed_scale
        y = torch.zeros_like(token) if moe.shared is None else moe.shared(token)[0]
        if moe.shared_gate is not None:
            y = y * (moe.shared_gate.weight[0] @ token).sigmoid()
        for e, weight in zip(chosen.tolist(), weights):
            h = F.linear(token, moe.w1[e], None if moe.b1 is None else moe.b1[e])
            limit, act = cfg.clamp or float("inf"), ACTIVATIONS.get(cfg.activation)
            h = h if moe.w3 is None else h.clamp(max=limit)
            h = act(h) if cfg.swish_gain == 1 else h * torch.sigmoid(cfg.swish_gain * h)
            if moe.w3 is not None:
                up = F.linear(token, moe.w3[e], None if moe.b3 is None else moe.b3[e])
                h = h * (up.clamp(-limit, limit) + cfg.up_offset)
            y = y + weight * F.linear(h, moe.w2[e], None if moe.b2 is None else moe.b2[e])
        rows.append(y)
    return torch.stack(rows).view_as(x)


@pytest.mark.parametrize(
    ("renormalise", "want"),
    [
        (True, [[0.73105857863, 0.26894142137], [1.099916749916, 2.524979187479]]
         + [[0.4750208125211, 0.5249791874789], [0.46211715726, 0.53788284274]]),
        (False, [[0.6094600375989, 0.2242078180482], [0.6047716233171, 1.388319399782]]
         + [[0.4741239483856, 0.523987999319], [0.46211715726, 0.53788284274]]),
    ],
)  # fmt: skip
def test_four_experts_of_known_output_solved_by_hand(renormalise, want):
    """Expert e gives a fixed vector (through its last bias); the router's logits are the tokens themselves."""
    cfg = MoEConfig(d_ff=4, n_experts=4, n_active=2, expert="plain", bias=True, renormalise=renormalise)
    moe = MoE(4, cfg).double()
    with torch.no_grad():
        for parameter in moe.parameters():
            parameter.zero_()
        moe.router.weight.copy_(torch.eye(4))
        moe.b2[:, :2] = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 2.0], [3.0, 3.0]])
    y, _ = moe(torch.tensor([LOGITS], dtype=torch.float64))
    torch.testing.assert_close(y[0, :, :2], torch.tensor(want, dtype=torch.float64), rtol=0, atol=1e-11)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("expert", ["gated", "plain"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gate": "sigmoid", "balance": "bias", "routed_scale": 2.5, "d_ff_shared": 6},
        {"renormalise": False, "n_active": 5, "activation": "relu2"},
        {"d_ff_shared": 6, "shared_gate": True},
        {"swish_gain": 1.7, "router_bias": True, "n_active": 3},
        {"n_active": 1, "balance": "none"},
    ],
)
def test_grouped_experts_equal_the_definition_in_value_and_gradient(options, expert, bias):
    moe, x = _moe(_config(expert=expert, bias=bias, **options)), _x(2, 6, 8).requires_grad_()
    if moe.router.choice_bias is not None:
        moe.router.choice_bias.copy_(torch.tensor([0.3, 0.0, -0.3, 0.1, 0.0]))
    got, want = moe(x)[0], _token_by_token(moe, x)
    # float64; sums in another order, of values up to some thousands
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-10)
    leaves = [x, *moe.parameters()]
    g = _x(2, 6, 8, seed=2)
    for a, b in zip(torch.autograd.grad(got, leaves, g), torch.autograd.grad(want, leaves, g, materialize_grads=True)):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-8)


def test_clamped_gates_equal_the_definition_in_the_shared_expert_too():
    moe = _moe(_config(swish_gain=1.7, clamp=1.5, up_offset=1.0, bias=True, d_ff_shared=6))
    x = _x(2, 6, 8)
    torch.testing.assert_close(moe(x)[0], _token_by_token(moe, x), rtol=1e-11, atol=1e-10)
    gate, up = moe.shared.w1(x), moe.shared.w3(x)
    assert (gate > 1.5).any()
    assert (up.abs() > 1.5).any()  # or the limits would not be tried
    gate = gate.clamp(max=1.5)
    h = gate * torch.sigmoid(1.7 * gate) * (up.clamp(-1.5, 1.5) + 1)
    torch.testing.assert_close(moe.shared(x)[0], moe.shared.w2(h), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("tokens", [1, 3, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precisions_stay_within_their_rounding_of_float64(dtype, tokens):
    """Few tokens and many may take different ways through the experts."""
    moe = _moe(_config(d_ff=16, n_experts=8, bias=True), dtype=dtype, d_model=16, std=0.3)
    x = _x(1, tokens, 16, dtype=dtype)
    got = moe(x)[0]
    want = moe.double()(x.double())[0]
    assert got.dtype == dtype
    # each of three products in a row rounds to dtype once; values are below 4
    torch.testing.assert_close(got.double(), want, rtol=0, atol={torch.float32: 1e-5, torch.bfloat16: 0.06}[dtype])


def test_one_expert_is_a_gated_layer():
    moe, x = _moe(_config(n_experts=1, n_active=1, bias=True)), _x(2, 5, 8)
    ffn = GatedFFN(8, GatedConfig(d_ff=12, bias=True)).double()
    with torch.no_grad():
        for name in ("w1", "w2", "w3"):
            getattr(ffn, name).weight.copy_(getattr(moe, name)[0])
            getattr(ffn, name).bias.copy_(getattr(moe, f"b{name[1]}")[0])
    torch.testing.assert_close(moe(x)[0], ffn(x)[0], rtol=1e-12, atol=1e-12)


def test_the_shared_expert_is_added_to_what_the_others_say():
    moe, x = _moe(_config(d_ff_shared=6)), _x(2, 5, 8)
    both, shared = moe(x)[0], moe.shared(x)[0]
    moe.shared = None
    torch.testing.assert_close(both, moe(x)[0] + shared, rtol=1e-13, atol=1e-13)


def test_padding_changes_no_other_token():
    moe, x = _moe(_config()), _x(2, 5, 8)
    real = torch.tensor([[True] * 5, [False, False, True, True, True]])
    wild = torch.where(real.unsqueeze(-1), x, torch.full_like(x, 1e6))
    a, b = moe(x, real=real), moe(wild, real=real)
    torch.testing.assert_close(a[0][real], b[0][real], rtol=1e-12, atol=1e-12)
    assert torch.equal(a[1].load, b[1].load)
    assert int(a[1].load.sum()) == 2 * 8


def test_nothing_is_dropped_when_all_tokens_want_the_same_experts():
    moe, x = _moe(_config()), _x(1, 1, 8).expand(4, 16, 8)
    y, routing = moe(x)
    assert sorted(routing.load.tolist()) == [0, 0, 0, 64, 64]
    torch.testing.assert_close(y, moe(x[:1, :1])[0].expand_as(y), rtol=1e-12, atol=1e-12)


def test_the_work_grows_with_active_experts_and_not_with_all():
    def flops(**options):
        moe, x = MoE(8, _config(**options)).double(), _x(1, 32, 8)  # float64: products that the counter sees
        with FlopCounterMode(display=False) as counter:
            moe(x)
        return counter.get_total_flops() - 2 * 32 * 8 * options["n_experts"]  # less the router's own

    assert flops(n_experts=64, n_active=2) == flops(n_experts=8, n_active=2) == flops(n_experts=8, n_active=1) * 2


def test_losses_reach_the_router_and_not_the_experts():
    moe = _moe(_config(z_weight=0.1))
    moe(_x(2, 5, 8))[1].weighted_loss.backward()
    assert moe.router.weight.grad.abs().sum() > 0
    assert moe.w1.grad is None


def test_activation_checkpointing_gives_the_same_gradients_and_one_load():
    moe, x = _moe(_config(z_weight=0.1, d_ff_shared=4)), _x(2, 5, 8).requires_grad_()
    results = []
    for run in (moe, lambda x: checkpoint(moe, x, use_reentrant=False)):
        y, routing = run(x)
        loss = y.square().mean() + routing.weighted_loss
        results.append((*torch.autograd.grad(loss, [x, *moe.parameters()]), routing.load))
    for a, b in zip(*results):
        assert torch.equal(a, b)


def test_the_bias_of_the_choice_is_moved_through_the_layer():
    moe = _moe(_config(n_experts=2, n_active=1, balance="bias", balance_rate=0.5))
    moe.update_bias(torch.tensor([3, 1]))
    assert moe.router.choice_bias.tolist() == [-0.5, 0.5]


def test_fresh_experts_are_small_and_their_biases_zero():
    torch.manual_seed(0)
    moe = MoE(32, _config(d_ff=64, bias=True))
    assert moe.w1.std().item() == pytest.approx(0.02, rel=0.05)
    assert moe.router.weight.std().item() == pytest.approx(0.02, rel=0.2)
    assert not moe.b1.any()
    assert not moe.b2.any()


def test_a_layer_under_autocast_computes_its_experts_in_bf16():
    moe, x = _moe(_config(d_ff=16), dtype=torch.float32, d_model=16, std=0.3), _x(1, 6, 16, dtype=torch.float32)
    want = moe(x)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = moe(x)[0]
    assert not torch.equal(got.float(), want)
    torch.testing.assert_close(got.float(), want, rtol=0, atol=0.06)  # as in bf16 above
