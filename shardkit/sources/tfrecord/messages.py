"""What a record is: a `tf.train.Example`, a `tf.train.SequenceExample`, or neither.

Protobuf passes over fields that it does not know, so nearly any message parses as an Example without features, and a
SequenceExample as one that lost its lists. So the fields of a message itself are looked at as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from operator import attrgetter, methodcaller
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError

from shardkit.encoding.example import add_field, declare_feature, declare_messages, stored_features
from shardkit.encoding.kernel import Int64s
from shardkit.encoding.kernel_reference import BYTES, FLOAT, INT64
from shardkit.encoding.varints import VarintError, read_varint

Kind = Literal["example", "sequence"]
Values = Sequence[Any]

KIND_NAMES = {BYTES: "bytes", FLOAT: "float", INT64: "int64"}

_KINDS = {"bytes_list": BYTES, "float_list": FLOAT, "int64_list": INT64}
_KIND_OF_STEP = methodcaller("WhichOneof", "kind")
_VALUES_OF_STEP = {name: attrgetter(f"{name}.value") for name in _KINDS}
_FEATURES, _FEATURE_LISTS = 0x0A, 0x12  # Tags of length-delimited fields 1 and 2.
_EMPTY = b"\x0a\x00"
_MAX_VARINT_BYTES = 5


class NotExampleError(Exception):
    """The bytes are no message that is read; the text says why, to follow `it`."""


class StoredFeature(NamedTuple):
    """One feature of a record.

    Attributes:
        kind: BYTES, FLOAT or INT64.
        values: Of a float, the bits as integers.
    """

    kind: int
    values: Values


class StoredSteps(NamedTuple):
    """One feature list of a record.

    Attributes:
        kind: BYTES, FLOAT or INT64; None if there are no steps.
        sizes: Values of each step.
        values: Those of all steps, one step after the other; of a float, the bits as integers.
    """

    kind: int | None
    sizes: list[int]
    values: list[Any]


class Record(NamedTuple):
    """A parsed record.

    Attributes:
        features: By name; of a SequenceExample those of the context.
        lists: Feature lists by name; None if it is an Example.
        kindless: Names of the features without a kind, which count as absent.
    """

    features: Mapping[str, StoredFeature]
    lists: Mapping[str, StoredSteps] | None
    kindless: frozenset[str]


def are_plain_examples(data: npt.NDArray[np.uint8], starts: Int64s, lengths: Int64s) -> npt.NDArray[np.bool_]:
    """Returns which records consist of exactly one field of features, as every writer of Examples makes them."""
    last = len(data) - 1
    sizes = np.zeros(len(starts), np.int64)
    num_bytes = np.zeros(len(starts), np.int64)
    if not len(starts):
        return num_bytes.astype(np.bool_)
    for position in range(_MAX_VARINT_BYTES):
        byte = data[np.minimum(starts + 1 + position, last)].astype(np.int64)
        is_open = num_bytes == 0
        sizes = np.where(is_open, sizes | (byte & 0x7F) << 7 * position, sizes)
        num_bytes = np.where(is_open & (byte < 0x80), position + 1, num_bytes)
        if num_bytes.all():
            break
    is_feature = data[np.minimum(starts, last)] == _FEATURES
    is_whole = (num_bytes > 0) & (1 + num_bytes + sizes == lengths)
    plain: npt.NDArray[np.bool_] = (is_feature & is_whole) | (lengths == 0)
    return plain


def kind_of(record: bytes) -> Kind:
    """Returns which of the two messages a record is, by its own fields; an Example if it has no feature lists.

    Raises:
        NotExampleError: If it is neither.
    """
    kind: Kind = "example"
    position = 0
    while position < len(record):
        tag = record[position]
        if tag not in (_FEATURES, _FEATURE_LISTS):
            raise NotExampleError("has fields that neither an Example nor a SequenceExample has")
        try:
            size, num_bytes = read_varint(record[position + 1 : position + 1 + _MAX_VARINT_BYTES], _MAX_VARINT_BYTES)
        except VarintError as error:
            raise NotExampleError("does not parse") from error
        position += 1 + num_bytes + size
        if tag == _FEATURE_LISTS:
            kind = "sequence"
    if position != len(record):
        raise NotExampleError("is cut off inside")
    return kind


def parse(record: bytes) -> Record:
    """Returns what a record holds. Raises NotExampleError if it is neither an Example nor a SequenceExample."""
    kind = kind_of(record)
    try:
        entries = stored_features(record)
        lists = _FeatureListsOnly.FromString(record).feature_lists.feature_list if kind == "sequence" else None
    except DecodeError as error:
        raise NotExampleError("does not parse") from error
    if not entries and kind == "example" and record.strip(_EMPTY):
        raise NotExampleError("holds something else than features")
    stored = {_name(key): _stored(value) for key, value in entries.items()}
    found = {name: value for name, value in stored.items() if value is not None}
    steps = None if lists is None else {_name(e.key): _steps(e.value.feature, _name(e.key)) for e in lists}
    return Record(found, steps, frozenset(stored.keys() - found.keys()))


def parse_lists(record: bytes) -> Mapping[str, StoredSteps]:
    """Returns the feature lists of a SequenceExample, without its context.

    Raises:
        NotExampleError: If it does not parse.
    """
    try:
        entries = _FeatureListsOnly.FromString(record).feature_lists.feature_list
    except DecodeError as error:
        raise NotExampleError("does not parse") from error
    return {_name(entry.key): _steps(entry.value.feature, _name(entry.key)) for entry in entries}


def _steps(features: Any, name: str) -> StoredSteps:
    # There may be a hundred steps a record: no loop of Python's own goes over them.
    kinds = set(map(_KIND_OF_STEP, features))
    if not kinds:
        return StoredSteps(None, [], [])
    kind = kinds.pop()
    if kind is None or kinds:
        what = "a step without a kind" if kind is None or None in kinds else "steps of different kinds"
        raise NotExampleError(f"has {what} in the feature list {name!r}")
    steps = list(map(_VALUES_OF_STEP[kind], features))
    return StoredSteps(_KINDS[kind], list(map(len, steps)), list(chain.from_iterable(steps)))


def _stored(feature: Any) -> StoredFeature | None:
    kind = feature.WhichOneof("kind")
    return None if kind is None else StoredFeature(_KINDS[kind], getattr(feature, kind).value)


def _name(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise NotExampleError(f"has a feature whose name is not UTF-8: {key[:80]!r}") from error


def _sequence_class() -> Any:
    # Declared like the messages of `encoding.example`: maps as entries, keys as bytes, float32 values as their bits.
    field = descriptor_pb2.FieldDescriptorProto
    file = declare_feature("shardkit/sequence_example.proto", "shardkit.sequence")
    add_field(file, file.message_type.add(name="FeatureList"), "feature", 1, "Feature", repeated=True)
    entry = file.message_type.add(name="FeatureListEntry")
    entry.field.add(name="key", number=1, type=field.TYPE_BYTES, label=field.LABEL_OPTIONAL)
    add_field(file, entry, "value", 2, "FeatureList")
    add_field(file, file.message_type.add(name="FeatureLists"), "feature_list", 1, "FeatureListEntry", repeated=True)
    add_field(file, file.message_type.add(name="SequenceExample"), "feature_lists", 2, "FeatureLists")
    return declare_messages(file)["SequenceExample"]


_FeatureListsOnly = _sequence_class()
