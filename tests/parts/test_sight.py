"""Who sees whom: small masks written out, and what is claimed about a mask without building it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onehop.parts.places import Places
from onehop.parts.sight import Sees, Sight
from tests.score_cases import SIGHTS, places


def drawn(sight: Sight) -> list[str]:
    """The first row's mask as lines of 1 and 0."""
    return ["".join("1" if x else "." for x in row) for row in sight.mask[0, 0].tolist()]


def run(sees: Sees, t: int, s: int, **options) -> Sight:
    return Sight(sees, Places.run(s - t, t), Places.run(0, s), **options)


@pytest.mark.parametrize(
    ("sees", "rows"),
    [
        (Sees("causal"), ["1....", "11...", "111..", "1111.", "11111"]),
        (Sees("all"), ["11111"] * 5),
        (Sees("causal", window=3), ["1....", "11...", "111..", ".111.", "..111"]),
        (Sees("causal", window=1), ["1....", ".1...", "..1..", "...1.", "....1"]),
        (Sees("all", window=2), ["11...", "111..", ".111.", "..111", "...11"]),
        (Sees("prefix"), ["111..", "111..", "111..", "1111.", "11111"]),
        (Sees("prefix", window=2), ["111..", "111..", ".11..", "..11.", "...11"]),
    ],
)
def test_masks_of_five_tokens(sees, rows):
    """A window of W counts the own token; a prefix of 3 is seen from everywhere, as far as the window reaches back."""
    assert drawn(run(sees, 5, 5, prefix=torch.tensor([3]) if sees.kind == "prefix" else None)) == rows


def test_a_prefix_rule_without_a_prefix_is_causal():
    assert drawn(run(Sees("prefix"), 3, 3)) == ["1..", "11.", "111"]


def test_new_queries_stand_at_the_end_of_the_keys():
    """Two queries over five keys, three of them cached: the triangle is anchored by positions, at the bottom right."""
    assert drawn(run(Sees("causal"), 2, 5)) == ["1111.", "11111"]


def test_documents_do_not_see_each_other_and_padding_sees_and_is_seen_by_nobody():
    """Documents of 4, 3 and 5 tokens and two pads, with positions that restart."""
    at = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 4, -1, -1]])
    doc = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 0, 0]])
    rows = drawn(Sight(Sees("causal"), Places(at, doc), Places(at, doc)))
    assert rows[3] == "1111.........."
    assert rows[4] == "....1........."
    assert rows[6] == "....111......."
    assert rows[11] == ".......11111.."
    assert rows[12] == rows[13] == "." * 14


def test_every_row_of_a_batch_has_its_own_places():
    at = torch.tensor([[-1, 0, 1], [0, 1, 2]])
    mask = Sight(Sees("causal"), Places(at), Places(at)).mask
    assert mask.shape == (2, 1, 3, 3)
    assert mask[0, 0].tolist() == [[False] * 3, [False, True, False], [False, True, True]]
    assert torch.equal(mask[1, 0], torch.ones(3, 3).tril() == 1)


sights = st.builds(
    lambda sees, layout, b, t, s, seed: Sight(
        sees,
        *places(layout, b, t, s, seed=seed),
        prefix=torch.arange(b) + 2 if sees.kind == "prefix" and seed % 2 else None,
    ),
    sees=st.sampled_from(SIGHTS),
    layout=st.sampled_from(["run", "padded", "documents"]),
    b=st.integers(1, 3),
    t=st.integers(1, 9),
    s=st.integers(1, 9),
    seed=st.integers(0, 99),
)


@settings(deadline=None, max_examples=200)
@given(
    sight=sights,
    rows=st.tuples(st.integers(0, 8), st.integers(1, 5)),
    cols=st.tuples(st.integers(0, 8), st.integers(1, 5)),
)
def test_a_tile_is_a_part_of_the_mask_and_a_blank_one_holds_nothing(sight, rows, cols):
    t, s = sight.q.n, sight.k.n
    rows, cols = slice(rows[0] % t, min(rows[0] % t + rows[1], t)), slice(cols[0] % s, min(cols[0] % s + cols[1], s))
    part = sight.mask.expand(-1, -1, t, s)[..., rows, cols]
    tile = sight.tile(rows, cols)
    assert part.all() if tile is None else torch.equal(tile.expand_as(part), part)
    if sight.is_blank(rows, cols):
        assert not part.any()


@settings(deadline=None, max_examples=200)
@given(sight=sights)
def test_what_is_claimed_without_a_mask_is_true_of_it(sight):
    if sight.is_everything:
        assert sight.mask.all()
    if sight.is_triangle:
        assert torch.equal(sight.mask[0, 0], torch.ones(sight.q.n, sight.k.n).tril() == 1)


@pytest.mark.parametrize(
    ("sees", "t", "s", "everything", "triangle"),
    [
        (Sees("causal"), 4, 4, False, True),
        (Sees("causal"), 1, 9, True, False),  # one new token sees all of the past
        (Sees("causal"), 2, 9, False, False),
        (Sees("causal", window=9), 1, 9, True, False),
        (Sees("causal", window=8), 1, 9, False, False),
        (Sees("causal", window=4), 4, 4, False, True),
        (Sees("causal", window=3), 4, 4, False, False),
        (Sees("all"), 3, 7, True, False),
        (Sees("all", window=7), 7, 7, True, False),
        (Sees("all", window=6), 7, 7, False, False),
        (Sees("prefix"), 4, 4, False, True),
    ],
)
def test_runs_of_tokens_are_known_without_reading_a_tensor(sees, t, s, everything, triangle):
    sight = run(sees, t, s)
    assert (sight.is_everything, sight.is_triangle) == (everything, triangle)


def test_most_of_a_causal_triangle_needs_no_mask_and_half_of_it_is_blank():
    sight = run(Sees("causal"), 8, 8)
    first, second = slice(0, 4), slice(4, 8)
    assert sight.tile(second, first) is None
    assert sight.tile(first, first) is not None
    assert sight.is_blank(first, second)
    assert not sight.is_blank(second, second)


def test_tiles_inside_a_document_or_beside_padding_need_no_mask():
    """Eight tokens, then two pads; documents of four. What is full is found by looking at each run of slots once."""
    at = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, -1, -1]])
    first, second, last = slice(0, 4), slice(4, 8), slice(8, 10)
    padded = Sight(Sees("causal"), Places(at), Places(at))
    assert padded.tile(second, first) is None
    assert padded.tile(second, second) is not None
    assert padded.tile(last, first) is not None
    assert Sight(Sees("causal", window=7), Places(at), Places(at)).tile(second, first) is not None
    assert Sight(Sees("causal", window=8), Places(at), Places(at)).tile(second, first) is None
    doc = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1, 1]])
    packed = Sight(Sees("all"), Places(at, doc), Places(at, doc))
    assert packed.tile(first, first) is None
    assert packed.tile(first, slice(3, 5)) is not None


def test_tiles_of_other_documents_or_of_padding_are_blank():
    at, doc = torch.tensor([[0, 1, 0, 1, -1, -1]]), torch.tensor([[0, 0, 1, 1, 0, 0]])
    sight = Sight(Sees("all"), Places(at, doc), Places(at, doc))
    tiles = [slice(0, 2), slice(2, 4), slice(4, 6)]
    blank = [[sight.is_blank(rows, cols) for cols in tiles] for rows in tiles]
    assert blank == [[False, True, True], [True, False, True], [True, True, True]]


def test_a_part_of_a_run_is_a_run():
    part = Places.run(3, 5).cut(slice(1, 3))
    assert (part.first, part.n, part.at.tolist(), part.real()) == (4, 2, [[4, 5]], None)
    padded = Places(torch.tensor([[-1, 0]])).cut(slice(0, 2))
    assert padded.first is None
    assert padded.real().tolist() == [[False, True]]
