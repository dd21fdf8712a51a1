import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onehop.base.errors import DataError
from onehop.data.split import Split


def sides(documents, **options):
    split = Split.of(documents, **({"fraction": 0.1, "seed": 0} | options))
    found = list(split.apply(documents))
    assert [document for document, _ in found] == list(documents) or len(documents) == 1
    return [d for d, is_validation in found if not is_validation], [d for d, is_validation in found if is_validation]


def test_about_the_fraction_of_the_documents_is_for_validation():
    documents = [str(i) for i in range(10_000)]
    train, validation = sides(documents)
    assert set(train) | set(validation) == set(documents)
    assert abs(len(validation) - 1000) < 180  # six standard deviations of a binomial draw


def test_the_split_of_a_document_does_not_change_when_others_are_added():
    documents = [str(i) for i in range(9_000)]
    few, many = sides(documents[:6000])[1], sides(documents)[1]
    assert few == [document for document in many if int(document) < 6000]
    assert few != sides(documents[:6000], seed=1)[1]


@settings(deadline=None)
@given(n=st.integers(2, 30), fraction=st.floats(0.001, 0.999), seed=st.integers(0, 100))
def test_neither_side_is_ever_empty(n, fraction, seed):
    train, validation = sides([str(i) for i in range(n)], fraction=fraction, seed=seed)
    assert train
    assert validation


def test_a_single_document_is_cut_by_characters():
    assert sides(["abcdefghij"]) == (["abcdefghi"], ["j"])
    assert sides(["ab"], fraction=0.01) == (["a"], ["b"])
    assert sides(["ab"], fraction=0.99) == (["a"], ["b"])


@pytest.mark.parametrize(
    ("documents", "fraction", "refusal"),
    [
        ([], 0.1, "every document is empty"),
        (["a"], 0.1, "one character long"),
        (["a", "b"], 0.0, r"data\.validation=0\.0 must lie between 0 and 1"),
        (["a", "b"], 1.0, r"data\.validation=1\.0 must lie between 0 and 1"),
    ],
)
def test_what_cannot_be_split_is_refused(documents, fraction, refusal):
    with pytest.raises(DataError, match=refusal):
        Split.of(documents, fraction=fraction, seed=0)
