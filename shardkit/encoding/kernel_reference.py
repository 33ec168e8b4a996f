"""The functions of the compiled kernel in Python: `scan`, `decode` and `gather` by NumPy and protobuf.

It serves where the kernel was not built, and defines the kernel's results. Both follow protobuf's own parser, whatever
the form of the bytes; see `encoding.example` for the messages. A record that is damaged is reported, never raised.
Wire format: https://protobuf.dev/programming-guides/encoding, framing: https://www.tensorflow.org/tutorials/load_data/tfrecord.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import google_crc32c
import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from shardkit.encoding.example import stored_features
from shardkit.encoding.tfrecord import FOOTER_BYTES, HEADER_BYTES, OVERHEAD_BYTES, masked_crc32c
from shardkit.hashing import mix64, stable_order

if TYPE_CHECKING:
    from typing_extensions import Buffer

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Validity = npt.NDArray[np.uint8] | None
Row = Sequence[Any] | None

BYTES, FLOAT, INT64, FLOAT64, UINT8 = 1, 2, 3, 4, 5
"""Kinds of a spec: the numbers of the fields of `tensorflow.Feature`, and numbers in the bytes of one bytes value."""

ANY_NUMBER = -1
WHOLE, DAMAGED = 0, 1
"""States of a scanned record."""

_RAW = (FLOAT64, UINT8)
_LIST_NAMES = {BYTES: "bytes_list", FLOAT: "float_list", INT64: "int64_list", **dict.fromkeys(_RAW, "bytes_list")}
# Numbers are handled as integers of their width: as Python floats, some NaNs would become others.
_INTEGERS = {kind: np.dtype(name) for kind, name in ((FLOAT, "<u4"), (INT64, "<i8"), (FLOAT64, "<i8"), (UINT8, "u1"))}
_NUMBERS = {**_INTEGERS, FLOAT: np.dtype("<f4"), FLOAT64: np.dtype("<f8")}
_MAX_OFFSET = 2**31 - 1


class Spec(NamedTuple):
    """What is wanted of one feature.

    Attributes:
        name: Key in the `tf.train.Example`.
        kind: BYTES, FLOAT, INT64, FLOAT64 or UINT8.
        num_values: Values in every example, or ANY_NUMBER.
        is_required: Whether an example without it is a problem.
    """

    name: bytes
    kind: int
    num_values: int
    is_required: bool


class Scan(NamedTuple):
    """The frames of a buffer.

    Attributes:
        starts, lengths: Of the records' own bytes, without framing.
        states: WHOLE, or DAMAGED where the CRC of the record does not match.
        end: First byte that was not followed; the size of the buffer if the chain is whole.
    """

    starts: Int64s
    lengths: Int64s
    states: npt.NDArray[np.uint8]
    end: int


class Decoded(NamedTuple):
    """Columns of records.

    Attributes:
        columns: A tuple for each spec. First the validity: an Arrow bitmap, None if every row is valid. Then:
            FLOAT, INT64, FLOAT64, UINT8 with a number k of values: n * k values, zero where null;
            the same with any number: int32 offsets of the n rows, values;
            BYTES with one value: int32 offsets of the n values, their bytes;
            BYTES otherwise: int32 offsets of the n rows, int32 offsets of the values, their bytes.
        problems: Positions of the records that are no `tf.train.Example` or do not fit the specs, ascending. Their
            rows are null in every column.
    """

    columns: list[tuple[Any, ...]]
    problems: Int64s


def scan(frames: Buffer, checks_records: bool = True) -> Scan:
    """Follows frames from byte 0, to the end or to the first header that cannot be followed.

    A header cannot be followed if fewer than 16 bytes are left, if the CRC of the length does not match, or if the
    length is beyond the end of the buffer.

    Args:
        checks_records: False takes every record for whole, where other means have shown that the bytes are right.
    """
    data = bytes(frames)
    starts, lengths, states = [], [], []
    end = 0
    while len(data) - end >= OVERHEAD_BYTES:
        header = data[end : end + 8]
        length = int.from_bytes(header, "little")
        start = end + HEADER_BYTES
        if _crc_at(data, end + 8) != masked_crc32c(header) or length > len(data) - start - FOOTER_BYTES:
            break
        is_whole = not checks_records or _crc_at(data, start + length) == masked_crc32c(data[start : start + length])
        starts.append(start)
        lengths.append(length)
        states.append(WHOLE if is_whole else DAMAGED)
        end = start + length + FOOTER_BYTES
    return Scan(np.array(starts, np.int64), np.array(lengths, np.int64), np.array(states, np.uint8), end)


def decode(
    frames: Buffer,
    starts: Buffer,
    lengths: Buffer,
    specs: Iterable[tuple[bytes, int, int, bool]],
    refuse_others: bool = False,
) -> Decoded:
    """Returns the values of features of many records as columns.

    Args:
        starts: int64; where each record's own bytes start.
        lengths: int64; bytes of each record.
        specs: What is wanted, see `Spec`. A name may occur several times.
        refuse_others: Whether a feature that no spec names is a problem.

    Raises:
        ValueError: If a record is outside of `frames`, or a spec is none.
        OverflowError: If a column holds more than 2**31 - 1 values or bytes.
    """
    wanted = [_checked_spec(spec) for spec in specs]
    rows = [_row(record, wanted, refuse_others) for record in _pieces([bytes(frames)], starts, lengths)]
    problems = [i for i, row in enumerate(rows) if row is None]
    columns = [_column([None if row is None else row[k] for row in rows], spec) for k, spec in enumerate(wanted)]
    return Decoded(columns, np.array(problems, np.int64))


def decode_pieces(
    pieces: Sequence[tuple[tuple[Any, ...], int, int]],
    specs: Iterable[tuple[bytes, int, int, bool]],
    gives_objects: list[bool],
) -> Decoded:
    """Returns the values of features of records that are in several buffers as columns; see `decode`.

    Args:
        pieces: Of each buffer: a tuple that begins with it, int64 starts and int64 lengths of its records; the first
            record that is wanted; the one after the last.
        gives_objects: For each spec, whether BYTES with one value may come as objects if they are large.

    Returns:
        See `Decoded`, but with a bool a record in the place of a bitmap, and with a list of n bytes objects behind the
        validity, and nothing else, where they come as objects, which here they never do.

    Raises:
        ValueError: If a record is outside of its buffer, or a spec is none.
        OverflowError: If a column holds more than 2**31 - 1 values or bytes.
    """
    records: list[bytes] = []
    for (frames, starts, lengths, *_), first, stop in pieces:
        found = _pieces([bytes(frames)], starts, lengths)
        if not 0 <= first <= stop <= len(found):
            raise ValueError("a record lies outside of the frames")
        records += found[first:stop]
    sizes = np.array([len(record) for record in records], np.int64)
    columns, problems = decode(b"".join(records), (np.cumsum(sizes) - sizes).data, sizes.data, specs)
    return Decoded([(_as_bools(validity, len(records)), *rest) for validity, *rest in columns], problems)


def _as_bools(validity: Validity, num_rows: int) -> npt.NDArray[np.bool_] | None:
    if validity is None:
        return None
    return np.unpackbits(validity, count=num_rows, bitorder="little").view(np.bool_)


def permutation(count: int, key: int) -> Int64s:
    """Returns 0 to `count` - 1 in ascending order of mix64(mix64(position) ^ key); see `shardkit.hashing`.

    Args:
        count: At most 2**32 - 1.
        key: Of 64 bits; gives another order.

    Raises:
        ValueError: If there are too many, or fewer than none.
    """
    if not 0 <= count < 2**32:
        raise ValueError("a permutation is of 0 to 2**32 - 1 rows")
    return stable_order(mix64(mix64(np.arange(count, dtype=np.uint64)) ^ np.uint64(key)))


def put_objects(array: npt.NDArray[np.object_], offsets: Buffer, data: Buffer, is_text: bool) -> None:
    """Fills an array with slices of `data`: `str` from UTF-8, or bytes.

    Args:
        array: As many objects as there are slices.
        offsets: int32; where each slice starts, and where the last one ends.
        is_text: Whether they become `str`.

    Raises:
        ValueError: If the numbers do not fit together.
        UnicodeDecodeError: If one is not UTF-8.
    """
    content, bounds = bytes(data), np.frombuffer(memoryview(offsets), np.int32).tolist()
    if len(bounds) != len(array) + 1 or bounds != sorted(bounds) or not 0 <= bounds[0] <= bounds[-1] <= len(content):
        raise ValueError("expected an array of objects and the offsets of as many slices")
    for i, (start, stop) in enumerate(pairwise(bounds)):
        array[i] = content[start:stop].decode() if is_text else content[start:stop]


def crc32c(data: Buffer, start: int = 0) -> int:
    """Returns the CRC32C of `data`, continued from `start`."""
    return cast(int, google_crc32c.extend(start, bytes(data)))


def read_at(descriptor: int, start: int, num_bytes: int, tail: bytes) -> tuple[bytes, int]:
    """Returns bytes of a file, fewer if it ends before, with a tail behind them; and the CRC32C without the tail.

    Args:
        descriptor: Of a file that knows positions; its own stays where it is.
        num_bytes: At most so many.
        tail: Follows them.

    Raises:
        ValueError: If a number is negative.
        OSError: If the file cannot be read.
    """
    if start < 0 or num_bytes < 0:
        raise ValueError("a position and a number of bytes are not negative")
    data = bytearray()
    # Linux gives no more than 2 GiB at once.
    while len(data) < num_bytes and (more := os.pread(descriptor, num_bytes - len(data), start + len(data))):
        data += more
    return bytes(data) + tail, crc32c(data)


def gather(data: Buffer | list[Buffer], starts: Buffer, sizes: Buffer) -> bytes:
    """Returns pieces of `data`, one after the other.

    Args:
        data: Holds the pieces: one buffer, or several that count as one after the other. A piece is in one of them.
        starts: int64; where each piece starts.
        sizes: int64; bytes of each piece.

    Raises:
        ValueError: If a piece is outside of `data`, or there is no buffer.
    """
    buffers = [bytes(one) for one in (data if isinstance(data, list) else [data])]
    if not buffers:
        raise ValueError("there is nothing to gather from")
    return b"".join(_pieces(buffers, starts, sizes))


def _crc_at(data: bytes, position: int) -> int:
    return int.from_bytes(data[position : position + FOOTER_BYTES], "little")


def _pieces(buffers: list[bytes], starts: Buffer, sizes: Buffer) -> list[bytes]:
    firsts, counts = (np.frombuffer(memoryview(numbers), np.int64).tolist() for numbers in (starts, sizes))
    if len(firsts) != len(counts):
        raise ValueError("every piece needs a start and a size")
    bounds = [0, *accumulate(map(len, buffers))]
    pieces = []
    for start, size in zip(firsts, counts, strict=True):
        i = bisect_right(bounds, start, 1, len(buffers)) - 1
        if start < 0 or size < 0 or start + size > bounds[i + 1]:
            raise ValueError("a piece lies outside of the data")
        pieces.append(buffers[i][start - bounds[i] : start - bounds[i] + size])
    return pieces


def _checked_spec(spec: tuple[bytes, int, int, bool]) -> Spec:
    checked = Spec(*spec)
    if checked.kind not in _LIST_NAMES or not ANY_NUMBER <= checked.num_values <= _MAX_OFFSET:
        raise ValueError(f"{checked} is no spec")
    return checked


def _row(record: bytes, specs: Sequence[Spec], refuse_others: bool) -> list[Row] | None:
    """Returns the values for each spec, None where absent; None for the whole record if it is a problem."""
    try:
        stored = stored_features(record)
        if refuse_others and not stored.keys() <= {spec.name for spec in specs}:
            return None
        return [_values(stored.get(spec.name), spec) for spec in specs]
    except (DecodeError, _OtherValueError):
        return None


class _OtherValueError(Exception):
    """A feature does not fit its spec."""


def _values(feature: Any, spec: Spec) -> Row:
    name = feature.WhichOneof("kind") if feature is not None else None
    if name is None:
        if spec.is_required:
            raise _OtherValueError
        return None
    if name != _LIST_NAMES[spec.kind]:
        raise _OtherValueError
    values: Sequence[Any] = getattr(feature, name).value
    if spec.kind in _RAW:
        dtype = _INTEGERS[spec.kind]
        if len(values) != 1 or len(values[0]) % dtype.itemsize != 0:
            raise _OtherValueError
        values = np.frombuffer(values[0], dtype).tolist()
    if spec.num_values not in (ANY_NUMBER, len(values)):
        raise _OtherValueError
    return values


def _column(rows: list[Row], spec: Spec) -> tuple[Any, ...]:
    validity = _validity(rows)
    if spec.kind == BYTES and spec.num_values == 1:
        values = [b"" if row is None else row[0] for row in rows]
        return validity, _offsets(values), b"".join(values)
    if spec.num_values == ANY_NUMBER or spec.kind == BYTES:
        offsets = _offsets(() if row is None else row for row in rows)
        present = chain.from_iterable(row for row in rows if row is not None)
        if spec.kind == BYTES:
            values = list(present)
            return validity, offsets, _offsets(values), b"".join(values)
        return validity, offsets, _numbers(present, spec)
    nulls = (0,) * spec.num_values
    return validity, _numbers(chain.from_iterable(nulls if row is None else row for row in rows), spec)


def _validity(rows: list[Row]) -> Validity:
    is_valid = np.array([row is not None for row in rows], np.bool_)
    return None if is_valid.all() else np.packbits(is_valid, bitorder="little")


def _numbers(values: Iterable[Any], spec: Spec) -> npt.NDArray[Any]:
    integers: npt.NDArray[Any] = np.fromiter(values, _INTEGERS[spec.kind])
    return integers.view(_NUMBERS[spec.kind])


def _offsets(values: Iterable[Sequence[Any]]) -> Int32s:
    ends = np.cumsum([0, *map(len, values)], dtype=np.int64)
    if ends[-1] > _MAX_OFFSET:
        raise OverflowError("a column holds more than 2147483647 values or bytes")
    return ends.astype(np.int32)
