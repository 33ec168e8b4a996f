"""Which files, and how much of each, the types of text are inferred from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from shardkit.units import GiB, MiB

HEAD_BYTES = MiB
HEAD_ROWS = 10_000
# Of inputs up to this size a column of which the first rows tell nothing is looked for in the others.
ALL_ROWS_BYTES = 256 * MiB
# Of inputs up to this size all rows are read again where a row does not fit the types of the first ones: one process
# infers types from 30 to 100 MB/s.
READ_AGAIN_BYTES = 16 * GiB

_MAX_FILES = 64

_T = TypeVar("_T")


def sample_files(files: Sequence[_T], max_files: int = _MAX_FILES) -> list[_T]:
    """Returns at most `max_files` of the files, evenly chosen, the first and the last always among them."""
    if len(files) <= max_files:
        return list(files)
    last = len(files) - 1
    return [files[i * last // (max_files - 1)] for i in range(max_files)]
