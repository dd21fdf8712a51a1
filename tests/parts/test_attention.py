"""Attention as a module: projections, heads, groups of heads, norms on q and k, positions, and what a step shares."""

import math

import pytest
import torch
from torch import nn

from onehop.config import AttentionConfig
from onehop.model import build
from onehop.parts.attention import CrossAttention, GroupedQueryAttention, Memory
from onehop.parts.dropout import DropKey
from onehop.parts.linear import pack
from onehop.parts.norm import plain_rms_norm
from onehop.parts.places import Places
from onehop.parts.position import POSITIONS, PositionScheme
from onehop.parts.sight import Sees
from onehop.parts.step import Step
from tests.small_models import YARN, decoder, encoder_decoder

EXACT = {"atol": 1e-12, "rtol": 0}  # float64, sums in another order
X = torch.randn(2, 6, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def attention(position="none", *, cls=GroupedQueryAttention, seed=0, **own):
    """An attention module by itself, with random weights."""
    cfg = AttentionConfig(**{"n_heads": 4, "n_kv_heads": 2, "d_head": 4, "position": position, **own})
    options = {} if cls is CrossAttention else {"position": POSITIONS.get(cfg.position.kind)(cfg.position, cfg)}
    module = cls(16, cfg, **options).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) / 2)
    return module


def by_the_book(module, x, *, heads=4, kv_heads=2, bias=None):
    """Multi-head attention as the textbook writes it: one head after the other, concatenated, projected."""
    q, k, v = (x @ w.weight.T + (0 if w.bias is None else w.bias) for w in (module.wq, module.wk, module.wv))
    out = []
    for h in range(heads):
        g = h // (heads // kv_heads)
        q_h, k_h, v_h = q[..., 4 * h : 4 * h + 4], k[..., 4 * g : 4 * g + 4], v[..., 4 * g : 4 * g + 4]
        scores = q_h @ k_h.transpose(-2, -1) / math.sqrt(4)
        scores = scores if bias is None else scores + bias[h]
        scores = scores.masked_fill(torch.ones(6, 6).tril() == 0, float("-inf"))
        out.append(torch.softmax(scores, dim=-1) @ v_h)
    y = torch.cat(out, dim=-1) @ module.wo.weight.T
    return y if module.wo.bias is None else y + module.wo.bias


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2, 1], ids=["multi-head", "grouped-query", "multi-query"])
@torch.no_grad()
def test_heads_attend_by_themselves_and_are_concatenated_and_projected(kv_heads, biases):
    module = attention(n_kv_heads=kv_heads, bias=biases, bias_out=biases)
    y = module(X, Step(Places.run(0, 6)))
    torch.testing.assert_close(y, by_the_book(module, X, kv_heads=kv_heads), **EXACT)


@torch.no_grad()
def test_a_shared_key_head_is_a_repeated_one():
    """Multi-query attention is multi-head attention whose heads all have the same keys and values."""
    shared, repeated = attention(n_kv_heads=1), attention(n_kv_heads=4)
    for mine, theirs in zip(repeated.parameters(), shared.parameters(), strict=True):
        mine.copy_(theirs if mine.shape == theirs.shape else theirs.repeat(4, 1))
    step = Step(Places.run(0, 6))
    torch.testing.assert_close(repeated(X, step), shared(X, step), **EXACT)


def test_grouping_saves_keys_and_values_and_nothing_else():
    kept = {n: attention(n_kv_heads=n).cache_spec().bytes_per_token(torch.float32) for n in (4, 2, 1)}
    assert kept == {4: 2 * 4 * 4 * 4, 2: 2 * 2 * 4 * 4, 1: 2 * 1 * 4 * 4}  # k and v, heads, width, bytes


@torch.no_grad()
def test_alibi_subtracts_the_distance_times_the_slope_of_each_head():
    module = attention("alibi")
    i = torch.arange(6)
    bias = [-(2.0 ** (-2 * (h + 1))) * (i.unsqueeze(1) - i).abs() for h in range(4)]
    torch.testing.assert_close(module(X, Step(Places.run(0, 6))), by_the_book(module, X, bias=bias), **EXACT)


@torch.no_grad()
def test_only_q_and_k_are_turned_by_positions():
    """Rotary: the values that are mixed are those of the tokens, wherever they stand."""
    module, plain = attention("rope"), attention()
    for far in (Places.run(0, 6), Places.run(100, 6)):
        heard = {}
        module(X, Step(far, listener=_Ear(heard)))
        assert torch.equal(heard["attention.v"], plain.wv(X).unflatten(-1, (2, 4)))
        if far.first == 0:
            assert torch.equal(
                heard["attention.q"][:, 0], plain.wq(X).unflatten(-1, (4, 4))[:, 0]
            )  # position 0: no turn
        norms = heard["attention.q"].norm(dim=-1)
        torch.testing.assert_close(norms, plain.wq(X).unflatten(-1, (4, 4)).norm(dim=-1), **EXACT)


class _Ear:
    def __init__(self, heard):
        self.heard = heard

    def wants(self, name):
        return True

    def hear(self, name, value):
        self.heard[name] = value
        return value


@pytest.mark.parametrize("span", ["head", "all"])
@torch.no_grad()
def test_q_and_k_are_normalised_head_by_head_or_all_together_before_they_turn(span):
    module = attention("rope", qk_norm={"norm": {"kind": "rms", "eps": 1e-6}, "span": span})
    heard = {}
    module(X, Step(Places.run(0, 6), listener=_Ear(heard)))
    for name, heads, n in (("q", module.q_heads, 4), ("k", module.k_heads, 2)):
        x = getattr(module, f"w{name}")(X)
        if span == "all":
            assert heads.norm.weight.shape == (4 * n,)
            want = plain_rms_norm(x, heads.norm.weight, offset=0, eps=1e-6).unflatten(-1, (n, 4))
        else:
            assert heads.norm.weight.shape == (4,)
            want = plain_rms_norm(x.unflatten(-1, (n, 4)), heads.norm.weight, offset=0, eps=1e-6)
        cos, sin = module.position.angles(torch.arange(6)[None], dtype=torch.float64)
        torch.testing.assert_close(heard[f"attention.{name}"], module.position.rotate(want, cos, sin), **EXACT)


@torch.no_grad()
def test_heads_may_have_norms_with_weights_of_their_own():
    module = attention(qk_norm={"norm": {"kind": "layer", "bias": False}, "own_weights": True})
    assert module.q_heads.norm.weight.shape == (4, 4)
    assert module.k_heads.norm.weight.shape == (2, 4)
    heard = {}
    module(X, Step(Places.run(0, 6), listener=_Ear(heard)))
    bare = torch.nn.functional.layer_norm(module.wk(X).unflatten(-1, (2, 4)), (4,))
    torch.testing.assert_close(heard["attention.k"], bare * module.k_heads.norm.weight, **EXACT)


@torch.no_grad()
def test_q_k_and_v_are_cut_off_as_they_are_projected():
    module = attention(clip=0.5, qk_norm={"norm": {"kind": "rms", "affine": False}})
    heard = {}
    module(X, Step(Places.run(0, 6), listener=_Ear(heard)))
    q, k, v = (w(X).clamp(-0.5, 0.5) for w in (module.wq, module.wk, module.wv))
    assert not torch.equal(v, module.wv(X))
    assert torch.equal(heard["attention.v"], v.unflatten(-1, (2, 4)))
    for name, x, n in (("q", q, 4), ("k", k, 2)):
        want = plain_rms_norm(x.unflatten(-1, (n, 4)), None, offset=0, eps=1e-6)
        torch.testing.assert_close(heard[f"attention.{name}"], want, **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("span", ["head", "all"])
def test_q_and_k_may_be_cut_off_behind_their_norm(span):
    module = attention(clip=0.5, clip_after_norm=True, qk_norm={"norm": {"kind": "rms", "affine": False}, "span": span})
    heard = {}
    module(X, Step(Places.run(0, 6), listener=_Ear(heard)))
    assert torch.equal(heard["attention.v"].flatten(-2), module.wv(X).clamp(-0.5, 0.5))
    for name, n in (("q", 4), ("k", 2)):
        x = getattr(module, f"w{name}")(X)
        x = x if span == "all" else x.unflatten(-1, (n, 4))
        want = plain_rms_norm(x, None, offset=0, eps=1e-6)
        assert want.abs().max() > 0.5
        torch.testing.assert_close(heard[f"attention.{name}"].reshape(x.shape), want.clamp(-0.5, 0.5), **EXACT)


@torch.no_grad()
def test_cross_attention_cuts_off_what_it_reads_too():
    module = attention(cls=CrossAttention, clip=0.5, sees="all")
    heard = {}
    step = Step(Places.run(0, 6), listener=_Ear(heard))
    module(X, step, memory=Memory(X, Places.run(0, 6)))
    for name, w in (("q", module.wq), ("k", module.wk), ("v", module.wv)):
        assert torch.equal(heard[f"cross.{name}"].flatten(-2), w(X).clamp(-0.5, 0.5))
        assert w(X).abs().max() > 0.5


@torch.no_grad()
def test_the_scale_is_one_over_the_root_of_the_heads_width_unless_it_is_given():
    assert attention().rule().scale == 0.5
    given = attention(scale=0.3)
    assert given.rule().scale == 0.3
    given.wq.weight.mul_(0.5 / 0.3)
    step = Step(Places.run(0, 6))
    torch.testing.assert_close(given(X, step), attention()(X, step), **EXACT)


@pytest.mark.parametrize("width", [16, 64, 256])
def test_scaled_scores_have_the_same_spread_at_every_width(width):
    """q·k of standard normal vectors has the variance of their width; scaled, it is 1 (section 3.2.1, footnote 4)."""
    q, k = torch.randn(2, 4000, width, generator=torch.Generator().manual_seed(0))
    scores = (q * k).sum(-1)
    assert float(scores.var()) == pytest.approx(width, rel=0.1)  # 4,000 draws: 2.2 % is one standard error
    assert float((scores / math.sqrt(width)).var()) == pytest.approx(1, rel=0.1)


@torch.no_grad()
def test_a_sink_of_its_own_dampens_each_head():
    module = attention(sinks=True)
    module.sinks.copy_(torch.tensor([-1e9, -1e9, 1e9, 1e9]))
    heard = {}
    module(X, Step(Places.run(0, 6), listener=_Ear(heard)))
    sums = heard["attention.weights"].sum(-1)
    torch.testing.assert_close(sums[:, :2], torch.ones_like(sums[:, :2]), **EXACT)
    torch.testing.assert_close(sums[:, 2:], torch.zeros_like(sums[:, 2:]), **EXACT)
    assert heard["attention.mixed"][:, :, 2:].abs().max() == 0


# Cross-attention


@torch.no_grad()
def test_cross_attention_asks_with_its_own_tokens_and_reads_the_memory():
    module = attention(cls=CrossAttention, n_kv_heads=4, sees="all")
    source = torch.randn(2, 5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = module(X, Step(Places.run(3, 6)), None, Memory(source, Places.run(0, 5)))
    book = nn.MultiheadAttention(16, 4, bias=False, batch_first=True, dtype=torch.float64)
    book.in_proj_weight.copy_(torch.cat([module.wq.weight, module.wk.weight, module.wv.weight]))
    book.out_proj.weight.copy_(module.wo.weight)
    torch.testing.assert_close(y, book(X, source, source, need_weights=False)[0], **EXACT)


@torch.no_grad()
def test_prepared_weights_serve_cross_attention_too():
    model = build(encoder_decoder())
    source, target = torch.tensor([[4, 2, 9]]), torch.tensor([[1, 5]])
    want = model(source, target)
    pack(model)
    assert all(layer.cross.qkv.packed is not None for layer in model.layers)  # stacked, by whichever library
    torch.testing.assert_close(model(source, target), want, atol=1e-5, rtol=0)  # float32, other sums


# What a step shares


def test_layers_of_one_step_share_angles_and_masks_by_what_they_depend_on():
    model = build(decoder())
    step = Step(Places(torch.tensor([[-1, 0, 1, 2, 3, 4]])))
    keys = step.places
    assert step.sight(Sees("causal"), keys) is step.sight(Sees("causal"), keys)
    assert step.sight(Sees("causal", 3), keys) is not step.sight(Sees("causal"), keys)
    scheme, again = (build(decoder()).layers[0].attention.position for _ in range(2))
    like = torch.zeros(1)
    other = build(decoder(scaling=YARN)).layers[0].attention.position
    assert step.angles(scheme, like) is step.angles(again, like)
    assert step.angles(scheme, like) is not step.angles(other, like)
    assert step.angles(scheme, like.double())[0].dtype == torch.float64
    assert model.layers[0].attention.position is model.layers[1].attention.position


def test_angles_and_masks_are_computed_once_for_all_layers(monkeypatch):
    model = build(decoder(n_layers=6))
    scheme, calls = model.layers[0].attention.position, []
    monkeypatch.setattr(scheme, "angles", lambda *a, real=scheme.angles, **o: calls.append(1) or real(*a, **o))
    model(torch.tensor([[1, 5, 2]]))
    assert len(calls) == 1


def test_dropout_keys_of_a_step_branch_by_site():
    step = Step(Places.run(0, 3), drop=DropKey.of(1))
    assert int(step.dropping(4, 5).value) == int(DropKey.of(1, 4, 5).value)
    assert Step(Places.run(0, 3)).dropping(4) is None


def test_a_scheme_without_an_order_turns_and_biases_nothing():
    scheme = PositionScheme()
    q, k = torch.ones(1, 2, 4, 4), torch.ones(1, 2, 2, 4)
    assert scheme.turn(q, k, Step(Places.run(0, 2))) == (q, k)
    assert (scheme.turns, scheme.biases, scheme.by_length) == (False, False, False)
