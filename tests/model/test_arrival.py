"""It does not matter how tokens arrive: whole, one by one or in uneven pieces, the answers are those of one pass."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden import case_model
from tests.small_models import CONFIGS, DYNAMIC, LONGROPE, decoder, encoder_decoder, small_model

KINDS = ["growing", "fixed", "ring"]
TEXT = [1, 5, 2, 9, 4, 7, 3, 3, 0, 12, 5, 8]
PIECES = [[12], [1] * 12, [5, 7], [1, 5, 1, 4, 1], [11, 1], [2, 2, 8], [3, 1, 1, 1, 6]]
# float64 sums in another order; logits are of size 1 to 10
EXACT = {"atol": 1e-10, "rtol": 0}

KNOWN = [
    [-4.9436784237, -1.9222535835, -1.6318587734, -1.6474262815, 0.95395338863, 1.2470577931, 2.2708360286,
     -0.74737212674, 1.3772545307, -1.5655475704, -0.16414262777, -2.1364685801, -1.9084765587],
    [-2.4949302499, 3.4937527243, 0.80629910178, -2.5697742982, -4.8755024598, 0.11840373783, 3.7664591179,
     -1.788897752, 2.571292928, -4.1272946288, -0.088280263963, -2.6409424156, -2.7868740562],
    [-3.3376758326, -1.8549058831, -0.5162298981, 0.47427153102, 0.17921786485, 1.4300345492, 2.7787529849,
     -2.524253764, 1.3182868128, 0.82565792868, -1.1625982597, 0.82098010492, 1.1594851472],
    [-3.4516768182, 0.18821552023, -1.4591786478, -1.1084455419, -1.0210439897, 0.73991327632, 0.25157395192,
     0.42470991659, 0.14036143416, -3.3456584792, -0.014327506764, -3.1169458678, -4.2627348519],
    [1.4159731548, 2.3067134668, 0.6315712366, 1.7304416372, -4.5369187891, -2.5682589837, 1.4423150852,
     -3.0092930968, -0.19669018196, -0.66255570314, 3.4144751115, 0.96043695894, 0.0026664814935],
    [-3.7120080046, 2.5281868419, -0.1847027401, -1.8020140677, -1.3907378429, -0.061859352326, 4.5063249091,
     -0.5638416275, 3.2062276173, -4.721727013, -0.41012749651, -2.3392016065, -2.5064858472],
    [-2.6853323384, 3.2790471168, 0.36732799433, -3.1167223567, -1.0473544511, 0.37757018289, 2.5864337743,
     -1.2774937016, 3.23755321, -5.6562115613, 0.54791953504, -4.5538567793, -4.5335963718],
]  # fmt: skip


@torch.no_grad()
def arriving(model, text, pieces, *, kind="growing", **options):
    """The logits of every token of one text that is fed in pieces."""
    cache = model.new_cache(1, kind=kind, capacity=len(text))
    out, start = [], 0
    for n in pieces:
        out.append(model(torch.tensor([text[start : start + n]]), cache=cache, **options)[0])
        start += n
    return torch.cat(out)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pieces", [[7], [3, 4], [1] * 7, [2, 2, 3], [6, 1], [1, 5, 1]])
def test_the_known_logits_come_out_at_every_position_whatever_the_pieces(kind, pieces):
    logits = arriving(case_model(), [1, 5, 2, 9, 4, 7, 3], pieces, kind=kind)
    torch.testing.assert_close(logits, torch.tensor(KNOWN, dtype=torch.float64), atol=1e-9, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CONFIGS)
def test_every_kind_of_model_reads_pieces_as_it_reads_the_whole(name, kind):
    model = small_model(CONFIGS[name])
    with torch.no_grad():
        whole = model(torch.tensor([TEXT]))[0]
    for pieces in PIECES:
        torch.testing.assert_close(arriving(model, TEXT, pieces, kind=kind), whole, **EXACT)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_cut_of_any_text_reads_as_the_whole(data):
    name = data.draw(st.sampled_from(sorted(CONFIGS)))
    text = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=14))
    pieces, left = [], len(text)
    while left:
        pieces.append(data.draw(st.integers(1, left)))
        left -= pieces[-1]
    model = small_model(CONFIGS[name])
    with torch.no_grad():
        whole = model(torch.tensor([text]))[0]
    torch.testing.assert_close(arriving(model, text, pieces, kind=data.draw(st.sampled_from(KINDS))), whole, **EXACT)


@pytest.mark.parametrize("kernel", ["plain", "tiled", "fused"])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_kernel_reads_pieces_as_it_reads_the_whole(name, kernel):
    model = small_model(CONFIGS[name])
    with torch.no_grad():
        whole = model(torch.tensor([TEXT]), kernel="plain")[0]
    for kind in KINDS:
        logits = arriving(model, TEXT, [5, 1, 6], kind=kind, kernel=kernel)
        torch.testing.assert_close(logits, whole, **EXACT)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_target_may_arrive_in_pieces_too(kind):
    model = small_model(encoder_decoder())
    source = torch.tensor([[4, 2, 9, 1]])
    whole = model(source, torch.tensor([TEXT]))[0]
    for pieces in PIECES:
        cache = model.new_cache(1, kind=kind, capacity=len(TEXT))
        memory, out, start = model.encode(source), [], 0
        for n in pieces:
            out.append(model(torch.tensor([TEXT[start : start + n]]), memory=memory, cache=cache)[0])
            memory, start = None, start + n
        torch.testing.assert_close(torch.cat(out), whole, **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_prefix_that_came_whole_the_rest_may_come_in_pieces(kind):
    model = small_model(decoder(attention={"sees": "prefix"}))
    prefix = torch.tensor([5])
    with torch.no_grad():
        whole = model(torch.tensor([TEXT]), prefix=prefix)[0]
    for pieces in ([5, 7], [7, 1, 4], [5, *[1] * 7]):
        torch.testing.assert_close(arriving(model, TEXT, pieces, kind=kind, prefix=prefix), whole, **EXACT)


@pytest.mark.parametrize("kind", ["growing", "fixed"])
@pytest.mark.parametrize("name", ["rope", "alibi", "learned", "window"])
@torch.no_grad()
def test_packed_documents_may_arrive_in_pieces_that_cut_through_them(name, kind):
    model = small_model(CONFIGS[name])
    doc = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2]])
    at = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 4]])
    alone = torch.cat([model(torch.tensor([part]))[0] for part in (TEXT[:4], TEXT[4:7], TEXT[7:])])
    torch.testing.assert_close(model(torch.tensor([TEXT]), at=at, doc=doc)[0], alone, **EXACT)
    for pieces in PIECES:
        cache, out, start = model.new_cache(1, kind=kind, capacity=12), [], 0
        for n in pieces:
            part = slice(start, start + n)
            out.append(model(torch.tensor([TEXT[part]]), at=at[:, part], doc=doc[:, part], cache=cache)[0])
            start += n
        torch.testing.assert_close(torch.cat(out), alone, **EXACT)


# Angles that depend on how long the text is


@pytest.mark.parametrize("scaling", [DYNAMIC, LONGROPE], ids=["dynamic", "longrope"])
def test_up_to_the_original_length_such_angles_do_not_depend_on_the_pieces_in_any_layer(scaling):
    model = small_model(decoder(scaling=scaling))
    with torch.no_grad():
        whole = model(torch.tensor([TEXT[:8]]))[0]
    for kind in KINDS:
        for pieces in ([8], [1] * 8, [3, 5]):
            torch.testing.assert_close(arriving(model, TEXT[:8], pieces, kind=kind), whole, **EXACT)


@pytest.mark.parametrize("scaling", [DYNAMIC, LONGROPE], ids=["dynamic", "longrope"])
def test_beyond_it_they_do_and_no_kind_of_cache_changes_how(scaling):
    """12 tokens where 8 are the original length: keys keep the angles of the length at which they were read."""
    model = small_model(decoder(scaling=scaling))
    whole = arriving(model, TEXT, [12])
    for pieces in ([1] * 12, [7, 5]):
        grown = arriving(model, TEXT, pieces)
        for kind in KINDS:
            torch.testing.assert_close(arriving(model, TEXT, pieces, kind=kind), grown, **EXACT)
        assert (grown[-1] - whole[-1]).abs().max() > 0.01
    with torch.no_grad():
        torch.testing.assert_close(whole, model(torch.tensor([TEXT]))[0], **EXACT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scaling", [DYNAMIC, LONGROPE], ids=["dynamic", "longrope"])
@torch.no_grad()
def test_rows_of_a_batch_have_the_angles_of_their_own_lengths(scaling, kind):
    """One row is beyond the original length from the start, another passes it as it grows; padding does not count."""
    model = small_model(decoder(scaling=scaling))
    texts = [TEXT, TEXT[:6]]
    tokens = torch.tensor([TEXT, [0] * 6 + TEXT[:6]])
    at = torch.tensor([list(range(12)), [-1] * 6 + list(range(6))])
    cache = model.new_cache(2, kind=kind, capacity=16)
    together = [model(tokens, at=at, cache=cache)[:, -1]]
    together += [model(torch.tensor([[7], [7]]), cache=cache)[:, -1] for _ in range(4)]
    torch.testing.assert_close(together[0], model(tokens, at=at)[:, -1], **EXACT)
    for row, text in enumerate(texts):
        alone = arriving(model, text + [7] * 4, [len(text), 1, 1, 1, 1])[len(text) - 1 :]
        torch.testing.assert_close(torch.stack([step[row] for step in together]), alone, **EXACT)
