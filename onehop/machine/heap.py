"""The C library's heap: whether what a training step frees goes back to the system, to be asked for at the next one."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # their numbers in <malloc.h>
LARGEST = 32 << 20  # bytes from which glibc maps memory by itself, at its most
NEVER = -1


_under_way: list[object] = []  # blocks, in all threads
_lock = Lock()


@contextmanager
def keeping_freed_memory(wanted: bool = True) -> Iterator[bool]:
    """A block in which this process keeps what it frees, for itself; what is free when the last one ends goes back.

    Without it glibc returns the top of the heap whenever a step ends, and the system clears each page of it again when
    the next step touches it: thousands of times a step, 5 to 20 % of a small model's. Gives whether it could be had:
    it takes Linux's glibc, and elsewhere nothing changes. Afterwards glibc has fixed thresholds, where it would move
    them with what is freed: those that it comes to by large pieces. A loop of one's own that is left midway ends its
    block when its generator is closed or dropped.
    """
    libc = _glibc() if wanted else None
    if libc is None or not libc.mallopt(MMAP_THRESHOLD, LARGEST):
        yield False
        return
    block = object()
    with _lock:
        _under_way.append(block)
        libc.mallopt(TRIM_THRESHOLD, NEVER)
    try:
        yield True
    finally:
        with _lock:
            _under_way.remove(block)
            if not _under_way:
                libc.mallopt(TRIM_THRESHOLD, 2 * LARGEST)
                libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") and hasattr(libc, "mallopt") else None
