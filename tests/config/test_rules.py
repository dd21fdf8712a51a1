"""Every rule across fields: its text, and that what stands beside it passes."""

import pytest

from onehop.base.errors import ConfigError
from onehop.config import ModelConfig, Recipe
from onehop.config.raw import merge_stacks

BASE = {
    "vocab_size": 100,
    "d_model": 32,
    "n_layers": 2,
    "max_len": 64,
    "attention": {"n_heads": 4},
    "ffn": {"kind": "gated", "d_ff": 64},
}
ENCODER = {
    "cross": {"n_heads": 4},
    "encoder": {"n_layers": 1, "attention": {"n_heads": 4, "sees": "all"}, "ffn": {"kind": "gated", "d_ff": 64}},
}
LONG = {"kind": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_len": 32, "factor": 2.0}
MOE = {"kind": "moe", "n_experts": 4, "n_active": 2}


def model(*layers):
    return ModelConfig(**merge_stacks([BASE, *layers]))


def rope(**scaling):
    return {"attention": {"position": {"kind": "rope", "scaling": scaling}}}


BROKEN = [
    (
        {"attention": {"n_kv_heads": 3}},
        "attention.n_kv_heads=3 cannot share n_heads=4: it must divide 4. Use 1, 2 or 4.",
    ),
    (  # as a damaged file may claim: nobody waits for all divisors
        {"attention": {"n_heads": 10**17, "n_kv_heads": 3, "d_head": 8}},
        f"attention.n_kv_heads=3 cannot share n_heads={10**17}: it must divide {10**17}. Use a divisor of it.",
    ),
    (
        {"attention": {"n_heads": 5}},
        "attention.n_heads=5 does not divide d_model=32. Use 4 heads, or give attention.d_head.",
    ),
    (
        {"d_model": 4 * 10**15 + 7, "attention": {"n_heads": 3 * 10**15}},
        (
            "attention.n_heads=3000000000000000 does not divide d_model=4000000000000007. Use fewer heads, or give "
            "attention.d_head."
        ),
    ),
    (
        {"attention": {"n_heads": 64}},
        "attention.n_heads=64 does not divide d_model=32. Use 32 heads, or give attention.d_head.",
    ),
    (
        {"attention": {"d_head": 7}},
        "attention.d_head=7 is odd: rotary positions turn pairs of dims. Use 6 or 8.",
    ),
    (
        {"attention": {"d_head": 1}},
        "attention.d_head=1 is odd: rotary positions turn pairs of dims. Use 2.",
    ),
    (
        {"attention": {"d_head": 7, "position": {"kind": "rope", "width": 7}}},
        "attention.position.width=7 is odd: rotary positions turn pairs of dims. Use 6.",
    ),
    (
        {"attention": {"d_head": 9, "position": {"kind": "rope", "width": 11}}},
        "attention.position.width=11 is wider than a head (d_head=9). Use at most 8.",
    ),
    (
        {"attention": {"position": {"kind": "rope", "width": 5}}},
        "attention.position.width=5 is odd: rotary positions turn pairs of dims. Use 4 or 6.",
    ),
    (
        {"attention": {"position": {"kind": "rope", "width": 10}}},
        "attention.position.width=10 is wider than a head (d_head=8). Use at most 8.",
    ),
    (
        rope(**{**LONG, "long_factor": [1.0] * 3}),
        "attention.position.scaling.long_factor has 3 factors for 4 rotary pairs. Give 4.",
    ),
    (
        rope(**{**LONG, "factor": None}),
        "attention.position.scaling=longrope needs factor or attention_factor: one of them says how to warm the scores",
    ),
    (
        rope(**{**LONG, "attention_factor": 1.2}),
        "attention.position.scaling.factor=2.0 has no effect: it needs no attention_factor. Leave it out.",
    ),
    (
        rope(kind="yarn", factor=4.0, original_max_len=32, beta_fast=1.0, beta_slow=32.0),
        "attention.position.scaling: beta_fast=1 must be above beta_slow=32, or the ramp turns round. Swap them.",
    ),
    (
        rope(kind="llama3", factor=8.0, original_max_len=32, low_freq_factor=4.0, high_freq_factor=4.0),
        "attention.position.scaling: high_freq_factor=4 must be above low_freq_factor=4. Swap them.",
    ),
    (
        rope(kind="yarn", factor=4.0, original_max_len=32, mscale=1.0, mscale_all_dim=1.0, attention_factor=1.1),
        "attention.position.scaling.mscale=1.0 has no effect: it needs no attention_factor. Leave it out.",
    ),
    (
        {"attention": {"position": {"kind": "rope", "width": 2, "scaling": {"kind": "ntk", "factor": 2.0}}}},
        "attention.position.scaling=ntk needs a rotary width above 2, not 2. Use linear.",
    ),
    (
        {"attention": {"position": {"kind": "t5", "n_buckets": 9, "max_distance": 4}}},
        "attention.position: n_buckets=9 and max_distance=4 leave no room to grow. Use n_buckets>=2, max_distance>4.",
    ),
    (
        {"attention": {"qk_norm": {"norm": "rms", "span": "all", "own_weights": True}}},
        (
            "attention.qk_norm.own_weights=True has no effect: it needs span=head and affine rms or layer. "
            "Leave it out (or own_weights=False)."
        ),
    ),
    (
        {"attention": {"qk_norm": {"norm": {"kind": "layer", "affine": False}, "own_weights": True}}},
        (
            "attention.qk_norm.own_weights=True has no effect: it needs span=head and affine rms or layer. "
            "Leave it out (or own_weights=False)."
        ),
    ),
    (
        {"attention": {"window": 8, "sees": "prefix"}},
        "attention.window=8 and sees=prefix contradict: a window would hide the prefix. Leave one out.",
    ),
    ({"cross": {"n_heads": 4}}, "cross needs an encoder to read. Add encoder, or remove cross."),
    (
        {"encoder": ENCODER["encoder"]},
        "encoder is given, but no block has cross-attention: its output would be ignored. Add cross to a block.",
    ),
    (
        {**ENCODER, "cross": {"n_heads": 4, "window": 3}},
        "cross attends over the whole encoder output: it needs sees=all and no window",
    ),
    (
        {**ENCODER, "cross": {"n_heads": 4, "position": "rope"}},
        "cross.position=rope: encoder and decoder positions are not comparable. Use none.",
    ),
    (
        {**ENCODER, "parallel": "one norm"},
        "parallel='one norm' cannot place cross-attention. Use parallel='no'.",
    ),
    (
        {**ENCODER, "encoder": {**ENCODER["encoder"], "attention": {"n_heads": 4}}},
        "encoder.attention.sees=causal: an encoder reads in both directions. Use all.",
    ),
    (
        {**ENCODER, "encoder": {**ENCODER["encoder"], "cross": {"n_heads": 4}}},
        "encoder.cross: an encoder has nothing to cross-attend to. Remove it.",
    ),
    (
        {**ENCODER, "encoder": {**ENCODER["encoder"], "attention": {"n_heads": 4, "n_kv_heads": 3, "sees": "all"}}},
        "encoder.attention.n_kv_heads=3 cannot share n_heads=4: it must divide 4. Use 1, 2 or 4.",
    ),
    (
        {"parallel": "one norm", "norm_out": "outside"},
        "norm_out=outside normalises one sum after another; parallel='one norm' has only one. Use inside.",
    ),
    (
        {"parallel": "two norms", "norm_in": False, "norm_out": "inside"},
        "parallel='two norms' and norm_in=false contradict: there is no input norm. Use parallel='one norm'.",
    ),
    (
        {"norm": "none", "norm_out": "inside"},
        "norm_out=inside asks for a norm, but norm.kind is none. Choose rms or layer.",
    ),
    ({"norm_in": False}, "norm.kind=rms is used nowhere: norm_in=false and norm_out=none. Use norm=none."),
    ({"ffn": {**MOE, "n_active": 5}}, "ffn.n_active=5 is more than n_experts=4. Use at most 4."),
    (
        {"ffn": {**MOE, "activation": "relu", "swish_gain": 1.702}},
        "ffn.swish_gain=1.702 has no effect: it needs activation=silu. Leave it out (or swish_gain=1.0).",
    ),
    (
        {"ffn": {**MOE, "expert": "plain", "clamp": 7.0}},
        "ffn.clamp=7.0 has no effect: it needs expert=gated. Leave it out.",
    ),
    (
        {"ffn": {**MOE, "expert": "plain", "up_offset": 1.0}},
        "ffn.up_offset=1.0 has no effect: it needs expert=gated. Leave it out (or up_offset=0.0).",
    ),
    ({"ffn": {**MOE, "n_groups": 3}}, "ffn.n_groups=3 must divide n_experts=4. Use a divisor of it."),
    (
        {"ffn": {**MOE, "n_groups": 2, "n_active_groups": 2}},
        "ffn.n_active_groups=2 excludes none of n_groups=2. Use fewer, or leave both out.",
    ),
    (
        {"ffn": {**MOE, "n_groups": 2, "n_active": 3}},
        "ffn.n_active=3 experts do not fit into n_active_groups=1 of 2. Use n_active<=2, or more groups.",
    ),
    (
        {"ffn": {**MOE, "n_groups": 4, "n_active_groups": 2, "group_score": "best two"}},
        "ffn.group_score='best two' needs groups of 2 experts or more, not of 1. Use best.",
    ),
    (
        {"ffn": {**MOE, "group_score": "best two"}},
        "ffn.group_score=best two has no effect: it needs n_groups above 1. Leave it out (or group_score=best).",
    ),
    (
        {"ffn": {**MOE, "shared_gate": True}},
        "ffn.shared_gate=True has no effect: it needs d_ff_shared. Leave it out (or shared_gate=False).",
    ),
    (
        {"ffn": {**MOE, "balance_rate": 0.01}},
        "ffn.balance_rate=0.01 has no effect: it needs balance=bias. Leave it out (or balance_rate=0.001).",
    ),
    (
        {"ffn": {**MOE, "balance": "none", "balance_weight": 0.5}},
        "ffn.balance_weight=0.5 has no effect: it needs balance=loss. Leave it out (or balance_weight=0.01).",
    ),
    (
        {"norm": {"kind": "rms", "affine": False, "offset": 1}},
        "norm.offset=1 has no effect: it needs affine=true. Leave it out (or offset=0).",
    ),
    (
        {"norm": {"kind": "layer", "affine": False, "bias": False}},
        "norm.bias=False has no effect: it needs affine=true. Leave it out (or bias=True).",
    ),
    (
        {"final_norm": {"kind": "layer", "affine": False, "offset": 1}},
        "final_norm.offset=1 has no effect: it needs affine=true. Leave it out (or offset=0).",
    ),
    (
        {"d_model": 33, "attention": {"d_head": 8}, "embed": {"position": "sinusoidal"}},
        "embed.position=sinusoidal pairs sines and cosines: d_model=33 must be even",
    ),
    (
        {**ENCODER, "embed": {"width": 8}},
        "encoder.embed.width=none and embed.width=8 differ, but one embedding serves both. Give both the same.",
    ),
    (
        {**ENCODER, "embed": {"segments": 2}},
        "embed.segments=2: source and target are told apart by their stacks. Leave it out (or none).",
    ),
    (
        {"embed": {"position_offset": 2}},
        "embed.position_offset=2 has no effect: it needs an absolute embed.position. Leave it out (or 0).",
    ),
    (
        {"embed": {"position": "learned", "waves": "fairseq"}},
        "embed.waves=fairseq has no effect: it needs embed.position=sinusoidal. Leave it out (or waves=interleaved).",
    ),
    (
        {"d_model": 2, "attention": {"d_head": 8}, "embed": {"position": "sinusoidal", "waves": "fairseq"}},
        "embed.waves=fairseq needs two wavelengths: d_model=2 must be at least 4. Use interleaved.",
    ),
    (
        {"blocks": {"a": {}, "b": {}}, "pattern": ["a"]},
        "blocks.b is not used: pattern=a never names it. Add or remove it.",
    ),
    (
        {"blocks": {"local": {}, "global": {}}, "pattern": "local,globl"},
        "pattern names the block 'globl', which does not exist. Did you mean global?",
    ),
    (
        {"pattern": ["block"] * 3},
        "pattern has 3 blocks for n_layers=2: the last would never be built. Use n_layers=3 or a shorter pattern.",
    ),
    ({"blocks": {"a.b": {}}}, "blocks: 'a.b' is no name for a block. Use letters, digits, - and _."),
]


@pytest.mark.parametrize(("change", "text"), BROKEN, ids=[text[:60] for _, text in BROKEN])
def test_a_broken_rule_is_refused_in_one_line_with_a_way_out(change, text):
    with pytest.raises(ConfigError) as refused:
        model(change)
    assert str(refused.value) == text


FINE = [
    {"attention": {"n_kv_heads": 1}},
    {"attention": {"n_heads": 5, "d_head": 6}},
    {"attention": {"d_head": 7, "position": "none"}},
    rope(**LONG),
    rope(kind="yarn", factor=4.0, original_max_len=32, mscale=1.0, mscale_all_dim=0.7),
    rope(kind="yarn", factor=4.0, original_max_len=32, mscale_all_dim=0.7),
    rope(kind="dynamic", factor=2.0, original_max_len=32),
    {"attention": {"window": 8, "sees": "all"}},
    {"attention": {"position": "t5"}},
    ENCODER,
    {"norm": "none"},
    {"norm": "none", "norm_in": False},
    {"norm_in": False, "norm_out": "outside"},
    {"parallel": "two norms", "norm_out": "inside"},
    {"ffn": {**MOE, "balance": "bias", "balance_rate": 0.01}},
    {"ffn": {**MOE, "balance": "none"}},
    {"norm": {"kind": "layer", "affine": False}},
    {"blocks": {"a": {}, "b": {}}},
]


@pytest.mark.parametrize("change", FINE, ids=str)
def test_what_stands_beside_a_rule_passes(change):
    assert hash(model(change)) == hash(model(change))


def test_a_fault_of_one_block_names_it_and_a_fault_of_all_does_not():
    blocks = {"blocks": {"local": {}, "global": {}}}
    with pytest.raises(ConfigError, match=r"^blocks\.local\.attention\.n_kv_heads=3 cannot"):
        model({"blocks": {"local": {"attention": {"n_kv_heads": 3}}, "global": {}}})
    with pytest.raises(ConfigError, match=r"^attention\.n_kv_heads=3 cannot"):
        model(blocks, {"attention": {"n_kv_heads": 3}})
    with pytest.raises(ConfigError, match=r"^blocks\.local\.attention\.n_heads=5 does not divide"):
        model({"blocks": {"local": {"attention": {"n_heads": 5}}, "global": {}}})


@pytest.mark.parametrize(
    ("blocks", "text"),
    [
        ([{"ffn": "gated"}], "blocks: each block of a list needs a name"),
        ([{"name": "a"}, {"name": "a"}], "blocks: the name 'a' occurs twice. Give each block its own."),
        (5, "blocks=5: needs a table for each block"),
    ],
)
def test_blocks_that_have_no_names_are_refused(blocks, text):
    with pytest.raises(ConfigError) as refused:
        ModelConfig(**BASE, blocks=blocks)
    assert str(refused.value) == text


def test_blocks_may_be_finished_configs():
    config = ModelConfig(preset="tiny")
    same = ModelConfig(
        vocab_size=1024, d_model=64, n_layers=4, max_len=256, blocks=config.blocks, final_norm=config.final_norm
    )
    assert same == config


RECIPE = {"model": BASE, "data": {"corpus": "fables", "vocab_size": 300}, "train": {"steps": 10, "batch_size": 4}}
BROKEN_RECIPES = [
    (
        {"train": {"context": 65}},
        "train.context=65 is longer than model.max_len=64. Shorten the rows or raise model.max_len.",
    ),
    (
        {"data": {"corpus": None}},
        "data.files and data.corpus are left out: no text. Set data.files=FILE,… or data.corpus=fables.",
    ),
    (
        {"data": {"files": ["a.txt", "b.txt"]}},
        "data.corpus=fables and files=a.txt,b.txt are both given. Leave one out.",
    ),
    (
        {"data": {"tokenizer": "characters"}},
        "data.vocab_size=300 has no effect: it needs tokenizer=bpe. Leave it out (or vocab_size=1024).",
    ),
    (
        {"train": {"dead_after": 5}},
        "train.dead_after=5 has no effect: this model has no experts. Leave it out (or dead_after=100).",
    ),
    ({"data": {"separator": "--"}}, "data.separator=-- has no effect: it needs files. Leave it out."),
    (
        {"model": {**BASE, "attention": {"n_heads": 4, "sees": "all"}, "vocab_size": None}},
        (
            "model.attention.sees=all shows every token the next one, which training asks for. Use causal or prefix, "
            "or task=masked."
        ),
    ),
    (
        {"train": {"micro_batch": 3}},
        "train.micro_batch=3 must divide train.batch_size=4. Every row has to be seen once per step.",
    ),
    ({"train": {"betas": [0.9, 1.0]}}, "train.betas=(0.9, 1.0) must lie in [0, 1). Use 0.9,0.95."),
]


@pytest.mark.parametrize(("change", "text"), BROKEN_RECIPES, ids=[text[:60] for _, text in BROKEN_RECIPES])
def test_a_recipe_that_cannot_be_trained_is_refused_in_one_line(change, text):
    whole = {**RECIPE, "model": {**BASE, "vocab_size": 300}}
    with pytest.raises(ConfigError) as refused:
        Recipe(**{top: {**table, **change.get(top, {})} for top, table in whole.items()})
    assert str(refused.value) == text


def test_an_empty_folder_and_a_seed_beyond_its_type_are_refused():
    """out= is an empty shell variable: the run would fill the current folder; torch's seeds have 63 bits."""
    whole = {**RECIPE, "model": {**BASE, "vocab_size": None}}
    with pytest.raises(ConfigError, match=r"^out='': string should have at least 1 character"):
        Recipe(**whole, out="")
    train = {"steps": 5, "batch_size": 4}
    with pytest.raises(ConfigError, match=r"^train\.seed=9223372036854775808: input should be less than"):
        Recipe(**{**whole, "train": {**train, "seed": 2**63}})
    assert Recipe(**{**whole, "train": {**train, "seed": 2**63 - 1}}).train.seed == 2**63 - 1


def test_fewer_steps_than_the_warmup_are_a_short_run_and_no_fault():
    """`train.steps=5` must try out any recipe."""
    whole = {**RECIPE, "model": {**BASE, "vocab_size": None}}
    assert Recipe(**{**whole, "train": {"steps": 5, "batch_size": 4, "warmup": 100}}).train.warmup == 100


def test_a_resolved_recipe_may_have_fewer_rows_than_the_tokenizer_was_allowed():
    """A small text fills fewer ids than `data.vocab_size`; the recipe written beside the result must train again."""
    assert Recipe(**{**RECIPE, "model": BASE}).model.vocab_size == 100


def test_only_a_recipe_may_leave_the_vocabulary_to_the_tokenizer():
    config = ModelConfig(**{**BASE, "vocab_size": None})
    with pytest.raises(ConfigError, match="vocab_size is left out"):
        config.need_vocab()
    assert config.with_vocab(77).need_vocab() == 77
    with pytest.raises(ConfigError, match="vocab_size=0"):
        config.with_vocab(0)
