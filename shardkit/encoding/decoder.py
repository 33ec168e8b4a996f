"""Framed records to Arrow columns of logical values: the reverse of `shardkit.encoding.encoder`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.encoding.example import parse_record, stored_values
from shardkit.encoding.kernel import Int64s, RecordsAt, decode, decode_pieces, scan
from shardkit.encoding.kernel_reference import ANY_NUMBER, BYTES, FLOAT, FLOAT64, INT64, UINT8, Spec
from shardkit.encoding.tfrecord import iter_records
from shardkit.errors import DamageError
from shardkit.features import Feature, Features
from shardkit.units import GiB

Frames = bytes | bytearray | memoryview

_KINDS = {"bytes_list": BYTES, "float_list": FLOAT, "int64_list": INT64}
# Of values in one bytes value, by dtype. NumPy and Arrow take the same bytes for int8.
RAW_KINDS = {"float64": FLOAT64, "int8": UINT8, "uint8": UINT8}
# Of the values that a fixed shape has room for in memory: more than so many bytes, and more than so many times the
# bytes of the records, hold nothing but zeros.
_ROOM_BYTES, _ROOM_TIMES = GiB, 16
STORED_TYPES = {BYTES: pa.binary(), FLOAT: pa.float32(), INT64: pa.int64(), FLOAT64: pa.float64(), UINT8: pa.uint8()}


class RecordDecoder:
    """Decodes the records of a dataset, or some of their features.

    Args:
        features: Of the manifest; others that the records have are passed over.
    """

    def __init__(self, features: Features) -> None:
        self._features = features
        self._specs = [_spec_of(f) for f in features]
        self._widest = max((_width_of(f) for f in features), default=0)
        self._columns = [_Column(f) for f in features]
        self._schema = pa.schema([pa.field(f.name, f.arrow_type, nullable=True) for f in features])

    def decode(self, frames: Frames, where: str) -> pa.RecordBatch:
        """Returns the records of a buffer as one batch with a column a feature, of its `arrow_type`.

        Numbers and strings are in the kernel's pooled memory, which is used again when no array refers to it.

        Args:
            frames: Whole framed records, such as a block.
            where: File and block, for messages.

        Raises:
            DamageError: At the first record that is cut off or damaged, is no `tf.train.Example`, or does not have the
                features' kinds and shapes; names the record.
        """
        starts, lengths = scan_whole(frames, where)
        return self.decode_at(frames, starts, lengths, lambda record: f"{where}, record {record}")

    def decode_at(
        self, frames: Frames, starts: Int64s, lengths: Int64s, locate: Callable[[int], str]
    ) -> pa.RecordBatch:
        """Returns records that are anywhere in a buffer as one batch; see `decode`.

        Args:
            starts: Where each record's own bytes start.
            lengths: Bytes of each record, without framing.
            locate: Says for messages where a record came from.
        """
        columns = self.decode_buffers(frames, starts, lengths, locate)
        where = locate(0) if len(starts) else ""
        try:
            arrays = [c.array(buffers, len(starts), where) for c, buffers in zip(self._columns, columns, strict=True)]
        except DamageError:
            # Arrow does not say which value is no text.
            for i in range(len(starts) if len(starts) > 1 else 0):
                places = [locate(i)]
                self.decode_at(frames, starts[i : i + 1], lengths[i : i + 1], places.__getitem__)
            raise
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def decode_buffers(
        self, frames: Frames, starts: Int64s, lengths: Int64s, locate: Callable[[int], str]
    ) -> list[tuple[Any, ...]]:
        """Returns the stored values of records that are anywhere in a buffer; see `decode_at`.

        Returns:
            For each feature what `kernel_reference.Decoded` describes.
        """
        self._check_room(len(starts), int(lengths.sum()), locate)
        columns, problems = decode(frames, starts, lengths, self._specs)
        for i in problems.tolist():
            record = bytes(memoryview(frames)[starts[i] : starts[i] + lengths[i]])
            raise DamageError(self._problem_of(record), where=locate(i))
        return columns

    def decode_pieces(
        self, pieces: Sequence[RecordsAt], locate: Callable[[int], str], gives_objects: list[bool]
    ) -> list[tuple[Any, ...]]:
        """Returns the stored values of records that are in several buffers; see `decode_buffers`.

        A validity is bool a record here, not bits.

        Args:
            pieces: Records of a buffer each.
            locate: Says for messages where a record came from.
            gives_objects: For each feature, whether one bytes value a record may come as objects, which saves a copy.

        Returns:
            For each feature what `kernel_reference.decode_pieces` describes.
        """
        num_records = sum(stop - first for _, first, stop in pieces)
        self._check_room(num_records, sum(int(at[2][first:stop].sum()) for at, first, stop in pieces), locate)
        columns, problems = decode_pieces(pieces, self._specs, gives_objects)
        for i in problems.tolist():
            raise DamageError(self._problem_of(_record_at(pieces, i)), where=locate(i))
        return columns

    def find_problems(self, frames: Frames, starts: Int64s, lengths: Int64s) -> list[tuple[int, str]]:
        """Returns position and problem of every record that does not have these features and no others.

        Args:
            starts: Where each record's own bytes start.
            lengths: Bytes of each record, without framing.
        """
        try:
            self._check_room(len(starts), int(lengths.sum()), str)
        except DamageError as error:
            return [(i, error.what) for i in range(len(starts))]
        _, problems = decode(frames, starts, lengths, self._specs, refuse_others=True)
        records = [bytes(memoryview(frames)[starts[i] : starts[i] + lengths[i]]) for i in problems]
        return list(zip(problems.tolist(), map(self._problem_of, records), strict=True))

    def _check_room(self, num_records: int, num_bytes: int, locate: Callable[[int], str]) -> None:
        """Refuses a shape before memory is allocated for it: a hostile manifest may state any."""
        if num_records * self._widest <= max(_ROOM_BYTES, _ROOM_TIMES * num_bytes):
            return
        feature = max(self._features, key=_width_of)
        raise DamageError(
            f"feature {feature.name!r} has room for {feature.num_values:,} values in a record, far more than there are",
            where=locate(0),
            why=f"{num_records:,} records have {num_bytes:,} bytes",
            next_step="Make the dataset again with the shape that its values have, or without the feature",
        )

    def _problem_of(self, record: bytes) -> str:
        try:
            stored = parse_record(record, "")
            for feature in self._features:
                stored_values(stored, feature, "")
        except DamageError as error:
            return f"{error.what}: {error.why}"
        unknown = min(set(stored) - {f.name for f in self._features})
        return f"it has the feature {unknown!r}, which the manifest does not name"


def _record_at(pieces: Sequence[RecordsAt], position: int) -> bytes:
    for (frames, starts, lengths, *_), first, stop in pieces:
        if position < stop - first:
            start, length = (int(numbers[first + position]) for numbers in (starts, lengths))
            return bytes(frames[start : start + length])
        position -= stop - first
    raise IndexError(position)


def scan_whole(frames: Frames, where: str, *, checks_records: bool = True) -> tuple[Int64s, Int64s]:
    """Returns where each record's own bytes start, and how many they are.

    Args:
        frames: Whole framed records, such as a block.
        where: File and block, for messages.
        checks_records: False if it is known that the bytes are right: of a record only its length is then checked.

    Raises:
        DamageError: At the first record that is cut off or damaged.
    """
    starts, lengths, states, end = scan(frames, checks_records=checks_records)
    if end != memoryview(frames).nbytes or np.count_nonzero(states):
        for _ in iter_records(bytes(frames), where):
            pass
    return starts, lengths


def _spec_of(feature: Feature) -> Spec:
    num_values = ANY_NUMBER if feature.num_values is None else feature.num_values
    return Spec(feature.name.encode(), _kind_of(feature), num_values, not feature.nullable)


def _kind_of(feature: Feature) -> int:
    return RAW_KINDS[feature.dtype] if feature.stored_as == "little_endian_bytes" else _KINDS[feature.stored_as]


def _width_of(feature: Feature) -> int:
    """Returns how many bytes a record takes in memory whatever it holds."""
    kind = _kind_of(feature)
    return 0 if kind == BYTES else STORED_TYPES[kind].byte_width * (feature.num_values or 0)


class _Column:
    """Makes the Arrow array of one feature from the buffers of its column."""

    def __init__(self, feature: Feature) -> None:
        self._feature = feature
        self._num_values = ANY_NUMBER if feature.num_values is None else feature.num_values
        self._stored_type = STORED_TYPES[_kind_of(feature)]
        self._type = feature.value_type

    def array(self, column: tuple[Any, ...], num_rows: int, where: str) -> pa.Array:
        is_scalar = self._feature.is_scalar
        stored = stored_column(column, num_rows, self._stored_type, self._num_values, is_scalar=is_scalar)
        try:
            if is_scalar:
                return self._from_stored(stored)
            values = self._from_stored(stored.values)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise DamageError(f"feature {self._feature.name!r} cannot be read", where=where, why=str(error)) from error
        type_ = pa.list_(values.type, self._num_values)
        return pa.Array.from_buffers(type_, num_rows, stored.buffers()[: type_.num_buffers], children=[values])

    def _from_stored(self, values: pa.Array) -> pa.Array:
        """Returns stored values as the logical ones they came from; see `shardkit.encoding.example.stored_array`."""
        type_ = self._type
        if values.type == type_:
            return values
        if pa.types.is_string(type_):
            return _as_text(values)
        if pa.types.is_decimal(type_):
            return values.cast(pa.string()).cast(type_)
        if type_ in (pa.uint64(), pa.int8()) and values.type.bit_width == type_.bit_width:
            return values.view(type_)
        if pa.types.is_boolean(type_):
            return pc.not_equal(values, 0)
        if pa.types.is_temporal(type_):
            return (values.cast(pa.int32()) if type_.bit_width == 32 else values).view(type_)
        return values.cast(type_)


def stored_column(
    buffers: tuple[Any, ...], num_rows: int, type_: pa.DataType, num_values: int, *, is_scalar: bool
) -> pa.Array:
    """Returns one column that the kernel decoded, as stored values, lists or lists of a fixed size.

    Args:
        buffers: As `kernel_reference.Decoded` describes them.
        num_values: Values in every row, or ANY_NUMBER.
        is_scalar: Whether a row is a value, not a list of one.
    """
    found: list[Any] = [None if b is None else pa.py_buffer(b) for b in buffers]
    validity, *rest = found
    if is_scalar:
        return pa.Array.from_buffers(type_, num_rows, [validity, *rest])
    if num_values == ANY_NUMBER:
        offsets, *rest = rest
        values = pa.Array.from_buffers(type_, int(np.frombuffer(offsets, np.int32)[num_rows]), [None, *rest])
        return pa.Array.from_buffers(pa.list_(type_), num_rows, [validity, offsets], children=[values])
    if type_ != pa.binary():
        values = pa.Array.from_buffers(type_, num_rows * num_values, [None, *rest])
    elif num_values == 1:
        # One value a row, also where the row is null.
        values = pa.Array.from_buffers(type_, num_rows, [validity, *rest])
    else:
        offsets, *rest = rest
        counts: npt.NDArray[Any] = np.diff(np.frombuffer(offsets, np.int32)[: num_rows + 1])
        values = pa.Array.from_buffers(type_, int(counts.sum()), [None, *rest])
        if len(values) != num_rows * num_values:
            # Null rows have no strings at all, but a list of a fixed size has room for them.
            values = values.take(_positions_with_nulls(counts, num_values))
    return pa.Array.from_buffers(pa.list_(type_, num_values), num_rows, [validity], children=[values])


def _as_text(values: pa.Array) -> pa.Array:
    """Returns binary values as strings. Raises pa.ArrowInvalid if one is not UTF-8."""
    # Checking UTF-8 value by value takes twenty times as long as seeing that all of it is ASCII.
    content = values.buffers()[2]
    is_ascii = content is None or content.size == 0 or np.frombuffer(content, np.int8).min() >= 0
    return values.view(pa.string()) if is_ascii else values.cast(pa.string())


def _positions_with_nulls(counts: npt.NDArray[Any], num_values: int) -> pa.Array:
    is_there = np.repeat(counts > 0, num_values)
    positions = np.cumsum(is_there) - 1
    return pa.array(positions, mask=~is_there)
