"""Every activation has a name, can be heard, and can be changed where that has a meaning."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from onehop.base.errors import RequestError
from onehop.model.taps import capture, listen, tap_names
from tests.small_models import CONFIGS, MOE, decoder, encoder_decoder, small_model

TOKENS = torch.tensor([[1, 5, 2, 9, 4, 7, 3], [0, 12, 5, 8, 1, 1, 6]])
KINDS = {
    "rope": CONFIGS["rope"],
    "alibi": CONFIGS["alibi"],
    "experts": CONFIGS["experts"],
    "window, alibi and sinks": CONFIGS["window, alibi and sinks"],
    "two kinds of layer": CONFIGS["two kinds of layer"],
    "post": decoder(norm_in=False, norm_out="outside"),
    "sandwich": decoder(norm_out="inside"),
    "parallel": decoder(parallel="one norm"),
    "parallel, two norms": decoder(parallel="two norms"),
    "encoder-decoder": encoder_decoder(),
    "plain ffn": decoder(ffn={"kind": "plain", "d_ff": 8}),
}


def inputs(model):
    return (TOKENS, TOKENS[:, 2:]) if model.encoder is not None else (TOKENS,)


def heard_in_order(model, patterns, *inputs):
    order = []
    with listen(model, patterns, lambda name, value: order.append(name)) as ear, torch.no_grad():
        model(*inputs, listener=ear)
    return order


@pytest.mark.parametrize("name", KINDS)
def test_every_name_is_heard_once_and_in_the_order_of_the_list(name):
    model = small_model(KINDS[name])
    names = tap_names(model)
    assert len(names) == len(set(names))
    assert heard_in_order(model, ["*"], *inputs(model)) == names


def test_the_names_of_a_block():
    names = tap_names(small_model(decoder(n_layers=1)))
    assert names == [
        "embed", "layers.0.in", "layers.0.attention_norm", "layers.0.attention.k", "layers.0.attention.v",
        "layers.0.attention.q", "layers.0.attention.weights", "layers.0.attention.mixed", "layers.0.attention",
        "layers.0.mid", "layers.0.ffn_norm", "layers.0.ffn.hidden", "layers.0.ffn", "layers.0.out", "final_norm",
        "logits",
    ]  # fmt: skip


def test_activations_have_the_shapes_that_are_written_down():
    model = small_model(encoder_decoder())
    heard = {name: tuple(value.shape) for name, value in capture(model, ["*"], TOKENS, TOKENS[:, 2:]).items()}
    b, s, t, h, d, c, f = 2, 7, 5, 4, 4, 16, 24
    assert heard["embed"] == heard["layers.1.mid"] == heard["layers.1.out"] == heard["final_norm"] == (b, t, c)
    assert heard["encoder.embed"] == heard["encoder.final_norm"] == (b, s, c)
    assert (
        heard["layers.0.attention.q"] == heard["layers.0.attention.k"] == heard["layers.0.cross.mixed"] == (b, t, h, d)
    )
    assert heard["layers.0.cross.k"] == heard["layers.0.cross.v"] == (b, s, h, d)
    assert heard["layers.0.attention.weights"] == (b, h, t, t)
    assert heard["layers.0.cross.weights"] == (b, h, t, s)
    assert heard["encoder.layers.0.attention.weights"] == (b, h, s, s)
    assert heard["layers.0.ffn.hidden"] == (b, t, f)
    assert heard["logits"] == (b, t, 13)


@torch.no_grad()
def test_what_is_heard_is_what_a_computation_by_hand_gives():
    model = small_model(decoder(n_layers=1))
    a = capture(model, ["*"], TOKENS)
    layer = model.layers[0]
    assert torch.equal(a["embed"], model.embed.tokens.weight[TOKENS])
    assert torch.equal(a["layers.0.in"], a["embed"])
    q, k, v = a["layers.0.attention.q"], a["layers.0.attention.k"], a["layers.0.attention.v"]
    assert torch.equal(v, layer.attention.wv(a["layers.0.attention_norm"]).unflatten(-1, (2, 4)))
    k2, v2 = (x.repeat_interleave(2, dim=2) for x in (k, v))  # 2 query heads for each key head
    scores = torch.einsum("bthd,bshd->bhts", q, k2) / 2  # the root of a head's width, 4
    weights = scores.masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf).softmax(-1)
    close = {"atol": 1e-12, "rtol": 0}
    torch.testing.assert_close(a["layers.0.attention.weights"], weights, **close)
    torch.testing.assert_close(a["layers.0.attention.mixed"], torch.einsum("bhts,bshd->bthd", weights, v2), **close)
    attention = layer.attention.wo(a["layers.0.attention.mixed"].flatten(-2))
    torch.testing.assert_close(a["layers.0.attention"], attention, **close)
    torch.testing.assert_close(a["layers.0.mid"], a["embed"] + attention, **close)
    torch.testing.assert_close(a["layers.0.ffn_norm"], layer.ffn_norm(a["layers.0.mid"]), **close)
    x = a["layers.0.ffn_norm"]
    hidden = torch.nn.functional.silu(layer.ffn.w1(x)) * layer.ffn.w3(x)
    torch.testing.assert_close(a["layers.0.ffn.hidden"], hidden, **close)
    torch.testing.assert_close(a["layers.0.ffn"], layer.ffn.w2(hidden), **close)
    torch.testing.assert_close(a["layers.0.out"], a["layers.0.mid"] + a["layers.0.ffn"], **close)
    torch.testing.assert_close(a["logits"], model(TOKENS), **close)


@pytest.mark.parametrize("name", KINDS)
def test_rows_of_weights_sum_to_one_less_what_the_sinks_take(name):
    model = small_model(KINDS[name])
    rows = {n: w.sum(-1) for n, w in capture(model, ["*.weights"], *inputs(model)).items()}
    assert rows
    for row in rows.values():
        if "sinks" in name:
            assert (row < 1).all()
        else:
            torch.testing.assert_close(row, torch.ones_like(row), atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_listening_changes_nothing_by_itself(name):
    model = small_model(KINDS[name])
    want = model(*inputs(model))
    with listen(
        model, ["*"], lambda name, value: value.clone() if not name.endswith(("weights", "mid")) else None
    ) as ear:
        torch.testing.assert_close(model(*inputs(model), listener=ear), want, atol=1e-12, rtol=0)


@torch.no_grad()
def test_an_edit_takes_the_place_of_what_was_computed():
    """Each sublayer silenced, or its input replaced: the model that results can be written down."""
    model = small_model(decoder(n_layers=1))
    layer, x = model.layers[0], model.embed.tokens.weight[TOKENS]

    def with_edit(pattern, change):
        with listen(model, [pattern], lambda _, value: change(value)) as ear:
            return model(TOKENS, listener=ear)

    def logits(h):
        return model.head(model.final_norm(h))

    def ffn(h):
        return h + layer.ffn(layer.ffn_norm(h))[0]

    def silent(pattern):
        return with_edit(pattern, torch.zeros_like)

    close = {"atol": 1e-12, "rtol": 0}
    for pattern in ("layers.0.attention", "layers.0.attention.mixed", "layers.0.attention.v"):
        torch.testing.assert_close(silent(pattern), logits(ffn(x)), **close)
    h = x + capture(model, ["layers.0.attention"], TOKENS)["layers.0.attention"]
    for pattern in ("layers.0.ffn", "layers.0.ffn.hidden"):
        torch.testing.assert_close(silent(pattern), logits(h), **close)
    for pattern in ("layers.0.in", "embed"):
        torch.testing.assert_close(silent(pattern), logits(torch.zeros_like(x)), **close)
    torch.testing.assert_close(silent("layers.0.out"), logits(torch.zeros_like(x)), **close)
    torch.testing.assert_close(silent("logits"), torch.zeros_like(model(TOKENS)), **close)
    # Queries of zero weigh all that they see alike.
    v = capture(model, ["layers.0.attention.v"], TOKENS)["layers.0.attention.v"].repeat_interleave(2, dim=2)
    mean = v.cumsum(1) / torch.arange(1, 8).view(-1, 1, 1)
    torch.testing.assert_close(
        silent("layers.0.attention.q"), logits(ffn(x + layer.attention.wo(mean.flatten(-2)))), **close
    )


@torch.no_grad()
def test_an_edited_key_is_the_one_that_later_steps_read():
    model = small_model(decoder(n_layers=1))
    cache, x = model.new_cache(2), TOKENS

    def double(_, value):
        return 2 * value

    with listen(model, ["layers.0.attention.k"], double) as ear:
        whole = model(x, listener=ear)
        model(x[:, :4], cache=cache, listener=ear)
        torch.testing.assert_close(model(x[:, 4:], cache=cache, listener=ear), whole[:, 4:], atol=1e-12, rtol=0)


@torch.no_grad()
def test_gradients_flow_through_an_edit():
    model = small_model(decoder())
    steer = torch.zeros(16, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad(), listen(model, ["layers.0.out"], lambda _, value: value + steer) as ear:
        model(TOKENS, listener=ear).square().mean().backward()
    assert steer.grad.abs().max() > 0


class Counting(TorchDispatchMode):
    """Counts the operations that PyTorch runs."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def operations(model, **options):
    with Counting() as counting, torch.no_grad():
        model(*inputs(model), **options)
    return counting.count


@pytest.mark.parametrize("name", KINDS)
def test_nobody_pays_while_nobody_listens(name):
    model = small_model(KINDS[name])
    before = operations(model)
    capture(model, ["*"], *inputs(model))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert operations(model) == before


def test_weights_are_computed_only_for_those_who_ask_for_them():
    model = small_model(decoder())
    with listen(model, ["layers.0.out"], lambda *_: None) as ear:
        assert operations(model, listener=ear) == operations(model)
    with listen(model, ["layers.0.attention.weights"], lambda *_: None) as ear:
        assert operations(model, listener=ear) > operations(model)


def test_hooks_are_gone_after_an_error_too():
    model = small_model(decoder())

    def fail(name, value):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), listen(model, ["*.out"], fail) as ear:
        model(TOKENS, listener=ear)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize(
    ("pattern", "change", "text"),
    [
        ("layers.7.out", None, r"^no activation is called 'layers\.7\.out'\. Did you mean layers\.1\.out\?$"),
        ("*.weight", None, r"^no activation is called '\*\.weight'"),
        ("*.weights", torch.clone, r"can be looked at but not changed: change layers\.0\.attention\.mixed instead"),
        ("*.mid", torch.clone, r"can be looked at but not changed: change layers\.0\.attention instead"),
        (
            "embed",
            lambda x: x[:, :1],
            r"^embed is torch\.float64 of shape \(2, 7, 16\); its replacement is torch\.float64",
        ),
        ("embed", torch.Tensor.float, r"its replacement is torch\.float32 of \(2, 7, 16\)\. Return one like it\.$"),
    ],
)
def test_what_cannot_be_heard_or_changed_is_refused(pattern, change, text):
    model = small_model(decoder())
    with pytest.raises(RequestError, match=text):
        with listen(model, [pattern], lambda _, value: change(value)) as ear:
            model(TOKENS, listener=ear)


def test_experts_have_no_single_hidden_layer():
    assert not any("hidden" in name for name in tap_names(small_model(decoder(ffn={**MOE, "d_ff_shared": 8}))))
