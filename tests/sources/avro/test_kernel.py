"""The kernel decodes Avro records as fastavro does, row by row the same, whatever is done to their bytes."""

from __future__ import annotations

import functools
import io
import itertools
import random
import struct

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.errors import ShardkitError
from shardkit.sources import list_inputs
from shardkit.sources.avro import source as avro_files
from shardkit.sources.avro.batches import BatchReader
from shardkit.sources.avro.columns import ColumnDecoder, Piece
from shardkit.sources.avro.rows import RecordReader
from shardkit.sources.avro.schema import read_schema
from shardkit.sources.avro.source import AvroSource
from shardkit.sources.base import SourceOptions
from tests.support.examples import draws
from tests.support.wire.kernel_threads import runs_beside_python

_kernel = pytest.importorskip("shardkit._kernel", reason="the kernel was not built here", exc_type=ImportError)

INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
# Types by the name of a strategy for what is stored.
TYPES = {
    "boolean": ("boolean", st.booleans()),
    "int": ("int", INT32),
    "long": ("long", INT64),
    "float": ("float", st.floats(width=32)),
    "double": ("double", st.floats()),
    "bytes": ("bytes", st.binary(max_size=40)),
    "string": ("string", st.text(max_size=40)),
    "object": ({"type": "string"}, st.text(max_size=3)),
    "date": ({"type": "int", "logicalType": "date"}, INT32),
    "time": ({"type": "int", "logicalType": "time-millis"}, INT32),
    "time-us": ({"type": "long", "logicalType": "time-micros"}, INT64),
    "ms": ({"type": "long", "logicalType": "timestamp-millis"}, INT64),
    "us": ({"type": "long", "logicalType": "local-timestamp-micros"}, INT64),
    "unknown": ({"type": "int", "logicalType": "mood"}, INT32),
    "decimal": ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, st.binary(max_size=34)),
    "fixed": ({"type": "fixed", "name": "Four", "size": 4}, st.binary(min_size=4, max_size=4)),
    "enum": ({"type": "enum", "name": "Colour", "symbols": ["red", "green", "blue"]}, st.sampled_from(["red", "blue"])),
}
FORMS = ("plain", "null first", "null last")


def record(*fields: tuple[str, object], name: str = "row") -> dict:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields]}


@st.composite
def tables(draw, max_rows: int = 30):
    """Draws a schema, rows that are stored as they stand, and names of columns that are wanted."""
    fields, values = [], {}
    for index, name in enumerate(draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=8))):
        type_, strategy = TYPES[name]
        if name in ("fixed", "enum"):
            type_ = {**type_, "name": f"{type_['name']}{index}"}
        form = draw(st.sampled_from(FORMS))
        if form != "plain":
            type_, strategy = (["null", type_] if form == "null first" else [type_, "null"]), st.none() | strategy
        fields.append((f"c{index}", type_))
        values[f"c{index}"] = strategy
    nothing = draw(st.booleans())
    if nothing:
        fields.insert(draw(st.integers(0, len(fields))), ("nothing", "null"))
    rows = draw(st.lists(st.fixed_dictionaries(values), max_size=max_rows))
    wanted = draw(st.sets(st.sampled_from(sorted(values)), min_size=1))
    return record(*fields), [row | ({"nothing": None} if nothing else {}) for row in rows], wanted


def stored(schema: dict, rows: list[dict]) -> list[bytes]:
    """Returns each row as it is stored; values of logical types are given as they are stored."""
    plain = _without_logical(schema)
    found = []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, plain, row)
        found.append(out.getvalue())
    return found


def _without_logical(type_):
    if isinstance(type_, list):
        return [_without_logical(t) for t in type_]
    if not isinstance(type_, dict):
        return type_
    return {k: _without_logical(v) for k, v in type_.items() if k != "logicalType"} | (
        {"fields": [_without_logical(f) for f in type_["fields"]]} if "fields" in type_ else {}
    )


def outcome(schema: dict, blocks: list[tuple[bytes, int]], wanted, batch_bytes: int, *, uses_kernel: bool):
    """Returns the batches of blocks, and what ended them."""
    parsed = read_schema(schema, "a.avro")
    leaves = [leaf for leaf in parsed.leaves if leaf.column.name in wanted]
    batches: list[pa.RecordBatch] = []
    try:
        batches += BatchReader(parsed, leaves, uses_kernel=uses_kernel).batches(blocks, batch_bytes)
    except (ValueError, pa.ArrowException) as error:
        return batches, f"{type(error).__name__}: {error}"
    return batches, None


def exact(column: pa.Array) -> tuple:
    """Returns a column bit for bit: a NaN has many forms, and text may be no UTF-8."""
    type_, num_bytes = column.type, column.nbytes
    if pa.types.is_string(type_):
        column = column.view(pa.binary())
    elif pa.types.is_floating(type_) or pa.types.is_temporal(type_):
        column = column.view(pa.int32() if type_.bit_width == 32 else pa.int64())
    return str(type_), num_bytes, column.to_pylist()


def assert_same(schema: dict, blocks: list[tuple[bytes, int]], wanted, batch_bytes: int = 10**9) -> str | None:
    """Compares what the kernel and fastavro make of blocks; returns what ended both."""
    (own, own_end), (peer, peer_end) = (
        outcome(schema, blocks, wanted, batch_bytes, uses_kernel=uses_kernel) for uses_kernel in (True, False)
    )
    assert own_end == peer_end
    assert [[exact(c) for c in b.columns] for b in own] == [[exact(c) for c in b.columns] for b in peer]
    assert [b.schema for b in own] == [b.schema for b in peer]
    assert all(batch.num_rows for batch in own)
    return own_end


def decoder(schema: dict, wanted=None) -> ColumnDecoder | None:
    parsed = read_schema(schema, "a.avro")
    leaves = [leaf for leaf in parsed.leaves if wanted is None or leaf.column.name in wanted]
    return ColumnDecoder.of(RecordReader(parsed).record, leaves)


@pytest.mark.full
@given(tables(), st.lists(st.integers(0, 30), max_size=4), st.integers(1, 400))
@settings(max_examples=draws(300), deadline=None)
def test_any_flat_records_decode_as_fastavro_decodes_them(table, cuts, batch_bytes):
    schema, rows, wanted = table
    assert decoder(schema, wanted) is not None
    records = stored(schema, rows)
    bounds = [0, *sorted(min(c, len(rows)) for c in cuts), len(rows)]
    blocks = [(b"".join(records[i:j]), j - i) for i, j in itertools.pairwise(bounds)]
    assert assert_same(schema, blocks, wanted, batch_bytes) is None


@pytest.mark.full
@given(tables(max_rows=8), st.randoms(use_true_random=False), st.integers(1, 200))
@settings(max_examples=draws(300), deadline=None)
def test_damaged_blocks_end_as_fastavro_ends_them(table, rng, batch_bytes):
    schema, rows, wanted = table
    records = stored(schema, rows)
    middle = rng.randint(0, len(rows))
    whole = [(b"".join(records[:middle]), middle), (b"".join(records[middle:]), len(rows) - middle)]
    for _ in range(8):
        blocks = list(whole)
        number = rng.randrange(2)
        data, num_rows = blocks[number]
        blocks[number] = (damaged(rng, data), max(0, num_rows + rng.choice([0, 0, 0, -1, 1, 5])))
        assert_same(schema, blocks, wanted, batch_bytes)


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Returns bytes that are cut off, longer, or changed in places."""
    changed = bytearray(data)
    what = rng.randrange(4)
    if what == 0:
        return data[: rng.randint(0, len(data))]
    if what == 1:
        place = rng.randint(0, len(data))
        return data[:place] + rng.randbytes(rng.randint(1, 12)) + data[place:]
    for _ in range(rng.randint(1, 3) if data else 0):
        if what == 2:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        else:
            changed[rng.randrange(len(changed))] = rng.choice([0, 1, 2, 3, 4, 127, 128, 255])
    return bytes(changed)


ONE_OF_EACH = {name: record(("c", type_), ("last", "int")) for name, (type_, _) in TYPES.items()}


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x01",
        b"\x02",
        b"\x03",
        b"\xff",
        b"\x80\x00",
        b"\x04\xc3\x28",
        b"\x06\xed\xa0\x80",
        b"\xff" * 4 + b"\x0f",
        b"\xff" * 4 + b"\x1f",
        b"\xff" * 9 + b"\x00",
        b"\xff" * 9 + b"\x01",
        b"\xff" * 9 + b"\x02",
        b"\xff" * 9 + b"\x7f",
        b"\xff" * 10 + b"\x01",
        b"\x80" * 40 + b"\x00",
        struct.pack("<I", 0x7F800001),
        struct.pack("<Q", 0x7FF0000000000001),
        b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01abc",
    ],
    ids=lambda value: value.hex()[:24] or "nothing",
)
def test_unusual_values_end_as_fastavro_ends_them(name, value):
    for union in (False, True):
        schema = record(("c", ["null", TYPES[name][0]] if union else TYPES[name][0]), ("last", "int"))
        data = b"\x02" * union + value
        for block in (data, data + b"\x02", data + b"\x02" * 20):
            for wanted in (["c", "last"], ["last"]):
                assert_same(schema, [(block, 1)], wanted)
                assert_same(schema, [(block + block, 2)], wanted, 1)


@pytest.mark.parametrize("branch", [b"\x01", b"\x03", b"\x04", b"\x80\x00", b"\xff" * 9 + b"\x01", b"\x80" * 12])
def test_branches_that_are_not_there_end_as_fastavro_ends_them(branch):
    assert_same(record(("c", ["null", "boolean"])), [(branch + b"\x01", 1)], ["c"])


def test_numbers_of_every_length_are_read_at_every_distance_from_the_end():
    numbers = sorted({sign * 2**bits + step for sign in (-1, 1) for bits in range(63) for step in (-1, 0, 1)})
    schema = record(("n", "long"))
    records = stored(schema, [{"n": n} for n in numbers])
    batch, rest = decoder(schema).decode(_pieces((b"".join(records), len(numbers))))
    assert rest is None
    assert batch.column(0).to_pylist() == numbers
    for data, number in zip(records, numbers, strict=True):
        assert decoder(schema).decode(_pieces((data, 1)))[0].column(0).to_pylist() == [number]
        assert decoder(schema).decode(_pieces((data[:-1], 1 if len(data) > 1 else 0))) is None or len(data) == 1


def _pieces(*blocks: tuple[bytes, int]):
    return [Piece(data, 0, num_rows, 0) for data, num_rows in blocks]


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        (record(("a", {"type": "array", "items": "int"})), None),
        (record(("a", ["null", "int", "long"])), None),
        (record(("a", ["int"])), None),
        (record(("a", ["null", record(("b", "int"), name="inner")])), None),
        (record(("a", "int"), ("m", {"type": "array", "items": "int"})), ["a"]),
    ],
)
def test_other_records_are_for_fastavro(schema, wanted):
    assert decoder(schema, wanted) is None


def test_records_in_records_are_decoded_with_names_that_were_given_before():
    inner = record(("e", {"type": "enum", "name": "E", "symbols": ["x", "y"]}), ("n", ["null", "long"]), name="inner")
    schema = record(("r", inner), ("again", "inner"), ("e", ["E", "null"])) | {"namespace": "a.b"}
    rows = [{"r": {"e": "x", "n": i}, "again": {"e": "y", "n": None}, "e": None if i % 2 else "y"} for i in range(9)]
    names = ["r/e", "r/n", "again/e", "again/n", "e"]
    assert decoder(schema) is not None
    assert assert_same(schema, [(b"".join(stored(schema, rows)), 9)], names) is None
    assert assert_same(schema, [(b"".join(stored(schema, rows)), 9)], ["again/n"]) is None


def test_enums_of_very_many_symbols_are_for_fastavro():
    enum = {"type": "enum", "name": "E", "symbols": [f"s{i}" for i in range(1000)]}
    assert decoder(record(("e0", enum), *((f"e{i}", "E") for i in range(1, 60)))) is not None
    assert decoder(record(("e0", enum), *((f"e{i}", "E") for i in range(1, 70)))) is None


@given(tables(), st.integers(1, 300), st.integers(1, 300), st.randoms(use_true_random=False))
@settings(max_examples=draws(60), deadline=None)
def test_files_give_the_same_batches_and_rejected_rows(tmp_path_factory, table, sync_interval, batch_bytes, rng):
    schema, rows, _ = table
    path = tmp_path_factory.mktemp("a") / "a.avro"
    with path.open("wb") as file:
        fastavro.writer(file, _without_logical(schema), rows, sync_interval=sync_interval)
    data = path.read_bytes()
    for _ in range(3):
        tolerates = rng.random() < 0.7
        own, peer = (_read(path, batch_bytes, tolerates, uses_kernel) for uses_kernel in (True, False))
        assert own == peer
        path.write_bytes(damaged(rng, data))


def _read(path, batch_bytes: int, tolerates: bool, uses_kernel: bool):
    source, options = AvroSource(split_bytes=500, batch_bytes=batch_bytes), SourceOptions(tolerates_bad_rows=tolerates)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(avro_files, "BatchReader", functools.partial(BatchReader, uses_kernel=uses_kernel))
        try:
            files = list_inputs([str(path)]).files
            features = source.infer(files, options)
            for split in source.split(files, options):
                for part in source.read(split, files, features, options):
                    columns = [exact(column) for column in part.batch.columns]
                    found.append((columns, part.identities.tolist(), part.num_rounded, part.rejected))
        except ShardkitError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        ([(b"", 0, 1)], [(2, -1, True, None)], 1),
        ([(b"ab", 3, 0)], [(2, -1, True, None)], 1),
        ([(b"ab", -1, 0)], [(2, -1, True, None)], 1),
        ([(b"ab", 0, -1)], [(2, -1, True, None)], 1),
        ([(b"ab", 0, 1)], [(9, -1, True, None)], 1),
        ([(b"ab", 0, 1)], [(-1, -1, True, None)], 1),
        ([(b"ab", 0, 1)], [(0, -1, True, None)], 1),
        ([(b"ab", 0, 1)], [(2, 2, True, None)], 1),
        ([(b"ab", 0, 1)], [(7, -1, True, -1)], 1),
        ([(b"ab", 0, 1)], [(7, -1, True, None)], 1),
        ([(b"ab", 0, 1)], [(8, -1, True, None)], 1),
        ([(b"ab", 0, 1)], [(8, -1, True, ["x"])], 1),
        ([(b"ab", 0)], [(2, -1, True, None)], 1),
        (["ab"], [(2, -1, True, None)], 1),
        ((), [(2, -1, True, None)], 1),
        ([("ab", 0, 1)], [(2, -1, True, None)], 1),
        ([(b"ab", 0, 1)], [2], 1),
        ([(b"ab", 0, 1)], 2, 1),
        ([(b"ab", 0, 1)], [(2, -1, True, None)], 2**63),
    ],
)
def test_what_contradicts_itself_is_refused(arguments):
    with pytest.raises((ValueError, TypeError, OverflowError)):
        _kernel.decode_avro(*arguments)


def test_nothing_is_an_empty_column():
    assert decoder(record(("s", "string"), ("b", "boolean"))).decode([])[0].to_pylist() == []


def test_many_rows_with_late_nulls_grow_their_columns():
    schema = record(("b", ["null", "boolean"]), ("s", ["null", "string"]), ("d", ["null", "double"]), ("e", "boolean"))
    rows = [
        {"b": None if i in (1500, 5000) else i % 3 == 0, "s": "x" * (i % 50) if i != 3000 else None, "d": i, "e": i % 2}
        for i in range(10_000)
    ]
    rows = [row | {"d": None if i == 9999 else row["d"] / 2, "e": bool(row["e"])} for i, row in enumerate(rows)]
    batch, rest = decoder(schema).decode(_pieces((b"".join(stored(schema, rows)), 10_000)))
    assert rest is None
    assert batch.to_pylist() == rows
    batch.validate(full=True)


def test_python_runs_while_the_kernel_decodes():
    schema = record(("s", "string"), ("d", "double"))
    pieces = _pieces((stored(schema, [{"s": "some text", "d": 1.5}])[0] * 100_000, 100_000))
    found = decoder(schema)
    assert runs_beside_python(lambda: found.decode(pieces))
