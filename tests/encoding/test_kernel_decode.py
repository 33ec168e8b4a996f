"""The kernel decodes what the reference decodes, whatever the bytes, from many threads, into memory of its own."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.encoding import encoder
from shardkit.encoding import kernel_reference as reference
from shardkit.encoding.example import encode_batch
from shardkit.encoding.tfrecord import frame
from shardkit.features import arrow_schema, make_feature
from tests.support.examples import draws
from tests.support.wire.kernel_comparison import find_difference, find_difference_alone, frame_all
from tests.support.wire.kernel_threads import runs_beside_python
from tests.support.wire.wire_cases import CASES, KINDS
from tests.support.wire.wire_forms import NAMES, Writer, field, mutate, random_specs, varint

_kernel = pytest.importorskip("shardkit._kernel", reason="the kernel was not built here", exc_type=ImportError)
fuzz_kernel = pytest.importorskip("tests.fuzz.fuzz_kernel")

randoms = st.randoms(use_true_random=False)
seeds = st.integers(0, 2**64 - 1).map(random.Random)
WANTED = [(name, 1 + i % 3, -1, False) for i, name in enumerate(NAMES)]


def decode(records, specs):
    return _kernel.decode(*frame_all(records), specs)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
@pytest.mark.parametrize("num_values", [-1, 1])
def test_reads_each_form_as_the_reference_does(case, num_values):
    specs = [(name, kind, num_values, False) for name, kind in KINDS.items()]
    assert find_difference_alone(_kernel, bytes.fromhex(case.record), specs) is None


@pytest.mark.full
@given(randoms, st.sampled_from([0, 0.02, 0.1, 0.3]), st.sampled_from([0, 0, 0.01]))
@settings(max_examples=draws(60), deadline=None)
def test_reads_any_form_as_the_reference_does(rng, oddity, damage):
    record = Writer(rng, oddity, damage).record()
    for specs in (WANTED, random_specs(rng)):
        assert find_difference_alone(_kernel, record, specs) is None


@given(seeds)
@settings(max_examples=draws(150), deadline=None)
def test_reads_many_records_as_the_reference_does(rng):
    writer = Writer(rng, rng.choice([0, 0.02, 0.3]), rng.choice([0, 0, 0.005]))
    records = [writer.record() for _ in range(rng.randrange(40))]
    assert find_difference(_kernel, *frame_all(records), random_specs(rng)) is None


@given(seeds)
@settings(max_examples=draws(150), deadline=None)
def test_reads_changed_records_in_right_frames_as_the_reference_does(rng):
    writer = Writer(rng, rng.choice([0, 0.05]))
    written = [writer.record() for _ in range(10)]
    changed = [mutate(rng, record, rng.choice(written)) for record in written]
    frames = b"".join(frame(record) for record in written + changed)
    starts, lengths, states, end = _kernel.scan(frames)
    assert (len(starts) // 8, set(bytes(states)), end) == (20, {0}, len(frames))
    assert find_difference(_kernel, frames, starts, lengths, random_specs(rng)) is None


def test_records_may_overlap_repeat_and_stand_in_any_order():
    frames = b"".join([Writer(random.Random(1)).record() for _ in range(9)])
    rng = random.Random(2)
    starts = np.array([rng.randint(0, len(frames)) for _ in range(500)])
    lengths = np.array([rng.randint(0, len(frames) - start) for start in starts])
    assert find_difference(_kernel, frames, starts, lengths, WANTED) is None


_INT64S = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(
    [0, 1, 127, 128, 2**14, 2**21 - 1, 2**21, 2**56, 2**63 - 1]
)
_VALUES = {
    "int64": st.lists(_INT64S, max_size=200),
    "float32": st.lists(st.floats(width=32), max_size=40),
    "float64": st.lists(st.floats(), max_size=40),
    "bytes": st.lists(st.binary(max_size=40), max_size=10),
}
_KINDS = {"int64": 3, "float32": 2, "float64": 4, "bytes": 1}


@given(st.data(), st.sampled_from(sorted(_VALUES)), st.integers(1, 12))
@settings(max_examples=draws(150), deadline=None)
def test_what_was_encoded_comes_back(data, dtype, num_rows):
    rows = data.draw(st.lists(st.none() | _VALUES[dtype], min_size=num_rows, max_size=num_rows))
    # A null where there is none would change the form of the column.
    feature = make_feature("a feature", dtype, (None,), nullable=True)
    batch = pa.record_batch([pa.array(rows, feature.arrow_type)], schema=arrow_schema((feature,)))
    frames = encode_batch(batch, (feature,)).data
    starts, lengths, *_ = _kernel.scan(frames)
    columns, problems = _kernel.decode(frames, starts, lengths, [(b"a feature", _KINDS[dtype], -1, False)])
    assert len(problems) == 0
    (column,) = columns
    validity, offsets, *rest = (None if part is None else pa.py_buffer(part) for part in column)
    if dtype == "bytes":
        values = pa.Array.from_buffers(pa.binary(), len(rest[0]) // 4 - 1, [None, *rest])
    else:
        values = pa.Array.from_buffers(feature.value_type, len(rest[0]) // feature.value_type.byte_width, [None, *rest])
    found = pa.Array.from_buffers(feature.arrow_type, num_rows, [validity, offsets], children=[values])
    found.validate(full=True)
    assert repr(found.to_pylist()) == repr(batch.column(0).to_pylist())


@pytest.mark.parametrize("size", [0, 1, 7, 8, 63, 64, 65, 127, 128, 1000])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 8, 9, 10, "mixed"])
@pytest.mark.parametrize("cut", [0, 1])
def test_runs_of_integers_of_every_width_and_size(size, width, cut):
    rng = random.Random(size)
    widths = [rng.randint(1, 10) if width == "mixed" else width for _ in range(size)]
    run = b"".join(varint(2 ** (7 * n - 1), 0)[:10] for n in widths)
    run = run[: len(run) - cut]
    record = field(1, field(1, field(1, b"a") + field(2, field(3, field(1, run)))))
    for count in {-1, size, size - cut}:
        if count >= -1:
            assert find_difference_alone(_kernel, record, [(b"a", 3, count, True)]) is None


def test_the_bits_of_every_float_are_encoded():
    bits = np.array([0x7FA00001, 0xFFFFFFFF, 0x7FC00000, 0x80000000, 0, 1, 0x7F800001], np.uint32)
    floats = pa.array(bits.view(np.float32))
    batch = pa.record_batch({"f": floats, "fs": pa.ListArray.from_arrays([0, *range(1, 8)], floats)})
    features = (make_feature("f", "float32"), make_feature("fs", "float32", (None,)))
    for encoded in (encode_batch(batch, features), encoder.encode_batch(batch, features)):
        starts, lengths, *_ = _kernel.scan(encoded.data)
        columns, _ = _kernel.decode(encoded.data, starts, lengths, [(b"f", 2, 1, True), (b"fs", 2, -1, True)])
        assert bytes(columns[0][1]) == bytes(columns[1][2]) == bits.tobytes()


def test_a_name_may_be_wanted_several_times():
    record = Writer(random.Random(3)).record()
    specs = [*WANTED, *WANTED[::-1], *WANTED]
    assert find_difference_alone(_kernel, record, specs) is None


def test_no_records_and_no_specs_are_fine():
    nothing = np.array([], np.int64)
    assert find_difference(_kernel, b"", nothing, nothing, WANTED) is None
    assert find_difference(_kernel, b"", nothing, nothing, []) is None


@pytest.mark.parametrize(
    ("start", "length"), [(-1, 1), (0, -1), (0, 4), (4, 0), (2**63 - 1, 2**63 - 1), (-(2**63), 2**63 - 1)]
)
def test_records_outside_of_the_buffer_are_refused(start, length):
    with pytest.raises(ValueError, match="outside"):
        _kernel.decode(b"abc", np.array([start]), np.array([length]), [])


@pytest.mark.parametrize(
    "arguments",
    [
        (b"abc", np.array([0, 1]), np.array([1]), []),
        (b"abc", b"1234567", b"12345678", []),
        (b"abc", np.array([0]), np.array([1]), [(b"a", 0, 1, True)]),
        (b"abc", np.array([0]), np.array([1]), [(b"a", 6, 1, True)]),
        (b"abc", np.array([0]), np.array([1]), [(b"a", 3, -2, True)]),
        (b"abc", np.array([0]), np.array([1]), [(b"a", 3, 2**40, True)]),
        (b"abc", np.array([0]), np.array([1]), [("a", 3, 1, True)]),
        (b"abc", np.array([0]), np.array([1]), [(b"a", 3, 1)]),
        (b"abc", np.array([0]), np.array([1]), [(b"a", "3", 1, True)]),
        (b"abc", np.array([0]), np.array([1]), [None]),
        (b"abc", np.array([0]), np.array([1]), None),
        ("abc", np.array([0]), np.array([1]), []),
        (b"abc", [0], [1], []),
        (),
    ],
)
def test_what_makes_no_sense_is_refused(arguments):
    with pytest.raises((ValueError, TypeError, OverflowError)):
        _kernel.decode(*arguments)


def test_a_column_of_more_than_two_gigabytes_is_refused():
    record = field(1, field(1, field(1, b"a") + field(2, field(1, field(1, bytes(2**20))))))
    starts, lengths = np.zeros(2048, np.int64), np.full(2048, len(record))
    for num_values in (-1, 1):
        with pytest.raises(OverflowError):
            _kernel.decode(record, starts, lengths, [(b"a", 1, num_values, True)])


def many_records():
    writer = Writer(random.Random(4), 0.02)
    return [writer.record() for _ in range(2000)]


def test_decoding_lets_python_run():
    record = Writer(random.Random(5)).record()
    starts, lengths = np.zeros(200_000, np.int64), np.full(200_000, len(record))
    assert runs_beside_python(lambda: _kernel.decode(record, starts, lengths, WANTED[:4]))


def test_threads_that_decode_at_once_get_what_one_gets():
    records = many_records()
    jobs = [(frame_all(records[i::8]), random_specs(random.Random(i))) for i in range(8)] * 20
    expected = [reference.decode(*arguments, specs) for arguments, specs in jobs[:8]] * 20
    barrier = threading.Barrier(8)

    def work(first):
        barrier.wait()
        return [find_difference_to(expected[i], *jobs[i]) for i in range(first, len(jobs), 8)]

    with ThreadPoolExecutor(8) as pool:
        assert {what for found in pool.map(work, range(8)) for what in found} == {True}


def find_difference_to(expected, arguments, specs):
    columns, problems = _kernel.decode(*arguments, specs)
    same = bytes(problems) == expected.problems.tobytes()
    for ours, theirs in zip(expected.columns, columns, strict=True):
        same &= all(bytes(a) == bytes(b) for a, b in zip(ours[1:], theirs[1:], strict=True))
    return same


def test_memory_that_someone_still_looks_at_is_not_used_again():
    rng = np.random.default_rng(6)
    held = []
    for _ in range(200):
        values = rng.integers(0, 256, 40_000, np.uint8).tobytes()
        record = field(1, field(1, field(1, b"a") + field(2, field(1, field(1, values)))))
        columns, _ = decode([record], [(b"a", 1, 1, True)])
        data = columns[0][2]
        # Half of the buffers are let go; the others live on only through views and slices of views.
        if rng.random() < 0.5:
            view = rng.choice([0, 1, 2])
            looks = [memoryview(data)[10:], np.frombuffer(data, np.uint8)[10:], pa.py_buffer(data).slice(10)]
            held.append((looks[view], values[10:]))
        del columns, data
    assert all(bytes(look) == values for look, values in held)
    assert len(held) > 50


@pytest.mark.full
def test_the_fuzzing_command_finds_no_difference(capsys):
    assert fuzz_kernel.main(["--seed", "8", "--count", "3000", "--alone", "0.2"]) == 0
    assert "kernel = reference: decoded" in capsys.readouterr().out


@pytest.mark.parametrize("part", range(4))
def test_the_comparison_sees_every_difference(part):
    records = [Writer(random.Random(i)).record() for i in range(20)]
    specs = [(b"a", 1, -1, False), (b"ids", 3, -1, False)]

    class Wrong:
        @staticmethod
        def decode(*arguments):
            columns, problems = reference.decode(*arguments)
            changed = [bytearray(b"" if one is None else bytes(one)) for one in (*columns[0][:3], problems)]
            changed[part] = changed[part] + bytes(8) if part == 3 else bytes(byte ^ 1 for byte in changed[part])
            return [(*changed[:3], *columns[0][3:]), columns[1]], changed[3]

    assert find_difference(reference, *frame_all(records), specs) is None
    assert find_difference(Wrong, *frame_all(records), specs) is not None


@given(seeds)
@settings(max_examples=draws(100), deadline=None)
def test_reads_records_of_several_buffers_as_the_reference_does(rng):
    writer = Writer(rng, rng.choice([0, 0.02, 0.3]), rng.choice([0, 0, 0.02]))
    pieces = []
    for _ in range(rng.randrange(4)):
        frames, starts, lengths = frame_all([writer.record() for _ in range(rng.randrange(12))])
        first = rng.randint(0, len(starts))
        pieces.append(((frames, starts, lengths), first, rng.randint(first, len(starts))))
    specs = random_specs(rng)
    no_objects = [False] * len(specs)
    expected, found = (codec.decode_pieces(pieces, specs, no_objects) for codec in (reference, _kernel))
    assert bytes(found[1]) == bytes(expected.problems)
    columns = [[None if b is None else bytes(b) for b in column] for column in found[0]]
    assert columns == [[None if b is None else bytes(b) for b in column] for column in expected.columns]


@given(seeds)
@settings(max_examples=draws(100), deadline=None)
def test_large_values_that_come_as_objects_are_those_of_the_buffers(rng):
    writer = Writer(rng, rng.choice([0, 0.02, 0.3]), rng.choice([0, 0, 0.02]))
    values = pa.array([rng.randbytes(rng.randrange(20_000)) for _ in range(rng.randrange(1, 8))])
    frames = encode_batch(pa.record_batch({"large": values}), (make_feature("large", "bytes"),)).data
    starts, lengths, *_ = _kernel.scan(frames)
    spans = zip(np.frombuffer(starts, np.int64).tolist(), np.frombuffer(lengths, np.int64).tolist(), strict=True)
    large = [bytes(frames)[start : start + length] for start, length in spans]
    records = [record if rng.random() < 0.7 else writer.record() for record in large]
    pieces = [(frame_all(records), 0, len(records))]
    specs = [(b"large", reference.BYTES, 1, rng.random() < 0.5), *random_specs(rng)]
    plain = _kernel.decode_pieces(pieces, specs, [False] * len(specs))
    found = _kernel.decode_pieces(pieces, specs, [True] * len(specs))
    assert bytes(found[1]) == bytes(plain[1])
    for (validity, *buffers), (plain_validity, *plain_buffers) in zip(found[0], plain[0], strict=True):
        assert (validity is None) == (plain_validity is None)
        assert validity is None or bytes(validity) == bytes(plain_validity)
        if isinstance(buffers[0], list):
            bounds = np.frombuffer(plain_buffers[0], np.int32)
            data = bytes(plain_buffers[1])
            assert buffers == [[data[start:stop] for start, stop in pairwise(bounds.tolist())]]
        else:
            assert list(map(bytes, buffers)) == list(map(bytes, plain_buffers))


@pytest.mark.parametrize("codec", [_kernel, reference])
@pytest.mark.parametrize(("first", "stop"), [(-1, 1), (0, 3), (2, 1), (0, -1)])
def test_records_that_are_not_there_are_refused(codec, first, stop):
    frames, starts, lengths = frame_all([b"", b""])
    with pytest.raises(ValueError, match="outside"):
        codec.decode_pieces([((frames, starts, lengths), first, stop)], WANTED, [False] * len(WANTED))
    with pytest.raises(ValueError, match="outside"):
        codec.decode_pieces([((frames, starts + 10**6, lengths), 0, 1)], WANTED, [False] * len(WANTED))


_TEXTS = st.text(max_size=5) | st.sampled_from(["", "word", "wörter", "x" * 40])


@pytest.mark.parametrize("codec", [_kernel, reference])
@given(texts=st.lists(_TEXTS, max_size=40), repeats=st.integers(1, 20))
def test_slices_become_objects(codec, texts, repeats):
    values = [text.encode() for text in texts] * repeats
    offsets, data = np.cumsum([0, *map(len, values)], dtype=np.int32), b"".join(values)
    for is_text, expected in ((False, values), (True, texts * repeats)):
        objects = np.empty(len(values), object)
        codec.put_objects(objects, offsets, data, is_text)
        assert objects.tolist() == expected


@pytest.mark.parametrize("codec", [_kernel, reference])
def test_slices_that_are_no_objects_are_refused(codec):
    objects = np.empty(2, object)
    for offsets in ([0, 1], [0, 2, 1], [-1, 0, 1], [0, 1, 9], [0, 1, 1, 1]):
        with pytest.raises(ValueError, match="offsets"):
            codec.put_objects(objects, np.array(offsets, np.int32), b"ab", False)
    with pytest.raises(UnicodeDecodeError):
        codec.put_objects(objects, np.array([0, 1, 2], np.int32), b"a\xff", True)


def test_numbers_are_not_taken_for_objects():
    with pytest.raises(ValueError, match="objects"):
        _kernel.put_objects(np.zeros(2, np.int64), np.zeros(3, np.int32), b"", False)


def test_objects_that_are_given_several_times_live_as_long_as_someone_has_them():
    words = [b"a longer word %d" % (i % 3) for i in range(999)]
    offsets, data = np.cumsum([0, *map(len, words)], dtype=np.int32), b"".join(words)
    objects = np.empty(len(words), object)
    for _ in range(100):
        _kernel.put_objects(objects, offsets, data, False)
    kept = objects.tolist()
    del objects
    assert kept == words
