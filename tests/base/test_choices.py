import pytest

from onehop.base.choices import Choices
from onehop.base.errors import ConfigError


@pytest.fixture
def table():
    return Choices("position", {"rope": 1, "alibi": 2})


def test_a_known_name_gives_its_row(table):
    assert table.get("alibi") == 2
    assert "alibi" in table
    assert list(table) == table.names() == ["rope", "alibi"]
    assert dict(table.items()) == {"rope": 1, "alibi": 2}


def test_an_unknown_name_is_refused_with_the_nearest(table):
    with pytest.raises(ConfigError, match=r"^position 'ropes' does not exist\. Did you mean rope\?$"):
        table.get("ropes")


def test_an_own_row_is_added_and_known_as_own(table):
    table.add("mine", 3, source="my_parts.py")
    assert table.get("mine") == 3
    assert table.is_own("mine")
    assert not table.is_own("rope")


def test_a_row_of_the_library_cannot_be_replaced(table):
    with pytest.raises(ConfigError, match=r"^position 'rope' exists already\. Give your own part another name\.$"):
        table.add("rope", 3, source="my_parts.py")
    assert table.get("rope") == 1


def test_only_the_file_that_added_a_row_may_add_it_again(table):
    table.add("mine", 3, source="my_parts.py")
    table.add("mine", 4, source="my_parts.py")  # the file was read twice
    assert table.get("mine") == 4
    for source in ("other.py", ""):
        with pytest.raises(ConfigError, match="exists already"):
            table.add("mine", 5, source=source)


def test_two_rows_without_a_source_do_not_replace_each_other(table):
    table.add("mine", 3)
    with pytest.raises(ConfigError, match="exists already"):
        table.add("mine", 4)


def test_a_table_does_not_change_the_rows_it_was_made_from():
    rows = {"rope": 1}
    Choices("position", rows).add("mine", 2)
    assert rows == {"rope": 1}
