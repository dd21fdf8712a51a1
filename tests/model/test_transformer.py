"""What the whole model knows of order, position, neighbours and padding."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onehop.base.errors import RequestError
from onehop.model import build
from onehop.model.taps import capture, listen
from onehop.parts.norm import plain_layer_norm
from tests.small_models import CONFIGS, LLAMA3, VOCABULARY, YARN, decoder, small_model

TEXT = torch.tensor([[1, 5, 2, 9, 4, 7, 3, 3, 0, 12]])
# float64, sums in another order; logits are of size 1 to 10
EXACT = {"atol": 1e-10, "rtol": 0}
SEES_ALL = {"sees": "all"}


def without_order(**own):
    return small_model(decoder("none", attention=SEES_ALL, **own))


# What is added before and after the blocks


@torch.no_grad()
def test_a_segment_is_a_row_that_is_added_to_its_tokens():
    model = small_model(decoder(embed={"segments": 3}))
    segments = torch.tensor([[0, 0, 0, 1, 1, 1, 2, 2, 2, 2]])
    told = model(TEXT, segments=segments)
    added = model.embed.segments.weight[segments]  # (1, 10, C)
    plain = decoder()
    without = small_model(plain)
    without.load_state_dict({k: w for k, w in model.state_dict().items() if k != "embed.segments.weight"})
    with listen(without, ["embed"], lambda name, x: x + added):
        torch.testing.assert_close(told, without(TEXT), **EXACT)
    assert torch.equal(model(TEXT), model(TEXT, segments=torch.zeros_like(TEXT)))


@torch.no_grad()
def test_segments_travel_with_tokens_that_are_read_later():
    model = small_model(decoder(embed={"segments": 2}))
    segments = torch.tensor([[0, 1] * 5])
    cache = model.new_cache(1)
    pieces = [model(TEXT[:, part], segments=segments[:, part], cache=cache) for part in (slice(4), slice(4, 10))]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(TEXT, segments=segments), **EXACT)


@torch.no_grad()
def test_a_hidden_layer_before_the_logits_is_a_map_its_activation_and_its_norm():
    model = small_model(decoder(head={"transform": {"activation": "gelu", "norm": {"kind": "layer", "eps": 0.1}}}))
    t = model.head.transform
    hidden = model.states(TEXT).hidden
    inner = torch.nn.functional.gelu(hidden @ t.map.weight.T + t.map.bias)
    inner = plain_layer_norm(inner, t.norm.weight, t.norm.bias, offset=0, eps=0.1)
    torch.testing.assert_close(model(TEXT), inner @ model.embed.tokens.weight.T, **EXACT)


# Order


@settings(max_examples=20, deadline=None)
@given(order=st.permutations(range(10)), experts=st.booleans())
def test_attention_alone_does_not_know_the_order_of_its_tokens(order, experts):
    """Permutation-equivariant: shuffled tokens get shuffled answers, the same for each token."""
    model = without_order(**({"ffn": {"kind": "moe", "d_ff": 8, "n_experts": 4, "n_active": 2}} if experts else {}))
    with torch.no_grad():
        torch.testing.assert_close(model(TEXT[:, order]), model(TEXT)[:, order], **EXACT)


ORDERED = {
    "rope": decoder("rope", attention=SEES_ALL),
    "alibi": decoder("alibi", attention=SEES_ALL),
    "t5": decoder("t5", attention=SEES_ALL),
    "learned": decoder("none", attention=SEES_ALL, embed={"position": "learned"}),
    "sinusoidal": decoder("none", attention=SEES_ALL, embed={"position": "sinusoidal"}),
    "the causal mask alone": decoder("none"),
    "a window alone": decoder("none", attention=SEES_ALL | {"window": 2}),
}


@pytest.mark.parametrize("name", ORDERED)
@torch.no_grad()
def test_any_position_scheme_or_mask_brings_order_in(name):
    model = small_model(ORDERED[name])
    swapped = [0, 1, 2, 7, 4, 5, 6, 3, 8, 9]
    assert (model(TEXT[:, swapped]) - model(TEXT)[:, swapped]).abs().amax(-1).max() > 1e-3


@pytest.mark.parametrize("name", ["alibi", "sinusoidal", "t5", "rope"])
@torch.no_grad()
def test_tokens_carry_their_positions_with_them_however_they_lie_in_the_row(name):
    """All follows from `at`: slots in another order give the same answers in that order, the causal mask included."""
    model = small_model(CONFIGS[name])
    order = torch.tensor([4, 2, 0, 7, 6, 9, 1, 3, 5, 8])
    out = model(TEXT[:, order], at=torch.arange(10)[order][None])
    torch.testing.assert_close(out, model(TEXT)[:, order], **EXACT)


# Distance


RELATIVE = {
    "rope": decoder(),
    "rope partly": CONFIGS["rope partly"],
    "rope linear": CONFIGS["rope linear"],
    "rope yarn": decoder(scaling=YARN),
    "rope of long wavelengths": decoder(scaling=LLAMA3),
    "alibi": decoder("alibi"),
    "t5": decoder("t5"),
    "none": decoder("none"),
    "window": CONFIGS["window"],
}


@pytest.mark.parametrize("name", RELATIVE)
@torch.no_grad()
def test_scores_depend_on_distances_only(name):
    """The same text 1,000 tokens further on: the same weights in every layer, and the same logits."""
    model, there = small_model(RELATIVE[name]), torch.arange(1000, 1010)[None]
    here = capture(model, ["*.weights", "logits"], TEXT)
    far = capture(model, ["*.weights", "logits"], TEXT, at=there)
    for activation, value in here.items():
        torch.testing.assert_close(far[activation], value, atol=1e-9, rtol=0)  # angles of size 1,000 in float64


@pytest.mark.parametrize("name", ["learned", "sinusoidal"])
@torch.no_grad()
def test_absolute_positions_tell_places_apart(name):
    model = small_model(CONFIGS[name])
    assert (model(TEXT, at=torch.arange(20, 30)[None]) - model(TEXT)).abs().max() > 1e-2


@torch.no_grad()
def test_the_product_of_turned_vectors_depends_on_their_distance_only():
    """For q at m and k at n, all m and n up to 60: R(m)q · R(n)k is a function of m - n (arXiv:2104.09864, eq. 16)."""
    rope = build(decoder(attention={"d_head": 8})).layers[0].attention.position
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    cos, sin = rope.angles(torch.arange(60)[None], dtype=torch.float64)
    turned = [rope.rotate(x.expand(1, 60, 1, 8), cos, sin)[0, :, 0] for x in (q, k)]
    scores = turned[0] @ turned[1].T  # (m, n)
    for distance in range(-59, 60):
        along = scores.diagonal(-distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), atol=1e-12, rtol=0)
    assert scores[:, 0].std() > 0.01


# One hop


@pytest.mark.parametrize("name", ["rope", "alibi", "t5", "none", "learned", "sinusoidal"])
@torch.no_grad()
def test_every_token_reaches_every_earlier_one_in_one_layer_and_no_later_one(name):
    config = CONFIGS[name]
    model = small_model(config.model_copy(update={"n_layers": 1, "pattern": config.pattern[:1]}))
    want = model(TEXT)
    for j in range(10):
        changed = TEXT.clone()
        changed[0, j] = (changed[0, j] + 1) % VOCABULARY
        moved = (model(changed) != want).any(-1)[0]
        assert moved.tolist() == [i >= j for i in range(10)]


@torch.no_grad()
def test_a_prefix_is_read_both_ways_and_the_rest_backwards():
    model = small_model(decoder(attention={"sees": "prefix"}))
    prefix = torch.tensor([4])
    want = model(TEXT, prefix=prefix)
    for j in range(10):
        changed = TEXT.clone()
        changed[0, j] = (changed[0, j] + 1) % VOCABULARY
        moved = (model(changed, prefix=prefix) != want).any(-1)[0]
        assert moved.tolist() == [i >= j or j < 4 for i in range(10)]
    torch.testing.assert_close(model(TEXT), model(TEXT, prefix=torch.tensor([0])), **EXACT)


# Neighbours and padding


@pytest.mark.parametrize("kernel", ["plain", "tiled", "fused"])
@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_a_row_of_a_padded_batch_answers_as_it_does_alone(name, kernel):
    """Padding on both sides and in the middle; its token is one that occurs in the texts, and routers do not see it."""
    model = small_model(CONFIGS[name])
    rows = [[1, 5, 2, 9, 4], [0, 7], [3, 3, 0]]
    at = torch.tensor([[0, 1, 2, 3, 4], [-1, -1, 0, 1, -1], [0, -1, 1, -1, 2]])
    tokens = torch.zeros(3, 5, dtype=torch.int64)
    for row, places, text in zip(tokens, at, rows, strict=True):
        row[places >= 0] = torch.tensor(text)
    logits = model(tokens, at=at, kernel=kernel)
    assert logits.isfinite().all()
    for b, text in enumerate(rows):
        alone = model(torch.tensor([text]), kernel=kernel)[0]
        torch.testing.assert_close(logits[b, at[b] >= 0], alone, **EXACT)


@torch.no_grad()
def test_padding_is_counted_by_no_router():
    model = small_model(CONFIGS["experts"])
    at = torch.tensor([[-1, -1, 0, 1, 2], [0, 1, 2, 3, 4]])
    for routing in model.states(TEXT[:, :5].expand(2, 5), at=at).routing:
        assert routing.load.sum() == 2 * 8  # 8 real tokens, 2 experts each


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_the_first_token_is_answered_as_if_nothing_followed(name):
    model = small_model(CONFIGS[name])
    torch.testing.assert_close(model(TEXT[:, :1]), model(TEXT)[:, :1], **EXACT)


# Heads


@torch.no_grad()
def test_the_head_scales_before_it_caps():
    plain = small_model(decoder())
    capped = small_model(decoder(head={"tied": False, "scale": 0.5, "softcap": 3.0}))
    torch.testing.assert_close(capped(TEXT), 3 * torch.tanh(0.5 * plain(TEXT) / 3), **EXACT)
    assert capped(TEXT).abs().max() < 3


@torch.no_grad()
def test_the_embedding_is_scaled_before_positions_are_added_and_normalised_after():
    model = small_model(decoder("none", embed={"position": "learned", "scale": 4.0, "norm": "layer"}))
    x = 4 * model.embed.tokens.weight[TEXT] + model.embed.positions.weight[:10]
    torch.testing.assert_close(capture(model, ["embed"], TEXT)["embed"], model.embed.norm(x), **EXACT)


@torch.no_grad()
def test_narrow_tokens_are_taken_to_the_model_and_back():
    embed = {"position": "learned", "scale": 4.0, "width": 6}
    model = small_model(decoder("none", embed=embed, head={"tied": True}))
    tokens = model.embed.tokens.weight  # (V, 6)
    x = 4 * tokens[TEXT] @ model.embed.widen.weight.T + model.embed.positions.weight[:10]
    heard = capture(model, ["embed", "final_norm", "logits"], TEXT)
    torch.testing.assert_close(heard["embed"], x, **EXACT)
    torch.testing.assert_close(heard["logits"], heard["final_norm"] @ model.head.narrow.weight.T @ tokens.T, **EXACT)


def test_one_update_moves_both_ends_of_a_tied_model():
    model = small_model(decoder(head={"tied": True}))
    model(TEXT).square().sum().backward()
    assert model.head.projection.weight is model.embed.tokens.weight
    by_both = model.embed.tokens.weight.grad
    untied = small_model(decoder())
    with torch.no_grad():
        weights = {**model.state_dict(), "head.projection.weight": model.embed.tokens.weight}
        untied.load_state_dict(weights)
    untied(TEXT).square().sum().backward()
    torch.testing.assert_close(by_both, untied.embed.tokens.weight.grad + untied.head.projection.weight.grad, **EXACT)


# Refusals


def test_positions_beyond_the_learned_ones_are_refused_and_a_cache_is_left_as_it_was():
    model = small_model(decoder("none", max_len=8, embed={"position": "learned"}))
    message = r"^the text has 10 tokens; this model has positions for 8\. Shorten it\.$"
    with pytest.raises(RequestError, match=message):
        model(TEXT)
    with pytest.raises(RequestError, match=message):
        model(TEXT[:, :1], at=torch.tensor([[9]]))
    cache = model.new_cache(1)
    model(TEXT[:, :8], cache=cache)
    with pytest.raises(RequestError, match=r"^the text has 9 tokens"):
        model(TEXT[:, :1], cache=cache)
    assert cache.length == 8


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"at": torch.arange(9)[None]}, r"^at \(1, 9\) must have the tokens' shape \(1, 10\)$"),
        ({"doc": torch.zeros(2, 10)}, r"^doc \(2, 10\) must have the tokens' shape \(1, 10\)$"),
        (
            {"prefix": torch.tensor([3])},
            r"^no layer of this model reads a prefix both ways: that takes attention\.sees",
        ),
        ({"segments": TEXT}, r"^this model has no segments: that takes embed\.segments\. Leave them out\.$"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, text):
    with pytest.raises(RequestError, match=text):
        small_model(decoder())(TEXT, **options)


def test_segments_without_a_row_are_refused():
    model = small_model(decoder(embed={"segments": 2}))
    with pytest.raises(RequestError, match=r"^segments reach from 0 to 2; this model's are 0 to 1$"):
        model(TEXT, segments=TEXT.clamp(max=2))
    with pytest.raises(RequestError, match=r"^segments \(1, 9\) must have the tokens' shape \(1, 10\)$"):
        model(TEXT, segments=TEXT[:, :9])


def test_a_model_that_reads_both_ways_takes_no_cache():
    model = without_order()
    with pytest.raises(RequestError, match=r"^this model reads both ways, so its past depends on what comes: leave"):
        model(TEXT, cache=model.new_cache(1))


def test_tokens_without_a_batch_are_refused():
    with pytest.raises(RequestError, match=r"^tokens must be \(B, T\), two dims; these have 1: \(10,\)$"):
        small_model(decoder())(TEXT[0])


@pytest.mark.parametrize(
    ("tokens", "found"), [([[1, 2]], "a list"), (TEXT.float(), r"torch\.float32"), (TEXT > 0, r"torch\.bool")]
)
def test_tokens_that_are_no_ids_are_refused(tokens, found):
    with pytest.raises(RequestError, match=rf"^tokens must be a tensor of int64, not {found}: torch\.tensor"):
        small_model(decoder())(tokens)


@pytest.mark.parametrize("wrong", [-1, 13])
def test_ids_outside_of_the_models_are_refused(wrong):
    with pytest.raises(RequestError, match=r"^tokens hold an id outside of this model's, which are 0 to 12$"):
        small_model(decoder())(torch.tensor([[1, wrong]]))


def test_positions_that_are_no_tensor_are_refused():
    with pytest.raises(RequestError, match=r"^at must be a tensor of the tokens' shape, not a list$"):
        small_model(decoder())(TEXT[:, :2], at=[[0, 1]])
