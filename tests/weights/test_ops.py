"""Operations on weights undo each other bit for bit, and cut where they should."""

import pytest
import torch

from onehop.formats.table import Move, rows
from onehop.formats.table import claims as made
from onehop.weights.ops import OPS
from tests.small_models import decoder

SIZES = {
    "rows": (8, 4, 4),
    "columns": (2, 1, 2),
    "grouped_qkv": (2, 2, 2),
    "turned": (2, 8, 6),
    "turned_last": (2, 8, 6),
}
MANY = {"stack": 3}
SHAPES = {"alternating": (3, 10), "alternating_columns": (3, 5, 10), "as_row": (1, 5)}


@pytest.mark.parametrize("name", OPS.names())
def test_what_was_loaded_saves_as_it_was(name):
    # 1 is subtracted exactly from 0.5 to 2
    theirs = [torch.rand(SHAPES.get(name, (16, 5))) + 0.5 for _ in range(MANY.get(name, 1))]
    ours = OPS.get(name).load(theirs, SIZES.get(name, ()))
    again = OPS.get(name).save(ours, SIZES.get(name, ()))
    assert all(torch.equal(a, b) for a, b in zip(again, theirs, strict=True))


@pytest.mark.parametrize("name", ["rows", "grouped_qkv", "turned", "turned_last"])
def test_a_bias_is_cut_as_its_weight_is(name):
    weight = torch.randn(16, 1)
    ours = OPS.get(name).load([weight], SIZES[name])
    biases = OPS.get(name).load([weight.flatten()], SIZES[name])
    assert all(torch.equal(a.flatten(), b) for a, b in zip(ours, biases, strict=True))
    assert torch.equal(OPS.get(name).save(biases, SIZES[name])[0], weight.flatten())


def test_groups_hold_their_query_heads_then_their_key_and_value():
    """The fused matrix is filled with its row numbers: 2 groups of 2 query heads, 1 key and 1 value head of width 2."""
    q, k, v = OPS.get("grouped_qkv").load([torch.arange(16)], (2, 2, 2))
    assert q.tolist() == [0, 1, 2, 3, 8, 9, 10, 11]
    assert k.tolist() == [4, 5, 12, 13]
    assert v.tolist() == [6, 7, 14, 15]


def test_one_below_the_other_and_head_by_head_are_other_orders_than_groups():
    """16 rows of 4 query heads on 2 kv heads, 24 rows of 4 heads with their own key and value; all of width 2."""
    below = OPS.get("rows").load([torch.arange(16)], (8, 4, 4))
    beside = OPS.get("columns").load([torch.arange(16).expand(3, 16)], (8, 4, 4))  # stored (d_in, d_out)
    assert [x.tolist() for x in below] == [[*range(8)], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert [x[:, 0].tolist() for x in beside] == [x.tolist() for x in below]
    by_head = OPS.get("grouped_qkv").load([torch.arange(24)], (4, 1, 2))
    first = [0, 1, 6, 7, 12, 13, 18, 19]
    assert [x.tolist() for x in by_head] == [first, [n + 2 for n in first], [n + 4 for n in first]]


def test_neighbours_become_halves_head_by_head():
    """2 heads of width 8, of which the first 6 dims turn: pairs (0, 1), (2, 3), (4, 5)."""
    (w,) = OPS.get("turned").load([torch.arange(16)], (2, 8, 6))
    assert w.tolist() == [0, 2, 4, 1, 3, 5, 6, 7, 8, 10, 12, 9, 11, 13, 14, 15]


def test_weights_of_heads_turn_as_the_rows_of_their_projection():
    rows = torch.arange(16)
    (w,), (of_heads,) = (OPS.get("turned").load([x], (2, 8, 6)) for x in (rows, rows.view(2, 8)))
    assert torch.equal(of_heads, w.view(2, 8))
    assert torch.equal(OPS.get("turned").save([of_heads], (2, 8, 6))[0], rows.view(2, 8))


def test_of_turning_dims_at_the_end_the_first_stay():
    """2 heads of width 8, of which the last 4 dims turn: pairs (4, 5), (6, 7)."""
    (w,) = OPS.get("turned_last").load([torch.arange(16)], (2, 8, 4))
    assert w.tolist() == [0, 1, 2, 3, 4, 6, 5, 7, 8, 9, 10, 11, 12, 14, 13, 15]


def test_two_alternate_in_the_last_dim():
    a, b = OPS.get("alternating").load([torch.arange(6)], ())
    assert (a.tolist(), b.tolist()) == ([0, 2, 4], [1, 3, 5])
    a, b = OPS.get("alternating_columns").load([torch.arange(8).view(2, 4)], ())
    assert (a.tolist(), b.tolist()) == ([[0, 4], [2, 6]], [[1, 5], [3, 7]])


def test_columns_are_side_by_side():
    a, b = OPS.get("columns").load([torch.arange(6).view(2, 3)], (1, 2))
    assert a.tolist() == [[0, 3]]
    assert b.tolist() == [[1, 4], [2, 5]]


def test_rows_are_one_below_the_other():
    """The fused matrix is filled with its row numbers: 4 query heads and 2 key/value heads of width 2."""
    q, k, v = OPS.get("rows").load([torch.arange(16)[:, None]], (8, 4, 4))
    assert q.flatten().tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert k.flatten().tolist() == [8, 9, 10, 11]
    assert v.flatten().tolist() == [12, 13, 14, 15]


def test_a_transpose_turns_rows_into_columns():
    (w,) = OPS.get("transpose").load([torch.arange(6).view(2, 3)], ())
    assert w.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_an_operation_tells_the_shape_that_a_file_must_have():
    ours = [torch.empty(n, 5, device="meta") for n in (8, 4, 4)]
    assert [tuple(w.shape) for w in OPS.get("rows").save(ours, (8, 4, 4))] == [(16, 5)]


def test_every_operation_that_a_table_names_exists():
    table = (Move("x.{i}", ("layers.{i}.a", "layers.{i}.b"), rows(lambda site: (site.block.attention.n_heads, 1))),)
    assert all(claim.op in OPS and claim.sizes == (4, 1) for claim in made(table, decoder()))
