"""The definition of attention, against the textbook's own lines, cases solved by hand, and what each option means."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from onehop.parts.dropout import DropKey, keep
from onehop.parts.keys import Keys
from onehop.parts.places import Places
from onehop.parts.score_fused import fused
from onehop.parts.score_plain import folded, plain, stacked, unfolded, weights
from onehop.parts.score_rule import ScoreRule
from onehop.parts.score_tiled import tiled
from onehop.parts.sight import Sees, Sight
from tests.score_cases import problem, rand

KERNELS = {"plain": plain, "tiled": lambda *a: tiled(*a, tile=(2, 3)), "fused": fused}


def textbook(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(Q·Kᵀ/√d)·V line by line, as textbooks print it, for (…, T, D)."""
    scores = torch.matmul(q, k.transpose(-2, -1)) / q.size(-1) ** 0.5
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    return torch.matmul(F.softmax(scores, dim=-1), v)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_that_of_the_textbook(kernel, causal):
    p = problem(t=6, s=6, heads=3, n_kv=3, sees=Sees("causal" if causal else "all"))
    want = textbook(
        *(x.transpose(1, 2) for x in (p.q, p.keys.k, p.keys.v)), torch.ones(6, 6).tril() if causal else None
    )
    got = KERNELS[kernel](p.q, p.keys, p.rule, p.sight)
    torch.testing.assert_close(got.transpose(1, 2), want, rtol=0, atol=1e-12)  # float64, numbers near 1


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("n_kv", [1, 2, 3])
def test_groups_of_heads_equal_repeated_heads(kernel, n_kv):
    """Consecutive query heads share a key head: head h uses h // (H / K), not h % K."""
    p = problem(heads=6, n_kv=n_kv)
    k, v = (x.repeat_interleave(6 // n_kv, dim=2) for x in (p.keys.k, p.keys.v))
    want = plain(p.q, Keys(k, v, p.keys.places), p.rule, p.sight)
    torch.testing.assert_close(KERNELS[kernel](p.q, p.keys, p.rule, p.sight), want, rtol=0, atol=1e-12)  # float64


def test_query_head_one_of_six_uses_the_first_of_two_key_heads():
    """Numbers worked out by hand; with heads laid out the other way round, head 1 would begin [-0.9035, -0.9474]."""
    q = torch.tensor([[-1.6832959, 1.7807408], [-1.0426636, -1.3347273], [-0.4984130, -0.7539546]]).view(1, 3, 1, 2)
    k = torch.tensor(
        [
            [[0.4404148, -1.5953452], [0.9147882, -0.9759321], [-0.4132917, -1.1163469]],
            [[-1.1612284, 1.5342324], [1.5559153, 0.2631678], [-1.6165420, -0.2088161]],
        ]
    )
    v = torch.tensor(
        [
            [[0.4224415, -0.0032581], [0.0849735, 0.9295113], [0.8223209, 0.8219981]],
            [[-0.9035176, -0.9473574], [-0.8817991, 0.6583922], [0.5752271, -0.3118814]],
        ]
    )
    at = Places.run(0, 3)
    keys = Keys(k.transpose(0, 1).unsqueeze(0), v.transpose(0, 1).unsqueeze(0), at)  # (1, 3, 2, 2)
    y = plain(q.expand(1, 3, 6, 2), keys, ScoreRule(2**-0.5), Sight(Sees(), at, at))
    want = [[0.4224415, -0.0032581], [0.3272605, 0.2598245], [0.5027836, 0.5357556]]
    torch.testing.assert_close(y[0, :, 1], torch.tensor(want), rtol=0, atol=1e-6)  # the numbers have 7 digits


MASKED = {
    "q": [
        [0.1351182, 0.4807453, 0.2005564, 0.7242022],
        [0.7058910, 0.9280745, 0.7143162, 0.2945509],
        [0.9619876, -0.8064636, -0.9552795, -0.4832603],
        [-0.5606546, 0.4154893, 0.6326671, -0.5762580],
    ],
    "k": [
        [0.7676975, 0.8700933, 0.5722979, -0.7713085],
        [0.6595864, 0.3988012, 0.3324346, 0.5863572],
        [-0.4639034, 0.2381917, -0.6665176, -0.8992884],
        [-0.0231946, -0.3103520, 0.0673037, 0.0160926],
        [0.1814533, 0.0663786, 0.4475596, 0.0294598],
    ],
    "v": [
        [0.6308324, -0.6447171, 0.0780201],
        [0.1612437, 0.1343936, 0.0311600],
        [0.1263442, -0.3777107, 0.4520735],
        [-0.5392384, -0.5091728, -0.3856069],
        [-0.3221617, -0.6658116, 0.9476180],
    ],
    "allowed": [[1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 1, 0, 1, 1], [0, 0, 0, 0, 0]],
    "y": [[0.3557085, -0.1882498, 0.0505656], [0, 0, 0], [-0.2564570, -0.3577424, 0.1491063], [0, 0, 0]],
    "dv": [0.4141174, 0.8952592, 0.0, 0.3862672, 0.3043562],
}


class Allowed(Sight):
    """A sight that is its mask, (T, S)."""

    def __init__(self, mask: Tensor):
        super().__init__(Sees("all"), Places.run(0, mask.size(0)), Places.run(0, mask.size(1)))
        self.given = mask

    is_everything = is_triangle = False

    @property
    def mask(self):
        return self.given[None, None]

    def tile(self, rows, cols):
        return self.given[None, None, rows, cols]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("dtype", "atol"), [(torch.float32, 1e-6), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)]
)  # a few steps of each type at 1.0, and 7 digits in the table
def test_a_query_that_sees_nothing_gives_zeros_and_finite_gradients_and_leaves_the_others_alone(kernel, dtype, atol):
    q, k, v = (
        torch.tensor(MASKED[name]).to(dtype).view(1, -1, 1, len(MASKED[name][0])).requires_grad_() for name in "qkv"
    )
    sight = Allowed(torch.tensor(MASKED["allowed"]) == 1)
    y = KERNELS[kernel](q, Keys(k, v, sight.k), ScoreRule(0.5), sight)
    y.sum().backward()
    torch.testing.assert_close(y[0, :, 0].float(), torch.tensor(MASKED["y"]).float(), rtol=0, atol=atol)
    assert not y[0, [1, 3]].any()
    assert not q.grad[0, [1, 3]].any()
    assert q.grad.isfinite().all()
    assert k.grad.isfinite().all()
    want = torch.tensor(MASKED["dv"]).view(1, 5, 1, 1).expand(1, 5, 1, 3)
    torch.testing.assert_close(v.grad.float(), want, rtol=0, atol=atol)


CAPPED = {
    "q": [
        [0.4159644, -1.4514581, -1.0559983, 2.8369614],
        [-1.1336059, 1.7543023, 0.3149429, 1.3335877],
        [2.9642892, 0.5816002, 2.5365912, 0.8753741],
        [1.1714959, 0.8946371, -0.9416201, 0.1102212],
    ],
    "k": [
        [2.2629862, -2.8195063, 2.8719940, 1.4711401],
        [0.6767112, 1.5581627, -1.1290110, 1.2497385],
        [1.8986109, -1.3803864, 1.9018168, -1.9670111],
        [-2.5547199, -1.5846117, 0.5687570, -1.6842235],
    ],
    "weights": [
        [1.0, 0.0, 0.0, 0.0],
        [0.1291765, 0.8708235, 0.0, 0.0],
        [0.3823022, 0.2356703, 0.3820275, 0.0],
        [0.1090049, 0.6401672, 0.1572453, 0.0935825],
    ],
}


def test_scores_are_scaled_then_capped_then_masked():
    """Capped after the mask, every future key would keep a weight: 0.097 each in the first row."""
    q, k = (torch.tensor(CAPPED[name], dtype=torch.float64).view(1, 4, 1, 4) for name in "qk")
    at = Places.run(0, 4)
    w = weights(q, Keys(k, k, at), ScoreRule(0.5, softcap=1.0), Sight(Sees("causal"), at, at))
    torch.testing.assert_close(w[0, 0], torch.tensor(CAPPED["weights"], dtype=torch.float64), rtol=0, atol=1e-6)
    assert not w[0, 0].triu(1).any()  # exactly nothing


def test_a_bias_is_added_after_the_cap_and_a_rule_of_ones_own_changes_what_it_gets():
    """One query, two keys with q·k = 100 and 0, cap 1: scores 1 and 0, bias 0.5 on the second, then doubled."""

    class Half(nn.Module):
        def forward(self, q_at, k_at):
            return 0.5 * (k_at == 1).double().view(1, 1, 1, 2)

    class Double(nn.Module):
        def forward(self, scores, q_at, k_at):
            torch.testing.assert_close(scores, torch.tensor([[[[1.0, 0.5]]]], dtype=torch.float64))
            return 2 * scores

    q, k = torch.full((1, 1, 1, 1), 100.0, dtype=torch.float64), torch.tensor([1.0, 0.0], dtype=torch.float64)
    k = k.view(1, 2, 1, 1)
    rule = ScoreRule(1.0, softcap=1.0, bias=Half(), change=Double())
    w = weights(q, Keys(k, k, Places.run(0, 2)), rule, Sight(Sees("all"), Places.run(0, 1), Places.run(0, 2)))
    torch.testing.assert_close(w, torch.softmax(torch.tensor([[[[2.0, 1.0]]]], dtype=torch.float64), -1))


def test_a_sink_takes_its_share_of_the_weight_and_gives_nothing():
    """Three equal scores beside a sink of the same score: a quarter each; a sink of -inf is none."""
    p = problem(1, 1, 3, heads=1, n_kv=1, sees=Sees("all"))
    zero = torch.zeros_like(p.q)
    for sink, share in ((0.0, 1 / 4), (-torch.inf, 1 / 3)):
        rule = ScoreRule(1.0, sinks=torch.tensor([sink], dtype=torch.float64))
        w = weights(zero, p.keys, rule, p.sight)
        torch.testing.assert_close(w, torch.full_like(w, share), rtol=0, atol=1e-12)  # float64


def test_dropout_falls_on_the_weights_by_their_index_and_scales_the_rest():
    p = problem(2, 3, 4, sees=Sees("all"))
    key = DropKey.of(5)
    dropped = weights(p.q, p.keys, ScoreRule(1.0, dropout=0.5, drop_key=key), p.sight)
    whole = weights(p.q, p.keys, ScoreRule(1.0, dropout=0.5), p.sight)
    index = torch.meshgrid(*(torch.arange(n) for n in whole.shape), indexing="ij")
    assert torch.equal(dropped, torch.where(keep(key, 0.5, *index), whole / 0.5, 0.0))


def test_a_rule_drops_only_with_a_key_and_a_rate():
    rule = ScoreRule(1.0, dropout=0.5)
    assert rule.dropping(None) is rule
    assert ScoreRule(1.0).dropping(DropKey.of(1)).drop_key is None
    assert rule.dropping(DropKey.of(1)).drop_key is not None


@pytest.mark.parametrize(("dtype", "atol"), [(torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
def test_16_bit_inputs_give_float32_weights_that_sum_to_one(dtype, atol):
    p, exact = problem(dtype=dtype, bias="alibi"), problem(bias="alibi")
    w = weights(p.q, p.keys, p.rule, p.sight)
    assert w.dtype == torch.float32
    torch.testing.assert_close(w.sum(-1), torch.ones_like(w.sum(-1)), rtol=0, atol=1e-6)  # float32
    y, want = plain(p.q, p.keys, p.rule, p.sight), plain(exact.q, exact.keys, exact.rule, exact.sight)
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), want, rtol=0, atol=atol)  # inputs, scores and outputs rounded near 1


class Made(TorchDispatchMode):
    """Notes the sizes of all new memory."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        ours = {x.untyped_storage().data_ptr() for x in args if isinstance(x, Tensor)}
        for x in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(x, Tensor) and x.untyped_storage().data_ptr() not in ours:
                self.sizes.append(x.numel())
        return out


@pytest.mark.parametrize("kernel", ["plain", "fused"])
@pytest.mark.parametrize("t", [1, 3])
def test_no_key_or_value_is_copied_for_a_group_of_heads(kernel, t):
    """One text, or any number in a cache laid out by head: nothing as large as the keys is made."""
    b, s, n_kv, d = 2, 50, 2, 64
    q, store = rand(b, t, 8, d, seed=1).detach(), rand(2, b, n_kv, s, d, seed=2).detach()
    k, v = store.transpose(2, 3)
    keys = Keys(k, v, Places.run(0, s))
    sight = Sight(Sees("all"), Places.run(s - t, t), keys.places)
    with Made() as made:
        KERNELS[kernel](q, keys, ScoreRule(0.1), sight)
    assert max(made.sizes) < k.numel()


def test_heads_fold_into_groups_and_back():
    q = torch.arange(2 * 3 * 4 * 5).view(2, 3, 4, 5)
    assert torch.equal(unfolded(folded(q, 2), q.shape), q)
    assert torch.equal(folded(q, 2)[1], torch.cat([q[0, :, 2], q[0, :, 3]]))  # kv head 1: query heads 2 and 3
    by_head = torch.zeros(2, 4, 3, 5).transpose(1, 2)
    assert stacked(by_head).data_ptr() == by_head.data_ptr()  # a view where memory lies by head
