"""The chapter that onehop implements: its lines of code, claims that need a test, and the table of all claims."""

import ast
import math
import re
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

import onehop
from onehop.cli.main import COMMANDS, main
from onehop.config import read
from onehop.model import build
from onehop.model.taps import listen
from onehop.parts.linear import Linear
from tests.small_models import decoder, small_model

ROOT = Path(__file__).resolve().parents[1]
TEXT = torch.tensor([[1, 5, 2, 9, 4, 7, 3, 3, 0, 12]])
SECTIONS = ["0", "1.1", "1.2", "1.3", "1.4", "2", "3.1", "3.2", "4.1", "4.2", "5.1", "5.2", "6", "7"]


# The chapter's own lines, re-stated


def attention(q, k, v, mask=None):
    """Scaled dot-product attention for (…, n, d), as printed: a mask's zeros hide."""
    d = q.size(-1)
    scores = torch.matmul(q, k.transpose(-2, -1)) / d**0.5
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    return torch.matmul(F.softmax(scores, dim=-1), v)


def rms_norm(x, weight, eps=1e-6):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def turned(x, theta=10000.0):
    """RoPE on (…, n, d): the pair (j, j + d/2) at position m turned by the matrix of the angle m · theta^(-2j/d)."""
    n, d = x.shape[-2:]
    y = torch.empty_like(x)
    for m in range(n):
        for j in range(d // 2):
            a = m * theta ** (-2 * j / d)
            matrix = torch.tensor([[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]], dtype=x.dtype)
            y[..., m, [j, j + d // 2]] = x[..., m, [j, j + d // 2]] @ matrix.T
    return y


def block(x, w, *, heads, kv_heads):
    """One decoder block: x (n, d) -> (n, d), with weights by their names in onehop."""
    r = rms_norm(x, w["attention_norm.weight"])
    q, k, v = (
        (r @ w[f"attention.w{name}.weight"].T).unflatten(-1, (count, -1)).transpose(0, 1)
        for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads))
    )
    q, k = turned(q), turned(k)
    k, v = (part.repeat_interleave(heads // kv_heads, dim=0) for part in (k, v))  # each group shares its head
    causal = torch.ones(len(x), len(x)).tril()
    mixed = attention(q, k, v, causal).transpose(0, 1).flatten(1)
    h = x + mixed @ w["attention.wo.weight"].T
    r = rms_norm(h, w["ffn_norm.weight"])
    return h + (F.silu(r @ w["ffn.w1.weight"].T) * (r @ w["ffn.w3.weight"].T)) @ w["ffn.w2.weight"].T


@pytest.mark.parametrize("kernel", ["plain", "tiled", "fused"])
@pytest.mark.parametrize("hides", ["nothing", "later", "some"])
def test_attend_equals_the_textbooks_lines(hides, kernel):
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 7, 8, generator=generator, dtype=torch.float64).unbind()  # (batch, heads, n, d)
    mask = {
        "nothing": None,
        "later": torch.ones(7, 7).tril(),
        "some": torch.randint(0, 2, (7, 7), generator=generator),
    }[hides]
    if hides == "some":
        mask.fill_diagonal_(1)  # a row of zeros divides 0 by 0 in these lines
    ours = onehop.attend(
        *(x.transpose(1, 2) for x in (q, k, v)), None if mask is None else mask.bool(), kernel=kernel
    ).transpose(1, 2)
    torch.testing.assert_close(ours, attention(q, k, v, mask), atol=1e-12, rtol=0)


@torch.no_grad()
def test_the_whole_model_is_the_textbooks_block_stacked():
    model = small_model(decoder(n_layers=3))
    w = model.state_dict()
    x = w["embed.tokens.weight"][TEXT[0]]
    for i in range(3):
        own = {name.removeprefix(f"layers.{i}."): t for name, t in w.items() if name.startswith(f"layers.{i}.")}
        x = block(x, own, heads=4, kv_heads=2)
    logits = rms_norm(x, w["final_norm.weight"]) @ w["head.projection.weight"].T
    torch.testing.assert_close(model(TEXT)[0], logits, atol=1e-10, rtol=0)  # float64; logits of size 10


# Claims that no other test holds


def test_the_gradient_of_a_far_token_is_as_large_as_that_of_a_near_one():
    """From the last of 200 tokens back to each: attention without positions treats all alike when it is fresh."""
    model = build(decoder("none", max_len=200, n_layers=1, d_model=64, init_std=0.02), dtype="float64")
    tokens = torch.randint(0, 13, (8, 200), generator=torch.Generator().manual_seed(0))
    kept = {}

    def keep(_, value):
        kept["x"] = value.detach().requires_grad_()
        return kept["x"]

    with listen(model, ["layers.0.in"], keep) as ear:
        model(tokens, listener=ear)[:, -1].square().sum().backward()
    size = kept["x"].grad.norm(dim=-1).mean(0)  # (200,)
    near, far = size[100:199].mean(), size[:100].mean()
    assert far > 0
    assert float(far / near) == pytest.approx(1, abs=0.1)


def test_without_the_scale_wide_heads_get_hardly_any_gradient():
    """How far the softmax of 64 keys moves with its scores, at a width of 1,024, scaled and not."""
    q, k = torch.randn(2, 64, 1024, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def gradient(scale):
        scores = (q @ k.T * scale).requires_grad_()
        torch.softmax(scores, dim=-1).square().sum().backward()
        return float(scores.grad.abs().median())

    assert gradient(1.0) < 1e-6 * gradient(1024**-0.5)


def flops(model, *inputs, **options):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*inputs, kernel="plain", **options)
    return counter.get_total_flops()


def test_many_heads_cost_as_much_as_one_wide_head():
    cost = {}
    for heads in (1, 2, 8):
        model = build(decoder("none", attention={"n_heads": heads, "n_kv_heads": heads}, d_model=64))
        cost[heads] = flops(model, TEXT), sum(p.numel() for p in model.parameters())
    assert cost[1] == cost[2] == cost[8]


def test_twice_the_context_is_four_times_the_attention_and_twice_the_rest():
    model = build(decoder("none"))
    products = sum(m.weight.numel() for m in model.modules() if isinstance(m, Linear))
    found = {n: flops(model, torch.zeros(1, n, dtype=torch.int64)) for n in (32, 64)}
    rest = {n: 2 * n * products for n in found}  # a multiplication and an addition for each weight and token
    attending = {n: found[n] - rest[n] for n in found}
    assert attending[32] == 2 * 2 * 2 * 32 * 32 * 16  # scores and mixtures, in 2 layers, at 2 FLOPs, 4 heads of width 4
    assert attending[64] == 4 * attending[32]


def test_a_cached_step_grows_with_the_text_and_a_recomputed_one_with_its_square():
    model = build(decoder("none"))
    one = torch.zeros(1, 1, dtype=torch.int64)

    def cached(n):
        past = model.new_cache(1)
        with torch.no_grad():
            model(one.expand(1, n - 1), cache=past)
        return flops(model, one, cache=past)

    def again(n):
        return flops(model, one.expand(1, n))

    steps = [cached(n) for n in (100, 200, 300)]
    assert steps[1] - steps[0] == steps[2] - steps[1] == 100 * 2 * 2 * 2 * 16  # a straight line in n
    whole = [again(n) for n in (100, 200, 300)]
    assert (whole[2] - whole[1]) - (whole[1] - whole[0]) == 2 * 100**2 * 2 * 2 * 2 * 16  # a parabola
    assert again(300) > 100 * cached(300)


@torch.no_grad()
def test_with_attention_silenced_no_token_learns_of_another():
    model = small_model(decoder())
    changed = TEXT.clone()
    changed[0, 3] = 11
    with listen(model, ["layers.*.attention"], lambda _, value: torch.zeros_like(value)) as ear:
        moved = (model(TEXT, listener=ear) != model(changed, listener=ear)).any(-1)[0]
    assert moved.nonzero().flatten().tolist() == [3]


# The table


def rows():
    """(section, claim, code, test, command) of every row of docs/textbook.md."""
    lines = (ROOT / "docs" / "textbook.md").read_text().splitlines()
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines if line.startswith("|")]
    return [row for row in cells if row[0] != "§" and not set(row[0]) <= {"-"}]


@cache
def names_in(file):
    """Functions, classes, methods and tables that a Python file defines."""
    found = set()
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
            found |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def test_every_section_of_the_chapter_has_its_claims():
    assert sorted({row[0] for row in rows()}, key=float) == SECTIONS
    assert all(len(row) == 5 and all(row) for row in rows())
    assert len({row[1] for row in rows()}) == len(rows())


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row[0]} {row[1][:50]}")
def test_every_claim_names_code_a_test_and_a_command_that_exist(row):
    file, _, name = row[2].strip("`").partition(":")
    assert (ROOT / file).is_file(), file
    assert name in names_in(file), row[2]
    test, _, function = row[3].strip("`").partition("::")
    assert (ROOT / test).is_file(), test
    assert function in names_in(test), row[3]
    command = row[4].strip("`").split()
    if row[4] == "measured later":
        return
    if command[0] == "onehop":
        assert command[1] in COMMANDS
        if command[1] == "train":
            read(command[2], command[3:])  # refuses what cannot be trained
    else:
        assert command[0] == "python"
        assert (ROOT / command[1]).is_file()


@pytest.mark.parametrize("command", [row[4].strip("`") for row in rows() if row[4].startswith("`onehop plan ")])
def test_what_a_claim_plans_can_be_planned(command, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(command.split()[1:]) == 0, capsys.readouterr().err


def test_every_test_that_a_note_names_exists():
    notes = [line for line in (ROOT / "docs" / "textbook.md").read_text().splitlines() if not line.startswith("|")]
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", "\n".join(notes))
    assert named
    for file, function in named:
        assert (ROOT / file).is_file(), file
        assert not function or function in names_in(file), function
