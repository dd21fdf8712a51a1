"""Constants are untouched by whatever happens to the model that holds them."""

import copy

import torch
from torch import nn

from onehop.config import RopeConfig, T5Config
from onehop.parts.bias import Alibi, T5Bias
from onehop.parts.constant import Constant
from onehop.parts.rope import Rope


def test_a_constant_is_copied_to_a_device_once():
    constant = Constant(torch.arange(3.0))
    there = constant.on(torch.device("meta"))
    assert there.is_meta
    assert constant.on(torch.device("meta")) is there
    assert constant.on(torch.device("cpu")).tolist() == [0, 1, 2]


def test_schemes_built_on_meta_and_cast_to_bf16_still_compute_exactly():
    """A model is built on meta, emptied onto a device and cast; no slope, bucket or frequency may notice."""
    at = torch.tensor([[0, 257, 131071]])

    def schemes():
        return nn.ModuleList([Rope(RopeConfig(), 8), Alibi(3), T5Bias(T5Config(), 2, bidirectional=True)])

    with torch.device("meta"):
        rope, alibi, t5 = copy.deepcopy(schemes().bfloat16().to_empty(device="cpu"))
    rope_, alibi_, t5_ = schemes()
    for got, want in zip(rope.angles(at, dtype=torch.bfloat16), rope_.angles(at, dtype=torch.float32)):
        assert torch.equal(got, want)
    assert torch.equal(alibi(at, at), alibi_(at, at))
    with torch.no_grad():
        t5.table.copy_(t5_.table)
    assert torch.equal(t5(at, at), t5_.table.bfloat16().new_tensor(t5_(at, at).tolist()))


def test_nothing_constant_is_saved_with_the_model():
    assert not Rope(RopeConfig(), 8).state_dict()
    assert not Alibi(3).state_dict()
    assert list(T5Bias(T5Config(), 2, bidirectional=True).state_dict()) == ["table"]
