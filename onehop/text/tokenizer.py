"""The tokenizer of a checkpoint: text -> token ids and back, with the checkpoint's own rule for where a text begins."""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from onehop.base.errors import TextError
from onehop.base.files import atomic_write
from onehop.text.borders import settle_borders
from onehop.text.cuts import EVERY_CHARACTER, LONG, WORDS, pieces_of
from onehop.text.pieces import Pieces
from onehop.text.settings import (
    HIDE_CLOSE,
    HIDE_OPEN,
    TokenizerSettings,
    state_of,
    with_hidden_names,
    without_control,
)
from onehop.text.sources import Source, read_source

if TYPE_CHECKING:
    import tokenizers


class Tokenizer:
    """A `tokenizers.Tokenizer` and what the files beside it say about beginnings, ends and chat templates.

    Text that spells a control token ("</s>") is ordinary characters unless a caller says `special=True`. The backend's
    truncation, padding and BPE dropout are switched off: a text has one encoding, and all of it is encoded.
    """

    def __init__(
        self,
        backend: "tokenizers.Tokenizer",
        settings: TokenizerSettings | None = None,
        *,
        source: Source | None = None,
    ):
        """source: where the backend alone does not say it all, what it was read from; saving writes that file again."""
        self._source = source if source is not None and source.ready is not None else None
        self.settings = settings or TokenizerSettings()
        self.backend = _settled(backend, self.settings)
        self.bos_id, self.eos_id = self._id_of(self.settings.bos), self._id_of(self.settings.eos)
        self._before, self._after = settle_borders(backend, self.settings, bos_id=self.bos_id, eos_id=self.eos_id)
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.eos_ids = frozenset({*self.settings.end_ids, *([] if self.eos_id is None else [self.eos_id])})
        self.pieces = Pieces(state_of(backend.decoder), token=backend.id_to_token)
        self._plain = without_control(backend)
        self._letters = _letters(backend)
        self._cuts_words = _cuts_words(backend)
        self._hidden: dict[frozenset[str], tokenizers.Tokenizer] = {}

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """The tokenizer of a checkpoint's folder, or of one file in it; refuses a missing or damaged one.

        A tokenizer.json, a SentencePiece model (tokenizer.model, spiece.model) or a tiktoken file.
        """
        source = read_source(Path(path))
        return cls(source.backend, source.settings, source=source)

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, as `transformers` reads them too.

        A SentencePiece model that no tokenizer.json can express exactly is written as it was read.
        """
        folder = Path(folder)
        if self._source is None:
            atomic_write(folder / "tokenizer.json", self.backend.to_str(pretty=True))
        else:
            atomic_write(folder / self._source.name, self._source.data)
        config = self.settings.to_config(adds_bos=self.adds_bos, adds_eos=self.adds_eos)
        atomic_write(folder / "tokenizer_config.json", json.dumps(config, indent=2, ensure_ascii=False) + "\n")

    @cached_property
    def n_tokens(self) -> int:
        """How many ids have a token."""
        return len(self.backend.get_vocab(with_added_tokens=True))

    @cached_property
    def vocab_size(self) -> int:
        """The largest id + 1: the rows that an embedding needs."""
        return max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def adds_bos(self) -> bool:
        """Whether the checkpoint's own rule begins a text with its begin token."""
        return self.bos_id is not None and self.bos_id in self._before

    @property
    def adds_eos(self) -> bool:
        """Whether it ends a text with its end token."""
        return bool(self._after)

    @property
    def chat_template(self) -> str | None:
        """The checkpoint's template for conversations (the one called "default", where it has several)."""
        templates = self.settings.chat_templates
        return templates.get("default") or next(iter(templates.values()), None)

    def with_chat_template(self, template: str) -> "Tokenizer":
        """The same tokenizer with another template for conversations, which is saved with it."""
        settings = replace(self.settings, chat_templates={"default": template})
        return Tokenizer(self.backend, settings, source=self._source)

    def with_special(self, names: Sequence[str]) -> "Tokenizer":
        """The same tokenizer with more control tokens, whose ids follow the others; those it has stay as they are."""
        from tokenizers import AddedToken

        copy = type(self.backend).from_str(self.backend.to_str())
        copy.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
        return Tokenizer(copy, self.settings, source=self._source)

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that change when any encoding could change."""
        borders = [self.bos_id, self.eos_id, self._before, self._after]
        text = self.backend.to_str() + json.dumps(borders)
        data = b"" if self._source is None else self._source.data
        return hashlib.sha256(text.encode() + data).hexdigest()[:16]

    def encode(self, text: str, *, bos: bool | None = None, special: bool = False) -> list[int]:
        """Token ids of `text`.

        bos: None = what the checkpoint's rule adds before and after; True = the begin token; False = nothing. It is
        never doubled. special: whether text that spells a control token becomes it (for rendered chat templates).
        """
        before, after = (self._before, self._after) if bos is None else ((), ())
        if bos:
            if self.bos_id is None:
                raise TextError("this tokenizer has no begin token: bos=True is impossible. Use bos=None or bos=False.")
            before = (self.bos_id,)
        (ids,) = self.encode_many([text], special=special)
        if before and before[0] == self.bos_id and ids[:1] == [self.bos_id]:
            before = before[1:]
        return [*before, *ids, *after]

    def encode_many(self, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
        """Token ids of each text, on all cores, with nothing added before or after."""
        if self._letters is not None:
            return [self._spell(text) for text in texts]
        if self._cuts_words and not special and any(len(text) > LONG for text in texts):
            return [self._in_pieces(text) for text in texts]
        return self._encode_batch(list(texts), special=special)

    def _in_pieces(self, text: str) -> list[int]:
        """The same ids as from the whole text, from pieces that go to all cores."""
        return list(chain.from_iterable(self._encode_batch(list(pieces_of(text, LONG)), special=False)))

    def _encode_batch(self, texts: list[str], *, special: bool) -> list[list[int]]:
        backend = self._marked if special else self._plain
        texts = self._readied(texts, self.special_ids if special else frozenset())
        try:
            return [found.ids for found in backend.encode_batch_fast(texts, add_special_tokens=False)]
        except (TypeError, UnicodeEncodeError) as error:
            raise TextError(
                "the text holds half a surrogate pair, which is no Unicode text. Decode it from bytes with "
                "errors='replace', or remove it."
            ) from error

    def encode_hidden(self, text: str, *, control: AbstractSet[str]) -> list[int]:
        """Ids of a text in which only the `control` tokens with hidden names (HIDE_OPEN token HIDE_CLOSE) count.

        All other spellings of them are ordinary characters; nothing is added before or after.
        """
        key = frozenset(control)
        if key not in self._hidden:
            self._hidden[key] = with_hidden_names(self.backend, control)
        (ready,) = self._readied([text], frozenset(), control)
        return list(self._hidden[key].encode(ready, add_special_tokens=False).ids)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True, continues: bool = False) -> str:
        """The text of `ids`.

        continues: they go on after other text (an answer after its prompt), so that a leading space stays, which some
        tokenizers put before every text and drop again. Nothing is tidied: spaces before punctuation stay, whatever
        `clean_up_…` flags say.
        """
        skipped = self.special_ids if skip_special else frozenset()
        kept = (int(token_id) for token_id in ids if token_id not in skipped)
        return self.pieces.join(kept, continues=continues)

    def token_bytes(self, token_id: int) -> bytes:
        """What an id adds inside a text, as bytes (maybe half a character); empty for an id without a token."""
        return self.pieces.piece(token_id, first=False) or b""

    def _readied(self, texts: Sequence[str], marked: frozenset[int], hidden: Iterable[str] = ()) -> list[str]:
        """The texts as the backend wants them; added tokens stay as they are, of the control ones those `marked`."""
        if self._source is None or self._source.ready is None:
            return list(texts)
        added = self.backend.get_added_tokens_decoder().items()
        names = {token.content for i, token in added if i in marked or not token.special} - self._source.ready.symbols
        names |= {f"{HIDE_OPEN}{name}{HIDE_CLOSE}" for name in hidden}
        found = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
        apart = re.compile(f"({found})") if found else None
        return [self._source.ready(text, apart=apart) for text in texts]

    @cached_property
    def _marked(self) -> "tokenizers.Tokenizer":
        """A copy that recognises control tokens in text. (A flag on one shared object would not be safe in threads.)"""
        copy = type(self.backend).from_str(self.backend.to_str())
        copy.encode_special_tokens = False
        return copy

    def _id_of(self, token: str | None) -> int | None:
        return None if token is None else self.backend.token_to_id(token)

    def _spell(self, text: str) -> list[int]:
        """One id for each character, by table: 20 times as fast as the general machinery."""
        assert self._letters is not None
        try:
            return list(map(self._letters.__getitem__, text))
        except KeyError as error:
            at = text.index(error.args[0])
            raise TextError(
                f"the character {error.args[0]!r} (at {at}) is not among the {len(self._letters)} characters that this "
                "tokenizer knows. Remove it, or train with data.tokenizer=bpe, which encodes every text."
            ) from error


def _settled(backend: "tokenizers.Tokenizer", settings: TokenizerSettings) -> "tokenizers.Tokenizer":
    """The backend without what would give a text several encodings, and with its control tokens known as such."""
    from tokenizers import AddedToken

    backend.no_truncation()
    backend.no_padding()
    if getattr(backend.model, "dropout", None):
        backend.model.dropout = None
    added = backend.get_added_tokens_decoder()
    for token in (settings.bos, settings.eos):
        token_id = None if token is None else backend.token_to_id(token)
        if token_id is not None and not (token_id in added and added[token_id].special):
            backend.add_special_tokens([AddedToken(token, special=True, normalized=False)])
    return backend


def _letters(backend: "tokenizers.Tokenizer") -> dict[str, int] | None:
    """Character -> id, for a tokenizer that is nothing but such a table (see `bpe.train_characters`)."""
    if type(backend.model).__name__ != "WordLevel" or backend.normalizer is not None:
        return None
    vocab = backend.get_vocab(with_added_tokens=True)
    if backend.get_added_tokens_decoder() or any(len(token) != 1 for token in vocab):
        return None
    split = state_of(backend.pre_tokenizer)
    per_character = split is not None and split.get("pattern") == {"Regex": EVERY_CHARACTER}
    return vocab if per_character else None


def _cuts_words(backend: "tokenizers.Tokenizer") -> bool:
    """Whether text is cut by `WORDS` and nothing looks across the cuts (a normalizer might)."""
    split = state_of(backend.pre_tokenizer)
    first = split["pretokenizers"][0] if split is not None and split["type"] == "Sequence" else split
    return backend.normalizer is None and first is not None and first.get("pattern") == {"Regex": WORDS}
