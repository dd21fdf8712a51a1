"""Ctrl-C before there is a loop that would look for it, and SIGTERM where nothing else answers it."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = "onehop: interrupted"


def leave(*_: object) -> None:
    """End the process at once, as a signal's handler: in the midst of an import, Ctrl-C becomes another error."""
    os.write(2, f"{INTERRUPTED}\n".encode())
    os._exit(130)


@contextmanager
def ended_cleanly() -> Iterator[None]:
    """Let SIGTERM end what is inside by SystemExit: what is half-written is removed, as by Ctrl-C.

    Who has a handler of their own keeps it, and another thread than the main one can have none.
    """
    if (
        signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)  # as a shell tells signals

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
