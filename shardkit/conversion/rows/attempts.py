"""Small files that show other processes how far the work at each part of the inputs is.

A process that ends or hangs at a bad row leaves such a file behind. The process that watches it then knows which parts
to suspect, and does the rest without them. The module imports little, because the watching process must stay
small.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from shardkit.runtime.process_limits import is_of_memory

COMMITTING_FILE = "committing"
"""Marks a work folder from which a version is being committed."""
_FOLDER = "attempts"
_SUSPECTS = "isolated"
_ALL = "all.suspect"
_PLACE = struct.Struct("<dqqqqq")
_NEVER = float("inf")

OTHER, READING, TRANSFORMING = range(3)


class Place(NamedTuple):
    """What a process does with an input split.

    Attributes:
        deadline: When it should be done, on the monotonic clock of the system.
        phase: READING, TRANSFORMING or OTHER.
        batch: 0-based number of the batch within the split.
        start, stop: Rows of the batch that are transformed, half-open.
        file_index: The file that is read alone; -1 where several may be read.
    """

    deadline: float
    phase: int
    batch: int = 0
    start: int = 0
    stop: int = 0
    file_index: int = -1


class Attempt:
    """One process at work at one input split. As a context; what is left when the process dies, or has
    too little memory, says where it was.
    """

    def __init__(self, work_dir: str | Path, input_split_index: int) -> None:
        self._path = _path(work_dir, input_split_index)

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        self.rest()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)
        if error is None or not is_of_memory(error):
            self._path.unlink(missing_ok=True)

    def begin(
        self, phase: int, seconds: float, batch: int, start: int = 0, stop: int = 0, file_index: int = -1
    ) -> None:
        """Notes the work that begins, and within how many seconds it should be done."""
        place = Place(time.monotonic() + seconds, phase, batch, start, stop, file_index)
        os.pwrite(self._file, _PLACE.pack(*place), 0)

    def rest(self) -> None:
        """Says that nothing is being done that a row could make endless."""
        os.pwrite(self._file, _PLACE.pack(*Place(_NEVER, OTHER, 0)), 0)


def read_place(work_dir: str | Path, input_split_index: int) -> Place | None:
    """Returns how far an attempt is, None if no process works at this input split."""
    return _read(_path(work_dir, input_split_index))


def forget_attempt(work_dir: str | Path, input_split_index: int) -> None:
    """Removes the file of a dead process, so that it is not taken for one that hangs."""
    _path(work_dir, input_split_index).unlink(missing_ok=True)


def list_attempts(work_dir: str | Path) -> dict[int, Place]:
    """Returns how far all attempts are, by input split."""
    try:
        names = [p.name for p in Path(work_dir, _FOLDER).iterdir() if p.name.isdecimal()]
    except FileNotFoundError:
        # The conversion has ended and removed its work folder.
        return {}
    places = {int(name): read_place(work_dir, int(name)) for name in names}
    return {index: place for index, place in places.items() if place is not None}


def suspect(work_dir: str | Path, input_split_index: int | None, place: Place | None = None) -> bool:
    """Marks an input split, or with None all of them, as one that may bring a process down.

    Args:
        place: Where a process stood that did not come back from it, if one did not.

    Returns:
        Whether it was not marked before.
    """
    path = Path(work_dir, _SUSPECTS, _ALL if input_split_index is None else f"{input_split_index}.suspect")
    if path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"" if place is None else _PLACE.pack(*place))
    return True


def take_suspicion(work_dir: str | Path, input_split_index: int) -> Place | None:
    """Returns the place that a suspect was marked with; None if it was marked with none, or this was asked before."""
    path = Path(work_dir, _SUSPECTS, f"{input_split_index}.suspect")
    place = _read(path)
    if place is not None:
        path.write_bytes(b"")
    return place


def is_suspect(work_dir: str | Path, input_split_index: int) -> bool:
    """Returns whether an input split must be worked at in a separate process."""
    folder = Path(work_dir, _SUSPECTS)
    return folder.exists() and any((folder / name).exists() for name in (f"{input_split_index}.suspect", _ALL))


def _read(path: Path) -> Place | None:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    return Place(*_PLACE.unpack(raw)) if len(raw) == _PLACE.size else None


def _path(work_dir: str | Path, input_split_index: int) -> Path:
    return Path(work_dir, _FOLDER, str(input_split_index))
