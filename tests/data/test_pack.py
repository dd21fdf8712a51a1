import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onehop.data.draws import shuffled, uniform
from onehop.data.pack import StreamRows, fill, pack_whole

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=60)


def stream_of(documents):
    return np.concatenate(documents).astype(np.uint16), np.concatenate([[0], np.cumsum([len(d) for d in documents])])


def rows_of(table, tokens):
    return fill(tokens, table.segments(np.arange(table.n_rows)), n_rows=table.n_rows, length=table.length)


def test_packed_documents_have_their_own_numbers_positions_and_targets():
    tokens, starts = stream_of([[1, 5, 2, 9], [4, 7, 3], [0, 11, 6, 8, 2]])
    rows = rows_of(StreamRows(14, starts, 1), tokens)
    assert rows["tokens"].tolist() == [[1, 5, 2, 9, 4, 7, 3, 0, 11, 6, 8, 2, 0, 0]]
    assert rows["doc"].tolist() == [[0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, -1, -1]]
    assert rows["at"].tolist() == [[0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 4, -1, -1]]
    assert rows["targets"].tolist() == [[5, 2, 9, -100, 7, 3, -100, 11, 6, 8, 2, -100, -100, -100]]


def test_end_tokens_stay_targets_where_padding_has_the_same_id():
    tokens, starts = stream_of([[5, 3, 2, 0], [4, 0], [0, 6, 0, 1, 0]])
    rows = rows_of(pack_whole(starts, 5, seed=0), tokens)
    assert rows["tokens"].tolist() == [[0, 6, 0, 1, 0], [5, 3, 2, 0, 0], [4, 0, 0, 0, 0]]
    assert rows["targets"].tolist() == [[6, 0, 1, 0, -100], [3, 2, 0, -100, -100], [0, -100, -100, -100, -100]]
    assert (rows["targets"] >= 0).sum() == 8
    assert (rows["targets"] == 0).sum() == 4


def test_a_long_document_goes_on_in_other_rows_and_loses_no_target():
    tokens, starts = stream_of([range(10, 19)])
    rows = rows_of(pack_whole(starts, 4, seed=0), tokens)
    # 9 tokens are two full rows; the last token alone would have no target, and is the target of the second row.
    assert rows["tokens"].tolist() == [[10, 11, 12, 13], [14, 15, 16, 17]]
    assert rows["targets"].tolist() == [[11, 12, 13, 14], [15, 16, 17, 18]]
    assert rows["at"].tolist() == [[0, 1, 2, 3]] * 2


def reference(tokens, starts, table):
    """Row by row and token by token, from the segments that the table names."""
    found = {"tokens": [], "targets": [], "doc": [], "at": []}
    ends = set((starts[1:] - 1).tolist())
    segments = table.segments(np.arange(table.n_rows))
    for row in range(table.n_rows):
        cells = {"tokens": [0] * table.length, "targets": [-100] * table.length}
        cells |= {"doc": [-1] * table.length, "at": [-1] * table.length}
        for number, i in enumerate(np.flatnonzero(segments.row == row)):
            for k in range(segments.size[i]):
                cell, source = segments.offset[i] + k, segments.start[i] + k
                assert cells["doc"][cell] == -1  # nothing lies on anything else
                cells["tokens"][cell] = int(tokens[source])
                cells["targets"][cell] = -100 if source in ends else int(tokens[source + 1])
                cells["doc"][cell], cells["at"][cell] = number, k
        for name, values in cells.items():
            found[name].append(values)
    return found


@settings(deadline=None)
@given(lengths=LENGTHS, length=st.integers(2, 24), seed=st.integers(0, 3))
def test_rows_of_whole_documents_hold_every_target_once_and_cut_only_what_is_longer_than_a_row(lengths, length, seed):
    starts = np.concatenate([[0], np.cumsum(lengths)])
    tokens = np.arange(starts[-1])
    table = pack_whole(starts, length, seed=seed)
    rows = rows_of(table, tokens)
    assert {name: values.tolist() for name, values in rows.items()} == reference(tokens, starts, table)
    targets = np.sort(rows["targets"][rows["targets"] >= 0])
    assert targets.tolist() == sorted(set(range(starts[-1])) - set(starts[:-1].tolist()))
    assert table.n_cut == sum(n > length for n in lengths)
    segments = table.segments(np.arange(table.n_rows))
    for n, start in zip(lengths, starts, strict=False):
        pieces = segments.size[(segments.start >= start) & (segments.start < start + n)]
        assert len(pieces) == (1 if 1 < n <= length else n // length + (n % length > 1))


@settings(deadline=None)
@given(lengths=LENGTHS, length=st.integers(2, 24), origin=st.integers(0, 5))
def test_rows_of_the_stream_are_the_stream(lengths, length, origin):
    starts = np.concatenate([[0], np.cumsum(lengths)])
    tokens = np.arange(starts[-1]) + 100
    n_rows = -(-(starts[-1] - origin) // length)
    if n_rows < 1:
        return
    table = StreamRows(length, starts, int(n_rows), origin)
    rows = rows_of(table, tokens)
    assert {name: values.tolist() for name, values in rows.items()} == reference(tokens, starts, table)
    assert rows["tokens"][rows["doc"] >= 0].tolist() == tokens[origin:].tolist()
    boundary = np.isin(rows["tokens"] + 1 - 100, starts)
    assert (rows["targets"][boundary & (rows["doc"] >= 0)] == -100).all()


@settings(deadline=None)
@given(lengths=st.lists(st.integers(2, 30), min_size=1, max_size=80))
def test_packing_is_best_fit_decreasing(lengths):
    """As many rows as the plain algorithm, one item at a time, into the fullest row with room."""
    capacity, free = 30, []
    for n in sorted(lengths, reverse=True):
        fits = [i for i, room in enumerate(free) if room >= n]
        if fits:
            free[min(fits, key=lambda i: free[i])] -= n
        else:
            free.append(capacity - n)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    table = pack_whole(starts, capacity, seed=0)
    filled = np.add.reduceat(table.size, table.first[:-1])
    assert sorted((capacity - filled).tolist()) == sorted(free)


def test_documents_of_a_natural_mix_of_lengths_fill_their_rows():
    lengths = np.random.default_rng(0).lognormal(5, 0.7, 5000).astype(int).clip(2)  # median 148
    table = pack_whole(np.concatenate([[0], np.cumsum(lengths)]), 1024, seed=0)
    assert table.size.sum() / (table.n_rows * 1024) > 0.99


@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_shuffled_numbers_are_all_numbers_and_draws_are_even(seed):
    assert sorted(shuffled(1000, seed).tolist()) == list(range(1000))
    draws = uniform(np.arange(20_000), seed)
    # 10 bins of 2,000 expected draws: standard deviation 42, so 6 of them
    assert np.abs(np.histogram(draws, bins=10, range=(0, 1))[0] - 2000).max() < 255
    assert shuffled(1000, seed).tolist() != shuffled(1000, seed + 1).tolist()
