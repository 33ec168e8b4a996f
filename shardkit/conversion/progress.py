"""Counters that worker processes tick and the command reads, through one small mapped file per process.

A file works for threads, processes and the workers of engines. The figures are for display only: a
retried step counts twice. The manifest counts from the data.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from pathlib import Path
from typing import NamedTuple

# The expansion of compressed text, until the first part of it was read to its end.
_USUAL_EXPANSION = 4.0


class Totals(NamedTuple):
    """Sums over all processes, phase by phase. Results of an earlier attempt count too, and separately as kept.

    Attributes:
        num_first_pass_rows, num_first_pass_bytes: Read in a first pass, which only some conversions have.
        num_rows, num_input_bytes: Read, bytes as stored.
        num_rejected: Those of the rows that do not fit.
        num_carried_bytes: Handed to the engine's shuffle, where workers share no disk.
        num_written_rows, num_framed_bytes: Written into shards, before compression.
        num_kept_first_pass_bytes, num_kept_input_bytes, num_kept_framed_bytes: Those of the bytes that no work was
            done for now, so that they tell nothing about the speed.
    """

    num_first_pass_rows: int = 0
    num_first_pass_bytes: int = 0
    num_rows: int = 0
    num_input_bytes: int = 0
    num_rejected: int = 0
    num_carried_bytes: int = 0
    num_written_rows: int = 0
    num_framed_bytes: int = 0
    num_kept_first_pass_bytes: int = 0
    num_kept_input_bytes: int = 0
    num_kept_framed_bytes: int = 0


_SLOT = struct.Struct(f"<{len(Totals._fields)}q")


class Progress:
    """The counters of this process. One object a process and folder; safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        self._lock = threading.Lock()
        self._row_bytes: dict[bool, float] = {}
        try:
            self._slot: mmap.mmap | bytearray = _map_slot(folder)
        except (OSError, ValueError):
            # On a full disk the work itself shall tell so.
            self._slot = bytearray(_SLOT.size)

    def add(self, **amounts: int) -> None:
        """Adds to the counters.

        Args:
            amounts: By the names of `Totals`.
        """
        added = Totals(**amounts)
        with self._lock:
            before = _SLOT.unpack_from(self._slot)
            _SLOT.pack_into(self._slot, 0, *(a + b for a, b in zip(before, added, strict=True)))

    def reading(self, num_bytes: int, *, is_compressed: bool, is_first_pass: bool = False) -> InputTicker:
        """Returns the counter of one input split that is being read."""
        return InputTicker(self, num_bytes, self._row_bytes, is_compressed=is_compressed, is_first_pass=is_first_pass)


class InputTicker:
    """Spreads the bytes of one input split over its batches, which do not tell how far into the file they reach.

    After the first split of a process, a row counts for as many bytes as it did there.
    """

    def __init__(
        self,
        progress: Progress,
        num_bytes: int,
        row_bytes: dict[bool, float],
        *,
        is_compressed: bool,
        is_first_pass: bool,
    ) -> None:
        self._progress = progress
        self._num_left = self._num_bytes = num_bytes
        self._row_bytes = row_bytes
        self._is_compressed = is_compressed
        self._is_first_pass = is_first_pass
        self._num_rows = 0

    def tick(self, num_rows: int, num_batch_bytes: int, num_rejected: int = 0) -> None:
        """Counts a batch.

        Args:
            num_rows: All rows of the input that it stands for.
            num_batch_bytes: What it takes in memory.
        """
        self._num_rows += num_rows
        known = self._row_bytes.get(self._is_compressed)
        guess = num_batch_bytes / (_USUAL_EXPANSION if self._is_compressed else 1.0)
        # Never all, so that the bar is not at its end while there are more batches.
        step = min(int(guess if known is None else known * num_rows), self._num_left // 2)
        self._num_left -= step
        self._add(num_rows, step, num_rejected)

    def end(self) -> None:
        """Counts the rest when the split was read to its end."""
        self._add(0, self._num_left, 0)
        self._num_left = 0
        if self._num_rows:
            self._row_bytes[self._is_compressed] = self._num_bytes / self._num_rows

    def _add(self, num_rows: int, num_bytes: int, num_rejected: int) -> None:
        if self._is_first_pass:
            self._progress.add(num_first_pass_rows=num_rows, num_first_pass_bytes=num_bytes)
        else:
            self._progress.add(num_rows=num_rows, num_input_bytes=num_bytes, num_rejected=num_rejected)


def read_totals(folder: Path) -> Totals:
    """Returns the sums over all processes that ever ticked in this folder."""
    slots = [_SLOT.unpack(raw) for p in folder.glob("*.counters") if len(raw := p.read_bytes()) == _SLOT.size]
    return Totals(*(sum(column) for column in zip(*slots, strict=True))) if slots else Totals()


def _map_slot(folder: Path) -> mmap.mmap:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{os.getpid()}.counters"
    if not path.exists():
        path.write_bytes(bytes(_SLOT.size))
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), _SLOT.size)
