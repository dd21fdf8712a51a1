"""No dead option: every field of a model's config, turned away from its value, changes the model or is refused.

The config tree is walked by its own classes, so that a new field or kind is asked for without a change here.
"""

import json
from functools import cache
from itertools import zip_longest
from types import UnionType
from typing import Literal, Union, get_args, get_origin

import pytest
import torch

from onehop.base.errors import ConfigError
from onehop.config import BlockConfig, ModelConfig, model_from_dict, to_dict
from onehop.config.keys import classes
from onehop.config.model import StackConfig
from onehop.config.part import Part
from onehop.lm import LanguageModel
from onehop.parts.dropout import DropKey
from onehop.parts.moe import MoE
from tests.small_models import small_model

# Below, just above and far above the 8 tokens from which lengths are stretched here
SHORT, MIDDLE, LONG = (torch.arange(n)[None] * 7 % 13 for n in (5, 9, 20))

LATENT = {
    "kind": "latent", "n_heads": 2, "d_head": 8, "d_latent": 6, "d_value": 10, "position": {"kind": "rope", "width": 4},
}  # fmt: skip
# Every kind that a field may have, with the keys that it cannot do without.
KINDS = {
    "position": [
        "none", "rope",
        {"kind": "alibi", "max_exponent": 7.0},  # slopes that bfloat16 rounds
        {"kind": "t5", "n_buckets": 8, "max_distance": 12},
    ],
    "norm": ["none", {"kind": "rms", "eps": 1e-3}, {"kind": "layer", "eps": 1e-3}],
    "ffn": [
        {"kind": "plain", "d_ff": 12},
        {"kind": "gated", "d_ff": 12},
        {"kind": "moe", "d_ff": 4, "n_experts": 4, "n_active": 2},
    ],
    "scaling": [
        {"kind": "linear", "factor": 4.0},
        {"kind": "ntk", "factor": 4.0},
        {"kind": "dynamic", "factor": 2.0, "original_max_len": 8},
        # The ends of the ramp between whole pairs, where they are not rounded
        {"kind": "yarn", "factor": 4.0, "original_max_len": 1024, "truncate": False},
        {"kind": "llama3", "factor": 8.0, "original_max_len": 8},
        {"kind": "longrope", "factor": 4.0, "original_max_len": 8, "short_factor": [1.0, 1.1, 1.2, 1.3],
         "long_factor": [2.0, 3.0, 4.0, 5.0]},
    ],
    "attention": ["grouped", LATENT],
}  # fmt: skip
KINDS |= {"final_norm": KINDS["norm"], "cross": KINDS["attention"]}
NESTED = {  # parts that come in one kind only, where none is given
    "qk_norm": {"norm": "rms"},
    "cross": {"n_heads": 2},
    "encoder": {"n_layers": 1, "ffn": {"kind": "plain", "d_ff": 8}, "attention": {"n_heads": 2, "sees": "all"}},
    "score": {"kind": "mine"},
    "transform": {"activation": "relu"},
}


def base(**own):
    return {
        "vocab_size": 13, "d_model": 16, "n_layers": 1, "max_len": 64, "init_std": 0.4,
        "attention": {"n_heads": 2, "n_kv_heads": 2, "d_head": 8}, "ffn": {"kind": "gated", "d_ff": 12}, **own,
    }  # fmt: skip


def attending(**own):
    return base(attention={**base()["attention"], **own})


def encoder_decoder(**own):
    sees_all = {"n_heads": 2, "d_head": 8, "sees": "all"}
    encoder = {"n_layers": 1, "attention": sees_all, "ffn": {"kind": "plain", "d_ff": 8}, **own}
    return base(cross={"n_heads": 2, "d_head": 8}, encoder=encoder)


ELSEWHERE = {
    "blocks": "each field of a block is turned by itself",
    "name": "a label, which `pattern` has to name",
    "kind": "the other kinds of a part are values of the field that holds it",
    "parts": "read by config.read: tests/test_own_part.py",
}
REFUSED = {
    "score": "none are built in: tests/test_own_part.py",
    "cross": "goes with an encoder, which has to be given beside it",
    "encoder": "goes with cross-attention",
    "LatentConfig.qk_norm": "the latents have a norm of their own",
    "LatentConfig.clip": "nothing is cut off before the latents are made",
    "LatentConfig.clip_after_norm": "nothing is cut off",
    "LatentConfig.position": "some of its dims turn: rope",
}


def name_of(kind):
    return kind if isinstance(kind, str) else kind["kind"]


# name -> (the config, the tables in it whose fields are turned)
BASES = {
    "decoder": (base(), ["", "attention", "attention.position", "ffn", "norm", "embed", "head", "dropout"]),
    "two blocks": (
        base(n_layers=4, blocks={"a": {"norm_out": "inside"}, "b": {}}, pattern=["a", "b"]), ["", "blocks.a"],
    ),
    "two blocks in an encoder": (
        encoder_decoder(n_layers=4, blocks={"a": {"norm_out": "inside"}, "b": {}}, pattern=["a", "b"]), ["encoder"],
    ),
    "encoder-decoder": (
        encoder_decoder(), ["cross", "encoder", "encoder.attention", "encoder.ffn", "encoder.embed", "encoder.norm"],
    ),
    "q and k normalised, then cut off": (attending(qk_norm={"norm": "rms"}, clip=0.7), ["attention"]),
    "q and k normalised": (attending(qk_norm={"norm": "rms"}), ["attention.qk_norm", "attention.qk_norm.norm"]),
    "every norm": (
        base(norm="layer", final_norm="layer", embed={"norm": "layer"}), ["norm", "final_norm", "embed.norm"],
    ),
    "a hidden layer before the logits": (
        base(head={"transform": {"activation": "gelu"}}), ["head", "head.transform", "head.transform.norm"],
    ),
    "segments": (base(embed={"segments": 2}), ["embed"]),
    "experts by bias": (base(ffn={**KINDS["ffn"][2], "balance": "bias"}), ["ffn"]),
    "experts in groups": (
        base(ffn={**KINDS["ffn"][2], "n_experts": 16, "n_active": 3, "n_groups": 4, "n_active_groups": 2}), ["ffn"],
    ),
    "latent attention": (attending(**LATENT), ["attention", "attention.norm", "attention.position"]),
    "latent attention, queries too": (attending(**LATENT, d_latent_q=5), ["attention"]),
    "a shared expert": (base(ffn={**KINDS["ffn"][2], "d_ff_shared": 4}), ["ffn"]),
}  # fmt: skip
for kind in ("learned", "sinusoidal"):
    BASES[f"embed {kind}"] = (base(embed={"position": kind}), ["embed"])
for kind in KINDS["position"]:
    BASES[f"position {name_of(kind)}"] = (attending(position=kind), ["attention.position"])
for kind in KINDS["scaling"]:
    position = {"kind": "rope", "scaling": kind}
    BASES[f"scaling {name_of(kind)}"] = (attending(position=position), ["attention.position.scaling"])
longrope = {key: value for key, value in KINDS["scaling"][-1].items() if key != "factor"} | {"attention_factor": 1.2}
position = {"kind": "rope", "scaling": longrope}
BASES["longrope, warmed as given"] = (attending(position=position), ["attention.position.scaling"])
for kind in KINDS["ffn"]:
    BASES[f"ffn {name_of(kind)}"] = (base(ffn=kind), ["ffn"])


def at(config, path):
    """The part of a config that a user's path names; one nameless block is written in place."""
    node = config
    for word in filter(None, path.split(".")):
        if isinstance(node, dict):
            node = node[word]
        elif word == "blocks":
            node = {block.name: block for block in node.blocks}
        elif isinstance(node, StackConfig) and word not in type(node).model_fields:
            node = getattr(node.blocks[0], word)
        else:
            node = getattr(node, word)
    return node


def fields(config, path):
    """The fields that can be turned in one table: plain values, and parts that may be absent or of another kind."""
    node = at(config, path)
    names = dict(type(node).model_fields)
    if isinstance(node, StackConfig) and [block.name for block in node.blocks] == ["block"]:
        names |= type(node.blocks[0]).model_fields
    for elsewhere in ELSEWHERE:
        names.pop(elsewhere, None)
    return [(name, field, getattr(node, name, None) if name in type(node).model_fields else at(node, name))
            for name, field in names.items()]  # fmt: skip


def others(name, field, value):
    """Values that the field does not have now."""
    members = get_args(field.annotation) if get_origin(field.annotation) in (Union, UnionType) else [field.annotation]
    if type(None) in members and value is not None:
        yield "none"
    if name in KINDS and isinstance(value, Part | None):
        now = getattr(value, "kind", None)
        yield from (kind for kind in KINDS[name] if name_of(kind) != now)
    elif name in NESTED and value is None:
        yield NESTED[name]
    elif not isinstance(value, Part):  # a part's own table is turned
        now = list(value) if isinstance(value, tuple) else value
        yield from (x for member in members for x in plain_values(member, value) if x != now)


def plain_values(kind, value):
    """Some values of one type, near the present one."""
    if get_origin(kind) is Literal:
        yield from get_args(kind)
    elif get_origin(kind) is tuple:
        yield from ([*value, value[-1]], [2 * x for x in value], list(value[::-1]))
    elif kind is bool:
        yield not value
    elif kind is str:
        yield "another"
    elif kind is int:
        yield from ((2,) if value is None else dict.fromkeys((2 * value, value // 2 or value + 1)))
    elif kind is float:
        yield from ((0.5,) if value is None else dict.fromkeys((value + 0.5, value / 2)))


def turned(raw, path, value):
    """The table with another value at `path`."""
    head, _, rest = path.partition(".")
    return {**raw, head: turned(raw[head], rest, value) if rest else value}


CASES = [
    pytest.param(raw, path, field, value, id=f"{name}: {path}{'.' if path else ''}{field}={value}"[:90])
    for name, (raw, paths) in BASES.items()
    for path in paths
    for field, info, now in fields(ModelConfig(**raw), path)
    for value in others(field, info, now)
]


def tensors(config):
    """Fresh weights, every bias, norm and sink moved off its start value too."""
    return small_model(config).state_dict()


def numbers(config, weights):
    """What decides answers and training: logits with and without dropout, router losses, the routers' next bias."""
    model = small_model(config)
    model.load_state_dict(weights)
    reads_prefix = any(block.attention.sees == "prefix" for block in config.blocks)
    more = {"prefix": torch.tensor([3])} if reads_prefix else {}
    yield LanguageModel(model).limits.max_len
    for text, drop in ((LONG, None), (LONG, DropKey.of(0)), (MIDDLE, None), (SHORT, None)):
        inputs = (text, SHORT) if model.encoder is not None else (text,)
        states = model.states(*inputs, drop=drop, **more)
        yield model.head(states.hidden).tolist()
        yield [float(r.weighted_loss.detach()) for r in (*states.routing, *states.encoder_routing) if r is not None]
    for module in model.modules():
        if isinstance(module, MoE) and module.router.choice_bias is not None:
            module.update_bias(torch.arange(module.w1.size(0)))
            yield module.router.choice_bias.tolist()


@cache
def known(text):
    """Weights of a base, and its numbers."""
    config = model_from_dict(json.loads(text))
    return tensors(config), list(numbers(config, tensors(config)))


@cache
def effect(text, path, value):
    """What turning a field of a config away does: the text of a refusal, or whether anything differs."""
    raw = to_dict(model_from_dict(json.loads(text)))
    try:
        config = model_from_dict(turned(raw, path, json.loads(value)))
    except ConfigError as error:
        return str(error)
    weights, before = known(text)
    fresh = tensors(config)
    if {name: t.shape for name, t in fresh.items()} != {name: t.shape for name, t in weights.items()}:
        return True
    differs = any(a != b for a, b in zip_longest(numbers(config, weights), before))
    return differs or any(not torch.equal(fresh[name], t) for name, t in weights.items())


@pytest.mark.parametrize(("raw", "path", "field", "value"), CASES)
def test_every_field_changes_the_model_or_is_refused_in_words(raw, path, field, value):
    full = f"{path}.{field}" if path else field
    found = effect(json.dumps(raw), full, json.dumps(value))
    assert found, f"{full}={value} does nothing"
    if isinstance(found, str):
        assert field in found or path.split(".")[-1] in found, found  # it says what it is about
        assert "\n" not in found


def parts_of(cls):
    """A config class and all below it, every kind of every part."""
    found = {cls}
    for field in cls.model_fields.values():
        for inner in set(classes(field)) - found:
            found |= parts_of(inner)
    return found


def test_every_field_of_every_kind_was_turned_and_can_be_used():
    """A field that is refused with every value would be as dead as one that nobody reads."""
    wanted = {
        (cls, name)
        for cls in parts_of(ModelConfig)
        for name, field in cls.model_fields.items()
        if name not in ELSEWHERE and (len(classes(field)) != 1 or type(None) in get_args(field.annotation))
    }  # a part that is always there, in its one kind, is a table of its own
    cases = {}
    for raw, path, field, value in (case.values for case in CASES):
        node = at(ModelConfig(**raw), path)
        owner = type(node) if field in type(node).model_fields else BlockConfig
        for cls in (c for c in owner.__mro__ if field in getattr(c, "model_fields", {})):
            cases.setdefault((cls, field), []).append(
                (json.dumps(raw), f"{path}.{field}" if path else field, json.dumps(value))
            )
    assert wanted == {pair for pair in cases if pair[0] in parts_of(ModelConfig)}
    for (cls, field), values in cases.items():
        usable = any(effect(*case) is True for case in values)
        refused = {field, f"{cls.__name__}.{field}"} & REFUSED.keys()
        assert usable != bool(refused), f"{cls.__name__}.{field}"
