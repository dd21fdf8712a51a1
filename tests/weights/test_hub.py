"""A hub name is taken from the cache, or fetched: of several GGUF files the one that is asked for, no other."""

import json
import shutil
from fnmatch import fnmatch

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

import onehop
from onehop.base.errors import CheckpointError
from onehop.cli.main import main
from onehop.formats.gguf.choose import label_of
from onehop.weights import open_model, save_gguf
from onehop.weights.locate import locate
from tests.gguf_models import llama
from tests.golden import IDS, golden_logits, write_golden
from tests.weights.compare import same_weights
from tests.weights.test_gguf_parts import rewritten


class Hub:
    """A hub with one model, me/model, and a cache in front of it; `asked` is what was looked for beyond the cache."""

    def __init__(self, root, monkeypatch):
        self.root, self.online, self.asked, self.error = root, True, [], None
        self.revision(None)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self.download)
        monkeypatch.setattr(huggingface_hub, "list_repo_files", self.list)

    def revision(self, name):
        """The files of a revision; None is the newest."""
        folder = self.root / "hub" / str(name)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def put(self, *names, revision=None):
        for name in names:
            file = self.revision(revision) / name
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(name.encode())

    def files(self, revision):
        folder = self.revision(revision)
        return {file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()}

    def cache(self, revision):
        return self.root / "cache" / str(revision)

    def reach(self, *what):
        if self.error is not None:
            raise self.error
        if not self.online:
            raise LocalEntryNotFoundError("not here")
        self.asked.append(what)

    def download(self, name, *, revision=None, allow_patterns, local_files_only=False):
        assert name == "me/model"
        cache = self.cache(revision)
        if not local_files_only:  # as the real one, which names the folder even where nothing was wanted
            wanted = {n: f for n, f in self.files(revision).items() if any(fnmatch(n, p) for p in allow_patterns)}
            self.reach("fetched", *sorted(wanted))
            for n, file in wanted.items():
                (cache / n).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, cache / n)
        elif not cache.is_dir():
            raise LocalEntryNotFoundError("not here")
        return str(cache)

    def list(self, name, *, revision=None):
        self.reach("listed")
        return sorted(self.files(revision))


@pytest.fixture
def hub(tmp_path, monkeypatch):
    return Hub(tmp_path, monkeypatch)


FILES = ("README.md", "config.json", "m-Q8_0.gguf", "m-Q5_K_S.gguf", "mmproj-m-Q4_K_M.gguf", "m.imatrix")


def test_without_a_kind_four_bits_are_fetched_then_eight(hub):
    hub.put(*FILES)
    assert locate("me/model") == hub.cache(None) / "m-Q8_0.gguf"
    hub.put("m-Q4_K_M.gguf")
    assert locate("me/model") == hub.cache(None) / "m-Q4_K_M.gguf"
    held = {name for name in FILES if (hub.cache(None) / name).exists()}
    assert held == {"config.json", "m-Q8_0.gguf"}, "only what is read is fetched"


def test_a_kind_is_fetched_by_its_name_in_any_case_and_once(hub):
    hub.put(*FILES, "m-Q4_K_M.gguf")
    for _ in range(2):
        assert locate("me/model:q5_k_s") == hub.cache(None) / "m-Q5_K_S.gguf"
    assert hub.asked == [("listed",), ("fetched", "m-Q5_K_S.gguf")], "the second time it was in the cache"


def test_a_revision_may_stand_before_the_kind(hub):
    hub.put("m-Q8_0.gguf", revision="v1.0")
    assert locate("me/model@v1.0:Q8_0") == hub.cache("v1.0") / "m-Q8_0.gguf"
    with pytest.raises(CheckpointError, match=r"me/model:Q8_0 holds no GGUF file of the kind Q8_0\. There are: none"):
        locate("me/model:Q8_0")


def test_safetensors_come_first_unless_a_kind_is_asked_for(hub):
    hub.put("config.json", "model.safetensors", "m-Q4_K_M.gguf")
    assert locate("me/model") == hub.cache(None)
    assert locate("me/model:Q4_K_M") == hub.cache(None) / "m-Q4_K_M.gguf"


def test_shards_of_which_one_is_missing_in_the_cache_are_fetched_again(hub):
    """Fetching was broken off: the index and some shards are there."""
    shards = [f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)]
    hub.put("config.json", *shards)
    index = {"weight_map": {f"a.{i}": name for i, name in enumerate(shards)}}
    (hub.revision(None) / "model.safetensors.index.json").write_text(json.dumps(index))
    assert locate("me/model") == hub.cache(None)
    hub.asked.clear()
    assert locate("me/model") == hub.cache(None)
    assert hub.asked == [], "all of it is in the cache"
    (hub.cache(None) / shards[1]).unlink()
    assert locate("me/model") == hub.cache(None)
    assert (hub.cache(None) / shards[1]).is_file()
    (hub.cache(None) / shards[1]).unlink()
    hub.online = False
    with pytest.raises(CheckpointError, match=r"hub cannot be reached\. Go online once"):
        locate("me/model")


def test_all_parts_of_a_file_are_fetched_and_a_set_that_is_not_whole_is_not_taken_from_the_cache(hub):
    parts = [f"Q4_K_M/m-Q4_K_M-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    hub.put(*parts, "m-Q8_0.gguf")
    first = hub.cache(None) / parts[0]
    assert locate("me/model") == first
    assert all((hub.cache(None) / part).is_file() for part in parts)
    (hub.cache(None) / parts[1]).unlink()
    hub.asked.clear()
    assert locate("me/model") == first
    assert ("fetched", *parts) in hub.asked


def test_without_a_network_the_cache_serves_what_it_has(hub):
    hub.put("m-Q8_0.gguf", "m-Q4_K_M.gguf")
    locate("me/model:Q8_0")
    hub.online = False
    assert locate("me/model") == locate("me/model:Q8_0") == hub.cache(None) / "m-Q8_0.gguf"
    for reason in (None, OfflineModeIsEnabled("offline")):
        hub.error = reason
        with pytest.raises(
            CheckpointError, match=r"it is not in the local cache and the hub cannot be reached"
        ) as caught:
            locate("me/model:Q4_K_M")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("files", "name", "text"),
    [
        (FILES, "me/model:Q3_K_L", r"me/model:Q3_K_L holds no .* kind Q3_K_L\. There are: Q5_K_S, Q8_0\."),
        (("a-Q5_0.gguf", "b.gguf"), "me/model", r"\(of an unnamed kind\)\. Name one, or its kind \(me/model:Q5_0"),
        (("a-Q8_0.gguf", "b-Q8_0.gguf"), "me/model:Q8_0", r"several GGUF files of the kind Q8_0: a-Q8_0\.gguf, b-Q8_0"),
        (("pytorch_model.bin",), "me/model", "has no safetensors and no GGUF file on the hub.*weights_only=True"),
    ],
)  # fmt: skip
def test_what_cannot_be_chosen_is_refused_with_what_there_is(hub, files, name, text):
    hub.put(*files)
    with pytest.raises(CheckpointError, match=text) as caught:
        locate(name)
    assert "\n" not in str(caught.value)


class Response:
    """As much of an answer as the hub's errors look at."""

    headers: dict[str, str] = {}
    request = None


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (GatedRepoError, "agree to terms on its page and to log in"),
        (RepositoryNotFoundError, "the hub has no such model, or it is private"),
        (RevisionNotFoundError, r"it has no revision v2\. Leave @v2 out"),
    ],
)
def test_what_the_hub_refuses_is_told_in_one_line(hub, error, text):
    hub.error = error("no", response=Response())
    with pytest.raises(CheckpointError, match=text):
        locate("me/model@v2:Q8_0")


def test_a_hub_with_no_network_at_all_raises_what_its_http_library_likes(hub):
    hub.error = RuntimeError("connection failed")
    with pytest.raises(CheckpointError, match="the hub cannot be reached"):
        locate("me/model:Q8_0")


def test_a_repository_of_gguf_files_alone_is_loaded_and_the_choice_is_printed(hub, capsys):
    model = onehop.build(llama()).eval()
    save_gguf(model, hub.revision(None) / "m-F32.gguf")
    save_gguf(onehop.build(llama(), seed=5), hub.revision(None) / "m-Q8_0.gguf", dtype="q8_0")
    same_weights(onehop.load("me/model:F32").model, model)
    said = []
    open_model("me/model", report=said.append)
    assert said[0] == "taking m-Q8_0.gguf"
    assert main(["eval", "me/model", "--help"]) == 0
    capsys.readouterr()
    assert main(["verify", "me/model", "--no-compile", "--length", "4"]) == 0
    assert "(taking m-Q8_0.gguf)" in capsys.readouterr().err


def test_a_folder_with_a_kind_gives_that_file(tmp_path):
    """By what the file itself says, and by its name."""
    save_gguf(onehop.build(llama()), tmp_path / "a.gguf", dtype="q8_0")
    save_gguf(onehop.build(llama()), tmp_path / "b-UD-Q2_K_XL.gguf", dtype="float16")
    for kind, name in (("Q8_0", "a.gguf"), ("f16", "b-UD-Q2_K_XL.gguf"), ("UD-Q2_K_XL", "b-UD-Q2_K_XL.gguf")):
        assert locate(f"{tmp_path}:{kind}") == tmp_path / name
    assert locate(tmp_path) == tmp_path / "a.gguf"
    with pytest.raises(CheckpointError, match=r"holds no GGUF file of the kind Q6_K\. There are: Q8_0, F16\."):
        locate(f"{tmp_path}:Q6_K")
    with pytest.raises(CheckpointError, match=r"a\.gguf is one file, so :Q8_0 has nothing to choose from"):
        locate(f"{tmp_path}/a.gguf:Q8_0")


LABELS = {
    "gemma-3-270m-it-Q4_K_M.gguf": "Q4_K_M", "model.q8_0.gguf": "Q8_0", "Phi-3-mini-4k-instruct-fp16.gguf": "F16",
    "a/b-UD-Q4_K_XL-00001-of-00002.gguf": "UD-Q4_K_XL", "x-IQ4_XS.gguf": "IQ4_XS", "x-mxfp4_moe.gguf": "MXFP4_MOE",
    "m-BF16.gguf": "BF16", "q3b-Q5_K_S-imat.gguf": "Q5_K_S", "Qwen2.5-0.5B.gguf": None, "gpt2.gguf": None,
}  # fmt: skip


@pytest.mark.parametrize("name", LABELS)
def test_a_file_s_name_tells_its_kind(name):
    assert label_of(name) == LABELS[name]


def test_a_cache_of_the_hub_s_own_layout_is_read_offline(tmp_path, monkeypatch):
    """Snapshots of links into blobs, by huggingface_hub itself, which may not reach for the network here."""
    home = tmp_path / "cache" / "models--me--model"
    snapshot = home / "snapshots" / ("0" * 40)
    for folder in (snapshot, home / "blobs", home / "refs"):
        folder.mkdir(parents=True)
    (home / "refs" / "main").write_text("0" * 40)
    model = onehop.build(llama()).eval()
    save_gguf(model, tmp_path / "whole.gguf")
    rewritten(tmp_path / "whole.gguf", tmp_path / "m-F32.gguf", split_max_tensors=20)
    parts = sorted(tmp_path.glob("m-F32-*.gguf"))
    for part in parts:
        shutil.move(part, home / "blobs" / part.stem)
        (snapshot / part.name).symlink_to(f"../../blobs/{part.stem}")
    fetch = huggingface_hub.snapshot_download
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name, **o: fetch(name, cache_dir=tmp_path / "cache", **o)
    )
    for name in ("me/model", "me/model:F32", "me/model@main:f32"):
        assert locate(name) == snapshot / parts[0].name
    same_weights(onehop.load("me/model").model, model)


def test_of_a_revision_with_safetensors_only_what_is_read_is_fetched(hub):
    write_golden(hub.revision("v1.0"))
    hub.put("pytorch_model.bin", "modeling.py", "m-Q4_K_M.gguf", revision="v1.0")
    model = open_model("me/model@v1.0", dtype="float64").model
    torch.testing.assert_close(model(torch.tensor([IDS])), golden_logits(), rtol=0, atol=1e-4)
    assert hub.asked == [("fetched", "config.json", "model.safetensors")]
    hub.online = False
    assert locate("me/model@v1.0") == hub.cache("v1.0"), "from the cache"
    with pytest.raises(CheckpointError, match=r"hub cannot be reached\. Go online once\. Or give a local folder\.$"):
        locate("me/model")
