"""A second stack that reads a source: its keys are made once, and its padding is seen by nobody."""

import pytest
import torch

from onehop.base.errors import RequestError
from onehop.model import build
from onehop.parts.keys import Keys
from onehop.parts.places import Places
from onehop.parts.score import score
from onehop.parts.score_rule import ScoreRule
from onehop.parts.sight import Sees, Sight
from tests.small_models import MOE, encoder_decoder, small_model

SOURCE = torch.tensor([[4, 2, 9, 1, 7]])
TARGET = torch.tensor([[1, 5, 2, 9, 4, 7, 3]])
EXACT = {"atol": 1e-12, "rtol": 0}

QUERIES = [
    [1.2009090995416045, -0.7965996558777988, 0.5771124176681042, -0.024422450456768274],
    [-1.3992837583646178, 0.5637652077712119, 1.3761420082300901, 0.36683718441054225],
    [1.4299269570037723, 1.2901394558139145, -1.3333241790533066, 0.887583767529577],
]
KEYS = [
    [0.6834414722397923, -0.31812760373577476, 1.4222708512097597, -1.1708862190134823],
    [0.15823063161224127, -0.7898955862037838, -1.334069799631834, 1.212193006183952],
    [0.2063876548781991, -0.46209142869338393, 0.8530376460403204, -1.0355753120966256],
    [-1.2442419799044728, 0.7064478364773095, 1.3499953374266624, 0.5292583233676851],
    [-0.6206025285646319, -1.3566020666621625, 0.03981461562216282, 0.31288907630369067],
]
VALUES = [
    [-0.2032612320035696, -0.23340945411473513, -0.942726694047451],
    [-0.7498014559969306, 0.5842019077390432, -0.6518708104267716],
    [0.9235640354454517, 0.8477878542616963, -0.2963683735579252],
    [-0.3570138784125447, 0.4951919913291931, -0.3663160866126418],
    [-0.06577915139496326, -0.36749348137527704, 0.8642697148025036],
]
MIXED = [
    [0.06287047797591, 0.2734520166431, -0.6768092578625],
    [0.1954552543386, 0.3265268843844, -0.634145566762],
    [-0.5502203232649, 0.5347341984634, -0.6459047003914],
]


def looked_across(rows, *, cols=slice(0, 5), filled=None, kernel="auto", first=0):
    q, k, v = (torch.tensor(x, dtype=torch.float64)[None, :, None] for x in (QUERIES, KEYS, VALUES))
    if filled is not None:
        k[:, 3:], v[:, 3:] = filled, filled
    places = Places(torch.tensor([[0, 1, 2, -1, -1]])[:, cols])
    rule, sight = ScoreRule(scale=0.5), Sight(Sees("all"), Places.run(first, len(range(3)[rows])), places)
    return score(q[:, rows], Keys(k[:, cols], v[:, cols], places), rule, sight, kernel=kernel)[0, :, 0]


@pytest.mark.parametrize("kernel", ["plain", "tiled", "fused"])
def test_queries_see_the_whole_source_but_its_padding_whatever_their_position(kernel):
    want = torch.tensor(MIXED, dtype=torch.float64)
    close = {"atol": 1e-12, "rtol": 0}  # the figures have 13 digits
    torch.testing.assert_close(looked_across(slice(0, 3), kernel=kernel), want, **close)
    torch.testing.assert_close(looked_across(slice(0, 3), cols=slice(0, 3), kernel=kernel), want, **close)
    torch.testing.assert_close(looked_across(slice(0, 3), filled=1e4, kernel=kernel), want, **close)
    one_by_one = [looked_across(slice(i, i + 1), kernel=kernel, first=i) for i in range(3)]
    torch.testing.assert_close(torch.cat(one_by_one), want, **close)


@pytest.mark.parametrize("padding", [1, 4])
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padding_of_the_source_changes_nothing(side, padding):
    model = small_model(encoder_decoder())
    want = model(SOURCE, TARGET)
    pad, no = torch.full((1, padding), 7), torch.full((1, padding), -1)
    at = torch.arange(5)[None]
    parts = (pad, SOURCE), (no, at)
    if side == "right":
        parts = (SOURCE, pad), (at, no)
    source, source_at = (torch.cat(pair, dim=1) for pair in parts)
    torch.testing.assert_close(model(source, TARGET, source_at=source_at), want, **EXACT)


@torch.no_grad()
def test_padding_of_the_target_changes_nothing():
    model = small_model(encoder_decoder())
    target = torch.cat([torch.full((1, 3), 7), TARGET], dim=1)
    at = torch.cat([torch.full((1, 3), -1), torch.arange(7)[None]], dim=1)
    torch.testing.assert_close(model(SOURCE, target, at=at)[:, 3:], model(SOURCE, TARGET), **EXACT)


@torch.no_grad()
def test_an_encoder_reads_both_ways_and_a_decoder_only_back():
    model = small_model(encoder_decoder())
    hidden = model.encode(SOURCE).hidden
    later = SOURCE.clone()
    later[0, -1] = 11
    assert (model.encode(later).hidden != hidden).any(-1).all()
    after = TARGET.clone()
    after[0, 4] = 11
    moved = (model(SOURCE, after) != model(SOURCE, TARGET)).any(-1)[0]
    assert moved.tolist() == [False] * 4 + [True] * 3
    assert (model(later, TARGET) != model(SOURCE, TARGET)).any(-1).all()


@torch.no_grad()
def test_the_source_is_read_once_for_all_steps(monkeypatch):
    model = small_model(encoder_decoder())
    whole, memory, cache = model(SOURCE, TARGET), model.encode(SOURCE), model.new_cache(1)
    reads = []
    for layer in model.layers:
        monkeypatch.setattr(layer.cross, "read", lambda *a, read=layer.cross.read: reads.append(1) or read(*a))
    out = [model(TARGET[:, :3], memory=memory, cache=cache)]
    for t in range(3, 7):
        out.append(model(TARGET[:, t : t + 1], cache=cache))
        assert {layer.cross.k.size(1) for layer in cache.layers} == {5}
        assert cache.length == t + 1
    assert len(reads) == len(model.layers)
    torch.testing.assert_close(torch.cat(out, dim=1), whole, **EXACT)


@torch.no_grad()
def test_cross_attention_may_be_in_some_layers_only():
    block = {"n_heads": 4, "position": {"kind": "none"}}
    config = encoder_decoder(
        cross=None, blocks={"alone": {}, "asking": {"cross": block | {"sees": "all"}}}, pattern=["alone", "asking"]
    )
    model = small_model(config)
    cache = model.new_cache(1)
    out = [model(TARGET[:, :3], memory=model.encode(SOURCE), cache=cache), model(TARGET[:, 3:], cache=cache)]
    torch.testing.assert_close(torch.cat(out, dim=1), model(SOURCE, TARGET), **EXACT)


@torch.no_grad()
def test_each_stack_has_its_own_learned_positions_and_its_own_limit():
    own = {"n_layers": 1, "attention": {"n_heads": 4, "sees": "all", "position": "none"},
           "ffn": {"kind": "plain", "d_ff": 8}, "embed": {"position": "learned"}}  # fmt: skip
    model = small_model(encoder_decoder(max_len=8, encoder=own))  # the decoder's positions are sinusoids
    long = torch.zeros(1, 12, dtype=torch.int64)
    assert model(SOURCE, long).shape == (1, 12, 13)
    with pytest.raises(RequestError, match=r"^the text has 12 tokens; this model has positions for 8\. Shorten it\.$"):
        model(long, TARGET)


def test_the_encoders_experts_are_told_of_as_well_as_the_decoders():
    own = {"n_layers": 3, "attention": {"n_heads": 4, "sees": "all"}, "ffn": MOE}
    model = build(encoder_decoder(encoder=own))
    states = model.states(SOURCE, TARGET)
    assert states.routing == [None, None]
    assert [r.load.sum().item() for r in states.encoder_routing] == [10, 10, 10]  # 5 tokens, 2 experts each
    sum(r.balance_loss for r in states.encoder_routing).backward()
    assert all(layer.ffn.router.weight.grad is not None for layer in model.encoder.layers)


def test_what_an_encoder_decoder_needs_and_others_cannot_use_is_refused():
    both, alone = build(encoder_decoder()), build(encoder_decoder(encoder=None, cross=None))
    with pytest.raises(RequestError, match=r"^this model has an encoder: give a source and a target"):
        both(SOURCE)
    for call in (
        lambda: alone(SOURCE, TARGET),
        lambda: alone.encode(SOURCE),
        lambda: alone(TARGET, memory=both.encode(SOURCE)),
    ):
        with pytest.raises(RequestError, match=r"^this model has no encoder: give tokens only, model\(tokens\)$"):
            call()
    with pytest.raises(RequestError, match=r"^source_at says where a source stands, and there is none"):
        alone(TARGET, source_at=torch.zeros(1, 7, dtype=torch.int64))
