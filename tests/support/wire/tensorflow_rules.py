"""Where `tf.io.parse_example` differs from protobuf's parser, and how to ask it.

`tf.io.parse_example` does not use protobuf's parser but one of its own, which knows the forms that the usual writers
make (tensorflow/core/util/example_proto_fast_parsing.cc). It is stricter where it looks, and does not look everywhere.
shardkit follows protobuf. `difference` names the class of a record for which the two may differ; for every other record
they agree on acceptance and on every value.
"""

import multiprocessing
import os
from itertools import pairwise

import numpy as np

from shardkit.encoding import kernel_reference as reference
from tests.support.wire.kernel_comparison import DifferenceFound, frame_all

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

DIFFERENCES = {
    "group in an Example": "TensorFlow refuses the record; protobuf skips the group",
    "tag of the Example is malformed": "TensorFlow reads tags of six bytes and more, and the field number 0",
    "length beyond its message": "TensorFlow reads what is there, lengths modulo 2**32; protobuf refuses the record",
    "over-long tag": "TensorFlow knows a field only by the one byte of its tag; it skips or refuses it otherwise",
    "unknown field in Features": "TensorFlow refuses the record",
    "entry other than one key and one value": "TensorFlow refuses the record, or takes the last value",
    "Feature starts with an unknown field": "TensorFlow refuses the record if the feature is wanted",
    "Feature with more than one field": "TensorFlow reads the first list and nothing behind it",
    "list with more than one run, or a run and single values": "TensorFlow reads the first run, or refuses the record",
    "list with an unknown field": "TensorFlow refuses the record, or does not look behind the first run",
    "run of float32 values that ends inside a value": "TensorFlow drops the rest; protobuf refuses the record",
    "bytes value of 2 GiB and more": "TensorFlow 2.21 crashes where the stated length is not there",
    "damage in a list that is not wanted": "TensorFlow looks only into wanted features, and into the last of a name",
}

_KIND_TAGS = {0x0A: 1, 0x12: 2, 0x1A: 3}
_SINGLE_TAGS = {1: 0x0A, 2: 0x0D, 3: 0x08}


class _RefusedByBoth(Exception):
    pass


class _Different(Exception):
    pass


class _Bytes:
    def __init__(self, data):
        self.data, self.position = data, 0

    def __bool__(self):
        return self.position < len(self.data)

    def take(self, size):
        if size > len(self.data) - self.position:
            raise _RefusedByBoth
        self.position += size
        return self.data[self.position - size : self.position]

    def varint(self):
        value = 0
        for i in range(10):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << 7 * i
            if byte < 0x80:
                return value % 2**64
        raise _RefusedByBoth

    def delimited(self):
        size = self.varint()
        if size > len(self.data) - self.position:
            raise _Different("length beyond its message")
        return self.take(size)


def difference(record, wanted):
    """Returns the class of differences that a record belongs to, None if both parsers must agree about it."""
    try:
        entries = [entry for features in _features_of(record) for entry in _entries_of(features)]
        last = {key: i for i, (key, _) in enumerate(entries)}
        for i, (key, feature) in enumerate(entries):
            _check_feature(_Bytes(feature), is_read=key in wanted and last[key] == i)
    except _RefusedByBoth:
        return None
    except _Different as found:
        return str(found)
    return None


def _features_of(record):
    data = _Bytes(record)
    found = []
    while data:
        start = data.position
        tag = data.varint()
        size = data.position - start
        if size > 5 or tag >= 2**32 or tag < 8:
            raise _Different("tag of the Example is malformed")
        if tag & 7 == 3:
            raise _Different("group in an Example")
        if tag == 0x0A and size > 1:
            raise _Different("over-long tag")
        if tag == 0x0A:
            found.append(data.delimited())
        else:
            _skip(data, tag)
    return found


def _skip(data, tag):
    match tag & 7:
        case 0:
            data.varint()
        case 1:
            data.take(8)
        case 2:
            data.delimited()
        case 5:
            data.take(4)
        case _:
            raise _RefusedByBoth


def _entries_of(features):
    data = _Bytes(features)
    found = []
    while data:
        tag = data.take(1)[0]
        if tag & 0x80:
            raise _Different("over-long tag")
        if tag != 0x0A:
            raise _Different("unknown field in Features")
        found.append(_entry(_Bytes(data.delimited())))
    return found


def _entry(data):
    parts = []
    while data:
        tag = data.take(1)[0]
        if tag & 0x80:
            raise _Different("over-long tag")
        if tag not in (0x0A, 0x12):
            raise _Different("entry other than one key and one value")
        size = data.varint()
        if size >= 2**32:
            raise _Different("length beyond its message")
        parts.append((tag, data.take(size)))
    if sorted(tag for tag, _ in parts) != [0x0A, 0x12]:
        raise _Different("entry other than one key and one value")
    return dict(parts)[0x0A], dict(parts)[0x12]


def _check_feature(data, *, is_read):
    if not data:
        return
    try:
        kind = _KIND_TAGS.get(data.take(1)[0])
        if kind is None:
            raise _Different("Feature starts with an unknown field")
        _check_list(_Bytes(data.delimited()), kind)
    except _RefusedByBoth:
        if is_read:
            raise
        raise _Different("damage in a list that is not wanted") from None
    if data:
        raise _Different("Feature with more than one field")


def _check_list(data, kind):
    is_first = True
    while data:
        tag = data.take(1)[0]
        if tag == 0x0A and kind != 1:
            if not is_first:
                raise _Different("list with more than one run, or a run and single values")
            _check_run(_Bytes(data.delimited()), kind)
            if data:
                raise _Different("list with more than one run, or a run and single values")
        elif tag == _SINGLE_TAGS[kind]:
            _skip_value(data, kind)
        else:
            raise _Different("list with an unknown field")
        is_first = False


def _check_run(data, kind):
    if kind == 2 and len(data.data) % 4 != 0:
        raise _Different("run of float32 values that ends inside a value")
    while kind == 3 and data:
        data.varint()


def _skip_value(data, kind):
    if kind == 1:
        size = data.varint()
        if size >= 2**31:
            raise _Different("bytes value of 2 GiB and more")
        data.take(size)
    elif kind == 2:
        data.take(4)
    else:
        data.varint()


CRASHED = "crashed"


class TensorFlow:
    """Asks `tf.io.parse_example` for features with any number of values each, in a process of its own.

    TensorFlow 2.21 crashes, now and then, on records that it should refuse.

    Args:
        kinds: Of the wanted features, by name: 1 bytes, 2 float32, 3 int64.
    """

    def __init__(self, kinds):
        if not kinds:
            # Without a wanted feature the operation does not look at the records.
            raise ValueError("no feature is wanted")
        self._kinds = kinds
        self._process = None

    def parse(self, records):
        """Returns, of each record, its values by name as NumPy arrays, empty where absent.

        In place of a record that is refused stands None; of one that ends the process, `CRASHED`.
        """
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._connection, served = context.Pipe()
            self._process = context.Process(target=_serve, args=(served, self._kinds), daemon=True)
            self._process.start()
            served.close()
        try:
            self._connection.send(records)
            return self._connection.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            self._process = None
        if len(records) == 1:
            return [CRASHED]
        half = len(records) // 2
        return self.parse(records[:half]) + self.parse(records[half:])


def _serve(connection, kinds):
    parser = _Parser(kinds)
    while True:
        try:
            records = connection.recv()
        except EOFError:
            return
        connection.send(parser.parse(records))


class _Parser:
    def __init__(self, kinds):
        import tensorflow as tf

        self._tf = tf
        self._names = list(kinds)
        types = {1: tf.string, 2: tf.float32, 3: tf.int64}
        self._types = [types[kind] for kind in kinds.values()]

    def parse(self, records):
        try:
            return self._rows(records)
        except (self._tf.errors.InvalidArgumentError, UnicodeDecodeError):
            # The message of a refusal quotes the record; where that is not UTF-8, the message itself cannot be read.
            if len(records) == 1:
                return [None]
        half = len(records) // 2
        return self.parse(records[:half]) + self.parse(records[half:])

    def _rows(self, records):
        tf = self._tf
        parsed = tf.raw_ops.ParseExampleV2(
            serialized=tf.constant(records, tf.string),
            names=tf.constant([], tf.string),
            sparse_keys=tf.constant([], tf.string),
            dense_keys=tf.constant([], tf.string),
            ragged_keys=tf.constant(self._names, tf.string),
            dense_defaults=[],
            num_sparse=0,
            sparse_types=[],
            ragged_value_types=self._types,
            ragged_split_types=[tf.int64] * len(self._types),
            dense_shapes=[],
        )
        columns = [
            [values[a:b] for a, b in pairwise(splits)]
            for values, splits in (
                (v.numpy(), s.numpy()) for v, s in zip(parsed.ragged_values, parsed.ragged_row_splits, strict=True)
            )
        ]
        return [dict(zip(self._names, row, strict=True)) for row in zip(*columns, strict=True)]


def compare_with_tensorflow(tensorflow, records, wanted, counts):
    """Compares values and refusals of the reference with TensorFlow's.

    Raises:
        DifferenceFound: At the first difference outside of the known classes.
    """
    classes = [difference(record, {name for name, *_ in wanted}) for record in records]
    counts.update(f"TensorFlow may differ: {name}" for name in classes if name is not None)
    ours = [record for record, name in zip(records, classes, strict=True) if name is None]
    refused = set(reference.decode(*frame_all(ours), wanted).problems.tolist())
    # Refusals apart, because a refused record makes TensorFlow refuse all of its batch.
    good = [record for i, record in enumerate(ours) if i not in refused]
    bad = [record for i, record in enumerate(ours) if i in refused]
    for record in bad:
        (outcome,) = tensorflow.parse([record])
        is_crash = outcome == CRASHED
        counts["TensorFlow crashes: refused by the reference" if is_crash else "TensorFlow = reference: refused"] += 1
        if outcome not in (None, CRASHED):
            raise DifferenceFound(f"refused by the reference, read by TensorFlow\nrecord {record.hex()}")
    expected = _rows(reference.decode(*frame_all(good), wanted).columns, wanted, len(good))
    got = tensorflow.parse(good) if good else []
    for record, one, other in zip(good, expected, got, strict=True):
        if other in (None, CRASHED):
            raise DifferenceFound(f"refused by TensorFlow, read by the reference\nrecord {record.hex()}")
        if one != {name: _raw(values) for name, values in other.items()}:
            raise DifferenceFound(f"expected {one}\ngot {other}\nrecord {record.hex()}")
    counts["TensorFlow = reference: read"] += len(good)


def _rows(columns, wanted, count):
    rows = [{} for _ in range(count)]
    for (name, kind, *_), column in zip(wanted, columns, strict=True):
        row_ends = column[1].tolist()
        if kind == 1:
            ends, data = column[2].tolist(), column[3]
            values = [data[a:b] for a, b in pairwise(ends)]
        else:
            values = column[2]
        for row, (a, b) in zip(rows, pairwise(row_ends), strict=True):
            row[name] = _raw(values[a:b])
    return rows


def _raw(values):
    if isinstance(values, np.ndarray) and values.dtype != object:
        return values.tobytes()
    return list(values)
