"""Families with an encoder: what absent keys mean, published and old files, and what is refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import onehop
from onehop.base.errors import CheckpointError, ConfigError, RequestError
from onehop.config import model_from_dict, to_dict
from onehop.config.raw import merge_stacks
from onehop.formats import FAMILIES, read_config
from onehop.formats.keys import COMMON_ROWS
from onehop.lm import LanguageModel
from onehop.lm.verify import verify
from tests.parity.encoders import CASES
from tests.parity.theirs import tokens, transformers
from tests.small_models import encoder_decoder, small_model

PAIR = {"vocab_size": 97, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
        "decoder_attention_heads": 2}  # fmt: skip
ALONE = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
SHAPES = {"bart": PAIR, "mbart": PAIR, "marian": PAIR, "bert": ALONE}


def raw(name, **keys):
    return {"model_type": name, **SHAPES[name], **keys}


def written(name, **keys):
    """What their configuration class makes of a few keys, every other one spelled out."""
    return transformers.AutoConfig.for_model(name, **SHAPES[name], **keys).to_dict()


@pytest.mark.parametrize("name", SHAPES)
def test_an_absent_key_means_what_their_class_takes(name):
    family = FAMILIES.get(name)
    assert read_config(raw(name)) == read_config({**written(name), "architectures": [family.architecture]})


@pytest.mark.parametrize("name", SHAPES)
def test_every_key_of_their_class_has_a_row(name):
    """A null passes without one, so reading alone would not show it."""
    family = FAMILIES.get(name)
    rows = {key for row in (*family.keys, *COMMON_ROWS) for key in row.names}
    assert not {family.aliases.get(key, key) for key in written(name)} - rows


REFUSED = {
    "bart": [
        {"normalize_before": True}, {"static_position_embeddings": True}, {"extra_pos_embeddings": 0},
        {"is_encoder_decoder": False}, {"normalize_embedding": False}, {"num_hidden_layers": 7},
        {"decoder_vocab_size": 98},
    ],
    "mbart": [{"normalize_before": False}, {"add_final_layer_norm": False}],
    "marian": [{"decoder_vocab_size": 98}, {"d_model": 33}, {"normalize_embedding": True}],
    "bert": [
        {"is_decoder": True}, {"position_embedding_type": "relative_key"}, {"architectures": ["BertModel"]},
        {"architectures": ["BertLMHeadModel"]}, {"type_vocab_size": 0}, {"hidden_act": "tanh"},
    ],
}  # fmt: skip
TOLD = {"type_vocab_size": "embed.segments=0", "d_model": "must be even", "num_hidden_layers": "encoder_layers twice"}


@pytest.mark.parametrize(("name", "keys"), [(name, keys) for name in REFUSED for keys in REFUSED[name]], ids=str)
def test_what_cannot_be_honoured_is_refused_in_one_line(name, keys):
    (key,) = keys
    heads = {"encoder_attention_heads": 3, "decoder_attention_heads": 3} if key == "d_model" else {}
    with pytest.raises(CheckpointError, match=TOLD.get(key, key)) as refused:
        read_config(raw(name, **keys, **heads))
    assert "\n" not in str(refused.value)


HEADS = {"n_heads": 4, "d_head": 4}


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("bart", {"encoder": {"attention": HEADS}}, r"encoder\.attention\.d_head=4 times encoder\.attention\.n_heads"),
        ("bart", {"cross": {**HEADS, "n_kv_heads": 4}}, r"cross\.d_head=4 times cross\.n_heads=4 must be d_model=32"),
        ("bart", {"attention": {"n_heads": 2, "n_kv_heads": 1}}, r"attention\.n_kv_heads=1"),
        ("bart", {"encoder": {"embed": {"scale": 3.0}}}, r"encoder\.embed\.scale=3\.0"),
        (
            "mbart",
            {"head": {"tied": False}},
            r"encoder\.share_embedding=true cannot be written as a Hugging Face mBART",
        ),
        ("marian", {"head": {"tied": False}}, r"encoder\.share_embedding=true cannot be written"),
        ("marian", {"embed": {"waves": "fairseq"}}, r"embed\.waves=fairseq cannot be written"),
        (
            "bert",
            {"head": {"transform": {"activation": "relu"}}},
            r"head\.transform\.activation=relu cannot be written",
        ),
        ("bert", {"head": {"transform": None}}, r"head\.transform"),
        ("bert", {"embed": {"segments": None}}, r"embed\.segments=none cannot be written"),
        ("bert", {"attention": {"sees": "causal"}}, r"attention\.sees=causal cannot be written"),
    ],
)
def test_what_a_layout_cannot_say_is_not_written(name, change, text):
    config = model_from_dict(merge_stacks([to_dict(read_config(raw(name))), change]))
    with pytest.raises(ConfigError, match=text):
        FAMILIES.get(name).write_config(config)


BART_LARGE_CNN = {
    "_num_labels": 3, "activation_dropout": 0.0, "activation_function": "gelu", "add_final_layer_norm": False,
    "architectures": ["BartForConditionalGeneration"], "attention_dropout": 0.0, "bos_token_id": 0,
    "classif_dropout": 0.0, "classifier_dropout": 0.0, "d_model": 1024, "decoder_attention_heads": 16,
    "decoder_ffn_dim": 4096, "decoder_layerdrop": 0.0, "decoder_layers": 12, "decoder_start_token_id": 2,
    "dropout": 0.1, "early_stopping": True, "encoder_attention_heads": 16, "encoder_ffn_dim": 4096,
    "encoder_layerdrop": 0.0, "encoder_layers": 12, "eos_token_id": 2, "force_bos_token_to_be_generated": True,
    "forced_bos_token_id": 0, "forced_eos_token_id": 2, "gradient_checkpointing": False, "id2label": {"0": "LABEL_0"},
    "init_std": 0.02, "is_encoder_decoder": True, "label2id": {"LABEL_0": 0}, "length_penalty": 2.0, "max_length": 142,
    "max_position_embeddings": 1024, "min_length": 56, "model_type": "bart", "no_repeat_ngram_size": 3,
    "normalize_before": False, "num_beams": 4, "num_hidden_layers": 12, "output_past": True, "pad_token_id": 1,
    "prefix": " ", "scale_embedding": False, "task_specific_params": {"summarization": {"num_beams": 4}},
    "transformers_version": "4.7.0.dev0", "use_cache": True, "vocab_size": 50264,
}  # fmt: skip
OPUS = {
    "_name_or_path": "opus-mt-en-de", "_num_labels": 3, "activation_dropout": 0.0, "activation_function": "swish",
    "add_bias_logits": False, "add_final_layer_norm": False, "architectures": ["MarianMTModel"],
    "attention_dropout": 0.0, "bad_words_ids": [[58100]], "bos_token_id": 0, "classif_dropout": 0.0,
    "classifier_dropout": 0.0, "d_model": 512, "decoder_attention_heads": 8, "decoder_ffn_dim": 2048,
    "decoder_layerdrop": 0.0, "decoder_layers": 6, "decoder_start_token_id": 58100, "decoder_vocab_size": 58101,
    "dropout": 0.1, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048, "encoder_layerdrop": 0.0,
    "encoder_layers": 6, "eos_token_id": 0, "forced_eos_token_id": 0, "gradient_checkpointing": False,
    "id2label": {"0": "LABEL_0"}, "init_std": 0.02, "is_encoder_decoder": True, "label2id": {"LABEL_0": 0},
    "max_length": 512, "max_position_embeddings": 512, "model_type": "marian", "normalize_before": False,
    "normalize_embedding": False, "num_beams": 6, "num_hidden_layers": 6, "pad_token_id": 58100,
    "scale_embedding": True, "share_encoder_decoder_embeddings": True, "static_position_embeddings": True,
    "transformers_version": "4.22.0.dev0", "use_cache": True, "vocab_size": 58101,
}  # fmt: skip
FILES = {"bart-large-cnn": (BART_LARGE_CNN, 12, 1024, 4096, 1.0), "opus-mt-en-de": (OPUS, 6, 512, 2048, 512**0.5)}


@pytest.mark.parametrize("name", FILES)
def test_a_published_file_is_read_with_every_key_it_has(name):
    file, n_layers, d_model, d_ff, scale = FILES[name]
    config = read_config(file)
    for stack in (config, config.encoder):
        (block,) = stack.blocks
        assert (stack.n_layers, block.ffn.d_ff, stack.embed.scale) == (n_layers, d_ff, scale)
        assert (block.norm_in, block.norm_out, stack.final_norm.kind) == (False, "outside", "none")
    assert (config.d_model, config.head.tied, config.head.bias) == (d_model, True, True)


BERT_BASE = {
    "architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1, "directionality": "bidi",
    "gradient_checkpointing": False, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768,
    "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
    "model_type": "bert", "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 0,
    "pooler_fc_size": 768, "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3, "pooler_size_per_head": 128,
    "pooler_type": "first_token_transform", "position_embedding_type": "absolute",
    "transformers_version": "4.6.0.dev0", "type_vocab_size": 2, "use_cache": True, "vocab_size": 105879,
}  # fmt: skip


def test_a_published_bert_is_read_with_every_key_it_has():
    config = read_config(BERT_BASE)
    (block,) = config.blocks
    assert (config.n_layers, config.d_model, block.attention.n_heads, block.ffn.d_ff) == (12, 768, 12, 3072)
    assert config.both_ways
    assert (config.embed.segments, config.embed.norm.eps, config.head.transform.norm.eps) == (2, 1e-12, 1e-12)


def rewritten(folder, change):
    """The tensors of a folder's file, changed."""
    file = folder / "model.safetensors"
    save_file({key: w.contiguous().clone() for key, w in change(load_file(file)).items()}, file)


def bare(tensors):
    """As files of the body alone: no prefix, no bias of the logits, old versions; every twin."""
    tensors.pop("final_logits_bias")
    tensors = {key.removeprefix("model."): w for key, w in tensors.items()}
    twins = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    versions = {f"{stack}.version": torch.ones(1) * 3 for stack in ("encoder", "decoder")}
    return {**tensors, **dict.fromkeys(twins, tensors["shared.weight"]), **versions}


@pytest.mark.parametrize("name", ["bart", "marian"])
@torch.no_grad()
def test_a_file_of_the_body_alone_has_no_bias_on_its_logits(tmp_path, name):
    model, x, t = CASES[name].build(), tokens(), tokens(30, seed=10)
    model.final_logits_bias.zero_()
    model.save_pretrained(tmp_path)
    want = onehop.load(tmp_path).model(x, t)
    rewritten(tmp_path, bare)
    lm = onehop.load(tmp_path)
    assert torch.equal(lm.model(x, t), want)
    assert not lm.model.head.projection.bias.any()


def test_tables_of_waves_in_old_files_are_left_out(tmp_path):
    CASES["marian"].build().save_pretrained(tmp_path)
    tables = {f"model.{stack}.embed_positions.weight": torch.zeros(64, 32) for stack in ("encoder", "decoder")}
    rewritten(tmp_path, lambda tensors: {**tensors, **tables})
    assert "embed.positions.weight" not in onehop.load(tmp_path).model.state_dict()


@pytest.mark.parametrize("name", ["bart", "marian"])
def test_a_twin_that_differs_is_refused(tmp_path, name):
    CASES[name].build().save_pretrained(tmp_path)
    rewritten(tmp_path, lambda tensors: {**tensors, "lm_head.weight": tensors["model.shared.weight"] + 1})
    with pytest.raises(
        CheckpointError, match=r"says that lm_head\.weight is model\.shared\.weight, but the two differ"
    ):
        onehop.load(tmp_path)


@pytest.mark.parametrize(("name", "class_"), [("bart", "Bart"), ("bert", "Bert")])
def test_a_classifier_is_refused(name, class_):
    with pytest.raises(CheckpointError, match="is no language model"):
        read_config(raw(name, architectures=[f"{class_}ForSequenceClassification"]))


@torch.no_grad()
def test_segments_of_bert_are_its_token_types(tmp_path):
    case = CASES["bert, 5 segments, others"]
    model, x = case.build(), tokens()
    model.save_pretrained(tmp_path)
    segments = x % 5
    got = onehop.load(tmp_path, dtype="float64").model(x, segments=segments)
    want = model(x, token_type_ids=segments).logits
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)  # float64 on both sides, sums in another order


@torch.no_grad()
def test_padding_on_the_right_is_seen_by_nobody_in_bert(tmp_path):
    model, x = CASES["bert"].build(), tokens()
    model.save_pretrained(tmp_path)
    real = torch.arange(x.size(1))[None] < torch.tensor([[x.size(1)], [17]])
    got = onehop.load(tmp_path, dtype="float64").model(x, at=torch.where(real, torch.arange(x.size(1)), -1))
    want = model(x, attention_mask=real.long()).logits
    torch.testing.assert_close(got[real], want[real], rtol=0, atol=1e-10)  # as above


def old_bert(tensors):
    """As the first files: the norms' old names, the head's twins, the pooler and the next sentence."""
    old = {".LayerNorm.weight": ".LayerNorm.gamma", ".LayerNorm.bias": ".LayerNorm.beta"}
    for new, name in old.items():
        tensors = {key.replace(new, name): w for key, w in tensors.items()}
    return {
        **tensors,
        "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"],
        "cls.predictions.decoder.bias": tensors["cls.predictions.bias"],
        "bert.pooler.dense.weight": torch.ones(32, 32),
        "bert.pooler.dense.bias": torch.ones(32),
        "cls.seq_relationship.weight": torch.ones(2, 32),
        "cls.seq_relationship.bias": torch.ones(2),
        "bert.embeddings.position_ids": torch.arange(64)[None],
    }


def test_an_old_bert_is_read_with_the_names_its_norms_had(tmp_path):
    CASES["bert"].build().save_pretrained(tmp_path)
    want = onehop.load(tmp_path).model.state_dict()
    rewritten(tmp_path, old_bert)
    got = onehop.load(tmp_path)
    assert all(torch.equal(w, want[key]) for key, w in got.model.state_dict().items())
    rewritten(tmp_path, lambda tensors: {**tensors, "bert.strange.LayerNorm.gamma": torch.zeros(1)})
    with pytest.raises(CheckpointError, match=r"unexpected bert\.strange\.LayerNorm\.gamma"):
        onehop.load(tmp_path)


@torch.no_grad()
def test_a_bert_with_both_heads_of_its_pretraining_is_read(tmp_path):
    config = transformers.AutoConfig.for_model("bert", **ALONE, intermediate_size=40)
    model, x = transformers.BertForPreTraining(config).double().eval(), tokens()
    model.save_pretrained(tmp_path)
    got = onehop.load(tmp_path, dtype="float64").model(x)
    torch.testing.assert_close(got, model(x).prediction_logits, rtol=0, atol=1e-10)  # as above


@pytest.mark.parametrize("name", [name for name in CASES if name.split(",")[0] not in ("t5", "t5 1.1", "mt5")])
def test_a_file_is_written_back_bit_for_bit(tmp_path, name):
    CASES[name].build().save_pretrained(tmp_path / "theirs")
    onehop.load(tmp_path / "theirs").save(tmp_path / "ours", format="hf")
    theirs, ours = (load_file(tmp_path / side / "model.safetensors") for side in ("theirs", "ours"))
    assert all(torch.equal(w, theirs[key]) for key, w in ours.items())
    lost = {"model.shared.weight", "cls.predictions.bias"} if "tied" in name or "embedding" in name else set()
    assert theirs.keys() - ours.keys() <= lost


def test_bert_verifies_and_continues_no_text(tmp_path):
    CASES["bert"].build().save_pretrained(tmp_path)
    lm = onehop.load(tmp_path, dtype="float32")
    found = {check.name: check.passed for check in verify(lm)}
    assert False not in found.values()
    assert found["transformers, layer by layer, in float32"] is True
    with pytest.raises(RequestError, match=r"^this model reads both ways .* it cannot continue a text"):
        lm.generate([[5, 6]])


@pytest.mark.parametrize("place", ["generation_config.json", "config.json"])
def test_marian_never_says_its_padding(tmp_path, place):
    """Its logit is 0 there whatever the others are, so that a list in the file has to keep it out."""
    model, x = CASES["marian"].build(), tokens()[:1, :9]
    greedy = {"do_sample": False, "eos_token_id": None, "forced_eos_token_id": None, "max_new_tokens": 12}
    likely = model.generate(x, **greedy)[0, 1:].tolist()
    never = [[likely[0]], [likely[4]]]
    model.save_pretrained(tmp_path)
    for name in ("generation_config.json", "config.json"):
        file = tmp_path / name
        given = {"bad_words_ids": never} if name == place else {}
        file.write_text(json.dumps({**json.loads(file.read_text()), **given}))
    want = model.generate(x, **greedy, bad_words_ids=never)[0, 1:].tolist()
    assert want != likely
    lm = onehop.load(tmp_path, dtype="float64")
    (got,) = lm.generate(x.tolist(), max_new_tokens=12, temperature=0.0, ignore_eos=True)
    assert list(got.token_ids) == want
    lm.save(tmp_path / "again", format="hf")
    assert onehop.load(tmp_path / "again").limits.never == {likely[0], likely[4]}


def test_a_word_of_several_tokens_cannot_be_kept_out():
    lm = LanguageModel(small_model(encoder_decoder()), start_id=0, generation_config={"bad_words_ids": [[3, 4]]})
    with pytest.raises(RequestError, match="bad_words_ids and suppress_tokens should be lists"):
        LanguageModel(lm.model, start_id=0, generation_config={"suppress_tokens": 3}).generate([[1, 2]])
    with pytest.raises(RequestError, match=r"^generation_config\.json: \[3, 4\] among bad_words_ids .* Remove it\.$"):
        lm.generate([[1, 2]])


JUNK = (True, -1, 0, 1.5, float("nan"), 10**400, "x", [], [3], {}, {"a": 1})


def refusal(read):
    """What `read` is refused with, if it is."""
    try:
        read_config(read)
    except CheckpointError as refused:
        return str(refused)
    return ""


@pytest.mark.parametrize("name", [*SHAPES, "t5"])
def test_junk_in_a_key_is_read_or_refused_in_one_line(name):
    scaled = {"scale_embedding": True} if SHAPES.get(name) is PAIR else {}
    shape = SHAPES.get(name, {"vocab_size": 97, "d_model": 32, "num_heads": 4, "d_ff": 48})
    for key in FAMILIES.get(name).keys:
        for theirs, value in ((theirs, value) for theirs in key.names for value in JUNK):
            assert "\n" not in refusal({"model_type": name, **shape, **scaled, theirs: value})


@pytest.mark.parametrize("name", [name for name in CASES if "t5" in name])
@torch.no_grad()
def test_in_float64_t5_has_the_very_numbers_of_theirs(tmp_path, name):
    """Its norms take the mean square in float32 even there; 4e-4 apart at logits to 20, where ours would not."""
    model, x = CASES[name].build(), tokens()
    model.save_pretrained(tmp_path)
    want = model(input_ids=x, decoder_input_ids=x[:, :7]).logits
    got = onehop.load(tmp_path).model(x, x[:, :7])
    torch.testing.assert_close(got, want, rtol=0, atol=1e-11)  # float64: 1e-16, times a few hundred sums of order 20
