"""Two models with the same weights."""

import torch


def same_weights(a, b):
    """The same tensors under the same names, bit for bit."""
    ours, theirs = a.state_dict(), b.state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype, name
        assert torch.equal(tensor, theirs[name]), name
