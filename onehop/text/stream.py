"""Token ids arriving one by one -> text that can be shown at once; and where a stop string ends it."""

from collections.abc import Sequence

from onehop.base.errors import RequestError
from onehop.text.tokenizer import Tokenizer


class TextStream:
    """Incremental detokenisation: what `push` and `close` return, joined, is `tokenizer.decode` of all the ids.

    skip_special, continues: as there. Never emits half a character: bytes wait until their character is complete, or
    cannot become one. The work for a token does not depend on how many came before.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True, continues: bool = False):
        self._pieces = tokenizer.pieces
        self._skipped = tokenizer.special_ids if skip_special else frozenset()
        self._decoder = self._pieces.incremental()
        self._first = not continues
        # The beginning, until what the decoder strips from it is gone; None when there is nothing to strip (any more).
        self._start: str | None = None if continues or not self._pieces.stripped_length else ""

    def push(self, token_id: int) -> str:
        """The text that this id completes; often one piece, sometimes nothing."""
        piece = None if token_id in self._skipped else self._pieces.piece(token_id, first=self._first)
        if piece is None:
            return ""
        if not self._first:
            piece = self._pieces.separator + piece
        self._first = False
        return self._after_start(self._pieces.settle(self._decoder.decode(piece)))

    def close(self) -> str:
        """What was still held back: the beginning of a short text, and U+FFFD for a character that never came whole."""
        text = self._after_start(self._pieces.settle(self._decoder.decode(b"", final=True)))
        if self._start is not None:
            text, self._start = self._pieces.strip(self._start), None
        return text

    def _after_start(self, text: str) -> str:
        """`text`, or nothing while the beginning is too short to know what the decoder strips from it."""
        if self._start is None:
            return text
        self._start += text
        if len(self._start) < self._pieces.stripped_length:
            return ""
        text, self._start = self._pieces.strip(self._start), None
        return text


class StopStrings:
    """Ends a stream of text where a stop string is first complete; that string and what follows are not emitted.

    The answer does not depend on how the text is cut into pieces: the stop that is complete first wins, among equals
    the longest. Text that could still become a stop is held back.
    """

    def __init__(self, stops: Sequence[str]):
        if isinstance(stops, str) or any(not stop for stop in stops):
            raise RequestError(f"stop={stops!r} is not a list of non-empty strings. Give one or more, or leave it out.")
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> tuple[str, bool]:
        """(text that is safe to show, whether a stop string has ended the stream)."""
        if self.stopped:
            return "", True
        self._held += text
        if (at := self._first_stop()) is not None:
            emit, self._held, self.stopped = self._held[:at], "", True
            return emit, True
        keep = self._possible_beginning()
        emit, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return emit, False

    def close(self) -> str:
        """The text held back, which turned out not to be a stop string."""
        held, self._held = self._held, ""
        return held

    def _first_stop(self) -> int | None:
        """Where the stop that is complete first begins."""
        found = [(at + len(stop), at) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _possible_beginning(self) -> int:
        """How many of the last characters are the beginning of a stop string."""
        return max(
            (n for stop in self._stops for n in range(1, len(stop)) if self._held.endswith(stop[:n])),
            default=0,
        )
