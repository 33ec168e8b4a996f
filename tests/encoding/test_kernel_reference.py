"""The reference reads what protobuf reads, and what stock TensorFlow reads but for the classes that are listed."""

import random
import struct
from collections import Counter
from itertools import pairwise

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.encoding import kernel_reference as reference
from tests.support.examples import draws
from tests.support.wire.kernel_comparison import frame_all
from tests.support.wire.tensorflow_rules import CRASHED, DIFFERENCES, TensorFlow, compare_with_tensorflow, difference
from tests.support.wire.wire_cases import CASES, KINDS, SAME
from tests.support.wire.wire_forms import Writer, field, mutate

SPECS = [(name, kind, -1, False) for name, kind in KINDS.items()]
LISTS = {1: "bytes_list", 2: "float_list", 3: "int64_list"}

by_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
randoms = st.randoms(use_true_random=False)
seeds = st.integers(0, 2**64 - 1).map(random.Random)


def decode_one(record, *specs):
    decoded = reference.decode(*frame_all([record]), list(specs))
    return None if len(decoded.problems) else decoded.columns


def read(record):
    columns = decode_one(record, *SPECS)
    if columns is None:
        return None
    rows = {}
    for (name, kind, *_), column in zip(SPECS, columns, strict=True):
        values = column[2].tolist()
        rows[name.decode()] = [column[3][a:b] for a, b in pairwise(values)] if kind == 1 else values
    return {name: values for name, values in rows.items() if values}


def read_by_protobuf(record, example_class, error):
    try:
        stored = example_class.FromString(record).features.feature
    except error:
        return None
    rows = {}
    for name, kind in KINDS.items():
        feature = dict(stored).get(name.decode())
        if feature is None or feature.WhichOneof("kind") is None:
            continue
        if feature.WhichOneof("kind") != LISTS[kind]:
            return None
        rows[name.decode()] = list(getattr(feature, LISTS[kind]).value)
    return {name: values for name, values in rows.items() if values}


@by_case
def test_reads_each_form(case):
    assert read(bytes.fromhex(case.record)) == case.read


@pytest.fixture(scope="module")
def protobuf_example():
    tf = pytest.importorskip("tensorflow")
    return tf.train.Example


@pytest.fixture(scope="module")
def tensorflow():
    pytest.importorskip("tensorflow")
    return TensorFlow(KINDS)


@pytest.mark.full
@by_case
def test_protobuf_in_python_reads_each_form(case, protobuf_example):
    from google.protobuf.message import DecodeError

    expected = case.read if case.upb is SAME else case.upb
    assert read_by_protobuf(bytes.fromhex(case.record), protobuf_example, DecodeError) == expected


@pytest.mark.full
@by_case
def test_tensorflow_reads_each_form(case, tensorflow):
    (found,) = tensorflow.parse([bytes.fromhex(case.record)])
    if found == CRASHED:
        assert difference(bytes.fromhex(case.record), set(KINDS)) == "bytes value of 2 GiB and more"
        return
    if found is not None:
        found = {name.decode(): values.tolist() for name, values in found.items() if len(values)}
    assert found == (case.read if case.tensorflow is SAME else case.tensorflow)


@by_case
def test_where_tensorflow_differs_there_is_a_name_for_it(case):
    name = difference(bytes.fromhex(case.record), set(KINDS))
    assert name is None or name in DIFFERENCES
    assert case.tensorflow is SAME or name is not None


def test_every_class_of_differences_has_a_case():
    assert {difference(bytes.fromhex(case.record), set(KINDS)) for case in CASES} == {None, *DIFFERENCES}


@pytest.mark.full
@given(randoms, st.sampled_from([0, 0.02, 0.1, 0.3, 0.6]))
@settings(max_examples=draws(40), deadline=None)
def test_reads_whatever_protobuf_allows(rng, oddity):
    record = Writer(rng, oddity).record()
    assert decode_one(record) == []


FEW_KINDS = {b"a": 1, b"b": 2, b"ids": 3, b"\xff\xfe": 3}
tensorflow_of_few_kinds = TensorFlow(FEW_KINDS)


@pytest.mark.full
@given(seeds)
@settings(max_examples=draws(60), deadline=None)
def test_tensorflow_agrees_outside_of_the_known_differences(rng):
    pytest.importorskip("tensorflow")
    writer = Writer(rng, rng.choice([0, 0, 0.02]), rng.choice([0, 0, 0.01]))
    records = [writer.record() for _ in range(6)]
    records += [mutate(rng, record, records[0]) for record in records]
    specs = [(name, kind, -1, False) for name, kind in FEW_KINDS.items()]
    compare_with_tensorflow(tensorflow_of_few_kinds, records, specs, Counter())


def example(**features):
    return field(1, b"".join(field(1, field(1, name.encode()) + field(2, f)) for name, f in features.items()))


def int64s(*values):
    return field(3, field(1, bytes(values)))


def floats(*values):
    return field(2, field(1, struct.pack(f"<{len(values)}f", *values)))


def strings(*values):
    return field(1, b"".join(field(1, value) for value in values))


def as_lists(column):
    return [None if part is None else part if isinstance(part, bytes) else part.tolist() for part in column]


FULL = example(i=int64s(1, 2), f=floats(0.5, -1.5), s=strings(b"x"), t=strings(b"ab", b""), d=strings(bytes(16)))


@pytest.mark.parametrize(
    ("spec", "of_full", "of_both"),
    [
        ((b"i", 3, 2, False), [None, [1, 2]], [[1], [1, 2, 0, 0]]),
        ((b"i", 3, -1, False), [None, [0, 2], [1, 2]], [[1], [0, 2, 2], [1, 2]]),
        ((b"f", 2, 2, False), [None, [0.5, -1.5]], [[1], [0.5, -1.5, 0.0, 0.0]]),
        ((b"f", 2, -1, False), [None, [0, 2], [0.5, -1.5]], [[1], [0, 2, 2], [0.5, -1.5]]),
        ((b"d", 4, 2, False), [None, [0.0, 0.0]], [[1], [0.0, 0.0, 0.0, 0.0]]),
        ((b"d", 4, -1, False), [None, [0, 2], [0.0, 0.0]], [[1], [0, 2, 2], [0.0, 0.0]]),
        ((b"s", 1, 1, False), [None, [0, 1], b"x"], [[1], [0, 1, 1], b"x"]),
        ((b"t", 1, 2, False), [None, [0, 2], [0, 2, 2], b"ab"], [[1], [0, 2, 2], [0, 2, 2], b"ab"]),
        ((b"t", 1, -1, False), [None, [0, 2], [0, 2, 2], b"ab"], [[1], [0, 2, 2], [0, 2, 2], b"ab"]),
    ],
)
def test_a_column_has_its_buffers_with_and_without_a_null(spec, of_full, of_both):
    (column,) = reference.decode(*frame_all([FULL]), [spec]).columns
    assert as_lists(column) == of_full
    (column,) = reference.decode(*frame_all([FULL, b""]), [spec]).columns
    assert as_lists(column) == of_both


@pytest.mark.parametrize(
    "spec",
    [
        (b"i", 3, 1, False),
        (b"i", 3, 0, False),
        (b"i", 2, 2, False),
        (b"i", 1, -1, False),
        (b"f", 2, 3, False),
        (b"t", 1, 1, False),
        (b"t", 1, 3, False),
        (b"t", 4, -1, False),
        (b"s", 4, -1, False),
        (b"d", 4, 1, False),
        (b"absent", 3, -1, True),
    ],
)
def test_a_record_that_does_not_fit_is_a_problem_and_null_in_every_column(spec):
    decoded = reference.decode(*frame_all([FULL]), [(b"f", 2, 2, False), spec, (b"s", 1, 1, True)])
    assert decoded.problems.tolist() == [0]
    assert [column[0].tolist() for column in decoded.columns] == [[0], [0], [0]]
    assert decoded.columns[0][1].tolist() == [0.0, 0.0]
    assert as_lists(decoded.columns[2]) == [[0], [0, 0], b""]


def test_an_empty_list_is_a_value_and_an_absent_one_is_none():
    record = example(a=field(3, b""), b=b"")
    for kind_of_a in (-1, 0):
        decoded = reference.decode(*frame_all([record]), [(b"a", 3, kind_of_a, True), (b"b", 3, -1, False)])
        assert decoded.problems.tolist() == []
        assert decoded.columns[0][0] is None
        assert decoded.columns[1][0].tolist() == [0]


def test_the_bits_of_every_float_survive():
    patterns = ["0100a07f", "ffffffff", "0000c07f", "00000080", "01000000"]
    singles = bytes.fromhex("".join(patterns))
    doubles = bytes.fromhex("".join("00000000" + p for p in patterns) + "010000000000f07f")
    record = example(f=field(2, field(1, singles)), d=strings(doubles))
    columns = decode_one(record, (b"f", 2, -1, True), (b"d", 4, -1, True))
    assert columns[0][2].tobytes() == singles
    assert columns[1][2].tobytes() == doubles


def test_pieces_outside_of_the_data_are_refused():
    for start, size in ((-1, 1), (0, -1), (0, 4), (4, 0), (2**63 - 1, 2**63 - 1)):
        for call in (lambda *pieces: reference.decode(b"abc", *pieces, []), lambda *p: reference.gather(b"abc", *p)):
            with pytest.raises(ValueError, match="outside"):
                call(np.array([start]), np.array([size]))
    with pytest.raises(ValueError, match="a start and a size"):
        reference.gather(b"abc", np.array([0, 1]), np.array([1]))


@pytest.mark.parametrize("spec", [(b"a", 0, 1, True), (b"a", 6, 1, True), (b"a", 3, -2, True)])
def test_what_is_no_spec_is_refused(spec):
    with pytest.raises(ValueError, match="no spec"):
        decode_one(b"", spec)


def test_gather_takes_pieces_in_any_order():
    assert reference.gather(b"abcdef", np.array([4, 0, 2, 0]), np.array([2, 1, 0, 3])) == b"efaabc"


def test_gather_takes_pieces_of_several_buffers_but_none_of_two():
    buffers = [b"abc", b"", b"def"]
    assert reference.gather(buffers, np.array([3, 0, 6, 1]), np.array([3, 3, 0, 2])) == b"defabcbc"
    with pytest.raises(ValueError, match="outside"):
        reference.gather(buffers, np.array([2]), np.array([2]))
    with pytest.raises(ValueError, match="nothing to gather from"):
        reference.gather([], np.array([], np.int64), np.array([], np.int64))


def framed(record):
    def masked(data):
        crc = google_crc32c.value(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(record))
    return length + masked(length) + record + masked(record)


def test_scan_follows_whole_frames_and_marks_damaged_records():
    frames = framed(b"one") + framed(b"") + framed(b"three")
    found = reference.scan(frames)
    assert [frames[a : a + n] for a, n in zip(found.starts, found.lengths, strict=True)] == [b"one", b"", b"three"]
    assert found.states.tolist() == [0, 0, 0]
    assert found.end == len(frames)
    damaged = frames.replace(b"one", b"ome")
    assert reference.scan(damaged).states.tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    "tail",
    [
        framed(b"x")[:-1],
        framed(b"")[:15],
        b"\0",
        framed(b"x").replace(b"\x01", b"\x02", 1),
        struct.pack("<Q", 2**63) + framed(b"x")[8:],
        # A length that nothing can hold, with the right CRC.
        struct.pack("<Q", 2**40) + framed(struct.pack("<Q", 2**40))[-4:] + bytes(8),
        struct.pack("<Q", 2**64 - 1) + framed(struct.pack("<Q", 2**64 - 1))[-4:] + bytes(8),
    ],
)
def test_scan_stops_at_a_header_that_cannot_be_followed(tail):
    found = reference.scan(framed(b"good") + tail)
    assert found.lengths.tolist() == [4]
    assert found.end == len(framed(b"good"))


def test_one_generator_of_random_numbers_gives_the_same_records():
    first, second = (Writer(random.Random(7), 0.2, 0.01) for _ in range(2))
    assert [first.record() for _ in range(20)] == [second.record() for _ in range(20)]
