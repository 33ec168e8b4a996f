"""How often each value occurs: exactly while few are distinct, estimated with bounded memory beyond.

Up to NUM_COUNTED distinct values every one is counted. Beyond, the number of distinct values is estimated from the
NUM_HASHES smallest hashes (Bar-Yossef et al. 2002; standard error 1.6 %), which does not depend on how rows were dealt
to parts, and frequent values from every SAMPLE_STEP-th value in a Misra-Gries summary (mergeable: Agarwal et al.
2012). Values longer than MAX_VALUE_BYTES make a feature free text: its distinct values are counted by hash, and none
is listed. Everything is arithmetic on whole arrays; there is no randomness.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from shardkit.hashing import mix64
from shardkit.manifest import TopValue

NUM_COUNTED = 4_096
NUM_HASHES = 4_096
NUM_TOP_VALUES = 20
SAMPLE_STEP = 16
MAX_VALUE_BYTES = 256
_MIN_SHARE = 1_000  # An estimated value is listed if it is at least one in so many, and was sampled 16 times.
_MAX_PENDING = 16_384

Hashes = npt.NDArray[np.uint64]
_MULTIPLIER = np.uint64(0xFF51AFD7ED558CCD)
_SHIFT = np.uint64(32)
_WORD_MASKS = np.array([(1 << (8 * n)) - 1 for n in range(9)], dtype=np.uint64)


class FrequenciesPart(msgspec.Struct, array_like=True):
    """Frequencies as they cross a process border.

    Attributes:
        values: Counted values; strings as UTF-8 bytes.
        counts: How often each occurs.
        num_values: All values seen.
        is_exact: Whether every value seen is counted exactly.
        is_free_text: Whether a value was too long to be counted.
        hashes: Smallest hashes as little-endian uint64, ascending; empty while exact.
    """

    values: list[bytes | int]
    counts: list[int]
    num_values: int
    is_exact: bool
    is_free_text: bool
    hashes: bytes


class Frequencies:
    """Counts of values, exact up to NUM_COUNTED distinct ones.

    Args:
        key_type: Arrow type of the values: binary, int64 or uint64.
    """

    def __init__(self, key_type: pa.DataType) -> None:
        self._key_type = key_type
        self._values = pa.array([], key_type)
        self._counts = np.empty(0, np.int64)
        self._pending: list[tuple[pa.Array, npt.NDArray[np.int64]]] = []
        self._num_pending = 0
        self._num_values = 0
        self._is_exact = True
        self._is_free_text = False
        self._hashes: Hashes = np.empty(0, np.uint64)

    def add(self, values: pa.Array) -> None:
        """Adds values of the key type, without nulls."""
        self._num_values += len(values)
        if not self._is_free_text and self._longest(values) > MAX_VALUE_BYTES:
            self._become_free_text()
        if self._is_exact:
            self._append_counted(values)
            return
        self._add_hashes(hash_values(values))
        if not self._is_free_text:
            self._append_counted(values.take(np.arange(0, len(values), SAMPLE_STEP)), SAMPLE_STEP)

    def add_integers(self, values: npt.NDArray[Any]) -> None:
        """Adds integers of any width."""
        # Arrow's own way to the NumPy type (`to_pandas_dtype`) imports pandas, which is no dependency.
        self.add(pa.array(values.astype(np.dtype(str(self._key_type)), copy=False)))

    def add_counted(self, values: Hashes, counts: npt.NDArray[np.int64]) -> None:
        """Adds integers that are already counted, as their two's complement."""
        keys = pa.array(values).view(self._key_type)
        self._num_values += int(counts.sum())
        if not self._is_exact:
            self._add_hashes(hash_values(keys))
        self._append(keys, counts)

    def merge(self, part: FrequenciesPart) -> None:
        """Adds what another collector saw."""
        keys = pa.array(part.values, self._key_type)
        self._num_values += part.num_values
        if part.is_free_text:
            self._become_free_text()
        elif not part.is_exact:
            self._stop_counting()
        if not self._is_exact:
            self._add_hashes(np.frombuffer(part.hashes, "<u8").astype(np.uint64))
            if part.is_exact:
                self._add_hashes(hash_values(keys))
        if not self._is_free_text:
            self._append(keys, np.array(part.counts, np.int64))

    def to_part(self) -> FrequenciesPart:
        """Returns what was seen, the same for the same calls."""
        self._consolidate()
        return FrequenciesPart(
            self._values.to_pylist(),
            self._counts.tolist(),
            self._num_values,
            self._is_exact,
            self._is_free_text,
            self._hashes.astype("<u8").tobytes(),
        )

    def num_distinct(self) -> tuple[int, bool]:
        """Returns the number of distinct values, and whether it is exact."""
        self._consolidate()
        if self._is_exact:
            return len(self._values), True
        if len(self._hashes) < NUM_HASHES:
            return len(self._hashes), True
        return round((NUM_HASHES - 1) * 2.0**64 / float(self._hashes[-1])), False

    def top_values(self, dtype: str) -> tuple[TopValue, ...]:
        """Returns the most frequent values of a feature of this dtype, most frequent first, ties by value.

        Beyond NUM_COUNTED distinct values, only those that clearly stand out are listed, with estimated counts.
        """
        self._consolidate()
        at_least = 1 if self._is_exact else max(16 * SAMPLE_STEP, self._num_values // _MIN_SHARE)
        listed = zip(self._values.to_pylist(), self._counts.tolist(), strict=True)
        order = sorted(((-count, value) for value, count in listed if count >= at_least))
        return tuple(
            TopValue(value=_shown_value(value, dtype), count=-count) for count, value in order[:NUM_TOP_VALUES]
        )

    def _longest(self, values: pa.Array) -> int:
        return int(pc.max(pc.binary_length(values)).as_py()) if pa.types.is_binary(self._key_type) else 0

    def _append_counted(self, values: pa.Array, weight: int = 1) -> None:
        found = values.value_counts()
        self._append(found.field(0), found.field(1).to_numpy() * weight)

    def _append(self, values: pa.Array, counts: npt.NDArray[np.int64]) -> None:
        self._pending.append((values, counts))
        self._num_pending += len(values)
        if self._num_pending > _MAX_PENDING:
            self._consolidate()

    def _consolidate(self) -> None:
        if not self._pending:
            return
        values = pa.concat_arrays([self._values, *(v for v, _ in self._pending)])
        counts = np.concatenate([self._counts, *(c for _, c in self._pending)])
        self._pending, self._num_pending = [], 0
        encoded = values.dictionary_encode()
        self._values = encoded.dictionary
        self._counts = np.zeros(len(self._values), np.int64)
        np.add.at(self._counts, encoded.indices.to_numpy(), counts)
        if len(self._values) > NUM_COUNTED:
            self._stop_counting()
            self._truncate()

    def _truncate(self) -> None:
        # Misra and Gries: what the first value left out counts is taken from all, so no estimate is too high.
        kept = self._counts - np.partition(self._counts, -NUM_COUNTED - 1)[-NUM_COUNTED - 1]
        self._values = self._values.filter(pa.array(kept > 0))
        self._counts = kept[kept > 0]

    def _stop_counting(self) -> None:
        self._consolidate()
        if self._is_exact:
            self._is_exact = False
            self._add_hashes(hash_values(self._values))

    def _become_free_text(self) -> None:
        self._stop_counting()
        self._is_free_text = True
        self._values, self._counts = self._values[:0], self._counts[:0]
        self._pending, self._num_pending = [], 0

    def _add_hashes(self, hashes: Hashes) -> None:
        if len(self._hashes) == NUM_HASHES:
            hashes = hashes[hashes < self._hashes[-1]]
        if len(hashes):
            found = np.sort(np.concatenate([self._hashes, hashes]))
            self._hashes = found[np.concatenate([[True], found[1:] != found[:-1]])][:NUM_HASHES]


def hash_values(values: pa.Array) -> Hashes:
    """Returns a 64-bit hash of each value of a binary or 64-bit integer array without nulls."""
    if not pa.types.is_binary(values.type):
        return mix64(values.to_numpy().astype(np.uint64))
    _, offsets_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.zeros(last - first + 8, np.uint8)
    if last > first:
        data[:-8] = np.frombuffer(data_buffer, np.uint8)[first:last]
    return _hash_slices(data, offsets - first)


def _hash_slices(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> Hashes:
    starts, lengths = offsets[:-1], np.diff(offsets)
    hashes = lengths.astype(np.uint64) * _MULTIPLIER
    words: Hashes = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    is_short = lengths <= MAX_VALUE_BYTES
    rows = np.flatnonzero(is_short)
    position = 0
    while len(rows):
        rest = lengths[rows] - position
        word = words[starts[rows] + position] & _WORD_MASKS[np.minimum(rest, 8)]
        mixed = (hashes[rows] ^ word) * _MULTIPLIER
        hashes[rows] = mixed ^ (mixed >> _SHIFT)
        rows = rows[rest > 8]
        position += 8
    for row in np.flatnonzero(~is_short).tolist():
        hashes[row] = xxhash.xxh3_64_intdigest(data[starts[row] : starts[row] + lengths[row]].tobytes())
    return mix64(hashes)


def _shown_value(value: bytes | int, dtype: str) -> str | int | bool | None:
    if isinstance(value, int):
        return bool(value) if dtype == "bool" else value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
