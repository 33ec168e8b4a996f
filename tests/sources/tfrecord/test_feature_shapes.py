"""What is gathered of the records of a file: the same as parsing each of them tells, with the kernel and without."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.encoding import kernel_reference as reference
from shardkit.encoding.kernel import HAS_KERNEL
from shardkit.encoding.kernel_reference import BYTES
from shardkit.errors import BadInputError, ShardkitError
from shardkit.file_types import image_type_of
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.tfrecord import feature_shapes as tfrecord_shapes
from shardkit.sources.tfrecord.blocks import RecordBlock
from shardkit.sources.tfrecord.feature_shapes import FileShape, Seen, observe
from shardkit.sources.tfrecord.messages import NotExampleError, kind_of, parse
from shardkit.sources.tfrecord.source import TfrecordSource
from tests.support.examples import draws
from tests.support.files.tfrecord_makers import example, field, read, sequence, varint, write
from tests.support.wire.wire_forms import Writer, mutate

NAMES = ["a", "b", "c"]
VALUES = st.one_of(
    st.none(),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=3),
    st.lists(st.floats(width=32), min_size=1, max_size=3),
    st.lists(st.sampled_from([b"", b"text", b"\xff", b"\x01", b"\xff\xd8\xff\xe0jpeg", "é".encode()]), max_size=3),
)
ROWS = st.dictionaries(st.sampled_from(NAMES), VALUES)
FOREIGN = [b"", b"\x0a\x00", b"junk", field(3, b"x"), field(1, b"\x10\x01"), field(1, field(2, b"")), varint(8)]
RECORDS = st.one_of(
    ROWS.map(lambda row: example(**row)),
    st.builds(lambda row, steps: sequence(row, s=steps), ROWS, st.lists(VALUES, max_size=3)),
    st.sampled_from(FOREIGN),
)


def block_of(records, damaged=()):
    lengths = np.array([len(record) for record in records], np.int64)
    starts = np.cumsum(lengths) - lengths
    is_damaged = np.zeros(len(records), np.bool_)
    is_damaged[list(damaged)] = True
    return RecordBlock(b"".join(records) + bytes(16), 0, starts, lengths, is_damaged)


def observed(blocks, decode):
    """Returns all that is told of blocks, or the error."""
    shape, bad = FileShape("a"), []
    before = tfrecord_shapes.decode
    tfrecord_shapes.decode = decode
    try:
        bad = [[row for row, _ in observe(block, shape)] for block in blocks]
    except ShardkitError as error:
        return str(error)
    finally:
        tfrecord_shapes.decode = before
    return bad, msgspec.to_builtins(shape, builtin_types=(bytes, set, frozenset))


def parsed(records):
    """Returns what a loop over parsed records tells: rows that are bad, and the context features of the others."""
    known: dict[str, int] = {}
    features: dict[str, Seen] = {}
    bad = set()
    for row, record in enumerate(records):
        try:
            stored = parse(record).features
        except NotExampleError:
            bad.add(row)
            continue
        for name, value in stored.items():
            if known.setdefault(name, value.kind) != value.kind:
                bad.add(row)
                break
    for row, record in enumerate(records):
        if row in bad:
            continue
        for name, value in parse(record).features.items():
            seen = features.setdefault(name, Seen(value.kind, media_types=set()))
            size = len(value.values)
            seen.num_present += 1
            seen.least = size if seen.least is None else min(size, seen.least)
            seen.most = max(size, seen.most)
            if seen.kind == BYTES:
                seen.num_values += size
                seen.is_text = seen.is_text and all(map(is_text, value.values))
    return bad, features


def is_text(value):
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return False
    return not any(ord(c) < 32 and c not in "\t\n\r\f\x1b" for c in text)


def without_media_types(seen):
    return {name: value for name, value in msgspec.to_builtins(seen).items() if name != "media_types"}


@pytest.mark.skipif(not HAS_KERNEL, reason="the kernel is not built")
@settings(max_examples=draws(300), deadline=None)
@given(st.lists(RECORDS, max_size=20), st.integers(0, 20), st.sets(st.integers(0, 3), max_size=2))
def test_the_same_with_the_kernel_and_without(records, cut, damaged):
    blocks = [block_of(part, {d for d in damaged if d < len(part)}) for part in (records[:cut], records[cut:])]
    assert observed(blocks, tfrecord_shapes.decode) == observed(blocks, reference.decode)


@pytest.mark.skipif(not HAS_KERNEL, reason="the kernel is not built")
@pytest.mark.parametrize("seed", range(40))
def test_the_same_with_the_kernel_and_without_on_unusual_and_damaged_forms(seed):
    rng = random.Random(seed)
    writer = Writer(rng, oddity=0.05 * (seed % 3), damage=0.02 * (seed % 2))
    records = [writer.record() for _ in range(60)]
    for row in rng.sample(range(60), 10):
        records[row] = mutate(rng, records[row], rng.choice(records))
    blocks = [block_of(records[:20]), block_of(records[20:], {3, 7})]
    assert observed(blocks, tfrecord_shapes.decode) == observed(blocks, reference.decode)


@pytest.mark.full
@settings(max_examples=draws(300), deadline=None)
@given(st.lists(ROWS.map(lambda row: example(**row)), max_size=40), st.integers(0, 40))
def test_the_same_as_parsing_every_record(records, cut):
    shape = FileShape("a")
    bad = set()
    for first, part in ((0, records[:cut]), (cut, records[cut:])):
        bad |= {first + row for row, _ in observe(block_of(part), shape)}
    expected_bad, expected = parsed(records)
    assert bad == expected_bad
    assert shape.num_records == len(records) - len(bad)
    # A bad record may have been the first to name a feature.
    found = {name: seen for name, seen in shape.features.items() if seen.num_present}
    assert {n: without_media_types(s) for n, s in found.items()} == {
        n: without_media_types(s) for n, s in expected.items()
    }
    for name, seen in found.items():
        values = [v for r in records if (f := parse(r).features.get(name)) and f.kind == BYTES for v in f.values]
        assert None not in seen.media_types or any(image_type_of(bytes(v)[:16]) is None for v in values)


def test_features_that_appear_one_after_the_other():
    rng = random.Random(7)
    rows = [{f"n{name}": name for name in rng.sample(range(number + 1), min(3, number + 1))} for number in range(600)]
    records = [example(**row) for row in rows]
    shape = FileShape("a")
    assert observe(block_of(records), shape) == []
    names = [f"n{name}" for row in rows for name in [int(n[1:]) for n in row]]
    assert {name: seen.num_present for name, seen in shape.features.items()} == {n: names.count(n) for n in names}


def test_notes_are_of_the_file_as_it_was_listed(tmp_path):
    path = write(tmp_path, [sequence({"n": 1}, s=[[1, 2], [3, 4]])])
    source, options, files = TfrecordSource(), SourceOptions(), list_inputs([str(path)]).files
    features = source.infer(files, options)
    assert source.infer(files, options) == features
    assert source.notes(files, options) == ("the feature list 's' has 2 values a step and is read as one list of them",)
    path.write_bytes(path.read_bytes() * 2)
    for call in (source.infer, source.notes):
        with pytest.raises(BadInputError, match="changed"):
            call(files, options)
    assert read(path)[1] == [{"n": 1, "s": [1, 2, 3, 4]}] * 2


@pytest.mark.parametrize("late", [5, 0.5, "text"])
def test_a_feature_that_gets_a_value_behind_the_head_is_refused_and_not_lost(tmp_path, late):
    rows = [{"n": number, "x": None} for number in range(12_000)]
    path = write(tmp_path, [example(**row) for row in [*rows, {"n": 1, "x": late}, {"n": 2, "x": None}]])
    features, found, rejected = read(path, tolerates_bad_rows=True)
    assert list(features) == ["n"]
    assert len(found) == 12_001
    assert [r.position for r in rejected] == ["row 12001"]
    assert "feature 'x' is no column" in rejected[0].reason


def test_kinds_of_messages_are_still_distinguished():
    assert kind_of(sequence({}, s=[])) == "sequence"
    assert kind_of(example(a=1)) == "example"
