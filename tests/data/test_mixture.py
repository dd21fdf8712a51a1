import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onehop.data.loader import Loader, evaluation_batches
from onehop.data.mixture import Mixture, Turns
from onehop.data.shards import Shards

WEIGHTS = st.lists(st.floats(0.001, 100), min_size=1, max_size=6)


def by_hand(shares, offsets, n):
    """The first n rows, each given to the item that is due first."""
    due = [offset / share for offset, share in zip(offsets, shares, strict=True)]
    given_, found = [0] * len(shares), []
    for _ in range(n):
        item = min(range(len(shares)), key=lambda i: due[i])
        found.append((item, given_[item]))
        given_[item] += 1
        due[item] = (given_[item] + offsets[item]) / shares[item]
    return found


@settings(deadline=None, max_examples=60)
@given(weights=WEIGHTS, seed=st.integers(0, 3), first=st.integers(0, 400), n=st.integers(1, 60))
def test_any_rows_are_those_of_going_through_all_rows_before_them(weights, seed, first, n):
    turns = Turns(np.array(weights), seed=seed)
    expected = by_hand(turns.shares, turns.offsets, first + n)[first:]
    item, index = turns.at(first, n)
    assert list(zip(item.tolist(), index.tolist(), strict=True)) == expected


@settings(deadline=None, max_examples=60)
@given(weights=WEIGHTS, seed=st.integers(0, 3))
def test_after_any_number_of_rows_every_item_has_its_share_to_within_as_many_rows_as_there_are_items_and_one(
    weights, seed
):
    turns = Turns(np.array(weights), seed=seed)
    item, _ = turns.at(0, 1000)
    had = np.cumsum(item[:, None] == np.arange(len(weights)), axis=0)
    due = np.arange(1, 1001)[:, None] * turns.shares
    assert np.abs(had - due).max() <= len(weights) + 1


def test_rows_far_away_are_found_at_once_and_follow_each_other():
    turns = Turns(np.array([0.6, 0.3, 0.1]), seed=1)
    item, index = turns.at(10**12, 100)
    for i in range(3):
        assert np.diff(index[item == i]).tolist() == [1] * ((item == i).sum() - 1)
    later = turns.at(10**12 + 40, 60)
    assert (item[40:].tolist(), index[40:].tolist()) == tuple(column.tolist() for column in later)


def shards_of(lengths, first):
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = np.arange(first, first + starts[-1]).astype(np.uint32)
    return Shards(f"text/{first}", tokens, starts, n_bytes=int(starts[-1]))


SMALL, LARGE = [5, 9, 16, 4, 11, 3] * 6, [7, 30, 2, 12, 13, 6, 9] * 40
MIXED = Mixture(("small", "large"), (3.0, 1.0), (shards_of(SMALL, 0), shards_of(LARGE, 10_000)))


@pytest.mark.parametrize("packing", ["whole", "stream"])
def test_of_the_tokens_each_text_has_its_share_whatever_its_size(packing):
    loader = Loader(MIXED, batch_size=8, length=16, packing=packing)
    batches = list(itertools.islice(loader.batches(), 200))
    tokens = torch.cat([batch.tokens[batch.doc >= 0] for batch in batches])
    # 1,600 rows: each text is at most 3 rows off its share, and its last epoch of rows may be better filled than most.
    assert float((tokens < 10_000).float().mean()) == pytest.approx(0.75, abs=0.004)
    assert {bool(row) for batch in batches for row in (batch.tokens[:, :1] < 10_000)} == {True, False}


def test_each_text_of_a_mixture_is_read_as_it_would_be_alone():
    mixed = Loader(MIXED, batch_size=4, length=16, seed=3)
    alone = Loader(MIXED.parts[1], batch_size=1, length=16, seed=3)
    rows = [row for i in range(60) for row in mixed.batch(i).tokens if row[0] >= 10_000]
    assert len(rows) > 50
    for number, row in enumerate(rows):
        assert torch.equal(row, alone.batch(number).tokens[0])


def test_rows_of_a_mixture_stand_in_the_same_order_in_batches_of_any_size():
    one, eight = (Loader(MIXED, batch_size=n, length=16) for n in (1, 8))
    for number in range(10):
        rows = [one.batch(number * 8 + i).tokens for i in range(8)]
        assert torch.equal(eight.batch(number).tokens, torch.cat(rows))


def test_a_mixture_can_start_anywhere_and_another_seed_gives_another_order():
    batches = list(itertools.islice(Loader(MIXED, batch_size=4, length=16, seed=5).batches(), 40))
    again = Loader(MIXED, batch_size=4, length=16, seed=5)
    for start in (39, 0, 17):
        assert torch.equal(again.batch(start).tokens, batches[start].tokens)
    assert not torch.equal(Loader(MIXED, batch_size=4, length=16, seed=6).batch(0).tokens, batches[0].tokens)


def test_an_evaluation_of_a_mixture_has_its_shares_and_no_row_twice():
    batches = list(evaluation_batches(MIXED, batch_size=4, length=16))
    rows = torch.cat([batch.tokens[(batch.doc >= 0).any(1)] for batch in batches])
    assert len(torch.unique(rows, dim=0)) == len(rows)
    small = (rows[:, 0] < 10_000).sum()
    n_small = len(list(evaluation_batches(MIXED.parts[0], batch_size=1, length=16)))
    assert small == n_small  # the first text to end
    tokens = torch.cat([batch.tokens[batch.doc >= 0] for batch in batches])
    assert float((tokens < 10_000).float().mean()) == pytest.approx(0.75, abs=0.04)  # two rows of some thirty
    part = list(evaluation_batches(MIXED, batch_size=4, length=16, n_rows=6))
    assert torch.equal(part[0].tokens, batches[0].tokens)
    assert (part[1].doc[2:] == -1).all()
