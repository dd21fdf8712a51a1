"""Where and how a run computes: what is asked for or refused, never something else."""

import pytest
import torch
import torch.nn.functional as F

from onehop.base.errors import ConfigError
from onehop.model import build
from onehop.parts.linear import Linear
from onehop.parts.product import onednn
from onehop.training import setup
from onehop.training.setup import pick_device, pick_precision, pick_product
from tests.small_models import decoder


def test_a_device_that_is_not_there_is_refused_with_those_that_are(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert pick_device("auto") == pick_device("cpu") == torch.device("cpu")
    for name in ("cuda", "mps"):
        with pytest.raises(ConfigError, match=f"train.device={name} is not there. This machine has: cpu."):
            pick_device(name)


def test_precision_is_what_was_asked_for_and_auto_what_the_hardware_multiplies(monkeypatch):
    cpu = torch.device("cpu")
    for native, auto in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(setup, "has_native_bf16", lambda device, native=native: native)
        assert pick_precision("auto", cpu) == auto
        assert pick_precision("float32", cpu) == torch.float32
        assert pick_precision("bfloat16", cpu) == torch.bfloat16


@pytest.mark.parametrize(
    ("tiles", "instructions", "amd", "native"),
    [(True, True, False, True), (False, True, True, True), (False, True, False, False), (False, False, True, False)],
)
def test_bfloat16_is_native_where_it_is_quicker(monkeypatch, tiles, instructions, amd, native):
    """AMX's tiles are; AVX-512's instructions on AMD only."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: tiles, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: instructions, raising=False)
    monkeypatch.setattr(setup, "made_by_amd", lambda: amd)
    assert setup.has_native_bf16(torch.device("cpu")) == native


@pytest.mark.parametrize(
    ("amd", "wide", "product"), [(True, True, onednn), (True, False, F.linear), (False, True, F.linear)]
)
def test_the_processor_decides_the_float32_product(monkeypatch, amd, wide, product):
    """Where oneDNN has AVX-512, and MKL does not use it."""
    monkeypatch.setattr(setup, "made_by_amd", lambda: amd)
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: wide, raising=False)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    model = build(decoder())
    pick_product(model, torch.device("cpu"))
    assert all(module.product is product for module in model.modules() if isinstance(module, Linear))
    assert all(layer.attention.qkv.product is product for layer in model.layers)
    pick_product(model, torch.device("cuda"))
    assert model.layers[0].attention.wo.product is F.linear
