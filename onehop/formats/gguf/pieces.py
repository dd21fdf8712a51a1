"""Scored pieces, as SentencePiece has them, and the merges of a BPE that mean the same. No torch.

SentencePiece joins the two neighbours whose union has the best score; a BPE joins the pair of the lowest rank. They are
one where the pairs of a piece, best pieces first, are the BPE's list.
"""

from collections.abc import Iterable, Mapping, Sequence

Pair = tuple[str, str]


def merges_of(scores: Mapping[str, float], ids: Mapping[str, int]) -> list[Pair]:
    """All ways to join two pieces of `ids` into one of `scores`, the best score first, earlier ids first."""
    found: list[tuple[float, int, int, str, str]] = []
    for piece, score in scores.items():
        for cut in range(1, len(piece)):
            left = piece[:cut]
            if left in ids and (right := piece[cut:]) in ids:
                found.append((-score, ids[piece], ids[left], left, right))
    found.sort()
    return [(left, right) for *_, left, right in found]


def scores_of(merges: Sequence[Pair], ids: Iterable[str]) -> dict[str, float]:
    """Minus the rank of the first merge that makes a piece, 0 for pieces that no merge makes."""
    scores = dict.fromkeys(ids, 0.0)
    for rank, (left, right) in reversed(list(enumerate(merges))):
        scores[left + right] = -float(rank)
    return scores


def equal(a: Sequence[Pair], b: Sequence[Pair]) -> bool:
    """Whether two lists make the same pieces in the same order out of the same pairs."""
    return _grouped(a) == _grouped(b)


def _grouped(merges: Sequence[Pair]) -> list[tuple[str, set[Pair]]]:
    groups: list[tuple[str, set[Pair]]] = []
    for left, right in merges:
        if not groups or groups[-1][0] != left + right:
            groups.append((left + right, set()))
        groups[-1][1].add((left, right))
    return groups
