"""A family is found by its model_type, or refused with what is known."""

import pytest

from onehop.base.errors import CheckpointError, ConfigError
from onehop.formats import FAMILIES, family_for, family_of
from tests.small_models import decoder


def test_every_family_is_found_by_its_own_name():
    for name in FAMILIES:
        assert family_for({"model_type": name}) is FAMILIES.get(name)
        assert FAMILIES.get(name).name == name


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ({}, r"names no model_type, so its layout is unknown\. Known: .*llama"),
        ({"model_type": None}, "names no model_type"),
        ({"model_type": "lama"}, r"models of the type 'lama' cannot be read\. Did you mean llama\?"),
        ({"model_type": "rwkv6"}, r"models of the type 'rwkv6' cannot be read\. Known: .*llama"),
    ],
)
def test_an_unknown_family_is_refused_with_what_is_known(raw, text):
    with pytest.raises(CheckpointError, match=text):
        family_for(raw)


def test_the_first_family_that_can_hold_a_config_is_taken():
    assert family_of(decoder()).name == "llama"


def test_a_config_that_no_family_can_hold_is_refused_by_what_stands_in_the_way():
    with pytest.raises(ConfigError, match=r"attention\.sees=prefix cannot be written as a"):
        family_of(decoder(attention={"sees": "prefix"}))
