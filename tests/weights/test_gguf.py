"""GGUF files hold what was written, and what others write is read as they read it."""

import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

import onehop
from onehop.base.errors import CheckpointError, ConfigError, MissingExtra
from onehop.formats.gguf import ARCHITECTURES, read_header, write_config
from onehop.formats.gguf.architecture import as_written
from onehop.formats.gguf.header import TYPES
from onehop.formats.layout import leaves
from onehop.lm import LanguageModel
from onehop.weights import load_gguf, save_gguf
from onehop.weights.gguf_files import PLAIN, GGUFTensors
from onehop.weights.locate import locate
from tests.gguf_models import CASES, LONGROPE, gemma, llama
from tests.text.small_tokenizers import byte_fallback
from tests.weights.compare import same_weights


def made(config, seed=0):
    """A model whose every weight says something: norms and biases are drawn as well.

    Norm weights that are stored around 0 come back exactly from 1 + w where w is a multiple of 2^-10.
    """
    model = onehop.build(config, seed=seed).eval()
    generator = torch.Generator().manual_seed(seed)
    middle = 1 - getattr(config.final_norm, "offset", 0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                drawn = torch.randint(-512, 512, weight.shape, generator=generator) / 1024
                weight.copy_(drawn + (0 if name.endswith("bias") else middle))
    return model


def tokens():
    return torch.randint(61, (2, 40), generator=torch.Generator().manual_seed(1))


def logits(model):
    with torch.no_grad():
        return model(tokens())


def written(config):
    """The config without what no file holds: names of blocks, what matters in training only."""
    return list(leaves(as_written(config)))


def saved(file, architecture, config, **options):
    model = made(config)
    save_gguf(model, file, family=ARCHITECTURES.get(architecture), **options)
    return model


@pytest.mark.parametrize("name", CASES)
def test_every_architecture_comes_back_bit_for_bit(tmp_path, name):
    architecture, config = CASES[name]
    model = saved(tmp_path / "a.gguf", architecture, config)
    assert read_header(tmp_path / "a.gguf").metadata["general.architecture"] == architecture
    again = load_gguf(tmp_path / "a.gguf")
    same_weights(again, model)
    assert written(again.config) == written(model.config)
    assert torch.equal(logits(again), logits(model))


@pytest.mark.parametrize("architecture", ARCHITECTURES.names())
def test_every_architecture_has_a_case(architecture):
    assert architecture in {found for found, _ in CASES.values()}


def test_rotary_pairs_lie_side_by_side_in_one_architecture_only(tmp_path):
    """The rows of a head of width 8: 0, 4, 1, 5, 2, 6, 3, 7 in llama; as they are in qwen2."""
    for architecture, order in (("llama", [0, 4, 1, 5, 2, 6, 3, 7]), ("qwen2", list(range(8)))):
        model = saved(tmp_path / "a.gguf", architecture, llama(attention={"bias": True}))
        theirs = GGUFTensors(read_header(tmp_path / "a.gguf"))
        for ours, name in (("wq", "attn_q"), ("wk", "attn_k")):
            weight = getattr(model.layers[0].attention, ours).weight
            assert torch.equal(theirs.read(f"blk.0.{name}.weight")[:8], weight[:8][order])
        assert torch.equal(theirs.read("blk.0.attn_v.weight"), model.layers[0].attention.wv.weight)


def test_norm_weights_around_0_are_stored_around_1(tmp_path):
    model = saved(tmp_path / "a.gguf", "gemma", gemma())
    theirs = GGUFTensors(read_header(tmp_path / "a.gguf"))
    assert torch.equal(theirs.read("output_norm.weight"), model.final_norm.weight + 1)


def test_two_norms_side_by_side_have_their_own_order(tmp_path):
    """Where there are two, the first is the feed-forward layer's."""
    model = saved(tmp_path / "a.gguf", *CASES["falcon, two norms"])
    theirs = GGUFTensors(read_header(tmp_path / "a.gguf"))
    assert torch.equal(theirs.read("blk.0.attn_norm.weight"), model.layers[0].ffn_norm.weight)
    assert torch.equal(theirs.read("blk.0.attn_norm_2.weight"), model.layers[0].attention_norm.weight)


QUANTISED = [kind for kind, *_ in TYPES.values() if kind not in PLAIN]


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # random bytes hold scales that are no numbers
@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_numbers_are_those_of_the_package(tmp_path, kind):
    """Random blocks, more than are computed at once; types that the package cannot write are read all the same."""
    number = gguf.GGMLQuantizationType[kind]
    block, width = gguf.GGML_QUANT_SIZES[number]
    rows = np.random.default_rng(0).integers(0, 255, (700, 1024 // block * width), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "any")
    writer.add_tensor("x", rows, raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = GGUFTensors(read_header(tmp_path / "a.gguf")).read("x")
    assert found.shape == (700, 1024)
    assert np.array_equal(found.numpy(), gguf.quants.dequantize(rows, number), equal_nan=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_rounds_matrices_and_keeps_vectors(tmp_path, dtype):
    model = saved(tmp_path / "a.gguf", "llama", llama(), dtype=dtype)
    again = load_gguf(tmp_path / "a.gguf", dtype="float32")
    for name, weight in model.state_dict().items():
        half = weight.to(getattr(torch, dtype)).float() if weight.dim() > 1 else weight
        assert torch.equal(again.state_dict()[name], half), name
    assert load_gguf(tmp_path / "a.gguf").embed.tokens.weight.dtype == getattr(torch, dtype)


def test_eight_bits_are_the_package_s_own_and_odd_rows_are_half_precision(tmp_path):
    """Rows of 32 and 48 numbers: blocks of 32 fit the first only."""
    model = saved(tmp_path / "a.gguf", "llama", llama(), dtype="q8_0")
    header = read_header(tmp_path / "a.gguf")
    assert header.tensors["blk.0.ffn_up.weight"].type == "Q8_0"
    assert header.tensors["blk.0.ffn_down.weight"].type == "F16"
    assert header.tensors["blk.0.attn_norm.weight"].type == "F32"
    again, w = load_gguf(tmp_path / "a.gguf"), model.layers[0].ffn.w3.weight
    q8 = gguf.GGMLQuantizationType.Q8_0
    want = gguf.quants.dequantize(gguf.quants.quantize(w.detach().numpy(), q8), q8)
    assert np.array_equal(again.layers[0].ffn.w3.weight.detach().numpy(), want)
    assert again.embed.tokens.weight.dtype == torch.float32


def test_a_number_that_half_precision_cannot_hold_is_refused_and_leaves_nothing(tmp_path):
    model = made(llama())
    with torch.no_grad():
        model.layers[0].ffn.w1.weight[0, 0] = 1e6
    with pytest.raises(CheckpointError, match=r"reaches 1e\+06, which F16 cannot hold"):
        save_gguf(model, tmp_path / "a.gguf", dtype="float16")
    assert not list(tmp_path.iterdir())


REFUSED = {
    "ffn.activation=relu": llama(ffn={"activation": "relu"}),
    "attention.window=9": llama(attention={"window": 9}),
    "attention.position=alibi": llama(position={"kind": "alibi"}),
    "parallel=one norm": llama(parallel="one norm"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_llama_cpp_cannot_run_is_refused_by_name(tmp_path, text):
    architecture = ARCHITECTURES.get("llama")
    with pytest.raises(ConfigError, match=f"{text} cannot be written as a GGUF of the architecture llama"):
        architecture.write_config(as_written(REFUSED[text]))


def test_another_dtype_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="dtype='q4_k' cannot be written as GGUF"):
        save_gguf(made(llama()), tmp_path / "a.gguf", dtype="q4_k")


def test_a_searched_stretching_is_written_with_its_gain_worked_out():
    """LongRoPE's factor 4 over 16 tokens warms the scores by sqrt(1 + ln 4 / ln 16) = sqrt(1.5)."""
    config = llama(position={"kind": "rope", "scaling": LONGROPE | {"attention_factor": None, "factor": 4.0}})
    _, keys, tensors = write_config(config)
    assert keys["rope.scaling.attn_factor"] == pytest.approx(1.5**0.5, rel=2**-23)  # a float32 in the file
    assert tensors["rope_factors_long.weight"] == LONGROPE["long_factor"]


def test_divisors_of_no_published_form_are_read_as_such(tmp_path):
    """Any list of divisors is a stretching of its own kind, and not the nearest one that has a name."""
    saved(tmp_path / "a.gguf", *CASES["llama, llama3"])
    header = read_header(tmp_path / "a.gguf")
    place = header.tensors["rope_freqs.weight"]
    data = bytearray((tmp_path / "a.gguf").read_bytes())
    data[place.begin : place.begin + place.nbytes] = np.linspace(1, 3, place.shape[0], dtype=np.float32).tobytes()
    (tmp_path / "a.gguf").write_bytes(data)
    scaling = load_gguf(tmp_path / "a.gguf").config.blocks[0].attention.position.scaling
    assert (scaling.kind, scaling.attention_factor) == ("longrope", 1.0)
    assert scaling.short_factor == scaling.long_factor
    assert scaling.long_factor[0] == 1.0
    assert scaling.long_factor[-1] == 3.0


def changed(file, key, value):
    """The file with one key more, by the package's own writer."""
    reader = gguf.GGUFReader(file)
    arch = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(file.with_name("b.gguf"), arch)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", key):
            sub = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=sub)
    writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file.with_name("b.gguf")


UNREADABLE = {
    ("general.architecture", "mamba"): "models of the architecture 'mamba' cannot be read",
    ("llama.something.new", 3): "something.new=3 is unknown in a GGUF of the architecture llama and could change",
    ("llama.attention.value_length", 5): "attention.value_length=5 and attention.key_length=8 differ",
    ("llama.rope.scaling.type", "magic"): "rope.scaling.type='magic' is not known. Known: none, linear, yarn",
    ("llama.attention.causal", False): "attention.causal=False cannot be honoured",
    ("split.count", 3): "is one of 3 parts of a model",
    ("llama.block_count", 100_000): "the config says 100000 layers, but there are only",
}  # fmt: skip


@pytest.mark.parametrize(("key", "value"), UNREADABLE)
def test_what_cannot_be_honoured_is_refused_with_the_file_and_the_key(tmp_path, key, value):
    saved(tmp_path / "a.gguf", "llama", llama())
    if key == "general.architecture":
        data = (tmp_path / "a.gguf").read_bytes().replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0mamba", 1)
        (tmp_path / "b.gguf").write_bytes(data)
    else:
        changed(tmp_path / "a.gguf", key, value)
    with pytest.raises(CheckpointError) as caught:
        load_gguf(tmp_path / "b.gguf")
    assert UNREADABLE[key, value] in str(caught.value)
    assert str(tmp_path / "b.gguf") in str(caught.value)
    assert "config.json" not in str(caught.value)


def test_a_tensor_that_the_table_does_not_know_is_refused_by_name(tmp_path):
    saved(tmp_path / "a.gguf", "llama", llama())
    data = (tmp_path / "a.gguf").read_bytes().replace(b"blk.1.attn_q.weight", b"blk.1.attn_z.weight")
    (tmp_path / "a.gguf").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"missing blk.1.attn_q.weight; unexpected blk.1.attn_z.weight"):
        load_gguf(tmp_path / "a.gguf")


def test_without_the_package_plain_files_are_read_and_the_rest_names_the_installation(tmp_path, monkeypatch):
    model = saved(tmp_path / "a.gguf", "llama", llama())
    saved(tmp_path / "b.gguf", "llama", llama(), dtype="q8_0")
    monkeypatch.setitem(sys.modules, "gguf", None)
    same_weights(load_gguf(tmp_path / "a.gguf"), model)
    for needs in (lambda: load_gguf(tmp_path / "b.gguf"), lambda: save_gguf(model, tmp_path / "c.gguf")):
        with pytest.raises(MissingExtra, match=r"needs the package gguf: pip install 'onehop-lm\[convert\]'"):
            needs()
    assert not (tmp_path / "c.gguf").exists()


def test_a_file_is_loaded_with_its_tokenizer_and_its_ends(tmp_path):
    tokenizer = byte_fallback(add_bos=True)
    model = onehop.build(llama(vocab_size=tokenizer.vocab_size + 3)).eval()
    lm = LanguageModel(model, tokenizer, eos_ids=frozenset({2, 7}))
    lm.save(tmp_path / "a.gguf", format="gguf")
    again = onehop.load(tmp_path / "a.gguf")
    assert again.eos_ids == {2, 7}
    assert again.generation_config == {"bos_token_id": 1, "eos_token_id": [2, 7]}
    assert again.limits == lm.limits
    prompt = {"prompts": "the thin", "temperature": 0.0, "max_new_tokens": 12, "ignore_eos": True}
    assert again.generate(**prompt)[0].token_ids == lm.generate(**prompt)[0].token_ids


def test_a_folder_gives_four_bits_then_eight_then_the_only_file(tmp_path):
    def put(name, kind):
        saved(tmp_path / "plain", "llama", llama())
        changed(tmp_path / "plain", "general.file_type", kind).rename(tmp_path / name)

    def picked():
        (tmp_path / "plain").unlink()
        return locate(tmp_path).name

    put("a.gguf", 1)
    assert picked() == "a.gguf"
    put("b.gguf", 0)
    with pytest.raises(CheckpointError, match=r"holds several GGUF files: a.gguf \(F16\), b.gguf \(F32\). Name one."):
        picked()
    put("c.gguf", 7)
    assert picked() == "c.gguf"
    put("d.gguf", 15)
    assert picked() == "d.gguf"
    LanguageModel(made(llama())).save(tmp_path)
    assert locate(tmp_path) == Path(tmp_path)  # a folder with a config.json is that model's


def test_classic_models_keep_their_learned_positions_exact(tmp_path):
    saved(tmp_path / "a.gguf", *CASES["gpt2"], dtype="float16")
    assert read_header(tmp_path / "a.gguf").tensors["position_embd.weight"].type == "F32"
