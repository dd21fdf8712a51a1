"""The tokenizer inside a GGUF file, both ways: pieces with scores (SentencePiece), or byte-level BPE. No torch."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onehop.base.errors import CheckpointError, ConfigError, did_you_mean
from onehop.formats.gguf.cuts import CUTS, name_of, splitter
from onehop.formats.gguf.header import Header
from onehop.formats.gguf.pieces import equal, merges_of, scores_of
from onehop.text.settings import TokenizerSettings, state_of
from onehop.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import tokenizers

KEY = "tokenizer.ggml."
PIECES, BYTES = "llama", "gpt2"  # the file's names for the two kinds
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
PAD = re.compile(r"\[PAD\d+\]")
SPACE = "▁"
ENDS = ("eos", "eot", "eom")
# Control tokens that end an answer though no key says so, as in llama.cpp.
END_TEXTS = {
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>",
    "<|return|>",
}  # fmt: skip


@dataclass(frozen=True)
class Vocab:
    """The tokens by id, with their kinds and scores."""

    tokens: Sequence[str]
    kinds: Sequence[int]
    scores: Sequence[float]

    @classmethod
    def of(cls, header: Header) -> "Vocab":
        tokens = header.metadata.get(f"{KEY}tokens")
        if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
            raise CheckpointError(f"{header.file}: {KEY}tokens is missing or no list of texts. Get the file again.")
        n = len(tokens)
        kinds = header.metadata.get(f"{KEY}token_type") or [NORMAL] * n
        scores = header.metadata.get(f"{KEY}scores") or [0.0] * n
        if len(kinds) != n or len(scores) != n:
            raise CheckpointError(f"{header.file}: {n} tokens have {len(kinds)} types and {len(scores)} scores.")
        while n and kinds[n - 1] == UNUSED and PAD.fullmatch(tokens[n - 1]):
            n -= 1  # rows that only fill the embedding up
        return cls(tokens[:n], kinds[:n], scores[:n])

    @property
    def ids(self) -> dict[str, int]:
        return {token: i for i, token in reversed(list(enumerate(self.tokens)))}

    def named(self, *kinds: int) -> list[str]:
        """The tokens of some kinds."""
        return [token for token, kind in zip(self.tokens, self.kinds, strict=True) if kind in kinds]


def read_tokenizer(header: Header) -> Tokenizer | None:
    """The tokenizer of a file; None where it has none. Raises CheckpointError naming a kind that is not known."""
    from tokenizers import AddedToken

    model = header.metadata.get(f"{KEY}model", "none")
    if model in ("none", "no_vocab"):
        return None
    if model not in (PIECES, BYTES):
        raise CheckpointError(f"{header.file}: tokenizers of the kind {model!r} cannot be read. Known: llama, gpt2.")
    vocab = Vocab.of(header)
    cuts = _cuts(header) if model == BYTES else None
    backend = _pieces(header, vocab) if model == PIECES else _bytes(header, vocab)
    for names, special in ((vocab.named(CONTROL, UNKNOWN), True), (vocab.named(USER_DEFINED), False)):
        tokens = [AddedToken(name, special=special, normalized=False) for name in names if name]
        (backend.add_special_tokens if special else backend.add_tokens)(tokens)
    adds_bos = cuts.adds_bos if cuts is not None else True
    return Tokenizer(backend, _settings(header, vocab, adds_bos=adds_bos))


def _settings(header: Header, vocab: Vocab, *, adds_bos: bool) -> TokenizerSettings:
    meta = header.metadata
    names = {word: _token(header, vocab, word) for word in ("bos", *ENDS, "unknown", "padding")}
    ends = {token for word in ENDS if (token := names[word]) is not None} | (END_TEXTS & set(vocab.named(CONTROL)))
    ids, template = vocab.ids, "tokenizer.chat_template"
    templates = {key[len(template) + 1 :] or "default": text for key, text in meta.items() if key.startswith(template)}
    templates.pop("s", None)  # tokenizer.chat_templates lists the names
    wanted = bool(meta.get(f"{KEY}add_bos_token", adds_bos))
    config = {"unk_token": names["unknown"], "pad_token": names["padding"]}
    return TokenizerSettings(
        bos=names["bos"],
        eos=names["eos"],
        add_bos=wanted and names["bos"] is not None,
        add_eos=bool(meta.get(f"{KEY}add_eos_token", False)) and names["eos"] is not None,
        end_ids=tuple(sorted(ids[token] for token in ends)),
        chat_templates={name: text for name, text in templates.items() if isinstance(text, str)},
        config={key: name for key, name in config.items() if name is not None},
        doubt=_doubt(meta) if meta.get(f"{KEY}model") == BYTES else None,
    )


def _doubt(meta: Mapping[str, Any]) -> str | None:
    """What follows for byte-level tokens where a file does not say how a text is cut, as those before May 2024."""
    name = meta.get(f"{KEY}pre")
    if name not in (None, "default"):
        return None
    return (
        f"the file does not name its pre-tokenizer ({KEY}pre is {'missing' if name is None else name}): texts are cut "
        "in llama.cpp's default way, which is likely not the way that the model learned from, so that ids differ and "
        "answers are worse. Get a file that names it (converted since May 2024), or the model's Hugging Face folder"
    )


# What llama.cpp takes where a file with pieces names none.
USUAL: Mapping[str, int] = {"bos": 1, "eos": 2, "unknown": 0}


def _token(header: Header, vocab: Vocab, word: str) -> str | None:
    usual = USUAL.get(word) if header.metadata.get(f"{KEY}model") == PIECES else None
    token_id = header.metadata.get(f"{KEY}{word}_token_id", usual)
    if token_id is None or token_id == 2**32 - 1:
        return None
    if not isinstance(token_id, int) or not 0 <= token_id < len(vocab.tokens):
        raise CheckpointError(f"{header.file}: {KEY}{word}_token_id={token_id!r} is no id of its {len(vocab.tokens)}.")
    return vocab.tokens[token_id]


def _pieces(header: Header, vocab: Vocab) -> "tokenizers.Tokenizer":
    """Pieces with scores as a BPE with fallback to bytes."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers

    ids, scores = vocab.ids, dict(zip(vocab.tokens, vocab.scores, strict=True))
    plain = {token: scores[token] for token in vocab.named(NORMAL)}
    unknown = _token(header, vocab, "unknown")
    model = models.BPE(vocab=ids, merges=merges_of(plain, ids), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    backend = Backend(model)
    prefix = header.metadata.get(f"{KEY}add_space_prefix", True)
    spaces = normalizers.Replace(" ", SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefix else spaces
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
    return backend


def _cuts(header: Header) -> Any:
    name = header.metadata.get(f"{KEY}pre", "default")
    if name not in CUTS:
        raise CheckpointError(f"{header.file}: {KEY}pre={name!r} is not known. {did_you_mean(str(name), CUTS)}")
    return CUTS[name]


def _bytes(header: Header, vocab: Vocab) -> "tokenizers.Tokenizer":
    """A byte-level BPE."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers

    cuts, ids = _cuts(header), vocab.ids
    merges = []
    for text in header.metadata.get(f"{KEY}merges", []):
        at = text.find(" ", 1)  # the first may begin with a space in disguise, never with a real one
        pair = (text[:at], text[at + 1 :])
        if at < 0 or not {*pair, "".join(pair)} <= ids.keys():
            raise CheckpointError(f"{header.file}: {KEY}merges has {text!r}, which joins no two tokens to a third.")
        merges.append(pair)
    backend = Backend(models.BPE(vocab=ids, merges=merges, ignore_merges=cuts.whole))
    backend.normalizer = normalizers.NFC() if cuts.nfc else None
    backend.pre_tokenizer = splitter(cuts)
    backend.decoder = decoders.ByteLevel()
    return backend


@dataclass
class _Table:
    """The lists of a file, one entry for each row of the embedding."""

    tokens: list[str]
    kinds: list[int]
    more: dict[str, Any] = field(default_factory=dict)


def write_tokenizer(tokenizer: Tokenizer | None, *, n_rows: int, end_ids: Sequence[int] = ()) -> dict[str, Any]:
    """The metadata of a tokenizer for an embedding of `n_rows`. Raises ConfigError for one that no file can hold."""
    if tokenizer is None:
        return {f"{KEY}model": "none"}
    if tokenizer.vocab_size > n_rows:
        raise ConfigError(f"the tokenizer has {tokenizer.vocab_size} ids, but the embedding only {n_rows} rows.")
    backend = tokenizer.backend
    spec = json.loads(backend.to_str())["model"]
    table = _listed(backend, n_rows, unknown=spec.get("unk_token"), byte_pieces=bool(spec.get("byte_fallback")))
    if spec["type"] == "BPE" and spec.get("byte_fallback"):
        kind = _write_pieces(backend, spec, table)
    elif spec["type"] == "BPE" and (name := name_of(backend)) is not None:
        merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in spec["merges"]]
        kind = {"model": BYTES, "pre": name, "merges": merges}
    else:
        raise ConfigError(
            f"this tokenizer ({spec['type']}, with its own way to cut a text) has no name in GGUF. "
            "Save a Hugging Face folder instead (format hf), or use a BPE tokenizer."
        )
    lists = {"tokens": table.tokens, "token_type": table.kinds}
    named = {f"{KEY}{key}": value for key, value in {**kind, **lists, **_ids(tokenizer, end_ids)}.items()}
    return named | _templates(tokenizer)


def _listed(backend: "tokenizers.Tokenizer", n_rows: int, *, unknown: str | None, byte_pieces: bool) -> _Table:
    added = backend.get_added_tokens_decoder()
    tokens, kinds = [], []
    for i in range(n_rows):
        token = backend.id_to_token(i)
        if token is None:
            token, kind = f"[PAD{i}]", UNUSED
        elif token == unknown:
            kind = UNKNOWN
        elif i in added:
            kind = CONTROL if added[i].special else USER_DEFINED
        elif byte_pieces and re.fullmatch(r"<0x[0-9A-F]{2}>", token):
            kind = BYTE
        else:
            kind = NORMAL
        tokens.append(token)
        kinds.append(kind)
    return _Table(tokens, kinds)


def _write_pieces(backend: "tokenizers.Tokenizer", spec: Mapping[str, Any], table: _Table) -> dict[str, Any]:
    """Ranks as scores, where scores can say the same."""
    merges = [tuple(pair) if isinstance(pair, list) else tuple(pair.split(" ")) for pair in spec["merges"]]
    vocab = Vocab(table.tokens, table.kinds, [])
    scores = scores_of(merges, table.tokens)
    plain = {token: scores[token] for token in vocab.named(NORMAL)}
    if not equal(merges_of(plain, vocab.ids), merges):
        raise ConfigError(
            "the merges of this tokenizer are no ranking of its pieces, which is all that GGUF has for a BPE with "
            "fallback to bytes. Save a Hugging Face folder instead (format hf)."
        )
    normalizer, splitting = state_of(backend.normalizer), state_of(backend.pre_tokenizer)
    said = json.dumps([normalizer, splitting])
    prefix = '"Prepend"' in said or ('"Metaspace"' in said and '"never"' not in said)
    return {
        "model": PIECES,
        "pre": "default",
        "scores": [scores.get(token, 0.0) for token in table.tokens],
        "add_space_prefix": prefix,
    }


def _ids(tokenizer: Tokenizer, end_ids: Sequence[int]) -> dict[str, Any]:
    """The special ids and who adds them; of several end ids the tokenizer's own comes first."""
    out: dict[str, Any] = {}
    if tokenizer.bos_id is not None:
        out["bos_token_id"] = tokenizer.bos_id
    own = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
    ends = [*own, *sorted({*end_ids, *tokenizer.eos_ids} - set(own))]
    out |= {f"{word}_token_id": token_id for word, token_id in zip(ENDS, ends)}
    for key, word in (("unk_token", "unknown"), ("pad_token", "padding")):
        name = tokenizer.settings.config.get(key)
        name = name.get("content") if isinstance(name, dict) else name
        token_id = None if name is None else tokenizer.backend.token_to_id(name)
        if token_id is not None:
            out[f"{word}_token_id"] = token_id
    return {**out, "add_bos_token": tokenizer.adds_bos, "add_eos_token": tokenizer.adds_eos}


def _templates(tokenizer: Tokenizer) -> dict[str, Any]:
    templates, key = tokenizer.settings.chat_templates, "tokenizer.chat_template"
    out = {f"{key}.{name}": text for name, text in templates.items() if name != "default"}
    default = tokenizer.chat_template
    return {**({key: default} if default is not None else {}), **out}
