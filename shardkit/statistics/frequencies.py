"""How often each value occurs: exactly while few are distinct, estimated with bounded memory beyond.

Up to NUM_COUNTED distinct values every one is counted. Values are taken in pieces, so that a column of ever new values
is found out after a few thousand of them. Beyond, the number of distinct values is estimated from the
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
import xxhash

from shardkit.dataset.manifest import TopValue
from shardkit.encoding.kernel import HAS_KERNEL
from shardkit.hashing import mix64
from shardkit.statistics.key_counts import add_up, count_equal
from shardkit.statistics.quantile_buckets import Counts
from shardkit.statistics.quantiles import QuantileSketch

if HAS_KERNEL:
    from shardkit.encoding.kernel import _kernel

NUM_COUNTED = 4_096
NUM_HASHES = 4_096
NUM_TOP_VALUES = 20
MAX_LISTED_INTEGERS = 1_000
MAX_VOCABULARY_BYTES = 256 * 1024
SAMPLE_STEP = 16
MAX_VALUE_BYTES = 256
_MIN_SHARE = 1_000  # An estimated value is listed if it is at least one in so many, and was sampled 16 times.
_MAX_PENDING = 16_384
_MAX_SAMPLES = 4_096
_FIRST_PIECE = 2 * NUM_COUNTED  # Shows whether a column repeats its values.
_PIECE = 32_768  # Stays in the cache.

Hashes = npt.NDArray[np.uint64]
_MULTIPLIER = np.uint64(0xFF51AFD7ED558CCD)
_SHIFT = np.uint64(32)
_WORD_MASKS = np.array([(1 << (8 * n)) - 1 for n in range(9)], dtype=np.uint64)


class FrequenciesPart(msgspec.Struct, array_like=True):
    """Frequencies as they cross a process border.

    Attributes:
        values: Counted values: strings as UTF-8 bytes, integers together as little-endian two's complement.
        counts: How often each occurs, as little-endian int64.
        is_exact: Whether every value seen is counted exactly.
        is_free_text: Whether a value was too long to be counted.
        hashes: Smallest hashes as little-endian uint64, ascending; empty while exact.
    """

    values: list[bytes] | bytes
    counts: bytes
    num_values: int
    is_exact: bool
    is_free_text: bool
    hashes: bytes


class Frequencies:
    """Counts of values, exact up to NUM_COUNTED distinct ones.

    Args:
        key_type: Arrow type of the values: binary, int64 or uint64.
        overflow: Takes the integers that are not counted exactly here, those too that were until they became too many.
    """

    def __init__(self, key_type: pa.DataType, overflow: QuantileSketch | None = None) -> None:
        self._key_type = key_type
        self._overflow = overflow
        self._values = pa.array([], key_type)
        self._counts = np.empty(0, np.int64)
        self._pending: list[tuple[pa.Array, npt.NDArray[np.int64]]] = []
        self._num_pending = 0
        self._samples: list[Hashes] = []  # Integers, each for SAMPLE_STEP of them.
        self._num_samples = 0
        self._num_values = 0
        self._is_exact = True
        self._is_free_text = False
        self._hashes: Hashes = np.empty(0, np.uint64)
        self._new_hashes: list[Hashes] = []
        self._num_new_hashes = 0

    def add(self, values: pa.Array, longest: int) -> None:
        """Adds binary values without nulls.

        Args:
            longest: Bytes of the longest of them.
        """
        start, size = 0, self._next_piece()
        self._num_values += len(values)
        if not self._is_free_text and longest > MAX_VALUE_BYTES:
            self._become_free_text()
        while self._is_exact and start < len(values):
            self._append(*_count_binary(values[start : start + size]))
            start, size = start + size, 4 * size
        for first in range(start, len(values), _PIECE):
            self._add_hashes(hash_values(values[first : first + _PIECE]))
        if not self._is_free_text and start < len(values):
            found, counts = _count_binary(values.take(np.arange(start, len(values), SAMPLE_STEP)))
            self._append(*_most_frequent(found, counts * SAMPLE_STEP))

    def add_integers(self, values: npt.NDArray[Any]) -> None:
        """Adds integers of any width."""
        start, size = 0, self._next_piece()
        self._num_values += len(values)
        if values.dtype.itemsize < 8:
            values = values.astype(np.int64)
        values = values.view(np.uint64)
        while self._is_exact and start < len(values):
            found, counts = count_equal(values[start : start + size])
            self._append(self._keys_of(found), counts)
            start, size = start + size, 4 * size
        for first in range(start, len(values), _PIECE):
            self._add_hashes(_hash_words(values[first : first + _PIECE]))
        if start < len(values):
            if self._overflow is not None:
                self._overflow.add(values[start:].view(np.uint64 if pa.types.is_uint64(self._key_type) else np.int64))
            # A copy: the values may be in a batch whose memory would be kept alive.
            self._samples.append(values[start::SAMPLE_STEP].copy())
            self._num_samples += len(self._samples[-1])
            if self._num_samples > _MAX_SAMPLES:
                self._count_samples()

    def add_counted(self, values: Hashes, counts: npt.NDArray[np.int64]) -> None:
        """Adds integers that are already counted, as their two's complement."""
        self._num_values += int(counts.sum())
        keys = self._keys_of(values)
        if self._is_exact:
            self._append(keys, counts)
            return
        self._pass_on(keys, counts)
        self._add_hashes(mix64(values))
        self._append(*_most_frequent(keys, counts))

    def merge(self, part: FrequenciesPart) -> None:
        """Adds the values of another collector."""
        keys = part.values
        if isinstance(keys, bytes):
            keys = self._keys_of(np.frombuffer(keys, "<u8").astype(np.uint64))
        else:
            keys = pa.array(keys, self._key_type)
        self._num_values += part.num_values
        if part.is_free_text:
            self._become_free_text()
        elif not part.is_exact:
            self._stop_counting()
        counts = np.frombuffer(part.counts, "<i8").astype(np.int64)
        if not self._is_exact:
            self._add_hashes(np.frombuffer(part.hashes, "<u8").astype(np.uint64))
            if part.is_exact:
                self._pass_on(keys, counts)
                self._add_hashes(hash_values(keys))
        if not self._is_free_text:
            self._append(keys, counts)

    def to_part(self) -> FrequenciesPart:
        """Returns the counts, the same for the same calls."""
        self._consolidate()
        self._merge_hashes()
        is_binary = pa.types.is_binary(self._key_type)
        return FrequenciesPart(
            self._values.to_pylist() if is_binary else self._values.to_numpy().astype("<i8", copy=False).tobytes(),
            self._counts.astype("<i8").tobytes(),
            self._num_values,
            self._is_exact,
            self._is_free_text,
            self._hashes.astype("<u8").tobytes(),
        )

    def num_distinct(self) -> tuple[int, bool]:
        """Returns the number of distinct values, and whether it is exact."""
        self._consolidate()
        self._merge_hashes()
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
        order = self._ordered(at_least)
        return tuple(
            TopValue(value=_shown_value(value, dtype), count=-count) for count, value in order[:NUM_TOP_VALUES]
        )

    def vocabulary(self, dtype: str) -> tuple[str | int | bool, ...]:
        """Returns all values of a feature of this dtype, most frequent first, ties by value.

        It is empty where they are more than NUM_COUNTED (integers: MAX_LISTED_INTEGERS) or longer than
        MAX_VOCABULARY_BYTES together, or where most occur once: names and keys are nothing to look up, and would make
        the manifest as long as the data.
        """
        self._consolidate()
        num_values = len(self._values)
        if not self._is_exact or (num_values > NUM_TOP_VALUES and num_values * 2 > self._num_values):
            return ()
        is_text = pa.types.is_binary(self._key_type)
        if self._values.nbytes > MAX_VOCABULARY_BYTES if is_text else num_values > MAX_LISTED_INTEGERS:
            return ()
        values = [_shown_value(value, dtype) for _, value in self._ordered(1)]
        return tuple(v for v in values if v is not None) if None not in values else ()

    def exact_counts(self) -> tuple[pa.Array, Counts] | None:
        """Returns all values and how often each occurs, None where they are not counted exactly."""
        self._consolidate()
        return (self._values, self._counts) if self._is_exact else None

    def _next_piece(self) -> int:
        return 4 * _FIRST_PIECE if self._num_values >= _FIRST_PIECE else _FIRST_PIECE

    def _ordered(self, at_least: int) -> list[tuple[int, Any]]:
        listed = zip(self._values.to_pylist(), self._counts.tolist(), strict=True)
        return sorted((-count, value) for value, count in listed if count >= at_least)

    def _keys_of(self, values: Hashes) -> pa.Array:
        return pa.array(values).view(self._key_type)

    def _append(self, values: pa.Array, counts: npt.NDArray[np.int64]) -> None:
        self._pending.append((values, counts))
        self._num_pending += len(values)
        if self._num_pending > _MAX_PENDING or (self._is_exact and len(values) > NUM_COUNTED):
            self._consolidate()

    def _count_samples(self) -> None:
        if self._samples:
            found, counts = count_equal(np.concatenate(self._samples))
            self._samples, self._num_samples = [], 0
            self._append(*_most_frequent(self._keys_of(found), counts * SAMPLE_STEP))

    def _consolidate(self) -> None:
        self._count_samples()
        if not self._pending:
            return
        values = pa.concat_arrays([self._values, *(v for v, _ in self._pending)])
        counts = np.concatenate([self._counts, *(c for _, c in self._pending)])
        is_merged = len(self._values) > 0 or len(self._pending) > 1
        self._pending, self._num_pending = [], 0
        self._values, self._counts = _add_up(values, counts) if is_merged else (values, counts)
        if len(self._values) > NUM_COUNTED:
            self._stop_counting()
            self._values, self._counts = _most_frequent(self._values, self._counts)

    def _stop_counting(self) -> None:
        self._consolidate()
        if self._is_exact:
            self._is_exact = False
            self._pass_on(self._values, self._counts)
            self._add_hashes(hash_values(self._values))

    def _pass_on(self, values: pa.Array, counts: Counts) -> None:
        if self._overflow is not None:
            self._overflow.add_counted(values.to_numpy(), counts)

    def _become_free_text(self) -> None:
        self._stop_counting()
        self._is_free_text = True
        self._values, self._counts = self._values[:0], self._counts[:0]
        self._pending, self._num_pending = [], 0

    def _add_hashes(self, hashes: Hashes) -> None:
        if len(self._hashes) == NUM_HASHES:
            hashes = hashes[hashes < self._hashes[-1]]
        self._new_hashes.append(hashes)
        self._num_new_hashes += len(hashes)
        if self._num_new_hashes > NUM_HASHES:
            self._merge_hashes()

    def _merge_hashes(self) -> None:
        if self._num_new_hashes:
            found = np.sort(np.concatenate([self._hashes, *self._new_hashes]))
            self._hashes = found[np.concatenate([[True], found[1:] != found[:-1]])][:NUM_HASHES]
        self._new_hashes, self._num_new_hashes = [], 0


def _count_binary(values: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    if HAS_KERNEL:
        rows, repeats = (np.frombuffer(n, np.int64) for n in _kernel.count_slices(*_slices_of(values)))
        return values.take(pa.array(rows)), repeats
    found = values.value_counts()
    return found.field(0), found.field(1).to_numpy()


def _most_frequent(values: pa.Array, counts: npt.NDArray[np.int64]) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    # Misra and Gries: the count of the first value left out is taken from all, so no estimate is too high.
    if len(values) <= NUM_COUNTED:
        return values, counts
    kept = counts - np.partition(counts, -NUM_COUNTED - 1)[-NUM_COUNTED - 1]
    return values.filter(pa.array(kept > 0)), kept[kept > 0]


def _add_up(values: pa.Array, counts: npt.NDArray[np.int64]) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    # Counts of equal values are added.
    if not pa.types.is_binary(values.type):
        found, sums = add_up(values.to_numpy().view(np.uint64), counts)
        return pa.array(found).view(values.type), sums
    encoded = values.dictionary_encode()
    return encoded.dictionary, np.bincount(encoded.indices.to_numpy(), counts).astype(np.int64)


def _slices_of(values: pa.Array) -> tuple[npt.NDArray[np.int32], pa.Buffer | bytes]:
    _, offsets, data = values.buffers()
    if not len(values):
        return np.zeros(1, np.int32), b""
    return np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1], data or b""


def hash_values(values: pa.Array) -> Hashes:
    """Returns a 64-bit hash of each value of a binary or 64-bit integer array without nulls."""
    if not pa.types.is_binary(values.type):
        return _hash_words(values.to_numpy().view(np.uint64))
    offsets, data_buffer = _slices_of(values)
    if HAS_KERNEL:
        return np.frombuffer(_kernel.hash_slices(offsets, data_buffer), np.uint64)
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.zeros(last - first + 8, np.uint8)
    if last > first:
        data[:-8] = np.frombuffer(data_buffer, np.uint8)[first:last]
    return _hash_slices(data, offsets.astype(np.int64) - first)


def _hash_words(values: Hashes) -> Hashes:
    if HAS_KERNEL:
        return np.frombuffer(_kernel.hash_slices(None, np.ascontiguousarray(values)), np.uint64)
    return mix64(values)


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
