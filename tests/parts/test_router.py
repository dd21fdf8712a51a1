"""Routing: published weights and losses, padding that counts in nothing, and a bias that evens the load out."""

import pytest
import torch
from torch import nn

from onehop.config import MoEConfig
from onehop.parts.router import Router, Routing

LOGITS = [[2.0, 1.0, 0.5, -1.0], [0.1, 0.2, 0.3, 0.4], [-3.0, -2.9, -9.0, -9.5], [40.0, -40.0, 39.0, 0.0]]
EXPERTS = [[0, 1], [3, 2], [1, 0], [0, 2]]
RENORMALISED = [[0.73105857863, 0.26894142137], [0.5249791874789, 0.4750208125211]] + [
    [0.5249791874789, 0.4750208125211], [0.73105857863, 0.26894142137],
]  # fmt: skip
NOT_RENORMALISED = [[0.6094600375989, 0.2242078180482], [0.2886514051574, 0.2611825921551]] + [
    [0.523987999319, 0.4741239483856], [0.73105857863, 0.26894142137],
]  # fmt: skip

# two layers of 2 rows with 4 tokens; the first two tokens of the second row are padding
TWO_LAYERS = [
    [[-0.5892632631585002, -2.213817324489355, 0.7809193124994636, 0.4581115823239088],
     [1.0055403867736459, 0.26794908195734024, -1.176286113448441, 1.3278802949935198],
     [-2.9395192516967654, -1.218338269740343, -0.22535630408674479, 0.8834558185189962],
     [0.019700163044035435, 2.248113200068474, 0.7613303912803531, 1.2597191724926233],
     [-0.7355710146948695, -0.4958730451762676, -2.936550543643534, 1.3763566743582487],
     [-1.2881374647840858, 1.9551452323794365, -1.8801897140219808, -0.9154115449637175],
     [0.6835693018510938, 1.6067231856286526, -0.1637824857607484, 0.09905322454869747],
     [-2.6440696036443114, -0.4625707268714905, -2.9933864073827863, 1.2773492876440287]],
    [[-1.8948897449299693, -1.1243481002748013, 2.660002618096769, 2.8097318094223738],
     [-1.9409414073452353, -2.657187692821026, 2.145655411295593, -1.118533669039607],
     [0.1690436052158475, -0.5745162852108479, 0.7690958445891738, 1.3703385349363089],
     [2.1132164234295487, -0.7610832899808884, 2.7913684202358127, -1.8581797387450933],
     [0.34470681566745043, 2.144470889121294, 2.6040870985016227, 2.504391772672534],
     [0.5967501411214471, 0.18345274776220322, -0.10723462421447039, -0.612479729577899],
     [-2.8426544470712543, -0.6101401783525944, -0.39907238725572824, -1.1952053401619196],
     [0.22594545129686594, 2.04453107714653, 2.5075016124174, 2.1647165659815073]],
]  # fmt: skip
REAL = torch.tensor([[True] * 4, [False, False, True, True]])


def _config(**options):
    return MoEConfig(**{"d_ff": 8, "n_experts": 4, "n_active": 2, **options})


def _router(dtype=torch.float64, **options):
    """A router whose logits are its input."""
    router = Router(4, _config(**options)).to(dtype)
    with torch.no_grad():
        router.weight.copy_(torch.eye(4))
    return router


def _route(logits, real=None, **options):
    return _router(**options)(torch.tensor(logits, dtype=torch.float64).view(-1, 4, 4), real=real)


@pytest.mark.parametrize(("renormalise", "want"), [(True, RENORMALISED), (False, NOT_RENORMALISED)])
def test_weights_are_the_published_ones(renormalise, want):
    routing = _route(LOGITS, renormalise=renormalise)
    assert routing.indices[0].tolist() == EXPERTS
    torch.testing.assert_close(routing.weights[0], torch.tensor(want, dtype=torch.float64), rtol=0, atol=1e-12)


def test_with_all_experts_active_softmax_weights_need_no_renormalising():
    a, b = (_route(LOGITS, renormalise=r, n_active=4) for r in (True, False))
    torch.testing.assert_close(a.weights, b.weights, rtol=1e-14, atol=0)


def test_sigmoid_weights_are_scores_of_each_expert_by_itself():
    logits = torch.tensor(LOGITS[:1], dtype=torch.float64)
    raw = logits.sigmoid()[0, :2]
    assert torch.equal(_route(LOGITS, gate="sigmoid", renormalise=False).weights[0, 0], raw)
    torch.testing.assert_close(
        _route(LOGITS, gate="sigmoid", routed_scale=2.5).weights[0, 0], 2.5 * raw / raw.sum(), rtol=1e-14, atol=0
    )


def test_sigmoids_that_all_underflow_give_zero_weight_and_not_nan():
    assert _router(torch.float32, gate="sigmoid")(torch.full((1, 1, 4), -200.0)).weights.tolist() == [[[0.0, 0.0]]]


def test_the_routed_scale_multiplies_the_weights():
    torch.testing.assert_close(_route(LOGITS, routed_scale=2.5).weights, 2.5 * _route(LOGITS).weights)


def test_a_bf16_router_decides_in_float32():
    """Two logits that differ by less than bf16 can tell at this size: 8 + 2^-8 · 1.5 against 8 + 2^-8."""
    router = Router(2, _config(n_active=1)).bfloat16()
    with torch.no_grad():
        router.weight.copy_(torch.tensor([[8.0, 1.0], [8.0, 1.5], [0.0, 0.0], [0.0, 0.0]]))
    routing = router(torch.tensor([[[1.0, 2.0**-8]]], dtype=torch.bfloat16))
    assert routing.logits.dtype == routing.weights.dtype == torch.float32
    assert routing.logits[0, 0, :2].tolist() == [8 + 2**-8, 8 + 1.5 * 2**-8]
    assert routing.indices.tolist() == [[[1]]]


def test_autocast_does_not_reach_the_router():
    router, x = Router(16, _config()), torch.randn(2, 3, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(router(x).logits, router(x).logits.float())
        inside = router(x).logits
    assert torch.equal(inside, router(x).logits)


def test_the_balance_loss_is_the_published_one_with_padding_left_out():
    first, second = (_route(logits, real=REAL) for logits in TWO_LAYERS)
    assert first.balance_loss.item() == pytest.approx(2.396143483097, abs=1e-11)
    assert second.balance_loss.item() == pytest.approx(2.937551581293, abs=1e-11)
    assert (first.load + second.load).tolist() == [
        round(12 * f) for f in (0.25, 0.3333333333333, 0.6666666666667, 0.75)
    ]


def test_the_balance_loss_is_k_when_even_and_n_experts_over_k_times_that_at_worst():
    even = torch.eye(4).mul(100.0)[[0, 1, 2, 3]] + torch.eye(4).mul(100.0)[[1, 2, 3, 0]]
    assert _route(even.tolist()).balance_loss.item() == pytest.approx(2.0)
    assert _route([[50.0, 50.0, 0.0, 0.0]] * 4).balance_loss.item() == pytest.approx(4.0)


def test_no_gradient_of_the_balance_loss_goes_through_the_counts():
    logits = torch.tensor(TWO_LAYERS[0], dtype=torch.float64).view(2, 4, 4).requires_grad_()
    routing = _router()(logits, real=REAL)
    (got,) = torch.autograd.grad(routing.balance_loss, logits, retain_graph=True)
    share = routing.load.double() / 6
    (want,) = torch.autograd.grad(4 * (share * logits.softmax(-1)[REAL].mean(0)).sum(), logits)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-15)


def test_the_z_loss_is_the_mean_square_of_log_sum_exp_over_real_tokens():
    got = _route(TWO_LAYERS[0], real=REAL).z_loss
    lse = torch.tensor(TWO_LAYERS[0], dtype=torch.float64).view(2, 4, 4)[REAL].exp().sum(-1).log()
    torch.testing.assert_close(got, lse.square().mean(), rtol=1e-13, atol=0)


@pytest.mark.parametrize("gate", ["softmax", "sigmoid"])
def test_padding_counts_in_no_figure_whatever_its_logits_and_number(gate):
    logits = torch.tensor(TWO_LAYERS[0], dtype=torch.float64).view(2, 4, 4)
    want = _route(logits[REAL].repeat(2, 1)[:8].tolist(), gate=gate)
    want = _router(gate=gate)(logits[REAL].unsqueeze(0))  # the six real tokens alone
    wild = torch.where(REAL.unsqueeze(-1), logits, torch.full_like(logits, 77.0))
    wider = torch.cat([wild, torch.full((2, 3, 4), -55.0, dtype=torch.float64)], dim=1)
    real = torch.cat([REAL, torch.zeros(2, 3, dtype=torch.bool)], dim=1)
    got = _router(gate=gate)(wider, real=real)
    assert torch.equal(got.load, want.load)
    for figure in ("balance_loss", "z_loss"):
        # the same six terms, summed in another order
        torch.testing.assert_close(getattr(got, figure), getattr(want, figure), rtol=1e-13, atol=0)


def test_a_batch_of_nothing_but_padding_has_no_load_and_no_loss():
    routing = _route(LOGITS, real=torch.zeros(1, 4, dtype=torch.bool), z_weight=1.0)
    assert routing.load.tolist() == [0, 0, 0, 0]
    assert routing.weighted_loss.item() == 0


def test_the_weighted_loss_is_what_the_config_asks_for():
    def weighted(**options):
        routing = _route(TWO_LAYERS[0], **options)
        return routing.weighted_loss.item(), routing.balance_loss.item(), routing.z_loss.item()

    total, balance, z = weighted(balance="loss", balance_weight=0.5, z_weight=0.25)
    assert total == pytest.approx(0.5 * balance + 0.25 * z)
    total, _, z = weighted(balance="bias", z_weight=0.25)
    assert total == pytest.approx(0.25 * z)
    assert weighted(balance="none")[0] == 0


def test_scores_become_a_distribution_for_the_balance_loss():
    routing = _route(LOGITS, gate="sigmoid")
    scores = torch.tensor(LOGITS, dtype=torch.float64).sigmoid()
    torch.testing.assert_close(routing.probs[0], scores / scores.sum(-1, keepdim=True))


def test_the_bias_changes_the_choice_and_never_the_weights():
    router = _router(balance="bias", gate="sigmoid", renormalise=False)
    router.choice_bias.copy_(torch.tensor([0.0, 0.0, 0.0, 10.0]))
    routing = router(torch.tensor(LOGITS[:1], dtype=torch.float64).unsqueeze(0))
    assert routing.indices.tolist() == [[[3, 0]]]
    torch.testing.assert_close(routing.weights[0, 0], torch.tensor([-1.0, 2.0], dtype=torch.float64).sigmoid())


GROUPED = {"n_experts": 6, "n_groups": 3, "n_active_groups": 1, "n_active": 2, "renormalise": False, "gate": "sigmoid"}


def _of_six(scores, **options):
    """Routing of one token whose sigmoid scores are given."""
    router = Router(6, _config(**GROUPED, **options)).double()
    with torch.no_grad():
        router.weight.copy_(torch.eye(6))
    if "balance" in options:
        router.choice_bias.copy_(torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, 0.0]))
    return router(torch.tensor(scores, dtype=torch.float64).logit().view(1, 1, 6))


def test_experts_are_chosen_within_the_best_group_solved_by_hand():
    """Groups (0.9, 0.1), (0.6, 0.7) and (0.5, 0.2): the first has the best expert, the second the best two."""
    scores = [0.9, 0.1, 0.6, 0.7, 0.5, 0.2]
    best, two = _of_six(scores), _of_six(scores, group_score="best two")
    assert best.indices.tolist() == [[[0, 1]]]
    assert two.indices.tolist() == [[[3, 2]]]
    torch.testing.assert_close(two.weights, torch.tensor([[[0.7, 0.6]]], dtype=torch.float64))


def test_the_bias_takes_part_in_the_choice_of_groups_and_not_in_the_weights():
    """A bias of 1 on expert 4 makes the third group, 1.5 + 0.2, the best."""
    routing = _of_six([0.9, 0.1, 0.6, 0.7, 0.5, 0.2], group_score="best two", balance="bias")
    assert routing.indices.tolist() == [[[4, 5]]]
    torch.testing.assert_close(routing.weights, torch.tensor([[[0.5, 0.2]]], dtype=torch.float64))


def test_a_router_with_a_bias_adds_it_to_the_logits():
    router = _router(router_bias=True)
    with torch.no_grad():
        router.bias.copy_(torch.tensor([0.0, 0.0, 9.0, 0.0]))
    x = torch.tensor(LOGITS[:1], dtype=torch.float64).unsqueeze(0)
    assert router(x).logits.tolist() == [[[2.0, 1.0, 9.5, -1.0]]]


def test_the_bias_moves_against_the_load_by_its_rate():
    router = _router(balance="bias", balance_rate=0.25)
    router.update_bias(torch.tensor([6, 2, 4, 4]))  # mean 4
    assert router.choice_bias.tolist() == [-0.25, 0.25, 0.0, 0.0]
    router.update_bias(torch.tensor([16, 0, 0, 0]))
    assert router.choice_bias.tolist() == [-0.5, 0.5, 0.25, 0.25]


def test_only_balance_by_bias_has_a_bias_and_it_is_saved():
    assert set(_router(balance="bias").state_dict()) == {"weight", "choice_bias"}
    for balance in ("loss", "none"):
        router = _router(balance=balance)
        router.update_bias(torch.tensor([1, 0, 0, 0]))
        assert set(router.state_dict()) == {"weight"}


def test_the_bias_evens_out_a_router_that_prefers_one_expert():
    """DeepSeek's rule on fixed logits with a strong favourite: the load becomes even without any loss."""
    logits = torch.randn(1, 512, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits[..., 0] += 3.0
    router = _router(balance="bias", gate="sigmoid", n_active=1, balance_rate=0.01)
    before = router(logits).load
    for _ in range(200):
        router.update_bias(router(logits).load)
    after = router(logits).load
    assert before.max() > 400
    assert after.max() < 1.2 * 128


def test_a_cast_of_the_model_leaves_the_bias_in_float32():
    router = nn.ModuleList([_router(torch.float32, balance="bias")])
    router[0].choice_bias.fill_(1.001)  # bf16 would make it 1
    router.bfloat16()
    assert router[0].weight.dtype == torch.bfloat16
    assert router[0].choice_bias.tolist() == pytest.approx([1.001] * 4, abs=1e-7)
    assert router.to("meta")[0].choice_bias.dtype == torch.float32


def test_a_router_built_on_meta_starts_without_a_preference():
    with torch.device("meta"):
        router = Router(4, _config(balance="bias")).bfloat16()
    router.to_empty(device="cpu").fill_buffers()
    assert router.choice_bias.tolist() == [0.0] * 4
    assert router.choice_bias.dtype == torch.float32


def test_a_routing_is_of_one_layer_and_cannot_be_changed():
    routing = _route(LOGITS)
    assert isinstance(routing, Routing)
    with pytest.raises(AttributeError):
        routing.real = None
