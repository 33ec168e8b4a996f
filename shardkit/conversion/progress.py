"""Counters that worker processes tick and the command reads, through one small mapped file per process.

The local Beam runner tells nothing before it ends; a file works in every mode. Figures are for the eye only: a retried
step counts twice, the manifest counts from the data.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from pathlib import Path
from typing import NamedTuple

_SLOT = struct.Struct("<qqqq")


class Totals(NamedTuple):
    """Sums over all processes."""

    num_rows: int = 0
    num_input_bytes: int = 0
    num_framed_bytes: int = 0
    num_rejected: int = 0


class Progress:
    """The counters of this process. One object a process and folder; safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{os.getpid()}.counters"
        if not path.exists():
            path.write_bytes(bytes(_SLOT.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SLOT.size)
        self._lock = threading.Lock()

    def add(
        self, *, num_rows: int = 0, num_input_bytes: int = 0, num_framed_bytes: int = 0, num_rejected: int = 0
    ) -> None:
        """Adds to the counters."""
        with self._lock:
            before = _SLOT.unpack_from(self._map)
            added = (num_rows, num_input_bytes, num_framed_bytes, num_rejected)
            _SLOT.pack_into(self._map, 0, *(a + b for a, b in zip(before, added, strict=True)))


def read_totals(folder: Path) -> Totals:
    """Returns the sums over all processes that ever ticked in this folder."""
    slots = [_SLOT.unpack(raw) for p in folder.glob("*.counters") if len(raw := p.read_bytes()) == _SLOT.size]
    return Totals(*(sum(column) for column in zip(*slots, strict=True))) if slots else Totals()
