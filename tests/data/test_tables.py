import json
import sys

import pytest

from onehop.base.errors import DataError, MissingExtra
from onehop.data.sources import open_source

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

TEXTS = [f"document {i}, naïve" for i in range(3000)]


def write_parquet(file, texts=TEXTS, column="text", kind=None, **options):
    pq.write_table(
        pa.table({"id": list(range(len(texts))), column: pa.array(texts, kind or pa.string())}), file, **options
    )
    return file


def write_arrow(file, texts=TEXTS, new=None):
    table = pa.table({"text": texts})
    with (new or pa.ipc.new_stream)(str(file), table.schema) as writer:
        writer.write_table(table, max_chunksize=700)
    return file


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_a_parquet_file_gives_the_texts_of_its_column_in_order(tmp_path, kind):
    file = write_parquet(tmp_path / "a.parquet", column="story", kind=kind, row_group_size=400)
    assert list(open_source(files=[file], text_field="story")) == TEXTS
    assert list(open_source(files=[file], text_field="story", n_documents=5)) == TEXTS[:5]


@pytest.mark.parametrize("new", [pa.ipc.new_stream, pa.ipc.new_file])
def test_an_arrow_file_gives_its_texts_with_and_without_an_index(tmp_path, new):
    assert list(open_source(files=[write_arrow(tmp_path / "a.arrow", new=new)])) == TEXTS


def saved(folder, names=("data-00000-of-00002.arrow", "data-00001-of-00002.arrow")):
    """A folder as `datasets.save_to_disk` writes it (datasets/arrow_dataset.py): Arrow streams, a state, an info."""
    folder.mkdir(parents=True)
    for i, name in enumerate(names):
        write_arrow(folder / name, TEXTS[i * 10 : i * 10 + 10])
    state = {
        "_data_files": [{"filename": name} for name in names], "_fingerprint": "ab", "_format_columns": None,
        "_format_kwargs": {}, "_format_type": None, "_output_all_columns": False, "_split": "train",
    }  # fmt: skip
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def test_a_saved_dataset_is_read_in_its_own_order_and_nothing_beside_it(tmp_path):
    folder = saved(tmp_path / "d", names=("b.arrow", "a.arrow"))
    write_arrow(folder / "cache-12ab.arrow", ["left over"])
    (folder / "script.py").write_text("raise SystemExit('run')")
    source = open_source(files=[folder])
    assert list(source) == TEXTS[:20]
    assert source.n_skipped == 4
    (folder / "a.arrow").unlink()
    with pytest.raises(DataError, match=r"a\.arrow is missing: .*state\.json names it\. Save the dataset again\.$"):
        open_source(files=[folder])
    (folder / "state.json").write_text("{}")
    with pytest.raises(DataError, match=r"state\.json does not list the dataset's data_files\."):
        open_source(files=[folder])


def test_of_a_saved_dataset_with_splits_one_has_to_be_named(tmp_path):
    saved(tmp_path / "d" / "train")
    (tmp_path / "d" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    assert list(open_source(files=[tmp_path / "d"])) == TEXTS[:20]
    saved(tmp_path / "d" / "test")
    (tmp_path / "d" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(DataError, match=r"holds the splits train, test\. Name the one .*data\.files=.*/d/train\.$"):
        open_source(files=[tmp_path / "d"])
    assert list(open_source(files=[tmp_path / "d" / "train"])) == TEXTS[:20]


def test_a_folder_from_the_hub_is_its_tables_without_card_and_script(tmp_path):
    (tmp_path / "data").mkdir()
    for i in range(2):
        write_parquet(tmp_path / "data" / f"train-0000{i}-of-00002.parquet", TEXTS[i * 5 : i * 5 + 5])
    (tmp_path / "README.md").write_text("the card")
    (tmp_path / "load.py").write_text("raise SystemExit('run')")
    source = open_source(files=[tmp_path])
    assert list(source) == TEXTS[:10]
    assert source.n_skipped == 2
    write_parquet(tmp_path / "data" / "test-00000-of-00001.parquet")
    with pytest.raises(DataError, match=r"holds the splits test, train\. .*data\.files='.*/data/test\*\.parquet'\.$"):
        open_source(files=[tmp_path])
    assert list(open_source(files=[f"{tmp_path}/data/train*.parquet"])) == TEXTS[:10]


def test_a_missing_column_or_one_without_text_is_refused_with_those_that_have_some(tmp_path):
    file = write_parquet(tmp_path / "a.parquet", column="body")
    with pytest.raises(
        DataError, match=r"a\.parquet has no column 'text'\. Columns with text: data\.text_field=body\.$"
    ):
        list(open_source(files=[file]))
    with pytest.raises(DataError, match=r"a\.parquet holds int64, no text, in the column 'id'\. Columns with text: "):
        list(open_source(files=[file], text_field="id"))


def test_a_row_without_text_is_refused_by_its_number(tmp_path):
    file = write_parquet(tmp_path / "a.parquet", [*TEXTS[:2000], None])
    with pytest.raises(DataError, match=r"a\.parquet: row 2001 has no text in the column 'text'\. Drop the rows"):
        list(open_source(files=[file]))
    bad = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")])
    pq.write_table(pa.table({"text": bad}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet: row 1 is not UTF-8 text: byte 1 of it\."):
        list(open_source(files=[tmp_path / "b.parquet"]))


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_table_that_is_cut_off_or_damaged_is_refused_by_name(tmp_path, ending):
    file = tmp_path / f"a.{ending}"
    write_parquet(file, write_page_checksum=True) if ending == "parquet" else write_arrow(file)
    data = file.read_bytes()
    at = len(data) // 2
    for broken in (data[: len(data) // 2], b"", b"no table", data[:at] + b"\xff" * 300 + data[at + 300 :]):
        file.write_bytes(broken)
        with pytest.raises(
            DataError, match=rf"a\.{ending} is damaged or cut off \(.*\)\. Fetch it again, or leave it out"
        ):
            list(open_source(files=[file]))


def test_without_its_package_a_table_is_refused_with_the_way_to_install_it(tmp_path, monkeypatch):
    file = write_parquet(tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        MissingExtra, match=r"^reading a\.parquet needs the package pyarrow: pip install 'onehop-lm\[train"
    ):
        list(open_source(files=[file]))
