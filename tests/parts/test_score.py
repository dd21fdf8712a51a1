"""Which kernel computes a rule, and that a rule is never ignored."""

import pytest
import torch
from torch import nn

from onehop.base.errors import ConfigError
from onehop.parts.keys import Keys
from onehop.parts.places import Places
from onehop.parts.score import KERNELS, choose, score
from onehop.parts.score_plain import plain
from onehop.parts.score_rule import ScoreRule
from onehop.parts.sight import Sees, Sight
from tests.score_cases import SIGHTS, problem


def chosen(t=600, s=600, kernel="auto", **options):
    p = problem(1, t, s, heads=2, n_kv=1, **options)
    return choose(p.q, p.keys, p.rule, p.sight, kernel=kernel)


@pytest.mark.parametrize(
    ("options", "kernel", "why"),
    [
        ({}, "fused", "all of it"),  # the plain triangle
        ({"sees": Sees("all")}, "fused", "all of it"),
        ({"t": 1, "bias": "alibi"}, "fused", "all of it"),  # one row of a mask is nothing
        ({"t": 1, "layout": "padded"}, "fused", "all of it"),
        ({"sees": Sees("causal", 50)}, "tiled", "no 600 × 600 mask"),
        ({"layout": "documents"}, "tiled", "no 600 × 600 mask"),
        ({"bias": "alibi"}, "tiled", "no 600 × 600 mask"),
        ({"bias": "alibi", "t": 50, "s": 60}, "fused", "a 50 × 60 mask is small enough"),
        ({"bias": "t5"}, "tiled", "no gradient to a learned bias; tiles need no 600 × 600 memory"),
        ({"softcap": 2.0}, "tiled", "no softcap; tiles"),
        ({"sinks": True}, "tiled", "no sinks; tiles"),
        ({"dropout": 0.1}, "tiled", "draws its own dropout"),
        ({"softcap": 2.0, "t": 1}, "plain", "no softcap; too few scores for tiles"),
        ({"softcap": 2.0, "t": 9, "s": 9}, "plain", "no softcap; too few scores for tiles"),
    ],
)
def test_auto_takes_the_quickest_exact_kernel_and_says_why(options, kernel, why):
    choice = chosen(**options)
    assert choice.kernel == kernel
    assert why in choice.why


def test_a_kernel_that_is_asked_for_is_taken_if_it_can():
    for kernel in KERNELS:
        assert chosen(9, 9, kernel=kernel).kernel == kernel


@pytest.mark.parametrize(
    ("kernel", "options", "instead"),
    [("fused", {"softcap": 2.0}, "tiled"), ("fused", {"dropout": 0.5, "t": 5, "s": 5}, "plain")],
)
def test_a_kernel_that_cannot_hands_over_and_says_so(kernel, options, instead):
    choice = chosen(kernel=kernel, **options)
    assert choice.kernel == instead
    assert f"{kernel} was asked for, but PyTorch's fused kernel" in choice.why


@pytest.mark.parametrize("kernel", ["auto", "tiled", "fused"])
def test_a_rule_of_ones_own_runs_in_the_definition_whatever_is_asked_for(kernel):
    p = problem()

    class Square(nn.Module):
        def forward(self, scores, q_at, k_at):
            return scores.square()

    rule = ScoreRule(1.0, change=Square())
    choice = choose(p.q, p.keys, rule, p.sight, kernel=kernel)
    assert choice.kernel == "plain"
    assert "known to the plain kernel only" in choice.why
    assert torch.equal(score(p.q, p.keys, rule, p.sight, kernel=kernel), plain(p.q, p.keys, rule, p.sight))


def test_keys_that_do_not_lie_in_one_piece_are_read_by_tiles():
    p = problem()

    class Pages(Keys):
        whole = False

    choice = choose(p.q, Pages(p.keys.k, p.keys.v, p.keys.places), p.rule, p.sight)
    assert choice.kernel == "tiled"


def test_an_unknown_kernel_is_refused_with_the_nearest_name():
    p = problem()
    with pytest.raises(ConfigError, match=r"kernel 'tilde' does not exist\. Did you mean tiled"):
        score(p.q, p.keys, p.rule, p.sight, kernel="tilde")


@pytest.mark.parametrize("kernel", ["auto", "plain", "tiled", "fused"])
@pytest.mark.parametrize("sees", SIGHTS)
@pytest.mark.parametrize("layout", ["run", "padded", "documents"])
def test_whatever_is_asked_for_gives_the_definition(kernel, sees, layout):
    p = problem(sees=sees, layout=layout, bias="alibi")
    got, want = score(p.q, p.keys, p.rule, p.sight, kernel=kernel), plain(p.q, p.keys, p.rule, p.sight)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)  # float64


@pytest.mark.parametrize("sees", [Sees("causal"), Sees("causal", window=3), Sees("prefix")])
@pytest.mark.parametrize(
    "options", [{}, {"bias": "alibi"}, {"softcap": 2.0, "sinks": True}], ids=["bare", "alibi", "cap"]
)
def test_one_graph_is_captured_without_reading_a_tensor(sees, options):
    """`fullgraph` refuses anything that would break the graph; padding is not known until the graph runs."""
    torch.compiler.reset()
    p = problem(2, 40, 40, dtype=torch.float32, sees=sees, layout="padded", **options)
    prefix = p.sight.prefix

    @torch.compile(backend="eager", fullgraph=True)
    def compiled(q, k, v, at):
        places = Places(at)
        return score(q, Keys(k, v, places), p.rule, Sight(sees, places, places, prefix=prefix))

    got = compiled(p.q, p.keys.k, p.keys.v, p.keys.places.at)
    torch.testing.assert_close(got, plain(p.q, p.keys, p.rule, p.sight), rtol=0, atol=1e-5)  # float32
