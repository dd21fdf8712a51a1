"""Tokenizers made from one's own text: byte-level BPE, and one token per character."""

from collections.abc import Iterable, Iterator

from onehop.base.errors import DataError, TextError
from onehop.text.cuts import EVERY_CHARACTER, LONG, WORDS, pieces_of
from onehop.text.settings import TokenizerSettings
from onehop.text.tokenizer import Tokenizer

BOS, EOS = "<|bos|>", "<|eos|>"

SMALLEST = 2 + 256  # begin, end, and every byte


def train_bpe(documents: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """Learn a byte-level BPE of at most `vocab_size` tokens.

    Ids 0 and 1 are `<|bos|>` and `<|eos|>`, then the 256 bytes, then merges, the most frequent pair first (equal
    counts: the pair of smaller ids), none that occurs only once. Every text can be encoded, and decodes to itself.
    Neither the order of the documents nor the number of threads matters. A text starts with `<|bos|>` by the
    tokenizer's rule. Source: Sennrich et al. 2016, arXiv:1508.07909, on bytes as in Radford et al. 2019 (GPT-2).
    Refuses an empty corpus and a vocabulary without room for the bytes.
    """
    from tokenizers import Regex, decoders, models, pre_tokenizers, processors, trainers
    from tokenizers import Tokenizer as Backend

    if vocab_size < SMALLEST:
        raise TextError(
            f"data.vocab_size={vocab_size} has no room for the 256 bytes and {BOS}, {EOS}. "
            f"Give at least {SMALLEST}, or use data.tokenizer=characters."
        )
    backend = Backend(models.BPE())
    split = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[BOS, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    counted = _Counted(documents)
    backend.train_from_iterator(counted, trainer=trainer)
    counted.refuse_nothing()
    backend.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    return Tokenizer(backend, TokenizerSettings(bos=BOS, eos=EOS))


def train_characters(documents: Iterable[str]) -> Tokenizer:
    """One token for each distinct character, ids in the order of code points; no begin or end token.

    The tokenizer of nanoGPT's shakespeare_char. A character that did not occur is refused by name when it is encoded.
    """
    from tokenizers import Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    counted = _Counted(documents)
    characters: set[str] = set()
    for document in counted:
        characters.update(document)
    counted.refuse_nothing()
    backend = Backend(models.WordLevel({character: i for i, character in enumerate(sorted(characters))}))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(EVERY_CHARACTER), behavior="isolated")
    backend.decoder = decoders.Fuse()
    return Tokenizer(backend)


class _Counted:
    """The documents, long ones in pieces, and whether there was anything in them."""

    def __init__(self, documents: Iterable[str]):
        self._documents = documents
        self._characters = 0

    def __iter__(self) -> Iterator[str]:
        for document in self._documents:
            self._characters += len(document)
            yield from pieces_of(document, LONG)

    def refuse_nothing(self) -> None:
        if self._characters == 0:
            raise DataError("there is no text to train a tokenizer on. Give data.files or data.corpus with text in it.")
