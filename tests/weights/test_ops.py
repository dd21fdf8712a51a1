"""Operations on weights undo each other bit for bit, and cut where they should."""

import pytest
import torch

from onehop.formats.table import Move, rows
from onehop.formats.table import claims as made
from onehop.weights.ops import OPS
from tests.small_models import decoder

SIZES = {"rows": (8, 4, 4)}


@pytest.mark.parametrize("name", OPS.names())
def test_what_was_loaded_saves_as_it_was(name):
    theirs = [torch.randn(16, 5)]
    ours = OPS.get(name).load(theirs, SIZES.get(name, ()))
    (again,) = OPS.get(name).save(ours, SIZES.get(name, ()))
    assert torch.equal(again, theirs[0])


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
