"""Gaps in plain text: the parts give back the whole, the shares are those asked for, and a number repeats them."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from onehop.data.loader import Loader
from onehop.data.masking import Cover, CoveredLoader, Pieces, cut_spans, span_counts, span_rows
from onehop.data.pack import NO_TARGET
from onehop.data.pairs import Borders
from onehop.data.shards import Shards

MARKS = list(range(1000, 1100))
ROWS = st.integers(2, 300).map(lambda n: np.arange(n) % 90 + 10)


def shards(sizes):
    starts = np.cumsum([0, *sizes])
    return Shards("text", np.arange(starts[-1]) % 90 + 10, starts, 0)


def filled(shown, asked):
    """The row again: each mark of what is shown replaced by what follows it in what is asked for."""
    spans, now = {}, None
    for token in asked.tolist():
        if token >= 1000:
            now = spans.setdefault(token, [])
        else:
            now.append(token)
    return [t for token in shown.tolist() for t in spans.get(token, [token])]


@given(ROWS, st.sampled_from([0.15, 0.5, 0.01]), st.sampled_from([1.0, 3.0, 8.0]), st.integers(0, 2**40))
def test_what_is_shown_and_what_is_asked_for_are_the_row_again(row, rate, mean_span, key):
    assume(span_counts(len(row), rate, mean_span)[1] < len(MARKS))
    shown, asked = cut_spans(row, rate, mean_span, marks=MARKS, key=key)
    assert filled(shown, asked) == row.tolist()


@given(ROWS, st.integers(0, 2**40))
def test_the_spans_are_as_many_and_as_long_as_asked_for(row, key):
    n_out, n_spans = span_counts(len(row), 0.15, 3.0)
    shown, asked = cut_spans(row, 0.15, 3.0, marks=MARKS, key=key)
    assert shown[shown >= 1000].tolist() == MARKS[:n_spans]
    assert asked[asked >= 1000].tolist() == MARKS[: n_spans + 1]
    assert len(asked) == n_out + n_spans + 1
    assert shown[0] < 1000  # a text's begin token is never cut out
    between = np.diff(np.flatnonzero(shown >= 1000))
    assert (between > 1).all()  # two marks never touch: they would be one span


def test_the_spans_of_the_papers_figure():
    """Thank you for inviting me to your party last week: 10 tokens, 2 spans (arXiv:1910.10683, figure 2)."""
    assert span_counts(512, 0.15, 3.0) == (77, 26)  # section 3.1.4's rate on its length of a row
    shown, asked = cut_spans(np.arange(10), 0.3, 1.5, marks=MARKS, key=0)
    assert (len(shown), len(asked)) == (10 - 3 + 2, 3 + 2 + 1)
    assert asked[-1] == 1002


def test_every_token_is_cut_out_about_as_often_as_any_other():
    row = np.arange(60)
    counts = np.zeros(60)
    for key in range(0, 4000, 2):
        _, asked = cut_spans(row, 0.15, 3.0, marks=MARKS, key=key)
        counts[asked[asked < 1000]] += 1
    # 9 of 60 tokens each time, of which the first is never one; 5 standard errors of such a share in 2000 draws
    assert counts.sum() == 9 * 2000
    assert counts[0] == 0
    np.testing.assert_allclose(counts[4:-4] / 2000, 0.15, atol=0.04)  # fewer spans reach the last tokens
    assert (counts[-4:] > 50).all()


def test_pieces_hold_every_token_of_every_document_but_single_ones():
    pieces = Pieces.of(shards([5, 1, 8, 9]), 4)
    assert list(zip(pieces.start.tolist(), pieces.size.tolist(), strict=True)) == [
        (0, 4), (6, 4), (10, 4), (14, 4), (18, 4),
    ]  # fmt: skip


def test_a_batch_of_spans_reads_its_answer_one_place_late_and_pads_what_is_shorter():
    text = shards([12, 40])
    make = span_rows(
        text, Pieces.of(text, 64), rate=0.15, mean_span=3.0, marks=MARKS, borders=Borders(7, 8), seed=0, most=64
    )
    batch, again, other = (make(np.array([0, 1]), np.array([e, e])) for e in (0, 0, 1))
    assert torch.equal(batch.source, again.source)
    assert not torch.equal(batch.source, other.source)
    for b, size in enumerate((12, 40)):
        said = batch.targets[b][batch.targets[b] != NO_TARGET]
        assert int(said[-1]) == 8
        assert batch.tokens[b, : len(said)].tolist() == [7, *said[:-1].tolist()]
        shown = batch.source[b][batch.source_at[b] >= 0]
        assert filled(shown.numpy(), said[:-1].numpy()) == text.tokens[12 * b : 12 * b + size].tolist()
        assert batch.at[b].tolist() == [i if i < len(said) else -1 for i in range(batch.at.size(1))]
    assert batch.n_targets == int((batch.targets != NO_TARGET).sum())


COVER = Cover(0.15, 0.8, 0.1, mask=5, ordinary=np.arange(10, 100), seed=0)


def test_covered_tokens_have_bert_s_shares_and_all_others_stay():
    """Of 15 % that are asked for 80 % are masked, 10 % random (one in 90 by chance the same) and 10 % as they are."""
    loader = CoveredLoader(Loader(shards([2000] * 40), batch_size=16, length=500), COVER)
    plain, covered = loader.loader.batch(3), loader.batch(3)
    asked = covered.targets != NO_TARGET
    n = int(asked.sum())
    assert n == covered.n_targets
    assert torch.equal(covered.targets[asked], plain.tokens[asked])
    assert torch.equal(covered.tokens[~asked], plain.tokens[~asked])
    shown = covered.tokens[asked]
    masked, same = int((shown == 5).sum()) / n, int((shown == plain.tokens[asked]).sum()) / n
    # 5 standard errors of shares in 8000 and in 1200 draws
    assert n / asked.numel() == pytest.approx(0.15, abs=0.02)
    assert masked == pytest.approx(0.8, abs=0.06)
    assert same == pytest.approx(0.1 + 0.1 / 90, abs=0.045)


def test_control_tokens_and_padding_are_never_asked_for():
    text = Shards("text", np.array([3, 20, 21, 4, 3, 22, 4]), np.array([0, 4, 7]), 0)
    batch = Loader(text, batch_size=1, length=6).batch(0)
    every = Cover(0.999999, 1.0, 0.0, mask=5, ordinary=np.arange(10, 100), seed=0)(batch, 0)
    assert set(every.targets[every.targets != NO_TARGET].tolist()) <= {20, 21, 22}
    assert every.n_targets == int(((batch.tokens >= 10) & (batch.doc >= 0)).sum())


def test_gaps_follow_from_seed_and_number():
    loader = Loader(shards([300] * 4), batch_size=2, length=100)
    covered = CoveredLoader(loader, COVER)
    _, second = (batch for batch, _ in zip(covered.batches(), range(2), strict=False))
    assert torch.equal(second.tokens, next(covered.batches(1)).tokens)
    batch = loader.batch(0)
    assert not torch.equal(COVER(batch, 0).tokens, COVER(batch, 1).tokens)
