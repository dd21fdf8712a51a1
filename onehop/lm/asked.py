"""What a checkpoint's generation_config.json asks for beyond the options of a request: honoured, or said aloud."""

from collections.abc import Mapping
from typing import Any

from onehop.base.errors import RequestError

FILE = "generation_config.json"
# Read elsewhere: how to draw (`options`), and which tokens begin and end a text.
READ = {
    "do_sample", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id",
    "forced_eos_token_id", "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id",
}  # fmt: skip
# What cannot change a token that is drawn here: how the same is computed, what is handed out besides, or, for the
# second line, what only a beam search listens to.
NO_MATTER = {
    "early_stopping", "length_penalty", "num_beam_groups", "diversity_penalty", "low_memory",
    "use_cache", "cache_implementation", "cache_config", "max_cache_len", "compile_config", "disable_compile",
    "prefill_chunk_size", "continuous_batching_config", "use_mtp", "output_attentions", "output_hidden_states",
    "output_scores", "output_logits", "return_dict_in_generate", "is_assistant", "num_assistant_tokens",
    "num_assistant_tokens_schedule", "assistant_confidence_threshold", "assistant_early_exit", "assistant_lookbehind",
    "assistant_ensemble_weight", "target_lookbehind", "prompt_lookup_num_tokens", "max_matching_ngram_size",
    "speculation_type", "remove_invalid_values", "renormalize_logits", "_from_model_config", "transformers_version",
}  # fmt: skip
# What is not done here: the values with which nothing is asked for, and what any other would do.
NOT_DONE: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "num_beams": ((1,), "beam search"),
    "penalty_alpha": ((0,), "contrastive search"),
    "dola_layers": ((), "contrast between layers"),
    "guidance_scale": ((1,), "guidance by a second pass"),
    "no_repeat_ngram_size": ((0,), "no run of so many tokens twice"),
    "encoder_no_repeat_ngram_size": ((0,), "no run of so many tokens of the source"),
    "encoder_repetition_penalty": ((1,), "tokens of the source made likelier"),
    "typical_p": ((1,), "typical sampling"),
    "epsilon_cutoff": ((0,), "a least probability"),
    "eta_cutoff": ((0,), "a least probability that follows the entropy"),
    "top_h": ((), "a bound on the entropy"),
    "min_length": ((0,), "no end before so many tokens"),
    "min_new_tokens": ((0,), "no end before so many tokens"),
    "max_length": ((20,), "an end after so many tokens: give max_new_tokens"),
    "max_time": ((), "an end after so many seconds"),
    "stop_strings": ((), "an end at these texts: give them as stop"),
    "forced_bos_token_id": ((), "a first token, in encoder-decoders only"),
    "forced_decoder_ids": (([],), "tokens at fixed places"),
    "exponential_decay_length_penalty": ((), "ends that become likelier"),
    "sequence_bias": (({}, []), "texts made likelier or less likely"),
    "force_words_ids": (([],), "words that have to occur"),
    "constraints": (([],), "words that have to occur"),
    "num_return_sequences": ((1,), "several answers"),
    "token_healing": ((False,), "another end of the prompt"),
    "watermarking_config": ((), "a watermark"),
}


def not_done(
    checkpoint: Mapping[str, Any], *, options: tuple[str, ...], has_source: bool, max_len: int
) -> dict[str, tuple[Any, str]]:
    """Every key that asks for something that is not done here: its value, and what it would do.

    options: the keys that are options of a request. max_len: no answer outgrows the context anyway.
    """
    read = {*options, *(READ if has_source else READ - {"forced_bos_token_id"})}
    found = {}
    for key, value in checkpoint.items():
        off, what = NOT_DONE.get(key, ((), "unknown here"))
        if key == "max_length" and isinstance(value, int) and value >= max_len:
            continue
        if key not in read and key not in NO_MATTER and value is not None and value not in off:
            found[key] = (value, what)
    return found


def notice(asked: Mapping[str, tuple[Any, str]]) -> str | None:
    """The same in one line; None where there is nothing to say."""
    if not asked:
        return None
    listed = ", ".join(f"{key[:40]}={str(value)[:40]} ({what})" for key, (value, what) in asked.items())
    return f"{FILE} asks for what is not done here, so answers may differ from those of transformers: {listed}"


def never_said(checkpoint: Mapping[str, Any]) -> frozenset[int]:
    """The token ids that a checkpoint's settings keep out of its answers (Marian: its padding).

    Raises RequestError for words of several tokens.
    """
    words, ids = (checkpoint.get(key) or [] for key in ("bad_words_ids", "suppress_tokens"))
    if not isinstance(words, list) or not isinstance(ids, list):
        raise RequestError(f"{FILE}: bad_words_ids and suppress_tokens should be lists. Mend or remove them.")
    words = [*words, *([token_id] for token_id in ids)]
    for word in words:
        if not isinstance(word, list) or len(word) != 1 or not _is_id(word[0]):
            raise RequestError(
                f"{FILE}: {word!r} among bad_words_ids or suppress_tokens is no single token id, and only such can be "
                "kept out of an answer. Remove it."
            )
    return frozenset(word[0] for word in words)


def never_first(checkpoint: Mapping[str, Any]) -> frozenset[int]:
    """The token ids that do not begin an answer (behind a first one that is fixed, if there is one)."""
    ids = checkpoint.get("begin_suppress_tokens") or []
    if not isinstance(ids, list) or not all(map(_is_id, ids)):
        raise RequestError(f"{FILE}: begin_suppress_tokens={ids!r} should be a list of token ids. Mend or remove it.")
    return frozenset(ids)


def fixed(checkpoint: Mapping[str, Any], key: str, *, n_ids: int) -> int | None:
    """The token that a checkpoint puts at a place of every answer."""
    token_id = checkpoint.get(key)
    if token_id is not None and (not _is_id(token_id) or token_id >= n_ids):
        raise RequestError(f"{FILE}: {key}={token_id!r} should be a token id below {n_ids}. Mend or remove it.")
    return token_id


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
