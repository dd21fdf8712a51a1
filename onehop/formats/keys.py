"""The keys of a config.json as a table: each is read and written back, or refused, or harmless for a reason.

Our side of a row is a dotted path (`attention.n_heads`), as a recipe would write it. No torch.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from onehop.base.errors import CheckpointError, did_you_mean
from onehop.config.model import ModelConfig, StackConfig
from onehop.config.raw import COMMON
from onehop.formats.quantised import quantisation

Json = dict[str, Any]
REQUIRED: Final = "a value that cannot be left out"
AS_NULL: Final = "what null means"

ACTIVATIONS: Mapping[str, str] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "sigmoid": "sigmoid",
    "linear": "none",
}  # their word -> ours; the first of several is the one that is written


class KeyRow(Protocol):
    """One row, or several keys that only make sense together."""

    @property
    def names(self) -> tuple[str, ...]:
        """The keys that this row answers for."""

    def read(self, raw: Json) -> Json:
        """Our dotted paths and their values. Raises CheckpointError for what cannot be honoured."""

    def write(self, config: ModelConfig) -> Json:
        """Their keys and values."""


@dataclass(frozen=True)
class Key:
    """One key and the place, or the places, where its value goes.

    `default` is what their code takes where the key is absent or null (None: our own way to fill the place in);
    `absent`, where these are not the same, what it takes where the key is absent; `words` translates values.
    """

    theirs: str
    ours: str | tuple[str, ...]
    default: Any = REQUIRED
    words: Mapping[str, str] | None = None
    absent: Any = AS_NULL

    @property
    def names(self) -> tuple[str, ...]:
        return (self.theirs,)

    def read(self, raw: Json) -> Json:
        value = raw.get(self.theirs, None if self.absent is AS_NULL else self.absent)
        value = self.default if value is None else value
        if value is REQUIRED:
            raise CheckpointError(f"config.json has no {self.theirs}, which this layout needs. Get the whole file.")
        if value is None:
            return {}
        if self.words is not None:
            value = _word(self.theirs, value, self.words)
        return dict.fromkeys((self.ours,) if isinstance(self.ours, str) else self.ours, value)

    def write(self, config: ModelConfig) -> Json:
        value = value_at(config, self.ours if isinstance(self.ours, str) else self.ours[0])
        if self.words is not None:
            value = next((theirs for theirs, ours in self.words.items() if ours == value), value)
        return {} if value is None and self.absent is AS_NULL else {self.theirs: value}


@dataclass(frozen=True)
class Only:
    """A key that is honoured with some values only; any other would change the numbers."""

    theirs: str
    values: tuple[Any, ...]
    why: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.theirs,)

    def read(self, raw: Json) -> Json:
        value = raw.get(self.theirs)
        if value is not None and value not in self.values:
            known = " or ".join(repr(v) for v in self.values)
            raise CheckpointError(
                f"config.json: {self.theirs}={short(value)} cannot be honoured: {self.why}. Needed: {known or 'null'}."
            )
        return {}

    def write(self, config: ModelConfig) -> Json:
        return {}


@dataclass(frozen=True)
class Harmless:
    """Keys that cannot change a logit, and why."""

    keys: str
    reason: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.keys.split())

    def read(self, raw: Json) -> Json:
        return {}

    def write(self, config: ModelConfig) -> Json:
        return {}


def _quantised(raw: Json) -> Json:
    """Quantised weights are read by their method or not at all: never as something else."""
    quantisation(raw)
    return {}


def heads_named(ends: tuple[str, ...]) -> "Keys":
    """Only models with a head over the vocabulary, by the end of their name; a classifier has the same model_type."""

    def read(raw: Json) -> Json:
        found = raw.get("architectures") or []
        if not isinstance(found, list) or any(not str(a).endswith(ends) for a in found):
            raise CheckpointError(
                f"config.json: architectures={found!r} is no language model. Its name should end in {ends[0]}."
            )
        return {}

    return Keys("architectures", read)


# A body alone (BloomModel) is one if its head is tied; if it is not, the head will be missed among the tensors.
LANGUAGE_MODELS = ("ForCausalLM", "ForConditionalGeneration", "Model")  # also GPT2LMHeadModel


def nothing(anything: object) -> Json:
    """For rows that read or write nothing."""
    return {}


@dataclass(frozen=True)
class Keys:
    """Several keys that only make sense together, read and written by functions."""

    keys: str
    reads: Callable[[Json], Json]
    writes: Callable[[ModelConfig], Json] = field(default=nothing)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.keys.split())

    def read(self, raw: Json) -> Json:
        return self.reads(raw)

    def write(self, config: ModelConfig) -> Json:
        return self.writes(config)


# What every family's file may carry.
COMMON_ROWS: tuple[KeyRow, ...] = (
    heads_named(LANGUAGE_MODELS),
    Keys("quantization_config compression_config", _quantised),
    Harmless("model_type", "read before this table is chosen"),
    Harmless("_name_or_path name_or_path _commit_hash transformers_version transformers.js_config", "its origin"),
    Harmless("unsloth_version unsloth_fixed is_llama_config", "its origin"),
    Harmless("auto_map", "code that a folder names is never run; the family's own definition is followed"),
    Harmless("torch_dtype dtype", "each tensor's own header says its dtype"),
    Harmless("bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id", "for generation"),
    Harmless("use_cache output_attentions output_hidden_states return_dict torchscript use_bfloat16", "how it is run"),
    Harmless("_attn_implementation attn_implementation _attn_implementation_autoset", "which kernel computes the same"),
    Harmless("gradient_checkpointing tf_legacy_loss neftune_noise_alpha", "training only"),
    Harmless("is_decoder", "every family here knows what it is"),
    Harmless("id2label label2id problem_type num_labels finetuning_task task_specific_params", "for other heads"),
    Harmless("tokenizer_class model_max_length max_sequence_length prefix", "for the tokenizer"),
    Harmless("keys_to_ignore_at_inference chunk_size_feed_forward", "names and sizes of intermediate results"),
    Harmless(
        "max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k "
        "top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size "
        "bad_words_ids num_return_sequences output_scores return_dict_in_generate forced_bos_token_id "
        "forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens "
        "begin_suppress_tokens",
        "generation settings of old files",
    ),
    Only("pruned_heads", ({}, []), "heads were cut out after training"),
    Only("add_cross_attention", (False,), "the model would read an encoder"),
    Only("is_encoder_decoder", (False,), "the model would have an encoder"),
    Only("cross_attention_hidden_size", (), "the model would read an encoder"),
    Only("tie_encoder_decoder", (False,), "two stacks would share weights"),
)


def renamed(raw: Json, aliases: Mapping[str, str]) -> Json:
    """The keys under one name each. Raises CheckpointError where a file has both names, and they differ."""
    out: Json = {}
    for key, value in raw.items():
        name = aliases.get(key, key)
        if value is not None and out.get(name, value) not in (value, None):
            raise CheckpointError(
                f"config.json says {name} twice and differently, once as {key}: {short(out[name])}, "
                f"{short(value)}. Remove the wrong one."
            )
        if value is not None or name not in out:
            out[name] = value
    return out


def read_keys(table: Sequence[KeyRow], raw: Json, *, title: str) -> Json:
    """All rows' paths and values; of the common rows, those whose keys the family does not answer for itself.

    An unknown key that is not null is refused: it could change the numbers.
    """
    own = {name for row in table for name in row.names}
    table = (*table, *(row for row in COMMON_ROWS if own.isdisjoint(row.names)))
    known = {name for row in table for name in row.names}
    for key, value in raw.items():
        if key not in known and value is not None:
            raise CheckpointError(
                f"config.json: {plain(key)}={short(value)} is unknown in a {title} and could change its numbers. "
                f"{_hint(key, known)}"
            )
    found: Json = {}
    for row in table:
        found |= row.read(raw)
    return found


def write_keys(table: Iterable[KeyRow], config: ModelConfig) -> Json:
    """All rows' keys and values."""
    out: Json = {}
    for row in table:
        out |= row.write(config)
    return out


def value_at(config: ModelConfig, path: str) -> Any:
    """What stands at a dotted path; paths of a block are looked up in the first layer's. None where nothing stands."""
    node: Any = config
    for word in path.split("."):
        if isinstance(node, StackConfig) and word in COMMON:
            node = next(node.layers())
        node = getattr(node, word, None)
    return node


def nested(paths: Json) -> Json:
    """{'attention.n_heads': 8} -> {'attention': {'n_heads': 8}}."""
    out: Json = {}
    for path, value in paths.items():
        *tables, leaf = path.split(".")
        node = out
        for word in tables:
            node = node.setdefault(word, {})
        node[leaf] = value
    return out


def _word(key: str, value: Any, words: Mapping[str, str]) -> str:
    if not isinstance(value, str) or value not in words:
        known = ", ".join(sorted(words))
        raise CheckpointError(f"config.json: {key}={short(value)} is not known. Known: {known}.")
    return words[value]


def _hint(key: str, known: Iterable[str]) -> str:
    hint = did_you_mean(key, known)
    return hint if hint.startswith("Did") else "If it is known to do nothing, remove it from config.json."


LARGEST = sys.float_info.max  # a whole number beyond it has no root


def number(key: str, value: Any, *, above: float = 0) -> Any:
    """A finite number above a limit, as it is. Raises CheckpointError naming the key."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not above < value <= LARGEST:
        raise CheckpointError(f"config.json: {key}={short(value)} should be a number above {above}.")
    return value


def plain(key: str) -> str:
    """A key as it can be shown in one line."""
    return key if key.isprintable() and len(key) <= 60 else short(key)


def short(value: Any) -> str:
    """A value as it can be shown in one line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
