"""Where byte-level tokenizers cut a text before merging, by the name that a GGUF file gives it. No torch.

The patterns are those of each tokenizer's own tokenizer.json; llama.cpp knows them by these names.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onehop.text.cuts import WORDS
from onehop.text.settings import state_of

if TYPE_CHECKING:
    import tokenizers

_SHORT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
GPT2 = rf"{_SHORT}|\s+"
DIGIT = r"\p{N}"
PUNCTUATION = r"[\p{P}\$\+<=>\^~\|`]+"
THREE_DIGITS = "[0-9][0-9][0-9]"
ONE_DIGIT_WORDS = WORDS.replace(r"\p{N}{1,3}", DIGIT)
SENTENCE = r" ?[^(\s|[.,!?…。，、।۔،])]+"


@dataclass(frozen=True)
class Cuts:
    """Patterns, applied one after another; and what else the name stands for.

    whole: a word that is a token as it stands is not merged. adds_bos: a text begins with the begin token unless the
    file says otherwise. nfc: text is brought into Unicode's composed form first.
    """

    patterns: tuple[str, ...]
    whole: bool = False
    adds_bos: bool = False
    nfc: bool = False


_LLAMA3 = Cuts((WORDS,), whole=True, adds_bos=True)
_GPT2, _STARCODER, _BLOOM = Cuts((GPT2,)), Cuts((DIGIT, GPT2)), Cuts((SENTENCE,))
CUTS: Mapping[str, Cuts] = {
    "gpt-2": _GPT2,
    "mpt": _GPT2,
    "olmo": _GPT2,
    "phi-2": _GPT2,
    "jais": _GPT2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "dbrx": Cuts((WORDS,)),
    "smaug-bpe": Cuts((WORDS,)),
    "qwen2": Cuts((ONE_DIGIT_WORDS,), nfc=True),
    "deepseek-r1-qwen": Cuts((ONE_DIGIT_WORDS,), nfc=True),
    "stablelm2": Cuts((ONE_DIGIT_WORDS,)),
    "starcoder": _STARCODER,
    "refact": _STARCODER,
    "command-r": _STARCODER,
    "smollm": _STARCODER,
    "codeshell": _STARCODER,
    "exaone": _STARCODER,
    "falcon": Cuts((PUNCTUATION, GPT2, THREE_DIGITS)),
    "bloom": _BLOOM,
    "poro-chat": _BLOOM,
    "gpt3-finnish": _BLOOM,
    "default": Cuts((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", THREE_DIGITS)),
}


def splitter(cuts: Cuts) -> Any:
    """The pre-tokenizer of `tokenizers` that cuts so, and then writes bytes as letters."""
    from tokenizers import Regex, pre_tokenizers

    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in cuts.patterns]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def name_of(backend: "tokenizers.Tokenizer") -> str | None:
    """The name that says how a byte-level tokenizer cuts; None where there is none."""
    patterns = _patterns(state_of(backend.pre_tokenizer))
    normalizer = state_of(backend.normalizer)
    if patterns is None or (normalizer is not None and normalizer.get("type") != "NFC"):
        return None
    whole = bool(json.loads(backend.to_str())["model"].get("ignore_merges"))
    found = (patterns, whole, normalizer is not None)
    return next((name for name, cuts in CUTS.items() if (cuts.patterns, cuts.whole, cuts.nfc) == found), None)


def _patterns(state: dict[str, Any] | None) -> tuple[str, ...] | None:
    """The patterns of a pre-tokenizer; None for what is not made of them."""
    if state is None:
        return None
    kind = state["type"]
    if kind == "Sequence":
        parts = [_patterns(part) for part in state["pretokenizers"]]
        return None if None in parts else tuple(pattern for part in parts for pattern in part or ())
    if kind == "ByteLevel" and not state.get("add_prefix_space"):
        return (GPT2,) if state.get("use_regex", True) else ()
    if kind == "Digits" and state.get("individual_digits"):
        return (DIGIT,)
    if kind == "Punctuation" and state.get("behavior") == "Contiguous":
        return (PUNCTUATION,)
    pattern = state.get("pattern", {})
    regex = pattern.get("Regex") or pattern.get("String")
    isolated = kind == "Split" and state.get("behavior") == "Isolated" and not state.get("invert")
    return (regex,) if isolated and regex else None
