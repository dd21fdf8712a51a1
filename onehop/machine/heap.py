"""The C library's heap: whether what a training step frees goes back to the system, to be asked for at the next one."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # their numbers in <malloc.h>
LARGEST = 32 << 20  # bytes from which glibc maps memory by itself, at its most
NEVER = -1


@contextmanager
def keeping_freed_memory(wanted: bool = True) -> Iterator[bool]:
    """A block in which this process keeps what it frees, for itself; gives back what is free at its end.

    Without it glibc returns the top of the heap whenever a step ends, and the system clears each page of it again when
    the next step touches it: thousands of times a step, 5 to 20 % of a small model's. Gives whether it could be had:
    it takes Linux's glibc, and elsewhere nothing changes.
    """
    libc = _glibc() if wanted else None
    if libc is None:
        yield False
        return
    try:
        yield bool(libc.mallopt(MMAP_THRESHOLD, LARGEST)) and bool(libc.mallopt(TRIM_THRESHOLD, NEVER))
    finally:
        libc.mallopt(TRIM_THRESHOLD, 2 * LARGEST)  # what glibc's own rule comes to
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") and hasattr(libc, "mallopt") else None
