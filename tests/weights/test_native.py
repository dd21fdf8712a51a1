"""onehop's own folder holds a model completely, bit for bit, and an interrupted save changes nothing."""

import json

import pytest
import torch

from onehop.base.errors import CheckpointError, OnehopError
from onehop.config import ModelConfig
from onehop.config import own as own_files
from onehop.config.attention import SCORES
from onehop.parts import own as own_parts
from onehop.text.bpe import train_characters
from onehop.weights import load_native, open_model, save_native
from onehop.weights import native as native_files
from tests.small_models import CONFIGS, decoder, encoder_decoder, small_model
from tests.weights.compare import same_weights

ALL = CONFIGS | {"encoder and decoder": encoder_decoder()}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_every_kind_of_model_comes_back_bit_for_bit(tmp_path, name, dtype):
    model = small_model(ALL[name], dtype=dtype)
    save_native(model, tmp_path / "m")
    again = load_native(tmp_path / "m")
    assert again.config == model.config
    same_weights(again, model)
    tokens = torch.tensor([[1, 5, 2, 7]])
    source = (tokens, tokens[:, :2]) if model.encoder is not None else (tokens,)
    assert torch.equal(again(*source), model.eval()(*source))


def test_a_loaded_model_is_ready_to_run_and_to_train(tmp_path):
    save_native(small_model(decoder()), tmp_path / "m")
    model = load_native(tmp_path / "m")
    assert not model.training
    assert all(p.requires_grad and p.is_leaf and not p.is_meta for p in model.parameters())
    model(torch.tensor([[1, 2]])).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_a_tied_head_is_saved_once_and_is_the_embedding_after_loading(tmp_path):
    model = small_model(decoder(head={"tied": True}))
    save_native(model, tmp_path / "m")
    again = load_native(tmp_path / "m")
    assert again.head.projection.weight is again.embed.tokens.weight
    assert sum(p.numel() for p in again.parameters()) == sum(p.numel() for p in model.parameters())


def test_the_dtype_is_the_files_own_or_the_one_that_is_asked_for(tmp_path):
    model = small_model(decoder(), dtype=torch.float32)
    save_native(model, tmp_path / "m", dtype="float16")
    assert load_native(tmp_path / "m").embed.tokens.weight.dtype == torch.float16
    wide = load_native(tmp_path / "m", dtype="float64")
    same_weights(wide, small_model(decoder(), dtype=torch.float32).to(torch.float16).to(torch.float64))


def test_a_weight_that_is_not_a_number_is_refused_by_name(tmp_path):
    model = small_model(decoder())
    with torch.no_grad():
        model.layers[1].attention.wq.weight[3, 2] = float("nan")
    save_native(model, tmp_path / "m")
    with pytest.raises(CheckpointError, match=r"layers\.1\.attention\.wq\.weight holds NaN: the weights are damaged"):
        load_native(tmp_path / "m")


def test_values_that_float16_cannot_hold_are_refused_by_name(tmp_path):
    model = small_model(decoder(), dtype=torch.float32)
    with torch.no_grad():
        model.final_norm.weight[3] = 1e5
    save_native(model, tmp_path / "m")
    with pytest.raises(CheckpointError, match=r"final_norm\.weight reaches 100000, which float16 cannot"):
        load_native(tmp_path / "m", dtype="float16")
    assert load_native(tmp_path / "m", dtype="bfloat16").final_norm.weight[3] == 99840


def test_the_folder_says_what_made_it_and_where_texts_end(tmp_path):
    tokenizer = train_characters(["abc"])
    made = {"recipe": {"train": {"steps": 3}}, "losses": [2.5, 1.25], "data": "0123"}
    save_native(
        small_model(decoder()), tmp_path / "m", tokenizer=tokenizer, provenance=made, generation={"eos_token_id": 2}
    )
    opened = open_model(tmp_path / "m")
    assert opened.kind == "onehop"
    assert opened.provenance == made
    assert opened.tokenizer is not None
    assert opened.tokenizer.fingerprint == tokenizer.fingerprint
    assert opened.generation == {"eos_token_id": 2}
    assert opened.eos_ids == {2: "generation_config.json"}


def test_a_tokenizers_files_are_copied_as_they_are(tmp_path):
    (tmp_path / "from").mkdir()
    for name in ("tokenizer.json", "chat_template.jinja", "config.json"):
        (tmp_path / "from" / name).write_text(f"  {name} \r\n")
    save_native(small_model(decoder()), tmp_path / "m", tokenizer=tmp_path / "from")
    assert (tmp_path / "m" / "tokenizer.json").read_bytes() == b"  tokenizer.json \r\n"
    assert (tmp_path / "m" / "chat_template.jinja").exists()
    assert "d_model" in (tmp_path / "m" / "config.json").read_text()


def files(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("stage", ["write_tensors", "to_json", "put_tokenizer", "write_json"])
@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), RuntimeError("x"), OSError(28, "No space left on device")],
    ids=["Ctrl-C", "bug", "full"],
)
def test_a_save_that_is_interrupted_leaves_the_old_folder_as_it_was(tmp_path, monkeypatch, stage, error):
    folder = tmp_path / "m"
    save_native(small_model(decoder()), folder, provenance={"step": 1})
    (folder / "metrics.jsonl").write_text("a user's own file")
    before = files(folder)

    def fail(*args, **options):
        raise error

    monkeypatch.setattr(native_files, stage, fail)
    with pytest.raises(OnehopError if isinstance(error, OSError) else type(error)) as caught:
        save_native(small_model(decoder(), seed=5), folder, provenance={"step": 2}, tokenizer=tmp_path)
    assert files(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    if isinstance(error, OSError):
        assert "the disk is full. Free some space or write elsewhere" in str(caught.value)


def test_a_save_that_is_interrupted_leaves_no_new_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(native_files, "to_json", lambda config: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save_native(small_model(decoder()), tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_a_save_into_a_run_keeps_what_else_lies_there_and_replaces_all_of_the_model(tmp_path):
    first, second = small_model(decoder()), small_model(decoder(), seed=5)
    (tmp_path / "m" / "state").mkdir(parents=True)
    (tmp_path / "m" / "metrics.jsonl").write_text("{}")
    save_native(first, tmp_path / "m", provenance={"step": 1})
    save_native(second, tmp_path / "m")
    same_weights(load_native(tmp_path / "m"), second)
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == [
        "config.json", "metrics.jsonl", "model.safetensors", "state",
    ]  # fmt: skip


def change_config(folder, **own):
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | own))


def test_weights_and_config_that_do_not_belong_together_are_refused_by_name(tmp_path):
    save_native(small_model(decoder()), tmp_path)
    change_config(tmp_path, vocab_size=12)
    text = r"embed\.tokens\.weight has the shape \(13, 16\), but the config needs \(12, 16\)"
    with pytest.raises(CheckpointError, match=text):
        load_native(tmp_path)
    change_config(tmp_path, vocab_size=13, head={"tied": True})
    with pytest.raises(CheckpointError, match=r"unexpected head\.projection\.weight"):
        load_native(tmp_path)
    change_config(tmp_path, head={"tied": False, "bias": True})
    with pytest.raises(CheckpointError, match=r"missing head\.projection\.bias"):
        load_native(tmp_path)
    change_config(tmp_path, head={"tied": False}, n_layers=10**9)
    with pytest.raises(CheckpointError, match="the config says 1000000000 layers, but there are only 21 tensors"):
        load_native(tmp_path)


OWN = """
from torch import nn
import onehop
from onehop.config.attention import ScoreConfig
from onehop.parts.own import part

class NearConfig(ScoreConfig):
    kind: str = "near"

@part("score", NearConfig)
class Near(nn.Module):
    def __init__(self, cfg, attention):
        super().__init__()
    def forward(self, scores, q_at, k_at):
        return scores - 0.5 * (q_at[:, None, :, None] - k_at[:, None, None, :]).abs()
"""


def test_a_part_of_ones_own_comes_back_with_its_file_and_only_with_it(tmp_path, monkeypatch):
    for table in (SCORES, own_parts.SCORES):
        monkeypatch.setattr(table, "_rows", dict(table._rows))
        monkeypatch.setattr(table, "_own", dict(table._own))
    monkeypatch.setattr(own_files, "_DONE", {})
    mine = tmp_path / "mine.py"
    mine.write_text(OWN)
    own_files.load_own(mine)
    config = decoder(attention={"score": "near"}, parts=[str(mine)])
    model = small_model(config).eval()
    save_native(model, tmp_path / "m")
    tokens = torch.tensor([[1, 5, 2, 7]])
    assert torch.equal(open_model(tmp_path / "m", parts=[mine]).model(tokens), model(tokens))
    plain = small_model(ModelConfig.model_validate({**dict(decoder()), "parts": []})).eval()
    assert not torch.allclose(plain(tokens), model(tokens))  # the part does something

    for table in (SCORES, own_parts.SCORES):
        monkeypatch.setattr(table, "_rows", {})
    with pytest.raises(OnehopError, match=r"name its file \(.*mine\.py"):
        open_model(tmp_path / "m")


def test_buffers_keep_their_type_whatever_the_weights_are_read_and_written_as(tmp_path):
    """A router's bias moves in steps of 0.001, which bfloat16 would lose."""
    moe = {"kind": "moe", "d_ff": 8, "n_experts": 4, "n_active": 2, "balance": "bias"}
    model = small_model(decoder(ffn=moe), dtype=torch.float32)
    model.layers[0].ffn.router.choice_bias += 1.001
    save_native(model, tmp_path, dtype=torch.bfloat16)
    for dtype in (None, "bfloat16", "float64"):
        again = load_native(tmp_path, dtype=dtype).layers[0].ffn.router.choice_bias
        assert torch.equal(again, model.layers[0].ffn.router.choice_bias)
