"""Who is moved by what: roles, decay, and stacks of experts that Muon takes one matrix at a time."""

import copy
import re

import pytest
import torch
from torch import nn

from onehop.config.recipe import TrainConfig
from onehop.training import muon
from onehop.training.muon import Muon, orthogonal
from onehop.training.optimizer import make_optimizer
from onehop.training.roles import is_hidden, roles
from tests.small_models import CONFIGS, MOE, decoder, encoder_decoder, small_model

EXPERTS = decoder(attention={"sinks": True}, ffn=MOE | {"bias": True, "router_bias": True, "d_ff_shared": 4})


def settings(**own):
    return TrainConfig(**{"steps": 10, "batch_size": 4, "lr": 1e-2, "weight_decay": 0.1, **own})


def with_gradients(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype)
    return model


def test_roles_of_every_part():
    heads = decoder(attention={"qk_norm": {"norm": {"kind": "layer", "bias": False}, "own_weights": True}})
    found = roles(small_model(heads))
    assert found["layers.0.attention.q_heads.norm.weight"] == "norms"  # (H, D), two dims
    found = roles(small_model(EXPERTS)) | roles(small_model(CONFIGS["t5"])) | roles(small_model(CONFIGS["learned"]))
    for name, role in {
        "embed.tokens.weight": "embeddings",
        "embed.positions.weight": "embeddings",
        "schemes.0.table": "biases",
        "layers.0.attention_norm.weight": "norms",
        "final_norm.weight": "norms",
        "layers.0.attention.wq.weight": "matrices",
        "layers.0.attention.sinks": "biases",
        "layers.0.ffn.w1": "matrices",
        "layers.0.ffn.b1": "biases",  # (E, F), two dims
        "layers.0.ffn.router.weight": "matrices",
        "layers.0.ffn.router.bias": "biases",
        "layers.0.ffn.shared.w2.weight": "matrices",
        "head.projection.weight": "head",
    }.items():
        assert found[name] == role, name


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("decayed", [("matrices", "embeddings", "head"), ("matrices",), ("norms", "biases")])
def test_decay_falls_on_the_roles_that_are_named_and_on_no_other(optimizer, decayed):
    """Gradients of zero: AdamW and Muon then do nothing but decay, by lr · 0.1."""
    model = small_model(EXPERTS)
    by_name, before = roles(model), copy.deepcopy(dict(model.named_parameters()))
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    make_optimizer(model, settings(optimizer=optimizer, weight_decay_on=decayed)).step()
    for name, p in model.named_parameters():
        factor = 1 - 1e-2 * 0.1 if by_name[name] in decayed else 1.0
        torch.testing.assert_close(p.data, before[name].data * factor, rtol=1e-12, atol=0)


def test_the_summary_counts_every_weight_once():
    for config in (EXPERTS, encoder_decoder()):
        model = small_model(config)
        groups = make_optimizer(model, settings(optimizer="muon")).summary()
        assert sum(group["weights"] for group in groups) == sum(p.numel() for p in model.parameters())
        assert sum(group["tensors"] for group in groups) == len(list(model.parameters()))
        assert {role for group in groups for role in group["roles"]} == set(roles(model).values())


def test_a_stack_of_experts_moves_as_so_many_matrices_under_muon():
    """Three steps of (E, d_out, d_in) at once, and of each (d_out, d_in) by PyTorch's own Muon."""
    model, cfg = small_model(EXPERTS, dtype=torch.float32), settings(optimizer="muon")
    stack = model.layers[0].ffn.w1
    apart = [torch.nn.Parameter(matrix.clone()) for matrix in stack.detach()]
    theirs = torch.optim.Muon(apart, lr=cfg.lr, weight_decay=cfg.weight_decay, adjust_lr_fn="match_rms_adamw")
    ours = make_optimizer(model, cfg, precision=torch.bfloat16)
    for seed in range(3):
        with_gradients(model, seed)
        for matrix, gradient in zip(apart, stack.grad, strict=True):
            matrix.grad = gradient.clone()
        ours.step()
        theirs.step()
        assert torch.equal(stack.detach(), torch.stack([m.detach() for m in apart]))
    momentum = ours.state[stack]["momentum_buffer"]
    assert torch.equal(momentum, torch.stack([theirs.state[m]["momentum_buffer"] for m in apart]))
    assert ours.state.keys() == set(model.parameters())
    listed = {p for group in ours.param_groups for p in group["params"]}
    assert listed == set(model.parameters())  # what unscales or forgets gradients finds the stacks
    ours.zero_grad()
    assert stack.grad is None


@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (1, 8)])
def test_matrices_are_made_orthogonal_in_float32_as_in_bfloat16_and_better(shape):
    """Near U·Vᵀ: singular values in the band around 1 that the quintic's rounds reach."""
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    u, _, vt = torch.linalg.svd(matrix, full_matrices=False)
    tall = shape[0] > shape[1]
    upright = (matrix.T if tall else matrix).unsqueeze(0)
    found = [orthogonal(upright, dtype)[0].float() for dtype in (torch.float32, torch.bfloat16)]
    exact, coarse = (x.T if tall else x for x in found)
    turned = u.T @ exact @ vt.T
    assert torch.linalg.norm(turned - turned.diag().diag()) < 1e-4  # float32's sums over 15 products
    assert ((turned.diag() > 0.3) & (turned.diag() < 1.3)).all()
    assert torch.linalg.norm(coarse - exact) < 0.05 * torch.linalg.norm(exact)  # 8 bits, and the same 15 products
    assert torch.linalg.norm(u.T @ coarse @ vt.T - turned) > torch.linalg.norm(turned - turned.diag().diag())


def moved(shapes, *, idle=(), seed=0):
    """Matrices and a stack after two steps of Muon; those of `idle` have a gradient in the first one only."""
    draw = torch.Generator().manual_seed(seed)
    parameters = [torch.nn.Parameter(torch.randn(shape, generator=draw)) for shape in shapes]
    optimizer = Muon([{"params": parameters, "weight_decay": 0.1}], lr=0.1, dtype=torch.float32)
    before = None
    for step in range(2):
        for i, p in enumerate(parameters):
            p.grad = torch.randn(p.shape, generator=draw)
            if step and i in idle:
                p.grad[1] = 0.0
        before = [p.detach().clone() for p in parameters]
        optimizer.step()
    return before, parameters


def test_small_matrices_of_one_shape_are_moved_together_as_each_alone(monkeypatch):
    """Lying and standing ones, and those of a stack; float32 sums over 15 products in another order."""
    shapes = [(6, 10), (10, 6), (6, 6), (3, 6, 10), (6, 10), (10, 10)]
    stacks = []
    monkeypatch.setattr(muon, "orthogonal", lambda x, dtype: stacks.append(tuple(x.shape)) or orthogonal(x, dtype))
    _, together = moved(shapes, idle=(3,))
    assert stacks == 2 * [(6, 6, 10), (1, 6, 6), (1, 10, 10)]
    monkeypatch.setattr(muon, "at_once", lambda short, long: 4)
    _, cut = moved(shapes, idle=(3,))
    assert stacks[6:] == 2 * [(4, 6, 10), (2, 6, 10), (1, 6, 6), (1, 10, 10)]
    monkeypatch.setattr(muon, "at_once", lambda short, long: 1)
    _, alone = moved(shapes, idle=(3,))
    assert {shape[0] for shape in stacks[14:]} == {1}
    for found in (together, cut):
        for one, other in zip(found, alone, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_as_many_go_together_as_have_a_million_numbers():
    assert [muon.at_once(*sides) for sides in ((128, 128), (128, 352), (768, 1024), (4096, 14336))] == [64, 23, 1, 1]


def test_matrices_of_other_types_go_apart_and_are_moved_alike():
    """One of a shape in float64 and one in float32, of the same numbers; float32's sums over 15 products."""
    draw = torch.Generator().manual_seed(0)
    start, gradient = torch.randn(2, 6, 10, generator=draw)
    weights = [torch.nn.Parameter(start.clone().to(dtype)) for dtype in (torch.float32, torch.float64)]
    for p in weights:
        p.grad = gradient.to(p.dtype)
    Muon([{"params": weights}], lr=0.1, dtype=torch.float32).step()
    assert [p.dtype for p in weights] == [torch.float32, torch.float64]
    torch.testing.assert_close(weights[0].double(), weights[1], rtol=1e-4, atol=1e-5)
    assert not torch.equal(weights[0], start)


@pytest.mark.parametrize("shape", [(3,), (2, 2, 2, 2), (0, 3)])
def test_muon_refuses_what_is_no_matrix(shape):
    with pytest.raises(ValueError, match=re.escape(f"not a tensor of shape {shape}")):
        Muon([{"params": [torch.nn.Parameter(torch.zeros(shape))]}], lr=0.1, dtype=torch.float32)


def test_an_expert_without_a_gradient_keeps_its_place_and_decays():
    before, after = moved([(3, 6, 10)], idle=(0,))
    assert torch.equal(after[0][1], before[0][1] * (1 - 0.1 * 0.1))
    others, same = after[0][[0, 2]], before[0][[0, 2]]
    assert (others - same).abs().amin(dim=(1, 2)).gt(0).all()


def test_muon_multiplies_as_the_run_does():
    model = small_model(EXPERTS)
    for precision, dtype in ((torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32), (torch.float32,) * 2):
        moves = make_optimizer(model, settings(optimizer="muon"), precision=precision)
        assert [m.dtype for m in moves.members if isinstance(m, Muon)] == [dtype]


def test_muon_leaves_embedding_head_norms_and_biases_to_adamw():
    model = with_gradients(small_model(EXPERTS))
    optimizer = make_optimizer(model, settings(optimizer="muon"))
    optimizer.step()
    names = {name for name, p in model.named_parameters() if "momentum_buffer" in optimizer.state[p]}
    assert "layers.0.ffn.w2" in names
    assert "layers.1.attention.wq.weight" in names
    assert names == {name for name, role in roles(model).items() if role == "matrices"}


def test_a_convolution_in_a_part_of_ones_own_is_no_stack_of_matrices():
    shapes = {
        "layers.0.ffn.w1": (4, 8, 8),
        "layers.0.ffn.mix.weight": (8, 8, 3),
        "layers.0.ffn.conv.weight": (8, 8, 3, 3),
    }
    hidden = [name for name, shape in shapes.items() if is_hidden(name, "matrices", nn.Parameter(torch.empty(shape)))]
    assert hidden == ["layers.0.ffn.w1"]
