"""`onehop.plan`: its figures agree with each other, changes change what they should, and what is missing is named."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import onehop
from onehop.base.errors import ConfigError
from onehop.config import AttentionConfig, FFNConfig, NormConfig, PositionConfig
from onehop.config import attention as attention_config
from onehop.config import ffn as ffn_config
from onehop.config import norm as norm_config
from onehop.config import position as position_config
from onehop.config.named import presets
from onehop.cost import Asked, Plan, plan
from onehop.cost.advice import for_inference, for_training, what_fits
from onehop.cost.devices import Device, Resident, device
from onehop.cost.what_if import changed, reshaped, what_ifs
from tests.small_models import decoder

H200 = device("H200")
ROOT = Path(__file__).resolve().parents[2]


def keys_of(value, prefix=""):
    if not isinstance(value, dict):
        return {prefix}
    return {found for key, inner in value.items() for found in keys_of(inner, f"{prefix}.{key}".strip("."))}


DOCUMENTED = {
    "params.total", "params.active", "params.embedding", "params.non_embedding",
    "flops.train_per_token", "flops.train_per_token_attention", "flops.train_per_token_attention_causal",
    "flops.train_per_token_6n", "flops.prefill", "flops.decode_per_token",
    "attention.plain_bytes", "attention.tiled_bytes", "attention.crossover_tokens",
    "kv_cache.bytes_per_token", "kv_cache.bytes",
    "memory.training_bytes", "memory.inference_bytes", "memory.training.live", "memory.inference.live",
    "time.training_tokens_per_s", "time.prefill_tokens_per_s", "time.decode_tokens_per_s", "time.decode_s",
    "fits.inference", "fits.training",
}  # fmt: skip


def test_every_documented_key_is_there_and_every_figure_is_json():
    found = plan("llama-3-8b").as_dict(device=H200)
    assert keys_of(found) >= DOCUMENTED
    json.dumps(found, allow_nan=False)


def test_the_docs_name_every_key_that_is_promised():
    text = (ROOT / "docs" / "planner.md").read_text()
    assert [key for key in DOCUMENTED if f"`{key}`" not in text] == []


@pytest.mark.parametrize("name", ["gpt2", "mixtral-8x7b", "gemma-3-270m", "original-transformer-base"])
def test_the_docs_name_every_key_that_is_printed(name):
    text = (ROOT / "docs" / "planner.md").read_text()
    held = {"training": Resident(1.0, 1.0), "inference": Resident(1.0, 1.0)}
    for where in (H200, replace(H200, kind="cpu", resident=held)):
        keys = keys_of(plan(name).as_dict(device=where))
        named = [(f"`{key}`", f"`{key.rpartition('.')[0]}.*`") for key in keys]
        assert [ways[0] for ways in named if not any(way in text for way in ways)] == []


def test_the_public_door_answers_as_the_design_says():
    found = onehop.plan(presets["llama-3-8b"]).kv_cache_bytes(batch=8, context=131072, dtype="bfloat16")
    assert found == 8 * 131072 * 131072  # 128 kB a token


def test_the_figures_of_one_plan_agree():
    one = plan("mixtral-8x7b")
    found = one.as_dict(Asked(context=4096, batch=2), device=H200)
    f, m = found["flops"], found["memory"]
    assert f["train_per_token"] == f["train_per_token_products"] + f["train_per_token_attention"]
    assert f["train_per_token_6n"] == 6 * one.parameters.active
    assert found["kv_cache"]["bytes"] == 2 * 4096 * found["kv_cache"]["bytes_per_token"]
    assert m["inference_bytes"] == pytest.approx(m["inference"]["live"] + m["inference"]["margin"])
    assert found["fits"]["inference"] == (m["inference_bytes"] <= H200.memory)


def test_what_is_computed_again_costs_time_and_saves_memory():
    one = plan("llama-3-8b")
    plain, again = Asked(train_rows=8), Asked(train_rows=8, recompute="block")
    assert one.times(H200, again)["training"].seconds > one.times(H200, plain)["training"].seconds
    assert one.training_memory(again).live < one.training_memory(plain).live


def test_a_plan_loads_no_torch():
    code = "import sys, onehop; onehop.plan('llama-3-70b').as_dict(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.parametrize(
    ("wish", "text"),
    [
        ({"context": 0}, "context=0: needs 1 or more"),
        ({"dtype": "q9"}, "dtype 'q9' does not exist"),
        ({"precision": "int8"}, "precision='int8': training is in float32, bfloat16 or float16"),
        ({"optimizer": "sgd"}, "optimizer='sgd' does not exist"),
        ({"recompute": "some"}, "recompute='some' does not exist"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(wish, text):
    with pytest.raises(ConfigError, match=text):
        Asked(**wish)


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda one: one.flops(new=0), "new=0: needs 1 or more."),
        (lambda one: one.flops(new=1, past=-1), "past=-1: needs 0 or more."),
        (lambda one: one.flops(new=1, logits=-1), "logits=-1: needs 0 or more."),
        (lambda one: one.train_flops_per_token(0), "new=0: needs 1 or more."),
        (lambda one: one.kv_cache_bytes(context=0), "context=0: needs 1 or more."),
        (lambda one: one.kv_cache_bytes(context=8, batch=-1), "batch=-1: needs 1 or more."),
    ],
)
def test_a_figure_of_nothing_is_refused(ask, text):
    with pytest.raises(ConfigError, match=text):
        ask(onehop.plan("gpt2"))


def test_a_config_without_a_vocabulary_is_refused():
    with pytest.raises(ConfigError, match="vocab_size is left out"):
        plan(decoder(vocab_size=None)).parameters


def test_every_law_is_asked_about_the_parameters_that_a_token_meets():
    """By hand: in each of 2 layers a token does not meet 3 of 4 experts, which have 3 maps of 16 x 8 each."""
    experts = {"kind": "moe", "n_experts": 4, "n_active": 1, "d_ff": 8, "expert": "gated"}
    one = plan(decoder(ffn=experts))
    n = one.parameters
    assert n.non_embedding - n.active_non_embedding == n.total - n.active == 2 * 3 * 384
    of = {row["law"]: row["parameters"] for row in one.as_dict()["loss"]}
    assert (of["kaplan"], of["replication"]) == (n.active_non_embedding, n.active)
    dense = plan(decoder()).parameters
    assert dense.active_non_embedding == dense.non_embedding


# What-ifs


@pytest.mark.parametrize("preset", ["llama-3-8b", "gpt2", "mixtral-8x7b", "gemma-3-270m", "original-transformer-base"])
def test_a_what_if_changes_what_it_says(preset):
    config = presets[preset]
    rows = {row.name: row.figures for row in what_ifs(config, Asked(), H200)}
    base = rows.pop("as it is")
    assert len(rows) >= 8
    for name, f in rows.items():
        if "multi-query" in name:
            assert f.kv_bytes_per_token < base.kv_bytes_per_token
        if "experts" in name:
            assert f.active == pytest.approx(base.active, rel=0.02)
            assert f.params > base.params
        if "dense" in name:
            assert f.train_flops_per_token == pytest.approx(base.train_flops_per_token, rel=0.02)
        if "twice the context" in name:
            assert f.kv_bytes > base.kv_bytes
        if "bits" in name:
            assert f.inference_bytes < base.inference_bytes
        if "texts at once" in name:
            assert f.decode_tokens_per_s > base.decode_tokens_per_s
            assert f.latency_s > base.latency_s


@pytest.mark.parametrize("preset", ["llama-3-8b", "gpt2", "mixtral-8x7b"])
def test_deeper_and_wider_have_as_many_parameters_in_blocks(preset):
    config = presets[preset]
    for depth in (2.0, 0.5):
        other = reshaped(config, depth)
        assert other.n_layers == config.n_layers * depth
        assert Plan(other).parameters.non_embedding == pytest.approx(Plan(config).parameters.non_embedding, rel=0.01)


def test_a_loss_above_that_of_a_guess_is_none():
    rows = what_ifs(presets["tiny"], Asked(), None)
    assert {row.figures.loss for row in rows} == {None}
    assert all(0 < row.figures.loss < math.log(50257) for row in what_ifs(presets["gpt2"], Asked(), None))


def test_bytes_of_a_file_change_with_the_model_and_not_with_the_texts():
    """A file of 9 bits a weight: other weights are as many bits each, another type has bits of its own."""
    config = presets["llama-3-8b"]
    total = plan(config).parameters.total
    rows = {row.name: row.figures for row in what_ifs(config, Asked(context=128, stored=total * 9 / 8), H200)}
    weights = {
        name: f.inference_bytes / 1.05 - f.kv_bytes for name, f in rows.items()
    }  # the rest is below 1 % of the file
    assert weights["as it is"] == pytest.approx(total * 9 / 8, rel=0.01)
    experts = rows["8 experts, 2 active"].params
    assert weights["8 experts, 2 active"] == pytest.approx(experts * 9 / 8, rel=0.01)
    assert weights["weights in 4 bits (q4_k)"] == pytest.approx(total * 4.5 / 8, rel=0.02)


def test_a_key_changes_all_blocks():
    other = changed(presets["gemma-3-270m"], {"attention.n_kv_heads": 2, "n_layers": 6})
    assert {block.attention.n_kv_heads for block in other.blocks} == {2}
    assert [block.attention.window for block in other.blocks] == [512, None]


# Advice


def test_what_fits_gets_no_advice():
    advice = for_inference(plan("gpt2"), Asked(), H200)
    assert (advice.fits, advice.possible, advice.steps) == (True, True, [])


@pytest.mark.parametrize("name", ["RTX 4090", "L40S", "H200"])
def test_advice_ends_where_it_fits_and_each_step_needs_less(name):
    advice = for_inference(plan("llama-3-70b"), Asked(context=131072, batch=2), device(name))
    needed = [advice.needed, *(step.needed for step in advice.steps)]
    assert needed == sorted(needed, reverse=True)
    assert [step.fits for step in advice.steps[:-1]] == [False] * (len(advice.steps) - 1)
    assert advice.possible == advice.steps[-1].fits == (name != "RTX 4090")


def test_no_step_is_advised_without_which_it_fits():
    (step,) = for_inference(plan("llama-3-70b"), Asked(), device("L40S")).steps
    assert step.change == "weights in 4 bits (--dtype q4_k)"
    assert step.needed == plan("llama-3-70b").inference_memory(Asked(dtype="q4_k", cache_dtype="bfloat16")).total
    where = Device("small", 3.3e9, 1e11, {"bfloat16": 1e13}, "made up for this test")
    steps = for_training(plan("gpt2"), Asked(train_rows=16), where).steps
    assert len({step.change.partition("train.")[2].partition("=")[0] for step in steps}) == len(steps)  # one of a kind
    assert steps[-1].fits


def test_from_wide_weights_the_last_type_alone_is_advised():
    where = Device("small", 11e9, 1e11, {"bfloat16": 1e13}, "made up for this test")
    steps = for_inference(plan("llama-3-8b"), Asked(dtype="float32", context=2048), where).steps
    assert [step.change for step in steps] == ["weights in 8 bits (--dtype q8_0)"]


def test_the_longest_context_that_fits_is_kept():
    where = Device("small", 7e9, 1e11, {"bfloat16": 1e13}, "made up for this test")
    one = plan("llama-3-8b")
    steps = for_inference(one, Asked(context=131072), where).steps
    context = next(int(step.change.split()[3]) for step in steps if "--context" in step.change)
    dtype = "q4_k" if any("q4_k" in step.change for step in steps) else "q8_0"
    cache = "int8" if any("int8" in step.change for step in steps) else "bfloat16"
    longer = Asked(context=2 * context, dtype=dtype, cache_dtype=cache)
    assert steps[-1].fits
    assert one.inference_memory(longer).total > where.memory


def test_training_is_helped_by_smaller_passes_before_shorter_rows():
    where = Device("small", 6e9, 1e11, {"bfloat16": 1e13}, "made up for this test")
    advice = for_training(plan("gpt2"), Asked(train_rows=16), where)
    changes = [step.change for step in advice.steps]
    assert advice.possible
    assert any("train.micro_batch" in change for change in changes)
    assert not any("train.context" in change for change in changes)


@pytest.mark.parametrize(("dtype", "where"), [("bfloat16", device("RTX 4090")), ("float32", H200)])
def test_what_fits_is_what_memory_says_and_one_more_is_not(dtype, where):
    one = plan("llama-3-8b")
    rooms = what_fits(one, Asked(dtype=dtype), where)
    assert rooms[0].dtype == dtype
    for room in rooms:
        for context, texts in room.texts.items():
            for n, fits in ((texts, True), (texts + 1, False)):
                if n:
                    wish = Asked(dtype=room.dtype, context=context, batch=n)
                    assert (one.inference_memory(wish).total <= where.memory) == fits


# Parts of one's own


class OwnFFN(FFNConfig):
    kind: str = "silent"


class TellingFFN(FFNConfig):
    kind: str = "telling"

    def parameters(self, d_model):
        return 5 * d_model

    def flops(self, d_model):
        return 10 * d_model

    def saved(self, d_model):
        return 2 * d_model


class OwnNorm(NormConfig):
    kind: str = "own-norm"


class OwnPosition(PositionConfig):
    kind: str = "own-position"

    def parameters(self, attention):
        return attention.n_heads


class OwnAttention(AttentionConfig):
    kind: str = "own-attention"


class TellingAttention(AttentionConfig):
    """One that averages: it learns, computes and keeps nothing."""

    kind: str = "telling-attention"

    def nothing(self, d_model):
        return 0

    parameters = flops = saved = cached = nothing


@pytest.fixture(autouse=True)
def own_kinds(monkeypatch):
    tables = (
        (ffn_config.FFNS, [OwnFFN, TellingFFN]), (norm_config.NORMS, [OwnNorm]),
        (position_config.POSITIONS, [OwnPosition]), (attention_config.ATTENTIONS, [OwnAttention, TellingAttention]),
    )  # fmt: skip
    for table, classes in tables:
        rows = {cls.model_fields["kind"].default: cls for cls in classes}
        monkeypatch.setattr(table, "_rows", {**table._rows, **rows})


def test_a_part_of_ones_own_supplies_its_counts():
    base, own = decoder(ffn={"kind": "plain", "d_ff": 1}), decoder(ffn={"kind": "telling"})
    assert plan(own).parameters.total - plan(base).parameters.total == 2 * (5 * 16 - 2 * 16)
    assert plan(own).flops(new=4).products - plan(base).flops(new=4).products == 2 * 4 * (10 * 16 - 4 * 16)
    assert plan(own).missing() == []
    assert plan(decoder(attention={"kind": "telling-attention", "n_heads": 4})).missing() == []
    shared = decoder(attention={"n_heads": 4, "position": "own-position"})
    assert plan(shared).parameters.by_part["position biases"] == 4  # one scheme for the stack


def test_what_a_part_of_ones_own_leaves_out_is_named():
    assert plan(decoder(ffn={"kind": "silent"})).missing() == [
        "ffn silent: its parameters", "ffn silent: its FLOPs", "ffn silent: what training keeps",
    ]  # fmt: skip
    assert "norm own-norm: its parameters" in plan(decoder(norm="own-norm")).missing()
    missing = plan(decoder(attention={"kind": "own-attention", "n_heads": 4})).missing()
    assert "attention own-attention: what it caches" in missing


def test_a_count_that_is_no_number_is_refused(monkeypatch):
    monkeypatch.setattr(TellingFFN, "parameters", lambda self, d_model: "many")
    with pytest.raises(ConfigError, match=r"TellingFFN\.parameters gives 'many': it needs a number"):
        plan(decoder(ffn={"kind": "telling"})).parameters


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (lambda self, d_model: 1.5, r"parameters gives 1\.5: it needs a whole number"),
        (
            lambda self, d_model: d_model // 0,
            r"parameters fails \(ZeroDivisionError: .*\)\. Correct it in your own file",
        ),
    ],
)
def test_a_count_that_fails_or_is_a_fraction_is_refused(monkeypatch, count, told):
    monkeypatch.setattr(TellingFFN, "parameters", count)
    with pytest.raises(ConfigError, match=f"TellingFFN.{told}"):
        plan(decoder(ffn={"kind": "telling"})).parameters
