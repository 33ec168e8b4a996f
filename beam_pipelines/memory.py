"""How the C library's memory is kept small in a process that takes and frees large buffers on several threads."""

from __future__ import annotations

import contextlib
import ctypes

from shardkit.units import MiB

# Of <malloc.h>; see mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def return_freed_memory() -> None:
    """Makes large blocks go back to the system when they are freed, where the C library is glibc.

    By itself it raises its limit to the largest block that was ever freed, and then every thread's heap keeps the holes
    that such blocks leave: a third of the peak of a large conversion.
    """
    with contextlib.suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, 4 * MiB)
        library.mallopt(_M_TRIM_THRESHOLD, 16 * MiB)
