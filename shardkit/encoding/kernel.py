"""The compiled kernel where it was built, the reference in Python elsewhere: the same bytes, the same columns.

Results are in the kernel's pooled memory, which is used again when no array or view refers to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from shardkit.encoding import kernel_reference as reference
from shardkit.encoding.kernel_reference import Decoded, Scan, Spec

try:
    from shardkit import _kernel as _kernel  # others import it from here, not from the root package
except ImportError:
    HAS_KERNEL = False
    _codec: ModuleType = reference
else:
    HAS_KERNEL = True
    _codec = _kernel

BytesLike = bytes | bytearray | memoryview | npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]
RecordsAt = tuple[tuple[Any, ...], int, int]
"""Some records of a buffer: a tuple of it, start and length of each and any more; the first that is meant; the one
after the last."""


def crc32c(data: BytesLike, start: int = 0) -> int:
    """Returns the CRC32C of `data`, continued from `start`."""
    crc: int = _codec.crc32c(data, start)
    return crc


def read_at(descriptor: int, start: int, num_bytes: int, tail: bytes) -> tuple[memoryview, int]:
    """Returns bytes of a file with a tail behind them, and their CRC32C; see `kernel_reference.read_at`."""
    data, crc = _codec.read_at(descriptor, start, num_bytes, tail)
    return memoryview(data), crc


def scan(frames: BytesLike, *, checks_records: bool = True) -> Scan:
    """Follows frames; see `shardkit.encoding.kernel_reference.scan`."""
    starts, lengths, states, end = _codec.scan(frames, checks_records)
    numbers = [np.frombuffer(n, np.int64) for n in (starts, lengths)]
    return Scan(numbers[0], numbers[1], np.frombuffer(states, np.uint8), end)


def decode(
    frames: BytesLike, starts: Int64s, lengths: Int64s, specs: Sequence[Spec], *, refuse_others: bool = False
) -> Decoded:
    """Returns the values of features of many records as columns; see `shardkit.encoding.kernel_reference.decode`."""
    columns, problems = _codec.decode(frames, starts, lengths, list(specs), refuse_others)
    return Decoded(columns, np.frombuffer(problems, np.int64))


def decode_pieces(pieces: Sequence[RecordsAt], specs: list[Spec], gives_objects: list[bool]) -> Decoded:
    """Returns the values of features of records of several buffers as columns; see
    `kernel_reference.decode_pieces`."""
    columns, problems = _codec.decode_pieces(pieces, specs, gives_objects)
    return Decoded(columns, np.frombuffer(problems, np.int64))


def objects_of(offsets: Any, data: Any, *, is_text: bool) -> npt.NDArray[np.object_]:
    """Returns slices of `data` as `bytes`, or as `str`; equal ones may be one object.

    Args:
        offsets: int32; where each slice starts, and where the last one ends.
        is_text: Whether they are UTF-8 and become `str`.

    Raises:
        UnicodeDecodeError: If one is not UTF-8.
    """
    objects = np.empty(memoryview(offsets).nbytes // 4 - 1, np.object_)
    _codec.put_objects(objects, offsets, data, is_text)
    return objects


def permutation(count: int, key: int) -> Int64s:
    """Returns the positions of rows in a shuffled order; see `shardkit.encoding.kernel_reference.permutation`."""
    return np.frombuffer(_codec.permutation(count, key), np.int64)


def gather(data: BytesLike | list[BytesLike], starts: Int64s, sizes: Int64s) -> memoryview:
    """Returns pieces of `data`, one after the other; see `shardkit.encoding.kernel_reference.gather`."""
    return memoryview(_codec.gather(data, starts, sizes))
