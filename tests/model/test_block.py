"""Every placement of the norms against a few lines written by hand."""

import pytest
import torch
from torch import nn

from onehop.model import build
from onehop.model.block import Block, ParallelBlock, PlacedBlock
from onehop.parts.dropout import DropKey, dropout
from onehop.parts.places import Places
from onehop.parts.step import Step
from tests.small_models import decoder, encoder_decoder, small_model

MOE = {"kind": "moe", "d_ff": 8, "n_experts": 4, "n_active": 2}


def written_by_hand(name, b, x, step):
    """The block `b` as its paper writes it: attention a, feed-forward f, norms n."""

    def a(v):
        return b.attention(v, step)

    def f(v):
        return b.ffn(v)[0]

    n1, n2 = b.attention_norm, b.ffn_norm
    if name == "pre":
        h = x + a(n1(x))
        return h + f(n2(h))
    after, then = (b.outside, b.inside) if name == "post" else (b.inside, b.outside)
    m1, m2 = after["attention"], after["ffn"]
    assert all(isinstance(norm, nn.Identity) for norm in then.values())
    if name == "post":
        h = m1(x + a(x))
        return m2(h + f(h))
    if name == "sandwich":
        h = x + m1(a(n1(x)))
        return h + m2(f(n2(h)))
    if name == "inside only":
        h = x + m1(a(x))
        return h + m2(f(h))
    if name == "parallel, one norm":
        return x + a(n1(x)) + f(n1(x))
    if name == "parallel, two norms":
        return x + a(n1(x)) + f(n2(x))
    if name == "parallel sandwich":
        return x + m1(a(n1(x))) + m2(f(n2(x)))
    if name == "scaled":
        h = x + 0.5 * a(n1(x))
        return h + 0.5 * f(n2(h))
    raise AssertionError(name)


PLACEMENTS = {
    "pre": {},
    "post": {"norm_in": False, "norm_out": "outside"},
    "sandwich": {"norm_out": "inside"},
    "inside only": {"norm_in": False, "norm_out": "inside"},
    "parallel, one norm": {"parallel": "one norm"},
    "parallel, two norms": {"parallel": "two norms"},
    "parallel sandwich": {"parallel": "two norms", "norm_out": "inside"},
    "scaled": {"residual_scale": 0.5},
}


def block_and_input(**own):
    model = small_model(decoder(**own))
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return model.layers[0], x, Step(Places.run(0, 5))


@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize("name", PLACEMENTS)
@torch.no_grad()
def test_a_block_is_what_its_paper_writes(name, norm):
    block, x, step = block_and_input(norm=norm, **PLACEMENTS[name])
    y, routing = block(x, step)
    torch.testing.assert_close(y, written_by_hand(name, block, x, step), atol=1e-12, rtol=0)
    assert routing is None
    wanted = {"pre": Block, "parallel": ParallelBlock}.get(name.split(",")[0].split()[0], PlacedBlock)
    assert type(block) is wanted


@torch.no_grad()
def test_norms_on_both_sides_of_the_sum_are_one_after_the_other():
    """Pre-norm and a norm outside: h = m(x + a(n(x)))."""
    block, x, step = block_and_input(norm_out="outside")
    h = block.outside["attention"](x + block.attention(block.attention_norm(x), step))
    want = block.outside["ffn"](h + block.ffn(block.ffn_norm(h))[0])
    torch.testing.assert_close(block(x, step)[0], want, atol=1e-12, rtol=0)


@torch.no_grad()
def test_cross_attention_stands_between_attention_and_feed_forward():
    model = small_model(encoder_decoder())
    block, step = model.layers[0], Step(Places.run(0, 5))
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    memory = model.encode(torch.tensor([[1, 2, 3], [4, 5, 6]]))
    h = x + block.attention(block.attention_norm(x), step)
    h = h + block.cross(block.cross_norm(h), step, None, memory)
    want = h + block.ffn(block.ffn_norm(h))[0]
    torch.testing.assert_close(block(x, step, None, memory)[0], want, atol=1e-12, rtol=0)


@pytest.mark.parametrize("parallel", [False, True])
@torch.no_grad()
def test_a_placed_block_with_nothing_placed_is_the_plain_block(parallel):
    plain, x, step = block_and_input(ffn=MOE, **({"parallel": "two norms"} if parallel else {}))
    parts = (plain.attention_norm, plain.attention, plain.ffn_norm, plain.ffn)
    nothing = nn.ModuleDict({name: nn.Identity() for name in ("attention", "ffn")})
    placed = PlacedBlock(*parts, norms_inside=nothing, norms_outside=nothing)
    if parallel:
        placed = ParallelBlock(*parts, one_norm=False, norms_inside=nothing, norms_outside=nothing)
    (y, routing), (want, want_routing) = placed(x, step), plain(x, step)
    assert torch.equal(y, want)
    assert torch.equal(routing.indices, want_routing.indices)


def test_a_block_with_dropout_has_the_weights_of_one_without():
    with_dropout = decoder(dropout={"residual": 0.1, "embed": 0.1, "attention": 0.1})
    assert type(build(with_dropout).layers[0]) is PlacedBlock
    assert build(with_dropout).state_dict().keys() == build(decoder()).state_dict().keys()


@torch.no_grad()
def test_residual_dropout_falls_on_what_each_sublayer_adds_and_only_in_training():
    block, x, step = block_and_input(dropout={"residual": 0.5}, norm_out="inside")
    key = DropKey.of(7)
    training = Step(Places.run(0, 5), drop=key)
    site = key.at(block.site)
    h = x + dropout(block.inside["attention"](block.attention(block.attention_norm(x), step)), 0.5, site.at(0))
    want = h + dropout(block.inside["ffn"](block.ffn(block.ffn_norm(h))[0]), 0.5, site.at(2))
    torch.testing.assert_close(block(x, training)[0], want, atol=1e-12, rtol=0)
    torch.testing.assert_close(block(x, step)[0], written_by_hand("sandwich", block, x, step), atol=1e-12, rtol=0)


def test_every_place_where_dropout_falls_draws_for_itself():
    model = build(encoder_decoder(dropout={"residual": 0.1, "attention": 0.1}))
    sites = [m.site for m in model.modules() if hasattr(m, "site")]
    assert len(sites) == len(set(sites)) == 2 * 3 + 2 * 2  # two layers: block, attention, cross; block, attention


@torch.no_grad()
def test_the_textbooks_two_lines_can_be_read_off_the_block():
    """A block is made of any four parts: norm, attention, norm, feed-forward."""

    class Doubled(nn.Module):
        def forward(self, x, *rest, **named):
            return 2 * x

    class Squared(nn.Module):
        def forward(self, x, real=None):
            return x * x, None

    x = torch.tensor([[[1.0, -1.0]]])
    y, _ = Block(nn.Identity(), Doubled(), nn.Identity(), Squared())(x, Step(Places.run(0, 1)))
    assert y.tolist() == [[[3.0 + 9.0, -3.0 + 9.0]]]  # h = x + 2x; y = h + h²
