"""Times at the ends of their types: kept, or refused by name; never another time."""

import struct
from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.errors import BadInputError, DamagedFileError
from shardkit.features import make_feature
from shardkit.sources import choose_source, list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.columns.casting import BadValueError, cast_column
from tests.support.examples import draws
from tests.support.files.parquet_makers import read, read_parts
from tests.support.paths import DATA

SPARK = DATA / "parquet-testing/data/int96_from_spark.parquet"

_MARK_JULIAN_DAY = 2_440_588
_DAY_NS = 86_400 * 10**9


def int96(julian_day, nanoseconds):
    """Returns what the two numbers of an INT96 say, in nanoseconds since 1970, however many that are."""
    return (julian_day - _MARK_JULIAN_DAY) * _DAY_NS + nanoseconds


def write_int96(path, stored, shape="single"):
    """Writes INT96 values of which Arrow cannot make all: placeholders first, then the bytes are replaced."""
    # Microseconds from the first day of the epoch; each is found in the file by its own twelve bytes.
    marks = [1_000 * (i + 1) for i in range(len(stored))]
    times = pa.array([None if s is None else m for s, m in zip(stored, marks, strict=True)], pa.timestamp("ns"))
    if shape == "list":
        times = pa.array([[], *([m, m] for m in marks)], pa.list_(pa.timestamp("ns")))
    elif shape == "struct":
        times = pa.StructArray.from_arrays([times, pa.array(range(len(marks)))], ["t", "n"])
    table = pa.table({"other": pa.array(range(len(times))), "a": times})
    pq.write_table(
        table, path, use_deprecated_int96_timestamps=True, use_dictionary=False, compression="none", row_group_size=3
    )
    content = path.read_bytes()
    for value, mark in zip(stored, marks, strict=True):
        if value is not None:
            old = struct.pack("<qi", mark, _MARK_JULIAN_DAY)
            assert old in content
            content = content.replace(old, struct.pack("<qi", value[1], value[0]))
    path.write_bytes(content)
    return path


FIVE = [
    (_MARK_JULIAN_DAY, 0),
    (5_373_484, 86_399_999_999_000),  # 9999-12-31 23:59:59.999999
    (1_721_426, 1_000),  # 0001-01-01, the first that a datetime holds
    None,
    (2_299_160, 43_200_000_000_000),
]


def test_int96_beyond_nanoseconds_keeps_its_value(tmp_path):
    features, table = read(write_int96(tmp_path / "a.parquet", FIVE))
    assert features[1].describe_type() == "timestamp[us]"
    expected = [None if v is None else int96(*v) // 1_000 for v in FIVE]
    assert table["a"].cast(pa.int64()).to_pylist() == expected
    assert table["a"][1].as_py() == datetime(9999, 12, 31, 23, 59, 59, 999_999)
    assert table["a"][2].as_py() == datetime(1, 1, 1, 0, 0, 0, 1)
    assert table["other"].to_pylist() == [0, 1, 2, 3, 4]


def test_int96_in_structs_and_lists_keeps_its_value(tmp_path):
    _, table = read(write_int96(tmp_path / "a.parquet", FIVE, "struct"))
    assert table["a/t"].cast(pa.int64()).to_pylist() == [None if v is None else int96(*v) // 1_000 for v in FIVE]
    assert table["a/n"].to_pylist() == [0, 1, 2, 3, 4]
    filled = [v for v in FIVE if v is not None]
    _, table = read(write_int96(tmp_path / "b.parquet", filled, "list"))
    found = table["a"].cast(pa.list_(pa.int64())).to_pylist()
    assert found == [[], *([int96(*v) // 1_000] * 2 for v in filled)]


@pytest.mark.parametrize("shape", ["single", "list", "struct"])
def test_an_int96_that_no_unit_holds_is_a_bad_row(tmp_path, shape):
    stored = [FIVE[0], FIVE[1], (-200_000_000, 0), (_MARK_JULIAN_DAY, 123_456_789), FIVE[4]]
    path = write_int96(tmp_path / "a.parquet", stored, shape)
    first = 4 if shape == "list" else 3
    with pytest.raises(BadInputError, match=f"row {first}: .*ms since 1970"):
        read(path)
    parts = read_parts(path, tolerates_bad_rows=True)
    rejected = [r for p in parts for r in p.rejected]
    assert [r.position for r in rejected] == [f"row {first}", f"row {first + 1}"]
    assert "1970-01-01 00:00:00.123456789" in rejected[1].reason
    assert sum(p.batch.num_rows for p in parts) == len(stored) - 2 + (shape == "list")


@pytest.mark.parametrize("shape", ["single", "list", "struct"])
def test_int96_with_nanoseconds_becomes_nanoseconds(tmp_path, shape):
    stored = [(_MARK_JULIAN_DAY, 123_456_789), (2_460_000, 1)]
    features, table = read(write_int96(tmp_path / "a.parquet", stored, shape))
    name = "a/t" if shape == "struct" else "a"
    assert next(f for f in features if f.name == name).dtype == "timestamp[ns]"
    expected = [int96(*s) for s in stored]
    if shape == "list":
        assert table[name].cast(pa.list_(pa.int64())).to_pylist() == [[], *([e] * 2 for e in expected)]
    else:
        assert table[name].cast(pa.int64()).to_pylist() == expected


def test_nanoseconds_of_int96_are_there_for_whoever_declares_them(tmp_path):
    path = write_int96(tmp_path / "a.parquet", [(_MARK_JULIAN_DAY, 123_456_789), FIVE[1]])
    features = (make_feature("other", "int64"), make_feature("a", "timestamp[ns]", nullable=True))
    parts = read_parts(path, features, tolerates_bad_rows=True)
    assert [v for p in parts for v in p.batch["a"].cast(pa.int64()).to_pylist()] == [123_456_789]
    assert [r.position for p in parts for r in p.rejected] == ["row 2"]
    assert "9999-12-31 23:59:59.999999000" in parts[-1].rejected[0].reason


# Of the Julian day 0 Arrow makes the day of the epoch.
DAYS = st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(2_000_000, 6_000_000)).filter(bool)
NANOSECONDS = st.one_of(st.integers(0, _DAY_NS - 1), st.integers(0, _DAY_NS // 1_000 - 1).map(lambda us: us * 1_000))


@settings(max_examples=draws(100), deadline=None)
@given(
    st.lists(st.tuples(DAYS, NANOSECONDS), min_size=1, max_size=7),
    st.sampled_from(["us", "ns"]),
)
def test_int96_is_what_its_bytes_say_or_refused(tmp_path_factory, stored, unit):
    path = write_int96(tmp_path_factory.mktemp("int96") / "a.parquet", stored)
    features = (make_feature("other", "int64"), make_feature("a", f"timestamp[{unit}]", nullable=True))
    factor = {"us": 1_000, "ns": 1}[unit]
    exact = [int96(*s) for s in stored]
    kept = {i: ns // factor for i, ns in enumerate(exact) if ns % factor == 0 and -(2**63) <= ns // factor < 2**63}
    parts = read_parts(path, features, tolerates_bad_rows=True)
    found = {
        row: value
        for p in parts
        for row, value in zip(p.batch["other"].to_pylist(), p.batch["a"].cast(pa.int64()).to_pylist(), strict=True)
    }
    assert found == kept
    assert sum(len(p.rejected) for p in parts) == len(stored) - len(kept)


@pytest.mark.data
@pytest.mark.skipif(not SPARK.exists(), reason="no shared data")
def test_what_spark_wrote_is_read_as_its_bytes_say():
    parts = read_parts(SPARK, tolerates_bad_rows=True)
    found = [v for p in parts for v in p.batch["a"].cast(pa.int64()).to_pylist()]
    # The page of the dictionary, which holds all five values, is 58 bytes in front of the byte 81.
    values = pa.Codec("snappy").decompress(SPARK.read_bytes()[81 - 58 : 81], 60, asbytes=True)
    exact = [int96(day, ns) // 1_000 for ns, day in struct.iter_unpack("<qi", values)]
    assert found == [*exact[:4], None]
    assert datetime.fromtimestamp(found[2] / 10**6, UTC).date() == date(9999, 12, 31)
    assert [r.position for p in parts for r in p.rejected] == ["row 6"]


def rows_of(path):
    options = SourceOptions()
    files = list_inputs([str(path)]).files
    source = choose_source(files, options)
    features = source.infer(files, options)
    return [b.batch for s in source.split(files, options) for b in source.read(s, files, features, options)]


EXTREMES = {
    "date32": (pa.date32(), [2**31 - 1, -(2**31)]),
    "date64": (pa.date64(), [(2**63 - 1) // 86_400_000 * 86_400_000, -8_640_000_000_000_000]),
    "time32": (pa.time32("ms"), [0, 86_399_999]),
    "time64": (pa.time64("ns"), [0, 86_399_999_999_999]),
    "seconds": (pa.timestamp("s"), [2**63 - 1, -(2**63)]),
    "milliseconds": (pa.timestamp("ms"), [2**63 - 1, -(2**63)]),
    "microseconds": (pa.timestamp("us", "UTC"), [2**63 - 1, -(2**63)]),
    "nanoseconds": (pa.timestamp("ns"), [2**63 - 1, -(2**63)]),
    "duration": (pa.duration("s"), [2**63 - 1, -(2**63)]),
}


@pytest.mark.parametrize("name", EXTREMES)
def test_the_ends_of_arrow_types_are_kept(tmp_path, name):
    type_, numbers = EXTREMES[name]
    bits = pa.int32() if type_.bit_width == 32 else pa.int64()
    table = pa.table({"a": pa.array(numbers, bits).view(type_)})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    batches = rows_of(tmp_path / "a.arrow")
    assert [v for b in batches for v in b["a"].view(bits).to_pylist()] == numbers


def test_dates_that_wrap_on_their_way_are_refused():
    feature = make_feature("a", "date")
    seconds = pa.array([0, 253_402_300_799, 2**62], pa.int64()).view(pa.timestamp("s"))
    with pytest.raises(BadValueError) as caught:
        cast_column(seconds, feature)
    assert caught.value.row == 2
    assert cast_column(seconds[:2], feature).column.to_pylist() == [date(1970, 1, 1), date(9999, 12, 31)]
    times = pa.array([0, 86_399, 2**31 - 1], pa.int32()).view(pa.time32("s"))
    with pytest.raises(BadValueError) as caught:
        cast_column(times, make_feature("a", "time[ms]"))
    assert caught.value.row == 2


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_the_error_at_an_orc_time_beyond_nanoseconds_has_its_value(tmp_path, unit):
    from pyarrow import orc

    table = pa.table({"a": pa.array(np.array(["9999-12-31T23:59:59"], f"datetime64[{unit}]"))})
    orc.write_table(table, tmp_path / "a.orc")
    with pytest.raises(DamagedFileError, match=r"a timestamp of the ORC file is out of range.*9999-12-31 23:59:59"):
        rows_of(tmp_path / "a.orc")
