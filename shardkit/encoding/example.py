"""Arrow batches to framed `tf.train.Example` records and back, by protobuf: the definition of the stored bytes.

The message types are declared here under another package name, because TensorFlow and other packages register
`tensorflow.Example` in the same process. They stand for the same bytes, read more plainly than the declared types do:
the map is a list of entries (the last of a key counts), keys are bytes and float32 values their bits. So a key that is
not UTF-8 is one more unknown key, an entry with an unknown field counts, and the bits of a NaN survive.

Features are in the byte order of their names, as protobuf's deterministic form has them. A null is an absent key.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from shardkit.encoding.tfrecord import frame
from shardkit.errors import BadInputError, DamageError
from shardkit.features import Feature, Features

Entries = Sequence[bytes]


class EncodedRows(NamedTuple):
    """Framed records.

    Attributes:
        data: The records, one after the other.
        sizes: int64 per record; framed bytes.
    """

    data: bytes | memoryview
    sizes: npt.NDArray[np.int64]


def encode_batch(batch: pa.RecordBatch, features: Features) -> EncodedRows:
    """Returns the rows of a batch as framed records, in order.

    Args:
        batch: Columns by the names of the features, each of its feature's `arrow_type`.

    Raises:
        BadInputError: If a list holds a null.
    """
    ordered = sorted(features, key=lambda f: f.name.encode())
    columns = [_encode_column(batch.column(f.name), f) for f in ordered]
    rows = zip(*columns, strict=True) if columns else iter([()] * batch.num_rows)
    framed = [frame(_example_bytes(b"".join(row))) for row in rows]
    return EncodedRows(b"".join(framed), np.fromiter(map(len, framed), dtype=np.int64, count=len(framed)))


def parse_record(record: bytes, where: str) -> dict[str, Any]:
    """Returns the protobuf features of one record by name; bytes that are not UTF-8 as surrogate escapes.

    Raises:
        DamageError: If it is no `tf.train.Example`.
    """
    try:
        stored = stored_features(record)
    except DecodeError as error:
        raise DamageError("a record is not a tf.train.Example", where=where, why=str(error)) from error
    return {key.decode(errors="surrogateescape"): feature for key, feature in stored.items()}


def stored_features(record: bytes) -> dict[bytes, Any]:
    """Returns the protobuf features of one record by key; float32 values are their bits.

    Raises:
        DecodeError: If it is no `tf.train.Example`.
    """
    return {entry.key: entry.value for entry in _Example.FromString(record).features.feature}


def stored_values(stored: dict[str, Any], feature: Feature, where: str) -> Sequence[Any] | None:
    """Returns the raw values of one feature, None if it is absent, after checking kind and number.

    Raises:
        DamageError: If the kind or the number of values is not the feature's, or a required feature is absent.
    """
    found = stored.get(feature.name)
    # Stock TensorFlow takes a feature without a kind for an absent one.
    kind = found.WhichOneof("kind") if found is not None else None
    if kind is None:
        if not feature.nullable:
            raise DamageError(f"feature {feature.name!r} is absent", where=where, why="the manifest requires it")
        return None
    expected = "bytes_list" if feature.stored_as == "little_endian_bytes" else feature.stored_as
    if kind != expected:
        raise DamageError(
            f"feature {feature.name!r} has the wrong kind", where=where, why=f"expected {expected}, got {kind}"
        )
    values: Sequence[Any] = getattr(found, kind).value
    if feature.stored_as == "little_endian_bytes":
        _check_number(feature, len(values), 1, where)
        num_bytes, width = len(values[0]), feature.value_type.bit_width // 8
        expected_bytes = num_bytes - num_bytes % width if feature.num_values is None else width * feature.num_values
        _check_number(feature, num_bytes, expected_bytes, where)
    elif feature.num_values is not None:
        _check_number(feature, len(values), feature.num_values, where)
    return values


def _check_number(feature: Feature, found: int, expected: int, where: str) -> None:
    if found != expected:
        raise DamageError(
            f"feature {feature.name!r} has the wrong size", where=where, why=f"expected {expected}, got {found}"
        )


def _encode_column(column: pa.Array, feature: Feature) -> Entries:
    if not feature.is_scalar:
        return _encode_lists(column, feature)
    stored = stored_array(column, feature)
    write = _entry_writer(feature)
    if feature.media_type is not None or feature.dtype == "bytes":
        # Large values that hardly repeat: looking for equal ones costs more than it saves.
        return [b"" if v is None else write((v,)) for v in stored.to_pylist()]
    encoded = _wire_values(stored).dictionary_encode()
    entries = np.array([*(write((v,)) for v in encoded.dictionary.to_pylist()), b""], dtype=object)
    positions = encoded.indices.fill_null(len(entries) - 1).to_numpy(zero_copy_only=False)
    taken: Entries = entries[positions].tolist()
    return taken


def _encode_lists(column: pa.Array, feature: Feature) -> Entries:
    write = _entry_writer(feature)
    lists = as_lists(column, feature)
    valid = lists.is_valid().to_pylist()
    offsets = lists.offsets.to_pylist()
    spans = zip(valid, offsets, offsets[1:], strict=False)
    if feature.stored_as == "little_endian_bytes":
        numbers = raw_numbers(lists.values)
        return [write((numbers[a:b].tobytes(),)) if ok else b"" for ok, a, b in spans]
    values = stored_array(lists.values, feature)
    # Null rows of a fixed size have children that are not read.
    values = values if feature.stored_as == "bytes_list" else values.fill_null(0)
    if feature.stored_as == "bytes_list":
        items = values.to_pylist()
        return [write(items[a:b]) if ok else b"" for ok, a, b in spans]
    numbers = _wire_values(values).to_numpy(zero_copy_only=False)
    return [write(numbers[a:b].tolist()) if ok else b"" for ok, a, b in spans]


def as_lists(column: pa.Array, feature: Feature) -> pa.Array:
    """Returns a column of lists of any kind as lists of variable length. Raises BadInputError at a null in a list."""
    lists = column.cast(pa.list_(column.type.value_type))
    if lists.drop_null().flatten().null_count:
        raise BadInputError(
            f"column {feature.name!r} has a null inside a list",
            why="the lists of a tf.train.Example hold no nulls",
            next_step="Fill or drop such values in the source",
        )
    return lists


def stored_array(values: pa.Array, feature: Feature) -> pa.Array:
    """Returns values as they are stored: int64, float32, binary, or 8 bytes for float64. Nulls stay."""
    if feature.stored_as == "little_endian_bytes":
        raw = raw_numbers(values)
        packed = pa.Array.from_buffers(pa.binary(8), len(values), [None, pa.py_buffer(raw)])
        return pc.if_else(values.is_valid(), packed, pa.scalar(None, pa.binary(8)))
    if feature.stored_as == "float_list":
        return values.cast(pa.float32())
    if feature.stored_as == "bytes_list":
        return (values.cast(pa.string()) if pa.types.is_decimal(values.type) else values).cast(pa.binary())
    if pa.types.is_uint64(values.type):
        return values.view(pa.int64())
    if pa.types.is_date32(values.type) or pa.types.is_time32(values.type):
        return values.view(pa.int32()).cast(pa.int64())
    if pa.types.is_temporal(values.type):
        return values.view(pa.int64())
    return values.cast(pa.int64())


def _wire_values(values: pa.Array) -> pa.Array:
    """Returns float32 values as their bits, others as they are. Numbers would lose which NaN it was."""
    return values.view(pa.uint32()) if pa.types.is_float32(values.type) else values


def raw_numbers(values: pa.Array) -> npt.NDArray[Any]:
    """Returns numbers as little-endian ones, zero for null."""
    numbers: npt.NDArray[Any] = values.fill_null(0).to_numpy(zero_copy_only=False)
    return numbers.astype(numbers.dtype.newbyteorder("<"), copy=False)


def _entry_writer(feature: Feature) -> Callable[[Iterable[Any]], bytes]:
    kind = "bytes_list" if feature.stored_as == "little_endian_bytes" else feature.stored_as

    key = feature.name.encode()

    def write(values: Iterable[Any]) -> bytes:
        # One entry serialises to the same bytes alone as among others, so entries can be joined.
        features = _Features()
        stored = getattr(features.feature.add(key=key).value, kind)
        stored.SetInParent()
        stored.value.extend(values)
        serialized: bytes = features.SerializeToString()
        return serialized

    return write


def _example_bytes(entries: bytes) -> bytes:
    return b"\x0a" + _varint(len(entries)) + entries


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def python_value(scalar: pa.Scalar) -> Any:
    """Returns a scalar of Arrow as Python has it; times with nanoseconds as pandas has them, or as text without it."""
    if not scalar.is_valid:
        return None
    if hasattr(scalar, "values"):
        return [python_value(value) for value in scalar.values]
    with contextlib.suppress(ValueError):
        return scalar.as_py()
    if pa.types.is_duration(scalar.type):
        return f"{scalar.value} ns"
    text = str(np.datetime64(scalar.value, "ns"))
    if pa.types.is_time(scalar.type):
        return text.partition("T")[2]
    return f"{text}Z" if scalar.type.tz else text


_KEPT: list[Any] = []


def declare_messages(file: descriptor_pb2.FileDescriptorProto) -> dict[str, Any]:
    """Returns the class of each message of a file by the message's name; they live in a separate pool."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = [message.name for message in file.message_type]
    classes = {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}")) for name in names
    }
    # Protobuf 6 holds classes weakly. A class that only its messages refer to becomes garbage with them. Another thread
    # that parses while that garbage is being cleared gets a class without methods, and the process dies.
    _KEPT.extend(classes.values())
    return classes


def declare_feature(name: str, package: str) -> descriptor_pb2.FileDescriptorProto:
    """Returns a file of messages with `Feature` and its three lists; float32 values are their bits."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3")
    feature = descriptor_pb2.DescriptorProto(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (kind, list_name, value_type) in enumerate(
        (
            ("bytes_list", "BytesList", field.TYPE_BYTES),
            ("float_list", "FloatList", field.TYPE_FIXED32),
            ("int64_list", "Int64List", field.TYPE_INT64),
        ),
        start=1,
    ):
        message = file.message_type.add(name=list_name)
        message.field.add(name="value", number=1, type=value_type, label=field.LABEL_REPEATED)
        add_field(file, feature, kind, number, list_name).oneof_index = 0
    file.message_type.append(feature)
    return file


def add_field(
    file: descriptor_pb2.FileDescriptorProto, message: Any, name: str, number: int, kind: str, *, repeated: bool = False
) -> Any:
    """Adds a field to a message whose value is another message of the file, and returns it."""
    field = descriptor_pb2.FieldDescriptorProto
    label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
    type_name = f".{file.package}.{kind}"
    return message.field.add(name=name, number=number, type=field.TYPE_MESSAGE, type_name=type_name, label=label)


def _message_classes() -> tuple[Any, Any]:
    field = descriptor_pb2.FieldDescriptorProto
    file = declare_feature("shardkit/example.proto", "shardkit")
    entry = file.message_type.add(name="FeatureEntry")
    entry.field.add(name="key", number=1, type=field.TYPE_BYTES, label=field.LABEL_OPTIONAL)
    add_field(file, entry, "value", 2, "Feature")
    add_field(file, file.message_type.add(name="Features"), "feature", 1, "FeatureEntry", repeated=True)
    add_field(file, file.message_type.add(name="Example"), "features", 1, "Features")
    classes = declare_messages(file)
    return classes["Features"], classes["Example"]


_Features, _Example = _message_classes()
