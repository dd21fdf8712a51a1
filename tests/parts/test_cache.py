"""Caches of every kind hand back what was put in, at the positions it was put at, and forget what they are told to."""

import pytest
import torch

from onehop.base.errors import ConfigError, RequestError
from onehop.parts.cache import Cache, CacheSpec
from onehop.parts.places import Places
from onehop.parts.sight import Sees, Sight
from tests.golden import case_model
from tests.small_models import CONFIGS, encoder_decoder, small_model

KINDS = ["growing", "fixed", "ring"]
WINDOW = 4


def cache_of(kind, *, batch=1, window=WINDOW, capacity=16, margin=0):
    spec = CacheSpec({"k": (2, 3), "v": (2, 5)}, window=window)
    return Cache([spec], batch=batch, kind=kind, capacity=capacity, margin=margin, dtype=torch.float64)


def entries(at):
    """Keys and values that tell where they stand: k = position, v = -position."""
    value = at.double()[:, :, None, None]
    return {"k": value.expand(*at.shape, 2, 3).clone(), "v": (-value).expand(*at.shape, 2, 5).clone()}


def put(cache, at, doc=None, first=None):
    """One step with tokens at positions `at` (B, T) -> the keys that may be read."""
    at = torch.tensor(at)
    cache.start(Places(at[:1] if first is not None else at, doc, first))
    return cache.layers[0].extend(**entries(at))


def held(keys, row=0, window=None):
    """Sorted positions of one row that a query at the newest position sees; each entry must say the same position."""
    at = keys.places.at.expand(keys.k.size(0), -1)[row]
    real = at >= 0
    assert torch.equal(keys.k[row, real, 0, 0], at[real].double())
    assert torch.equal(keys.v[row, real, 1, 4], -at[real].double())
    if window is not None:
        real &= at > at.max() - window
    return sorted(at[real].tolist())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pieces", [[7], [1] * 7, [2, 1, 4], [3, 4]])
def test_what_is_in_the_window_can_be_read_however_it_arrived(kind, pieces):
    cache, start = cache_of(kind), 0
    for n in pieces:
        keys = put(cache, [list(range(start, start + n))], first=start)
        start += n
        assert held(keys, window=WINDOW) == list(range(max(0, start - WINDOW), start))
    assert cache.length == cache.layers[0].length == 7
    assert cache.next_places(2).at.tolist() == [[7, 8]]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_unequal_length_keep_their_own_positions(kind):
    cache = cache_of(kind, batch=2)
    keys = put(cache, [[-1, -1, 0, 1], [0, 1, 2, 3]])
    assert (held(keys, 0), held(keys, 1)) == ([0, 1], [0, 1, 2, 3])
    assert cache.lengths.tolist() == [2, 4]
    places = cache.next_places(1)
    assert places.at.tolist() == [[2], [4]]
    keys = put(cache, places.at.tolist())
    assert (held(keys, 0, WINDOW), held(keys, 1, WINDOW)) == ([0, 1, 2], [1, 2, 3, 4])


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_is_all_padding_in_one_row_leaves_that_row_as_it_was(kind):
    cache = cache_of(kind, batch=2)
    put(cache, [[0, 1], [0, 1]], first=0)
    keys = put(cache, [[-1, -1], [2, 3]])
    assert (held(keys, 0), held(keys, 1, WINDOW)) == ([0, 1], [0, 1, 2, 3])
    assert cache.lengths.tolist() == [2, 4]
    assert held(put(cache, [[2], [4]]), 0) == [0, 1, 2]


@pytest.mark.parametrize("kind", ["growing", "fixed"])
def test_documents_travel_with_the_keys(kind):
    cache = cache_of(kind, window=8)
    put(cache, [[0, 1]], doc=torch.tensor([[3, 3]]))
    keys = put(cache, [[2]], doc=torch.tensor([[4]]))
    new = Places(torch.tensor([[2]]), torch.tensor([[4]]))
    sees = Sight(Sees("causal"), new, keys.places).mask[0, 0, 0]
    assert keys.places.at[0, sees].tolist() == [2]


@pytest.mark.parametrize("kind", ["growing", "fixed"])
def test_documents_that_come_late_do_not_belong_to_what_was_there_before(kind):
    cache = cache_of(kind, window=8)
    put(cache, [[0, 1]], first=0)
    keys = put(cache, [[2]], doc=torch.tensor([[1]]))
    by_place = dict(zip(keys.places.at[0].tolist(), keys.places.doc[0].tolist()))
    assert (by_place[0], by_place[1], by_place[2]) == (0, 0, 1)
    keys = put(cache, [[3, 4]])
    by_place = dict(zip(keys.places.at[0].tolist(), keys.places.doc[0].tolist()))
    assert (by_place[2], by_place[3], by_place[4]) == (1, 0, 0)


def test_a_ring_refuses_documents_whose_positions_begin_anew():
    with pytest.raises(RequestError, match=r"^a ring holds one text per row, not packed documents\. Use a growing"):
        put(cache_of("ring"), [[0, 1, 0]], doc=torch.tensor([[0, 0, 1]]))


def test_only_a_plain_run_is_said_to_be_one():
    cache = cache_of("growing", batch=2)
    assert put(cache, [[0, 1], [0, 1]], first=0).places.first == 0
    assert put(cache, [[2], [2]], first=2).places.first == 0
    assert put(cache, [[3, 4], [3, -1]]).places.first is None
    assert put(cache, [[5], [4]]).places.first is None


def test_shapes_of_a_fixed_cache_do_not_depend_on_the_fill():
    cache = cache_of("fixed", capacity=6)
    shapes = {put(cache, [[i]], first=i).k.shape for i in range(6)}
    assert shapes == {(1, 6, 2, 3)}
    with pytest.raises(RequestError, match=r"room for 6 tokens and 7 are needed\. Give it a larger capacity"):
        put(cache, [[6]], first=6)


def test_a_ring_holds_no_more_than_its_window():
    cache = cache_of("ring")
    before = cache.nbytes
    for i in range(40):
        put(cache, [[i]], first=i)
    assert cache.nbytes == before


def test_a_ring_cache_grows_in_layers_without_a_window():
    cache = Cache([CacheSpec({"k": (1, 2)}, window=3), CacheSpec({"k": (1, 2)})], batch=1, kind="ring")
    assert [type(layer.book).__name__ for layer in cache.layers] == ["Ring", "Growing"]
    assert len(cache.books) == 2


def test_layers_that_keep_the_same_slots_share_one_book():
    assert len(Cache([CacheSpec({"k": (1, 2)})] * 5, batch=1).books) == 1


def test_bytes_are_counted():
    spec = CacheSpec({"k": (2, 3), "v": (2, 5)})
    assert spec.bytes_per_token(torch.float64) == 128
    cache = cache_of("fixed", batch=3, capacity=16)
    assert cache.nbytes == 3 * 16 * 128


def test_a_growing_cache_doubles_and_keeps_what_it_held():
    cache = cache_of("growing", capacity=2)
    for i in range(9):
        keys = put(cache, [[i]], first=i)
    assert held(keys) == list(range(9))
    assert cache.nbytes == 16 * 128


def test_unknown_kinds_missing_capacities_and_other_batches_are_refused():
    with pytest.raises(ConfigError, match=r"cache kind 'paper' does not exist\. Known: growing, fixed, ring"):
        cache_of("paper")
    with pytest.raises(ConfigError, match="fixed cache needs a capacity"):
        cache_of("fixed", capacity=None)
    with pytest.raises(RequestError, match="holds 2 rows, not 3"):
        put(cache_of("growing", batch=2), [[0], [0], [0]])


# Rolling back


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keep", [0, 3, 6])
def test_after_a_rollback_the_kept_prefix_goes_on_as_if_nothing_else_had_been(kind, keep):
    cache = cache_of(kind, margin=6, capacity=32)
    put(cache, [list(range(6))], first=0)
    cache.rollback(keep)
    assert cache.length == keep
    keys = put(cache, [[keep, keep + 1]], first=keep)
    assert held(keys, window=WINDOW) == list(range(max(0, keep + 2 - WINDOW), keep + 2))


@pytest.mark.parametrize("kind", KINDS)
def test_rolling_one_row_back_leaves_the_other(kind):
    cache = cache_of(kind, batch=2, margin=6, capacity=32)
    put(cache, [list(range(6))] * 2, first=0)
    cache.rollback(torch.tensor([2, 6]))
    assert cache.lengths.tolist() == [2, 6]
    keys = put(cache, cache.next_places(1).at.tolist())
    assert held(keys, 0, WINDOW) == [0, 1, 2]
    assert held(keys, 1, WINDOW) == [3, 4, 5, 6]


@pytest.mark.parametrize("kind", KINDS)
def test_a_rollback_beyond_what_is_there_is_refused_and_changes_nothing(kind):
    cache = cache_of(kind)
    put(cache, [[0, 1, 2]], first=0)
    for lengths in (4, -1):
        with pytest.raises(RequestError, match=r"cannot roll back to \[-?\d\] tokens: the cache holds \[3\]"):
            cache.rollback(lengths)
    cache.rollback(3)
    assert held(put(cache, [[3]], first=3)) == [0, 1, 2, 3]


def test_a_ring_refuses_a_rollback_to_keys_that_it_has_overwritten():
    cache = cache_of("ring", margin=1)
    put(cache, [list(range(9))], first=0)
    cache.rollback(8)  # the margin holds one token more than the window
    with pytest.raises(RequestError, match=r"the ring of 5 has overwritten keys .* window of 4 needs\. Use a growing"):
        cache.rollback(6)
    assert held(put(cache, [[8]], first=8), window=WINDOW) == [5, 6, 7, 8]
    cache.rollback(0)
    put(cache, [[0, 1, 2]], first=0)
    cache.rollback(1)  # what was overwritten long ago is there again
    assert held(put(cache, [[1]], first=1)) == [0, 1]


def test_a_refused_rollback_leaves_every_layer_as_it_was():
    """One layer could roll back and another could not: neither does."""
    cache = Cache(
        [CacheSpec({"k": (1, 1), "v": (1, 1)}), CacheSpec({"k": (1, 1), "v": (1, 1)}, window=2)], batch=1, kind="ring"
    )
    cache.start(Places.run(0, 9))
    with pytest.raises(RequestError):
        cache.rollback(1)
    assert [book.length for book in cache.books] == [9, 9]


ROLLED_BACK = [
    [-2.5870286498, 1.3475602043, -0.76695099762, -1.105783366, -0.30877738443, 0.76484962879, 1.8398740003,
     -0.39850683261, 1.6498297181, -4.1944206982, -1.3720329825, -5.1615636321, -2.4028682983],
    [-1.5669191425, 1.0780689816, -1.0634022974, -1.4630771546, 0.079981875979, 1.5355984009, 2.4535537911,
     -0.91989169692, 1.9142539782, -4.4929555519, -2.6329681326, -6.4936219088, -1.9570657657],
    [-6.1947727567, 0.1568552187, -2.2178122305, -1.1554137336, 0.1677402423, -0.91197730131, 3.5604008982,
     -0.65145200865, 2.4210911199, -2.4329760872, 1.6275197211, 0.32142510998, -2.3087237243],
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_goes_on_from_a_rolled_back_cache_with_the_known_logits(kind):
    model = case_model()
    cache = model.new_cache(1, kind=kind, capacity=16)
    with torch.no_grad():
        model(torch.tensor([[1, 5, 2, 9, 4, 7, 3]]), cache=cache)
        cache.rollback(4)
        logits = model(torch.tensor([[8, 8, 10]]), cache=cache)[0]
    torch.testing.assert_close(logits, torch.tensor(ROLLED_BACK, dtype=torch.float64), atol=1e-9, rtol=0)


# Reordering


@pytest.mark.parametrize("kind", KINDS)
def test_reordering_moves_rows_with_their_positions(kind):
    cache = cache_of(kind, batch=3)
    put(cache, [[-1, 0, 1], [0, 1, 2], [-1, -1, 0]])
    cache.reorder(torch.tensor([2, 1, 1, 0]))
    assert cache.lengths.tolist() == [1, 3, 3, 2]
    keys = put(cache, [[1], [3], [3], [2]])
    assert [held(keys, row) for row in range(4)] == [[0, 1], [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2]]


def beams(model, prompt, *, width, steps, cached):
    """A beam search: sequences, their log-probabilities, and the parent of each beam at each step."""
    rows = torch.tensor([prompt])
    cache = model.new_cache(1) if cached else None
    logprobs = model(rows, cache=cache)[:, -1].log_softmax(-1)
    totals, parents = torch.zeros(1, dtype=torch.float64), []
    for _ in range(steps):
        best = (totals.unsqueeze(1) + logprobs).flatten().topk(width)
        parent, token = best.indices // logprobs.size(-1), best.indices % logprobs.size(-1)
        totals, rows = best.values, torch.cat([rows[parent], token.unsqueeze(1)], dim=1)
        parents.append(parent.tolist())
        if cached:
            cache.reorder(parent)
        logprobs = model(token.unsqueeze(1) if cached else rows, cache=cache)[:, -1].log_softmax(-1)
    return rows[:, len(prompt) :].tolist(), totals, parents


@pytest.mark.parametrize("cached", [True, False])
@torch.no_grad()
def test_a_beam_search_over_reordered_caches_finds_the_known_beams(cached):
    sequences, totals, parents = beams(case_model(), [1, 5, 2], width=3, steps=5, cached=cached)
    assert sequences == [[6, 6, 10, 10, 10], [6, 1, 6, 10, 10], [6, 1, 5, 1, 6]]
    expected = torch.tensor([-3.983896326331, -4.083184304064, -4.380334353672], dtype=torch.float64)
    torch.testing.assert_close(totals, expected, atol=1e-9, rtol=0)
    assert parents == [[0, 0, 0], [0, 0, 0], [0, 0, 1], [0, 1, 2], [2, 0, 1]]


@pytest.mark.parametrize("name", ["window", "alibi", "two kinds of layer"])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_reordered_rows_go_on_as_their_new_selves(name, kind):
    model = small_model(CONFIGS[name])
    tokens, at = torch.tensor([[0, 0, 5, 7], [3, 1, 4, 1]]), torch.tensor([[-1, -1, 0, 1], [0, 1, 2, 3]])
    cache = model.new_cache(2, kind=kind, capacity=16)
    model(tokens, at=at, cache=cache)
    cache.reorder(torch.tensor([1, 0, 1]))
    logits = model(torch.tensor([[2], [2], [9]]), cache=cache)[:, -1]
    for row, text in enumerate([[3, 1, 4, 1, 2], [5, 7, 2], [3, 1, 4, 1, 9]]):
        torch.testing.assert_close(logits[row], model(torch.tensor([text]))[0, -1], atol=1e-10, rtol=0)


# The encoder's keys


@torch.no_grad()
def test_the_encoders_keys_are_read_once_kept_whole_and_reordered_with_the_rows():
    model = small_model(encoder_decoder())
    source, source_at = (
        torch.tensor([[4, 2, 9, 1, 0], [7, 7, 3, 0, 0]]),
        torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, -1, -1]]),
    )
    memory = model.encode(source, at=source_at)
    cache = model.new_cache(2)
    model(torch.tensor([[0], [0]]), memory=memory, cache=cache)
    first = cache.layers[0].cross
    for token in (5, 6, 7):
        model(torch.tensor([[token], [token]]), cache=cache)
        assert cache.layers[0].cross is first
        assert first.k.size(1) == 5
    cache.reorder(torch.tensor([1]))
    logits = model(torch.tensor([[8]]), cache=cache)[0, -1]
    whole = model(torch.tensor([[7, 7, 3]]), torch.tensor([[0, 5, 6, 7, 8]]))[0, -1]
    torch.testing.assert_close(logits, whole, atol=1e-10, rtol=0)
