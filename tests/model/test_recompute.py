"""What backward computes again is what forward computed: the same gradients, bit for bit, from less memory."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from onehop.config.model import DropoutConfig
from onehop.model.recompute import WAYS, recompute
from onehop.parts.dropout import DropKey
from tests.small_models import CONFIGS, MOE, VOCABULARY, decoder, encoder_decoder, small_model

DROPOUT = DropoutConfig(embed=0.1, attention=0.2, residual=0.2)
BALANCED = MOE | {"balance": "loss", "balance_weight": 1.0, "z_weight": 0.1}
MODELS = {**CONFIGS, "balanced experts": decoder(ffn=BALANCED), "encoder-decoder": encoder_decoder()}
TOKENS = torch.randint(VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(0))


def gradients(config, way, *, kernel="auto", dtype=torch.float64, doc=None):
    """Of the summed squares of the logits and the router losses, with dropout on."""
    model = small_model(config.model_copy(update={"dropout": DROPOUT}), dtype=dtype).train()
    recompute(model, way)
    given = (TOKENS,) if config.encoder is None else (TOKENS, TOKENS[:, :5])
    at = None if doc is None else torch.arange(9).expand(2, 9)
    states = model.states(*given, at=at, doc=doc, drop=DropKey.of(1, 2), kernel=kernel)
    total = model.head(states.hidden).square().sum()
    total = total + sum(r.weighted_loss for r in states.routing if r is not None)
    total.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("way", [way for way in WAYS if way != "none"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_the_same_bit_for_bit_with_dropout_on(name, way):
    """Router losses among them: computed twice, they enter the sum once."""
    for kernel in ("plain", "tiled", "auto"):
        want, got = (gradients(MODELS[name], how, kernel=kernel) for how in ("none", way))
        assert got.keys() == want.keys()
        assert all(torch.equal(got[key], want[key]) for key in want)


@pytest.mark.parametrize("way", [way for way in WAYS if way != "none"])
def test_packed_documents_and_sixteen_bits_too(way):
    doc = torch.tensor([[0] * 4 + [1] * 5, [0] * 6 + [1] * 3], dtype=torch.int32)
    for config in (decoder(), MODELS["t5"], MODELS["balanced experts"]):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            want, got = (gradients(config, how, dtype=torch.float32, doc=doc) for how in ("none", way))
        assert all(torch.equal(got[key], want[key]) for key in want)


def kept(way):
    """Bytes that a forward pass keeps for backward."""
    model = small_model(decoder(d_model=64, n_layers=3, ffn={"kind": "gated", "d_ff": 256}), dtype=torch.float32)
    recompute(model, way)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    storages = {}

    def keep(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.states(TOKENS)
    return sum(s.nbytes() for address, s in storages.items() if address not in own)


def test_a_block_keeps_its_input_only():
    """One (2, 9, 64) float32 a block, beside what the embedding and the last norm keep, which are no more than six."""
    assert kept("block") < (3 + 6) * TOKENS.numel() * 64 * 4 < kept("none") / 4


class Counted(TorchDispatchMode):
    """How often each operation is really computed, by name."""

    def __init__(self):
        super().__init__()
        self.times = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.times[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


def test_by_block_all_is_computed_again_and_by_selective_all_but_products_and_attention():
    times = {}
    for way in WAYS:
        model = small_model(decoder())
        recompute(model, way)
        with Counted() as counted:
            model(TOKENS).sum().backward()
        times[way] = {
            name: counted.times[name] for name in ("mm", "_scaled_dot_product_flash_attention_for_cpu", "silu")
        }
    none, block, selective = (list(times[way].values()) for way in ("none", "block", "selective"))
    assert all(more > once for more, once in zip(block, none, strict=True))
    assert selective[:2] == none[:2]
    assert selective[2] == block[2] == 2 * none[2]


def test_without_gradients_and_with_a_cache_nothing_changes():
    model = small_model(decoder())
    want = model(TOKENS)
    recompute(model, "block")
    with torch.no_grad():
        cache = model.new_cache(2)
        pieces = [model(piece, cache=cache) for piece in TOKENS.split([4, 5], dim=1)]
        torch.testing.assert_close(torch.cat(pieces, 1), want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_what_the_blocks_share_is_computed_again_in_the_block_that_computed_it(way):
    """Angles of a part of one's own that learns: made in the first block, used by both, with a gradient from each."""
    model, factor = small_model(decoder()), torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    plain = model.schemes[0].angles
    model.schemes[0].angles = lambda *at, **how: tuple((angle * factor).tanh() for angle in plain(*at, **how))
    model.schemes[0].rotate = lambda x, cos, sin: x * cos
    recompute(model, way)
    model(TOKENS).square().sum().backward()
    by_way = factor.grad.clone()
    factor.grad = None
    recompute(model, "none")
    model(TOKENS).square().sum().backward()
    assert torch.equal(by_way, factor.grad)
