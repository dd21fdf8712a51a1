"""Parts of a user's own: a file that a recipe names adds an attention, a position, an ffn, a norm and a score rule.

Each trains, decodes through the cache, is saved and comes back; what cannot run or be written says so by name.
"""

import pytest
import torch
import torch.nn.functional as F

import onehop
from onehop.base.errors import ConfigError, OnehopError
from onehop.config import ModelConfig, load_own, model_from_dict, own
from onehop.model import build
from onehop.parts.keys import Keys
from onehop.parts.own import TABLES, part
from onehop.parts.places import Places
from onehop.parts.score import choose
from onehop.parts.sight import Sight
from onehop.weights import load_native, save_native
from tests.small_models import small_model

FILE = '''
import torch
from torch import nn
import onehop
from onehop.config import AttentionConfig, FFNConfig, NormConfig, PositionConfig, ScoreConfig
from onehop.parts import GroupedQueryAttention, Linear, PositionScheme


class FadingConfig(ScoreConfig):
    """Scores fade with distance at a rate that each head learns."""
    kind: str = "fading"
    rate: float = 0.5

@onehop.part("score", FadingConfig)
class Fading(nn.Module):
    def __init__(self, cfg, attention):
        super().__init__()
        self.rate = nn.Parameter(torch.full((attention.n_heads,), cfg.rate))
        self.register_buffer("reach", torch.tensor(100.0), persistent=False)
        self.sign = torch.tensor(-1.0)  # an ordinary tensor, that no module knows of

    def forward(self, scores, q_at, k_at):
        distance = (q_at[:, None, :, None] - k_at[:, None, None, :]).clamp(min=0).to(scores.dtype)
        return scores + self.sign * self.rate.view(-1, 1, 1) * distance.minimum(self.reach)


class StepsConfig(PositionConfig):
    """A learned bias for each small distance."""
    kind: str = "steps"
    n_steps: int = 4

@onehop.part("position", StepsConfig)
class Steps(PositionScheme):
    biases = True

    def __init__(self, cfg, attention):
        super().__init__()
        self.table = nn.Parameter(torch.randn(attention.n_heads, cfg.n_steps))
        self.register_buffer("first", torch.tensor(1))

    def forward(self, q_at, k_at):
        distance = (q_at.unsqueeze(-1) - k_at.unsqueeze(-2)).clamp(0, self.table.size(1) - self.first)
        return self.table[:, distance].movedim(0, 1)


class TurnedConfig(PositionConfig):
    """One turn in seven for every pair."""
    kind: str = "turned"

@onehop.part("position", TurnedConfig)
class Turned(PositionScheme):
    turns = True

    def __init__(self, cfg, attention):
        super().__init__()
        self.freq = 6.28 / 7 / torch.arange(1, attention.d_head // 2 + 1, dtype=torch.float64)

    def angles(self, at, *, dtype, length=None):
        angle = at.unsqueeze(-1) * self.freq
        return angle.cos().to(dtype), angle.sin().to(dtype)

    def rotate(self, x, cos, sin):
        a, b = x.chunk(2, dim=-1)
        cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class CubicConfig(FFNConfig):
    kind: str = "cubic"
    d_ff: int

@onehop.part("ffn", CubicConfig)
class Cubic(nn.Module):
    def __init__(self, d_model, cfg):
        super().__init__()
        self.w1, self.w2 = Linear(d_model, cfg.d_ff), Linear(cfg.d_ff, d_model)
        self.gain = nn.Parameter(torch.full((cfg.d_ff,), 3.0))

    def forward(self, x, *, real=None):
        return self.w2(self.gain * self.w1(x) ** 3), None


class MeanNormConfig(NormConfig):
    kind: str = "mean"

@onehop.part("norm", MeanNormConfig)
class MeanNorm(nn.Module):
    """Divides by the mean absolute value."""
    def __init__(self, width, cfg):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * x / (x.abs().mean(-1, keepdim=True) + 1e-6)


class GatedAttentionConfig(AttentionConfig):
    """Attention whose output is gated by its input."""
    kind: str = "gated"
    slope: float = 1.0

@onehop.part("attention", GatedAttentionConfig)
class GatedAttention(GroupedQueryAttention):
    def __init__(self, d_model, cfg, **options):
        super().__init__(d_model, cfg, **options)
        self.gate = Linear(d_model, d_model)
        self.slope = cfg.slope

    def forward(self, x, step, cache=None):
        return torch.sigmoid(self.slope * self.gate(x)) * super().forward(x, step, cache)
'''  # fmt: skip
SCORE = {"attention": {"n_heads": 4, "n_kv_heads": 2, "position": "none", "score": "fading"}}
PARTS = {
    "score": SCORE,
    "position that biases": {"attention": {"n_heads": 4, "n_kv_heads": 2, "position": "steps"}},
    "position that turns": {"attention": {"n_heads": 4, "n_kv_heads": 2, "position": "turned"}},
    "ffn": {"ffn": {"kind": "cubic", "d_ff": 12}},
    "norm": {"norm": "mean", "final_norm": "mean", "norm_out": "inside"},
    "norm of q and k": {"attention": {"n_heads": 4, "n_kv_heads": 2, "qk_norm": {"norm": "mean"}}},
    "attention": {"attention": {"kind": "gated", "n_heads": 4, "n_kv_heads": 2}},
}
PARTS["all of them"] = {
    **PARTS["ffn"], **PARTS["norm"],
    "attention": {"kind": "gated", "n_heads": 4, "position": "steps", "score": {"kind": "fading", "rate": 0.1}},
}  # fmt: skip
TOKENS = torch.tensor([[1, 5, 2, 9, 4, 7, 3, 0, 12]])
EXACT = {"atol": 1e-10, "rtol": 0}  # float64 sums in another order


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The user's file, run once; afterwards the tables are as they were."""
    for configs, parts, _ in TABLES.values():
        for table in (configs, parts):
            monkeypatch.setattr(table, "_rows", dict(table._rows))
            monkeypatch.setattr(table, "_own", dict(table._own))
    monkeypatch.setattr(own, "_DONE", {})
    file = tmp_path / "mine.py"
    file.write_text(FILE)
    load_own(file)
    return file


def forgotten(monkeypatch):
    """As in another process, which has not seen the file."""
    for configs, parts, _ in TABLES.values():
        for table in (configs, parts):
            for name in list(table._own):
                del table._rows[name]
            table._own.clear()
    monkeypatch.setattr(own, "_DONE", {})


def config(name, **more):
    return model_from_dict({
        "vocab_size": 13, "d_model": 16, "n_layers": 2, "max_len": 64, "init_std": 0.4, "head": {"tied": False},
        "attention": {"n_heads": 4}, "ffn": {"kind": "gated", "d_ff": 12}, **PARTS[name], **more,
    })  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_an_own_part_learns_all_its_parameters(mine, name):
    model = small_model(config(name))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(4):
        loss = F.cross_entropy(model(TOKENS[:, :-1])[0], TOKENS[0, 1:])
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("kind", ["growing", "fixed"])
@pytest.mark.parametrize("name", PARTS)
@torch.no_grad()
def test_decoding_through_a_cache_equals_a_fresh_pass(mine, name, kind):
    model = small_model(config(name))
    cache = model.new_cache(1, kind=kind, capacity=9)
    out = [model(TOKENS[:, :4], cache=cache), *(model(TOKENS[:, t : t + 1], cache=cache) for t in range(4, 9))]
    torch.testing.assert_close(torch.cat(out, dim=1), model(TOKENS), **EXACT)


@pytest.mark.parametrize("name", PARTS)
def test_an_own_part_changes_the_model(mine, name):
    plain = model_from_dict({
        "vocab_size": 13, "d_model": 16, "n_layers": 2, "max_len": 64, "init_std": 0.4, "head": {"tied": False},
        "attention": {"n_heads": 4, "n_kv_heads": 2}, "ffn": {"kind": "gated", "d_ff": 12},
    })  # fmt: skip
    assert not torch.allclose(small_model(config(name))(TOKENS), small_model(plain)(TOKENS))


# What a constructor fills


def test_values_from_a_constructor_are_kept_and_onehops_own_layers_start_as_elsewhere(mine):
    model = build(config("all of them", init_std=0.05, d_model=64, ffn={"kind": "cubic", "d_ff": 128}))
    layer = model.layers[0]
    assert layer.attention.change.rate.tolist() == pytest.approx([0.1] * 4)
    assert layer.attention.change.reach == 100
    assert set(layer.ffn.gain.tolist()) == {3.0}
    assert set(layer.attention_norm.weight.tolist()) == set(model.final_norm.weight.tolist()) == {1.0}
    assert float(layer.ffn.w1.weight.detach().std()) == pytest.approx(0.05, rel=0.1)
    assert float(layer.ffn.w2.weight.detach().std()) == pytest.approx(0.05 / 2, rel=0.1)  # 4 sublayers
    assert 0.5 < float(model.schemes[0].table.detach().std()) < 2  # its own randn


def test_what_a_constructor_draws_follows_from_the_seed_and_leaves_other_draws_alone(mine):
    torch.manual_seed(5)
    a = build(config("position that biases"), seed=1)
    after = torch.rand(1)
    torch.manual_seed(6)
    b, c = (build(config("position that biases"), seed=seed) for seed in (1, 2))
    assert torch.equal(a.schemes[0].table, b.schemes[0].table)
    assert not torch.equal(a.schemes[0].table, c.schemes[0].table)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), after)


@pytest.mark.parametrize("name", PARTS)
def test_on_the_meta_device_no_parameter_has_values(mine, name):
    assert all(p.is_meta for p in build(config(name), device="meta").parameters())


# Which kernel


def choice(model, kernel):
    places = Places.run(0, 9)
    q = torch.zeros(1, 9, 4, 4, dtype=torch.float64)
    keys = Keys(q[:, :, :2], q[:, :, :2], places)
    attention = model.layers[0].attention
    return choose(q, keys, attention.rule(), Sight(attention.sees, places, places), kernel=kernel)


@pytest.mark.parametrize("kernel", ["auto", "tiled", "fused"])
def test_a_score_rule_runs_by_the_definition_and_says_so(mine, kernel):
    model = small_model(config("score"))
    found = choice(model, kernel)
    assert found.kernel == "plain"
    assert "a score rule of your own is known to the plain kernel only" in found.why
    assert torch.equal(model(TOKENS, kernel=kernel), model(TOKENS, kernel="plain"))


def test_a_position_that_biases_runs_tiled_and_learns_there_too(mine):
    model = small_model(config("position that biases"))
    assert choice(model, "tiled").kernel == "tiled"
    grads = []
    for kernel in ("plain", "tiled"):
        model.zero_grad()
        model(TOKENS, kernel=kernel).square().sum().backward()
        grads.append({name: p.grad.clone() for name, p in model.named_parameters()})
    torch.testing.assert_close(grads[1], grads[0], atol=1e-8, rtol=1e-10)  # gradients up to 1e4
    assert grads[0]["schemes.0.table"].abs().max() > 0


# Saved and loaded


@pytest.mark.parametrize("name", PARTS)
def test_a_saved_model_opens_with_the_file_that_is_named_and_not_without(mine, tmp_path, monkeypatch, name):
    model = small_model(config(name, parts=[str(mine)]), dtype=torch.float32)
    save_native(model, tmp_path / "m")
    want = model(TOKENS)
    forgotten(monkeypatch)
    with pytest.raises(OnehopError, match=r"mine\.py"):
        onehop.load(tmp_path / "m")
    lm = onehop.load(tmp_path / "m", parts=[mine], prepare=False)
    assert torch.equal(lm.model(TOKENS), want)


@pytest.mark.parametrize("name", PARTS)
def test_an_export_that_cannot_say_it_is_refused_by_name(mine, tmp_path, name):
    lm = onehop.LanguageModel(small_model(config(name)))
    kind = {"score": "fading", "position that biases": "steps", "position that turns": "turned", "ffn": "cubic",
            "norm": "mean", "norm of q and k": "mean", "attention": "gated"}  # fmt: skip
    with pytest.raises(ConfigError) as refused:
        lm.save(tmp_path / "hf", format="hf")
    assert not (tmp_path / "hf").exists()
    if name in kind:
        assert f"={kind[name]} (a part of your own) cannot be written as a Hugging Face " in str(refused.value)


def test_generation_uses_it(mine):
    lm = onehop.LanguageModel(small_model(config("all of them")), prepare=False)
    answer = lm.generate([[1, 5, 2]], max_new_tokens=5, temperature=0.0)[0].token_ids
    text = [1, 5, 2]
    for _ in range(5):
        text.append(int(lm.model(torch.tensor([text]))[0, -1].argmax()))
    assert answer == text[3:]


RECIPE = """
out = "run"
[model]
d_model = 16
n_layers = 1
max_len = 16
parts = ["mine.py"]
attention.n_heads = 4
attention.position = "none"
attention.score = {kind = "fading", rate = 0.25}
ffn = {kind = "cubic", d_ff = 8}
[data]
files = ["text.txt"]
tokenizer = "characters"
[train]
steps = 2
batch_size = 2
eval_rows = 2
sample_tokens = 0
device = "cpu"
"""


def test_a_recipe_that_names_the_file_trains_and_its_run_opens_with_the_file(mine, tmp_path, monkeypatch):
    forgotten(monkeypatch)
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog sat on the log\n\n" * 40)
    (tmp_path / "mine.toml").write_text(RECIPE + 'separator = "\\n\\n"\n' if "separator" in RECIPE else RECIPE)
    losses = [step.loss for step in onehop.steps(tmp_path / "mine.toml", ['data.separator="\\n\\n"'])]
    assert len(losses) == 2
    run = onehop.train(tmp_path / "mine.toml", ["out=again", 'data.separator="\\n\\n"'])
    assert float(run.model.layers[0].attention.change.rate.detach().mean()) == pytest.approx(0.25, abs=0.01)
    forgotten(monkeypatch)
    with pytest.raises(OnehopError, match=r"mine\.py"):
        onehop.load("again")
    lm = onehop.load("again", parts=[mine])
    # training may multiply by another library than loading does: float32 sums in another order, at logits below 1
    torch.testing.assert_close(lm.model(TOKENS), run.model.eval()(TOKENS), rtol=0, atol=1e-6)


# Refusals


def test_what_cannot_be_added_is_refused_with_a_way_out(mine):
    score = TABLES["score"][2]

    class Nameless(score):
        pass

    class Taken(score):
        kind: str = "fading"

    with pytest.raises(
        ConfigError, match=r"^parts of your own can be: attention, position, ffn, norm, score; not 'scores'"
    ):
        part("scores", Taken)
    with pytest.raises(
        ConfigError, match=r"^the config of your own score Nameless needs ScoreConfig as base and a default"
    ):
        part("score", Nameless)
    with pytest.raises(ConfigError, match=r"needs FFNConfig as base"):
        part("ffn", Taken)
    with pytest.raises(ConfigError, match=r"'fading' exists already\. Give your own part another name\.$"):
        part("score", Taken)(torch.nn.Identity)
    with pytest.raises(ConfigError, match=r"^your own score int needs Module as base$"):
        part("score", Taken)(int)
    with pytest.raises(ConfigError, match=r"^your own score Module has no method forward"):
        part("score", Taken)(torch.nn.Module)


def test_a_config_that_asks_for_a_part_nobody_added_is_refused(mine, monkeypatch):
    forgotten(monkeypatch)
    with pytest.raises(ConfigError, match=r"score='fading' does not exist"):
        ModelConfig(vocab_size=13, d_model=16, n_layers=1, max_len=8, ffn={"kind": "plain", "d_ff": 8}, **SCORE)


def test_the_model_keeps_own_buffers_through_a_load_of_other_weights(mine, tmp_path):
    """A buffer that is not saved is filled by the constructor again, also when a folder is opened."""
    model = small_model(config("score", parts=[str(mine)]))
    save_native(model, tmp_path / "m")
    again = load_native(tmp_path / "m", parts=[mine])
    assert again.layers[0].attention.change.reach == 100
