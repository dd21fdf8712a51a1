import itertools

import numpy as np
import pytest
import torch

from onehop.base.errors import DataError
from onehop.data.loader import Loader, evaluation_batches
from onehop.data.shards import Shards


def shards_of(lengths, *, dtype="uint16"):
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Shards("text/train", np.arange(starts[-1], dtype=dtype), starts, n_bytes=int(starts[-1]) * 3)


MANY = [3, 17, 9, 30, 2, 5, 11, 8, 41, 6, 7, 7, 12] * 5
FIELDS = ("tokens", "targets", "doc", "at")


@pytest.mark.parametrize("packing", ["whole", "stream"])
@pytest.mark.parametrize("lengths", [MANY, [700]])
def test_a_loader_can_start_anywhere_and_gives_what_it_would_have_given(packing, lengths):
    loader = Loader(shards_of(lengths), batch_size=4, length=16, packing=packing, seed=5)
    batches = list(itertools.islice(loader.batches(), 40))  # several epochs
    again = Loader(shards_of(lengths), batch_size=4, length=16, packing=packing, seed=5)
    for start in (0, 1, 7, 23):
        for batch, expected in zip(again.batches(start), batches[start : start + 3], strict=False):
            for name in FIELDS:
                assert torch.equal(getattr(batch, name), getattr(expected, name))


@pytest.mark.parametrize("packing", ["whole", "stream"])
def test_an_epoch_has_every_row_once_and_the_next_one_in_another_order(packing):
    loader = Loader(shards_of(MANY), batch_size=1, length=16, packing=packing)
    rows = [loader.batch(i).tokens for i in range(2 * loader.n_rows)]
    first, second = (torch.cat(part) for part in (rows[: loader.n_rows], rows[loader.n_rows :]))
    assert len(torch.unique(first, dim=0)) == loader.n_rows
    assert not torch.equal(first, second)
    if packing == "whole":
        assert torch.equal(torch.unique(first, dim=0), torch.unique(second, dim=0))


def test_batches_across_the_end_of_an_epoch_have_their_full_size():
    loader = Loader(shards_of(MANY), batch_size=7, length=16)
    one = Loader(shards_of(MANY), batch_size=1, length=16)
    number = loader.n_rows // 7
    rows = [one.batch(number * 7 + i).tokens for i in range(7)]
    assert torch.equal(loader.batch(number).tokens, torch.cat(rows))


def test_another_seed_gives_another_order():
    batches = [Loader(shards_of(MANY), batch_size=4, length=16, seed=seed).batch(0).tokens for seed in (0, 1)]
    assert not torch.equal(*batches)


@pytest.mark.parametrize("packing", ["whole", "stream"])
def test_windows_of_one_long_text_do_not_overlap_and_move_with_the_epoch(packing):
    loader = Loader(shards_of([1000]), batch_size=1, length=16, packing=packing, seed=1)
    epochs = [
        sorted(int(loader.batch(epoch * loader.n_rows + i).tokens[0, 0]) for i in range(loader.n_rows))
        for epoch in range(3)
    ]
    for begins in epochs:
        assert np.diff(begins).tolist() == [16] * (loader.n_rows - 1)
    assert len({begins[0] for begins in epochs}) > 1
    batch = loader.batch(0)
    assert torch.equal(batch.targets, batch.tokens + 1)
    assert not batch.packed
    assert not batch.padded


def test_a_batch_says_whether_its_rows_are_shared_or_padded():
    assert Loader(shards_of([4, 4, 4, 4]), batch_size=1, length=8).batch(0).packed
    batch = Loader(shards_of([5, 5, 5]), batch_size=2, length=8).batch(0)
    assert (batch.packed, batch.padded, batch.n_targets) == (False, True, 8)


def test_types_and_shapes_are_those_the_model_takes():
    batch = Loader(shards_of(MANY, dtype="uint32"), batch_size=3, length=16).batch(2).to("cpu")
    for name in FIELDS:
        assert getattr(batch, name).shape == (3, 16)
    assert [getattr(batch, name).dtype for name in FIELDS] == [torch.int64, torch.int64, torch.int32, torch.int64]


@pytest.mark.parametrize("packing", ["whole", "stream"])
@pytest.mark.parametrize("lengths", [MANY, [700], [5], [5, 4, 1, 2]])
def test_an_evaluation_counts_every_target_once_in_batches_of_one_shape(packing, lengths):
    shards = shards_of(lengths)
    batches = list(evaluation_batches(shards, batch_size=4, length=16, packing=packing))
    assert {tuple(batch.tokens.shape) for batch in batches} == {(4, 16)}
    targets = torch.cat([batch.targets[batch.targets >= 0] for batch in batches])
    assert sorted(targets.tolist()) == sorted(set(range(shards.n_tokens)) - set(shards.starts[:-1].tolist()))
    assert sum(batch.n_targets for batch in batches) == shards.n_targets


def test_a_part_of_an_evaluation_is_always_the_same_part():
    shards = shards_of(MANY)
    parts = [list(evaluation_batches(shards, batch_size=2, length=16, n_rows=3)) for _ in range(2)]
    assert [len(part) for part in parts] == [2, 2]
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(*parts, strict=True))
    assert (parts[0][1].doc[1] == -1).all()  # three rows, and one of padding


@pytest.mark.parametrize("packing", ["whole", "stream"])
def test_a_text_shorter_than_a_row_is_refused_with_the_sizes(packing):
    with pytest.raises(DataError, match=r"^text/train holds 16 tokens, .*\(16 \+ 1\)\. Give more .*\(at most 15\)\.$"):
        Loader(shards_of([10, 6]), batch_size=1, length=16, packing=packing)
    Loader(shards_of([10, 7]), batch_size=1, length=16, packing=packing).batch(0)


def test_documents_without_a_target_and_unknown_packings_are_refused():
    with pytest.raises(DataError, match="has nothing to predict: its documents are one token long"):
        Loader(shards_of([1] * 40), batch_size=1, length=16)
    with pytest.raises(DataError, match=r"data\.packing='tight' does not exist\. Use whole or stream\."):
        Loader(shards_of(MANY), batch_size=1, length=16, packing="tight")


def test_the_summary_says_what_the_packing_did():
    assert Loader(shards_of([5, 3, 20]), batch_size=1, length=8).summary() == (
        "4 rows of 8 tokens, 87.5% filled, 1 of 3 documents cut"
    )
