"""16-bit attention that is trained on a CPU: outputs and gradients near those of float64, empty rows at zero."""

import pytest
import torch
import torch.nn.functional as F

from onehop.parts import score_half
from onehop.parts.score_half import half, wants_half


def exact(q, k, v, mask, causal):
    """The definition in float64, empty rows at zero."""
    group = q.size(2) // k.size(2)
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("bthd,bshd->bhts", q, k) * q.size(-1) ** -0.5
    if causal:
        mask = torch.ones(q.size(1), k.size(1), dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return torch.einsum("bhts,bshd->bthd", torch.softmax(scores, -1).nan_to_num(0.0), v)


def documents(b, t):
    """Two documents, the second from token 97 on, and five empty slots at the end."""
    doc = (torch.arange(t) // 97).expand(b, t)
    mask = (doc.unsqueeze(-1) == doc.unsqueeze(-2)) & torch.ones(t, t, dtype=torch.bool).tril()
    mask[:, t - 5 :] = False
    return mask.unsqueeze(1)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("width", [64, 16])  # products of our own, and PyTorch's in float32
@pytest.mark.parametrize("sight", ["causal", "documents", "all"])
def test_outputs_and_gradients_are_those_of_the_definition_up_to_rounding(kv_heads, width, sight):
    generator = torch.Generator().manual_seed(0)
    b, t, s = 2, 150, 150 if sight != "all" else 40
    mask = documents(b, t) if sight == "documents" else None
    values = [torch.randn(b, n, h, width, generator=generator) for n, h in ((t, 4), (s, kv_heads), (s, kv_heads))]
    weight = torch.randn(b, t, 4, width, generator=generator)

    wide = [x.bfloat16().double().requires_grad_() for x in values]
    want = exact(*wide, mask, sight == "causal")
    want.backward(weight.bfloat16().double())
    narrow = [x.bfloat16().requires_grad_() for x in values]
    assert wants_half(*narrow)
    got = half(*narrow, mask, causal=sight == "causal", scale=width**-0.5)
    got.backward(weight.bfloat16())

    # bfloat16 keeps 8 bits: each rounding is off by 2^-9 = 0.002 of a number at most, and a handful follow each other
    for mine, definition in [(got, want), *((a.grad, b.grad) for a, b in zip(narrow, wide, strict=True))]:
        assert (mine.double() - definition).norm() < 0.01 * definition.norm()
    if sight == "documents":
        assert not got[:, t - 5 :].any()
        assert not narrow[0].grad[:, t - 5 :].any()


def test_the_gradient_takes_a_run_of_queries_at_a_time(monkeypatch):
    q, k, v = (torch.randn(1, 300, 2, 64, dtype=torch.bfloat16).requires_grad_() for _ in range(3))
    found = []
    for run in (32, 300):
        monkeypatch.setattr(score_half, "RUN", run)
        found.append(torch.autograd.grad(half(q, k, v, None, causal=True, scale=0.125).float().sum(), (q, k, v)))
    for cut, whole in zip(*found, strict=True):
        assert (cut.float() - whole.float()).norm() < 0.01 * whole.float().norm()  # as above


def test_a_bias_stays_in_float32():
    """bfloat16 cannot tell a bias of -300 from one of -301."""
    q, k, v = (torch.randn(1, 2, 1, 64, dtype=torch.bfloat16).requires_grad_() for _ in range(3))
    bias = torch.tensor([[0.0, 0.0], [-300.0, -301.0]]).view(1, 1, 2, 2)
    got = half(q, k, v, bias, causal=False, scale=0.125)
    want = F.scaled_dot_product_attention(*(x.double().transpose(1, 2) for x in (q, k, v)), attn_mask=bias.double())
    torch.testing.assert_close(got.double(), want.transpose(1, 2), rtol=0.01, atol=0.01)  # one rounding of the output


def test_only_16_bit_tensors_that_learn_take_this_way():
    x = torch.randn(1, 2, 1, 64, dtype=torch.bfloat16)
    assert not wants_half(x, x, x)
    assert not wants_half(*[x.float().requires_grad_()] * 3)
    learns = x.requires_grad_()
    assert wants_half(learns, learns, learns)
    with torch.no_grad():
        assert not wants_half(learns, learns, learns)
