"""Conversion moves every tensor once, says how, and refuses before anything is written."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import onehop
from onehop.base.errors import CheckpointError, ConfigError
from onehop.cli.main import main
from onehop.formats.family import FAMILIES
from onehop.lm import LanguageModel
from onehop.lm.convert import convert
from onehop.weights.reshape import fewer_kv_heads, longer, mean_heads
from tests.gguf_models import CASES
from tests.small_models import decoder, encoder_decoder
from tests.text.small_tokenizers import HARD_TEXTS, byte_fallback
from tests.weights.compare import same_weights

STORIES = Path(__file__).parents[3] / "shared" / "models" / "stories260K"


def saved(folder, *, format="hf", **own):
    """A small model of Llama's layout with a tokenizer, in a folder."""
    tokenizer = byte_fallback(add_bos=True)
    config = decoder(**{"vocab_size": tokenizer.vocab_size, **own})
    lm = LanguageModel(onehop.build(config).eval(), tokenizer)
    lm.save(folder, format=format)
    return lm


def test_a_model_goes_from_folder_to_file_to_folder_bit_for_bit(tmp_path):
    lm = saved(tmp_path / "a")
    convert(tmp_path / "a", tmp_path / "b.gguf")
    convert(tmp_path / "b.gguf", tmp_path / "c", format="onehop")
    convert(tmp_path / "c", tmp_path / "d")
    again = onehop.load(tmp_path / "d")
    same_weights(again.model, lm.model)
    assert again.config.n_layers == 2
    for text in HARD_TEXTS:
        assert again.encode(text) == lm.encode(text)
    assert again.eos_ids == lm.eos_ids


def test_a_kind_behind_the_target_is_refused_with_the_option_that_makes_it(tmp_path):
    saved(tmp_path / "a")
    with pytest.raises(ConfigError, match=r"b\.gguf:Q8_0: the kind of a file that is written is --dtype q8_0\."):
        convert(tmp_path / "a", tmp_path / "b.gguf:Q8_0")
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_the_trained_model_makes_the_whole_round_bit_for_bit(tmp_path):
    if not STORIES.is_dir():
        pytest.skip("the trained model is not beside this checkout")
    convert(STORIES, tmp_path / "a.gguf", dtype="float32")
    convert(tmp_path / "a.gguf", tmp_path / "b")
    first, last = onehop.load(STORIES), onehop.load(tmp_path / "b")
    assert last.config == first.config
    same_weights(last.model, first.model)
    for text in ("Once upon a time, there was a little girl.", *HARD_TEXTS):
        assert last.encode(text) == first.encode(text)
    prompt = {"prompts": "Once upon a time", "temperature": 0.0, "max_new_tokens": 24}
    assert last.generate(**prompt)[0].text == first.generate(**prompt)[0].text


def test_every_tensor_is_reported_once_with_its_operation(tmp_path):
    saved(tmp_path / "a")
    done = convert(tmp_path / "a", tmp_path / "b.gguf", kv_heads=1)
    found = {moved.target: (moved.source, moved.operation) for moved in done.tensors}
    assert found[("blk.0.attn_k.weight",)] == (
        ("model.layers.0.self_attn.k_proj.weight",), "mean of heads; turned, written",
    )  # fmt: skip
    assert found[("blk.1.ffn_up.weight",)] == (("model.layers.1.mlp.up_proj.weight",), "same")
    held = set(onehop.formats.gguf.read_header(tmp_path / "b.gguf").tensors)
    assert {name for target in found for name in target} == held
    assert len(done.tensors) == len(held)


def test_the_report_names_the_tensors_that_the_source_has_and_not_those_of_another_age(tmp_path):
    """A GPT-2 saved from its body, whose names lack a prefix."""
    _, config = CASES["gpt2"]
    LanguageModel(onehop.build(config).eval(), family=FAMILIES.get("gpt2")).save(tmp_path / "a", format="hf")
    file = tmp_path / "a" / "model.safetensors"
    body = {name.removeprefix("transformer."): tensor for name, tensor in load_file(file).items()}
    save_file(body, file)
    done = convert(tmp_path / "a", tmp_path / "b.gguf")
    assert {name for moved in done.tensors for name in moved.source} == body.keys()
    assert "wte.weight" in body


def test_a_tensor_that_the_source_may_lack_is_reported_as_zeros(tmp_path):
    bart = FAMILIES.get("bart")
    config = bart.read_config({
        "model_type": "bart", "vocab_size": 13, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
        "max_position_embeddings": 32,
    })  # fmt: skip
    LanguageModel(onehop.build(config).eval(), start_id=2, family=bart).save(tmp_path / "a", format="hf")
    file = tmp_path / "a" / "model.safetensors"
    held = load_file(file)
    del held["final_logits_bias"]
    save_file(held, file)
    done = convert(tmp_path / "a", tmp_path / "b", format="onehop")
    found = {moved.target: (moved.source, moved.operation) for moved in done.tensors}
    assert found[("head.projection.bias",)] == ((), "zeros, which the source left out")
    assert {name for source, _ in found.values() for name in source} == held.keys()


def test_heads_are_averaged_in_groups_of_neighbours():
    """Four heads of width 1 with the values 1, 3, 10, 20: means 2 and 15."""
    rows = torch.tensor([1.0, 3.0, 10.0, 20.0])
    assert mean_heads(rows, 4, 2).tolist() == [2.0, 15.0]
    assert mean_heads(rows.unsqueeze(1), 4, 1).tolist() == [[8.5]]


def test_averaging_equal_heads_changes_nothing():
    """Keys and values repeated in each group: the model with fewer heads is the same function."""
    model = onehop.build(decoder(attention={"n_kv_heads": 2})).eval()
    many = onehop.build(decoder(attention={"n_kv_heads": 4})).eval()
    weights = dict(model.state_dict())
    for name, rows in model.state_dict().items():
        if name.endswith(("wk.weight", "wv.weight")):
            weights[name] = rows.unflatten(0, (2, -1)).repeat_interleave(2, 0).flatten(0, 1)
    many.load_state_dict(weights)
    same_weights(fewer_kv_heads(many, 2), model)


@pytest.mark.parametrize("rope", ["yarn", "linear", "ntk", "llama3"])
def test_a_stretched_model_has_the_same_weights_and_other_angles(rope):
    model = onehop.build(decoder()).eval()
    new = longer(model, 256, rope=rope)
    scaling = new.config.blocks[0].attention.position.scaling
    assert (scaling.kind, scaling.factor, new.config.max_len) == (rope, 4.0, 256)
    same_weights(new, model)
    x = torch.arange(13)[None]
    with torch.no_grad():
        assert not torch.equal(new(x), model(x))


def test_the_farthest_stretch_is_512_times():
    model = longer(onehop.build(decoder()), 32768, rope="yarn")
    assert model.config.blocks[0].attention.position.scaling.factor == 512.0


def test_layers_with_a_window_keep_their_angles():
    block = {"attention": {"window": 4}}
    model = onehop.build(decoder(blocks={"near": block, "far": {"attention": {}}}))
    near, far = longer(model, 128, rope="yarn").config.blocks
    assert near.attention.position.scaling is None
    assert far.attention.position.scaling.factor == 2.0


REFUSED = [
    ({"kv_heads": 3}, ConfigError, "kv_heads=3 cannot be averaged from 2 key/value heads: it must divide 2. Use 1, 2."),
    ({"context": 64}, ConfigError, "context=64 is no longer than the 64 tokens of this model."),
    ({"context": 32769}, ConfigError, "context=32769 is beyond 512 times the 64 tokens of this model, the farthest "),
    ({"context": 32769, "rope": "linear"}, ConfigError, "(arXiv:2402.13753). Give 32768 or less."),
    ({"context": 128, "rope": "magic"}, ConfigError, "rope='magic' is not known. Use yarn, linear, ntk, llama3."),
    ({"dtype": "q8_0"}, ConfigError, "dtype=q8_0 exists in GGUF files only"),
    ({"dtype": "q4_0"}, ConfigError, "dtype 'q4_0' does not exist. Known: bfloat16, float16, float32, float64."),
    ({"format": "onnx"}, CheckpointError, "format='onnx' cannot be written. Use hf, onehop or gguf."),
]


@pytest.mark.parametrize(("options", "kind", "text"), REFUSED)
def test_what_cannot_be_done_is_refused_and_nothing_is_written(tmp_path, options, kind, text):
    saved(tmp_path / "a")
    with pytest.raises(kind) as caught:
        convert(tmp_path / "a", tmp_path / "b", **options)
    assert text in str(caught.value)
    assert not (tmp_path / "b").exists()


def test_a_source_is_never_overwritten(tmp_path):
    saved(tmp_path / "a")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    convert(tmp_path / "a", tmp_path / "a.gguf")
    (tmp_path / "hard.gguf").hardlink_to(tmp_path / "a.gguf")
    for source, target in (("a", "a"), ("a", "link"), ("a.gguf", "hard.gguf")):
        for overwrite in (False, True):
            with pytest.raises(CheckpointError, match=rf"{target} is the source itself\. Name another target\.$"):
                convert(tmp_path / source, tmp_path / target, overwrite=overwrite)


def held(folder):
    """Every file below a folder, with its contents."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


REPLACED = "replace it: --overwrite (in Python: overwrite=True)."
AMONG = "write among them"
FILLED = {
    "a model": ("m", {"config.json": "{}"}, f"m holds a model already. Name another folder, or {REPLACED}"),
    "a GGUF file in a folder": ("m", {"x.gguf": ""}, f"m holds a model already. Name another folder, or {REPLACED}"),
    "a file": ("m.gguf", None, f"m.gguf is there already. Name another file, or {REPLACED}"),
    "other files": (
        "m", {"b.txt": "", "a.txt": ""},
        f"m holds other files (a.txt). Name a folder that is new or empty, or {REPLACED.replace('replace it', AMONG)}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", FILLED)
def test_what_is_there_is_replaced_only_where_that_is_asked_for(tmp_path, what):
    name, files, text = FILLED[what]
    lm, target = saved(tmp_path / "a"), tmp_path / name
    if files is None:
        target.write_text("mine")
    for file, content in (files or {}).items():
        target.mkdir(exist_ok=True)
        (target / file).write_text(content)
    before = held(tmp_path)
    with pytest.raises(CheckpointError) as refused:
        convert(tmp_path / "a", target)
    assert str(refused.value) == f"{tmp_path}/{text}"
    assert held(tmp_path) == before
    convert(tmp_path / "a", target, overwrite=True)
    same_weights(onehop.load(target).model, lm.model)
    assert set(before) <= set(held(tmp_path))


@pytest.mark.parametrize("mark", ["recipe.toml", "checkpoints/step"])
def test_the_folder_of_a_run_is_never_a_target(tmp_path, mark):
    lm, run = saved(tmp_path / "a"), tmp_path / "run"
    for name in ("config.json", "model.safetensors", "provenance.json", mark):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("of the run")
    before, text = held(run), rf"run holds a run \({mark.split('/')[0]}\), .*Name another\.$"
    for write in (
        lambda: convert(tmp_path / "a", run),
        lambda: convert(tmp_path / "a", run, overwrite=True),
        lambda: lm.save(run),
        lambda: lm.save(run, format="hf"),
    ):
        with pytest.raises(CheckpointError, match=text):
            write()
    assert held(run) == before
    lm.save(run / "new.gguf", format="gguf")
    convert(tmp_path / "a", run / "hf")
    assert {name: content for name, content in held(run).items() if name in before} == before


def test_an_empty_folder_is_as_good_as_a_new_one(tmp_path):
    lm = saved(tmp_path / "a")
    (tmp_path / "b").mkdir()
    convert(tmp_path / "a", tmp_path / "b")
    same_weights(onehop.load(tmp_path / "b").model, lm.model)


MISNAMED = [
    ("", None, "a target without a name. Give a folder, or a file that ends in .gguf."),
    ("m", "gguf", "format=gguf writes a file whose name ends in .gguf, not m. Name it m.gguf."),
    ("m.gguf", "hf", "format=hf writes a folder, and m.gguf is the name of a GGUF file. Give another name."),
    ("m.gguf", "onehop", "format=onehop writes a folder, and m.gguf is the name of a GGUF file. Give another name."),
]


@pytest.mark.parametrize(("name", "format", "text"), MISNAMED)
def test_a_name_that_says_another_format_is_refused(tmp_path, monkeypatch, name, format, text):
    lm = saved(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    for write in (lambda: convert("a", name, format=format), lambda: lm.save(name, format=format or "onehop")):
        with pytest.raises(ConfigError) as refused:
            write()
        assert str(refused.value) == text
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_a_target_of_another_kind_is_refused_whatever_is_asked(tmp_path):
    saved(tmp_path / "a")
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "b.gguf").mkdir()
    (tmp_path / "lost").symlink_to(tmp_path / "lost")
    for name, text in {
        "notes": "is a file. Name a folder, or a file that ends in .gguf.",
        "b.gguf": "is a folder. Name a file.",
        "lost": "is a link that leads nowhere. Remove it, or name another target.",
    }.items():
        for overwrite in (False, True):
            with pytest.raises(CheckpointError) as refused:
                convert(tmp_path / "a", tmp_path / name, overwrite=overwrite)
            assert str(refused.value) == f"{tmp_path / name} {text}"
    assert (tmp_path / "notes").read_text() == "mine"


def test_a_type_that_gguf_lacks_is_answered_with_those_that_it_has(tmp_path):
    saved(tmp_path / "a")
    with pytest.raises(ConfigError, match=r"^dtype='q4_0' .* GGUF\. Use float32, float16, bfloat16, q8_0\.$"):
        convert(tmp_path / "a", tmp_path / "b.gguf", dtype="q4_0")
    assert not (tmp_path / "b.gguf").exists()


def test_what_is_stretched_already_and_what_does_not_turn_is_refused():
    with pytest.raises(ConfigError, match="stretched already \\(yarn\\)"):
        longer(longer(onehop.build(decoder()), 128, rope="yarn"), 256, rope="yarn")
    with pytest.raises(ConfigError, match="has none"):
        longer(onehop.build(decoder("alibi")), 128, rope="yarn")


def test_what_no_architecture_of_gguf_holds_is_refused_by_name(tmp_path):
    LanguageModel(onehop.build(encoder_decoder())).save(tmp_path / "a")
    with pytest.raises(ConfigError, match="cannot be written as a GGUF of the architecture"):
        convert(tmp_path / "a", tmp_path / "b.gguf")
    assert not list(tmp_path.glob("*.gguf"))


def test_the_command_tells_a_machine_everything(tmp_path, capsys):
    saved(tmp_path / "a")
    words = ["convert", str(tmp_path / "a"), str(tmp_path / "b.gguf"), "--dtype", "float16", "--extend-context", "128"]
    assert main([*words, "--rope", "linear", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["format"], told["dtype"]) == ("gguf", "float16")
    assert told["tensors"][0] == {
        "from": ["model.embed_tokens.weight"],
        "to": ["token_embd.weight"],
        "operation": "same",
    }
    assert "2306.15595" in told["notes"][0]
    assert onehop.load(tmp_path / "b.gguf").config.max_len == 128
    again = ["convert", str(tmp_path / "a"), str(tmp_path / "c"), "--kv-heads", "1"]
    assert main(again) == 0
    assert "mean of heads" in capsys.readouterr().out
    assert main(again) == 2
    assert "c holds a model already" in capsys.readouterr().err
    assert main([*again, "--overwrite"]) == 0


def test_a_way_to_stretch_without_a_longer_context_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"^rope=ntk stretches nothing without a context: give extend-context"):
        convert(tmp_path, tmp_path / "b", rope="ntk")
