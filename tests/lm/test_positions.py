"""What a model's positions are, in words, by hand; and drawn."""

import json

import pytest
import torch

from onehop.config.position import RopeConfig
from onehop.lm import LanguageModel, load
from onehop.lm.positions import frequencies, positions, slopes
from onehop.lm.positions_picture import draw
from tests.small_models import CONFIGS, DYNAMIC, LLAMA3, decoder, encoder_decoder, small_model


def words(cfg):
    return positions(LanguageModel(small_model(cfg))).words


def test_rope_by_hand():
    assert words(decoder(max_len=64)) == [
        (
            "layers 0-1: RoPE on 4 dims, theta 10000, wavelengths 6.28 to 628 tokens, unscaled; extrapolation begins "
            "at position 64, where 1 of 2 pairs have not turned once; each token sees all before it"
        )
    ]
    (line,) = words(decoder(scaling=LLAMA3))
    assert "llama3 scaling changes 2 of 2 pairs (by up to 8×); trained to 8 tokens before scaling" in line
    (line,) = words(decoder(scaling={**DYNAMIC, "factor": 3.0}))
    assert "beyond 8 tokens" in line


def test_windows_are_told_layer_by_layer():
    lines = words(CONFIGS["two kinds of layer"])
    assert [line.split(":")[0] for line in lines] == ["layer 0", "layer 1", "layer 2", "layer 3"]
    assert [line.rpartition("; ")[2] for line in lines] == [
        "each token sees itself and 3 before it",
        "each token sees all before it",
    ] * 2


def test_other_schemes_in_words():
    assert "scores fall by 0.25 to 0.00391 per token of distance (4 heads)" in words(CONFIGS["alibi"])[0]
    assert "32 buckets of distance; all distances from 128 on share the last" in words(CONFIGS["t5"])[0]
    assert words(CONFIGS["learned"])[0] == "a learned vector for each of the positions 0 to 63; no text is longer"
    assert [line[:9] for line in words(encoder_decoder())] == ["encoder, ", "encoder, ", "decoder, ", "decoder, "]


@pytest.mark.parametrize(
    ("more", "age"),
    [
        ({"rope_theta": 5e5}, "rope_theta=500000.0: the older spelling"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, ": today's spelling (rope_parameters)"),
        ({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 5e5}}, ": both ages' spelling, which agree"),
        ({}, ": no key for rotary angles: the family's defaults"),
    ],
)
def test_which_keys_were_read_and_in_which_ages_spelling(tmp_path, more, age):
    LanguageModel(small_model(decoder(), dtype=torch.float32)).save(tmp_path / "m", format="hf")
    file = tmp_path / "m" / "config.json"
    raw = json.loads(file.read_text())
    for key in ("rope_theta", "rope_parameters", "rope_scaling"):
        raw.pop(key, None)
    file.write_text(json.dumps(raw | more))
    first = positions(load(tmp_path / "m")).words[0]
    assert first.startswith("read from config.json: ")
    assert age in first


def test_the_formulas_by_hand():
    rope = RopeConfig.model_validate({"theta": 100.0, "scaling": {"kind": "linear", "factor": 4.0}})
    assert frequencies(rope, 4, 10) == pytest.approx([1 / 4, 1 / 40])
    rope = RopeConfig.model_validate({"theta": 100.0, "scaling": {"kind": "ntk", "factor": 4.0}})
    assert frequencies(rope, 4, 10) == pytest.approx([1.0, 1 / 40])  # the slowest pair is divided by the whole factor
    assert slopes(2) == [1 / 16, 1 / 256]
    assert slopes(3) == [1 / 16, 1 / 256, 1 / 4]


@pytest.mark.parametrize("name", ["rope yarn", "alibi", "t5", "two kinds of layer", "learned"])
def test_positions_are_drawn(tmp_path, name):
    draw(positions(LanguageModel(small_model(CONFIGS[name]))), tmp_path / "positions.png")
    assert (tmp_path / "positions.png").read_bytes().startswith(b"\x89PNG")
