import pytest

from onehop.base import errors
from onehop.base.errors import CheckpointError, MissingExtra, OnehopError, did_you_mean, nearest

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, OnehopError)]


def test_the_nearest_name_is_found_and_a_stranger_has_none():
    assert nearest("n_head", ["n_heads", "d_model"]) == "n_heads"
    assert nearest("zebra", ["n_heads", "d_model"]) is None


def test_an_unknown_name_is_answered_with_the_nearest_or_with_all():
    assert did_you_mean("ropee", ["alibi", "rope"]) == "Did you mean rope?"
    assert did_you_mean("zebra", ["rope", "alibi"]) == "Known: alibi, rope."


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_is_one_a_user_can_mend_with_exit_code_2(kind):
    assert kind.exit_code == 2
    assert kind.__doc__


def test_a_checkpoint_error_names_both_kinds_of_mismatch_and_counts_what_it_leaves_out():
    error = CheckpointError.names(absent={"b", "a"}, unclaimed=[f"x{i}" for i in range(8)], where="w.safetensors")
    assert str(error) == (
        "w.safetensors: missing a, b; unexpected x0, x1, x2, x3, x4, x5 and 2 more. "
        "Check that the weights and the config belong to the same model."
    )


def test_a_missing_extra_says_what_to_install_in_one_line():
    error = MissingExtra("gguf", extra="convert", needed_for="reading a .gguf file")
    assert str(error) == "reading a .gguf file needs the package gguf: pip install 'onehop-lm[convert]'"
