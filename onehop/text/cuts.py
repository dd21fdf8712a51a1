"""Where text may be cut before it is encoded: the patterns of our own tokenizers, and pieces of long texts."""

from collections.abc import Iterator

LONG = 1 << 16  # characters; longer texts are worth handing out to several cores in pieces

EVERY_CHARACTER = r"[\s\S]"

# No merge crosses a cut: contractions, words with the character before them, numbers of up to three digits,
# punctuation, line ends, spaces. The pattern of GPT-4 (tiktoken, cl100k_base) and Llama 3, so that other programs know
# an exported tokenizer.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def pieces_of(text: str, size: int) -> Iterator[str]:
    """`text` in pieces of `size` characters or more, cut where `WORDS` cuts it too: each can be encoded by itself.

    That is after a line end that no white space follows: no alternative of the pattern goes on from there.
    """
    begin = 0
    at = text.find("\n", size - 1)
    while at >= 0:
        cut = at + 1
        if cut < len(text) and not text[cut].isspace():
            yield text[begin:cut]
            begin = cut
            at = text.find("\n", cut + size - 1)
        else:
            at = text.find("\n", cut)
    yield text[begin:]
