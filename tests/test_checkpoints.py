"""docs/checkpoints.md and README.md list the checkpoints that the code reads, and those that it refuses by name."""

import re
from itertools import groupby
from pathlib import Path

from onehop.formats.elsewhere import NEEDED
from onehop.formats.family import FAMILIES, WHOLES
from onehop.formats.gguf import ARCHITECTURES
from onehop.formats.gguf.header import TYPES

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "checkpoints.md").read_text()
README = (ROOT / "README.md").read_text()


def section(title):
    (found,) = [part for part in PAGE.split("\n## ") if part.startswith(title)]
    return " ".join(found.split())


def listed(text):
    return [name for name in re.sub(r"\([^)]*\)", "", text).replace(" and ", ", ").replace(" ", "").split(",") if name]


def test_the_page_lists_every_family_and_no_other():
    text = section("Hugging Face folders")
    assert listed(re.search(r"By `model_type`: ([^.]*)\.", text)[1]) == list(FAMILIES)
    assert listed(re.search(r"Of ([^.]*) the text model is read", text)[1]) == list(WHOLES)


def test_the_page_lists_every_refused_family_with_what_it_would_take():
    rows = re.findall(r"^\| ([^|`]+) \| ([^|]+) \|$", PAGE, flags=re.MULTILINE)
    assert {name: needs for names, needs in rows for name in listed(names)} == dict(NEEDED)
    assert len(rows) == len([needs for needs, _ in groupby(NEEDED.values())])


def test_the_page_lists_every_architecture_and_type_of_gguf():
    text = section("GGUF files")
    assert listed(re.search(r"Architectures: (.*?)\. Read in", text)[1]) == list(ARCHITECTURES)
    kinds = re.search(r"Read in (.*?); written", text)[1]
    named = {name for name in listed(kinds) if "K-quants" not in name}
    assert named == {kind for kind, *_ in TYPES.values() if not kind.endswith("_K")}


def test_the_readme_names_every_family_and_architecture_too():
    text = " ".join(README.split())
    families = listed(re.search(r"with the numbers of their own code: ([^.]*)\.", text)[1])
    assert sorted(families) == sorted(FAMILIES)
    assert listed(re.search(r"own code: [^.]*\. Of ([^.]*) the text model is read", text)[1]) == list(WHOLES)
    assert sorted(listed(re.search(r"of the architectures (.*?) are read", text)[1])) == sorted(ARCHITECTURES)
    for name in listed(re.search(r"recurrent ones \(([^)]*), …\)", text)[1]):
        assert name in NEEDED
