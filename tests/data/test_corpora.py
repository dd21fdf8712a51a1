"""The table of built-in corpora."""

import itertools

import pytest

from onehop.base.errors import ConfigError
from onehop.data import fables
from onehop.data.corpora import CORPORA


def test_the_table_names_the_corpora() -> None:
    assert CORPORA.names() == ["fables", "python-stdlib", "dates"]
    assert all(CORPORA.get(name).name == name for name in CORPORA)


def test_fables_are_endless_and_a_limit_takes_the_first() -> None:
    corpus = CORPORA.get("fables")
    assert corpus.endless
    assert list(corpus.documents(3, limit=4)) == list(itertools.islice(fables.stories(3), 4))


def test_what_is_known_about_fables_comes_with_the_corpus() -> None:
    corpus = CORPORA.get("fables")
    assert corpus.entropy is fables.entropy
    assert corpus.log_prob is not None
    assert corpus.questions is not None
    (text,) = corpus.documents(0, limit=1)
    assert corpus.log_prob(text) == fables.log_prob(text)
    assert corpus.questions(0, 2, kind="it") == fables.questions(0, 2, kind="it")


def test_the_standard_library_ends_and_claims_no_entropy() -> None:
    corpus = CORPORA.get("python-stdlib")
    assert not corpus.endless
    assert (corpus.entropy, corpus.log_prob, corpus.questions) == (None, None, None)
    assert len(list(corpus.documents(0, limit=3))) == 3


def test_a_corpus_that_does_not_exist_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Did you mean fables"):
        CORPORA.get("fable")
