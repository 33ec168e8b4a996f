"""Columns that are left out at the source: the others are what an independent reader says, in every format."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardkit.errors import BadInputError, UsageError
from shardkit.features import arrow_schema
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.columns.dropped_columns import wanted_fields, without_keys
from shardkit.sources.registry import source_for
from tests.support.examples import draws

ROWS = [{"n": i, "bad": [[i], []], "s": {"x": f"t{i}", "bad": [[i], []]}, "m": [("k", i)]} for i in range(200)]
SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "bad": pa.list_(pa.list_(pa.int64())),
        "s": pa.struct({"x": pa.string(), "bad": pa.list_(pa.list_(pa.int64()))}),
        "m": pa.map_(pa.string(), pa.int64()),
    }
)
TABLE = pa.Table.from_pylist(ROWS, SCHEMA)
WANTED = [{"n": row["n"], "s/x": row["s"]["x"]} for row in ROWS]
UNSTORABLE = ("bad", "s/bad", "m")


def write_json(path: Path, rows: list[dict], *, is_array: bool) -> None:
    lines = [json.dumps({**row, "m": dict(row["m"])}) for row in rows]
    path.write_text(f"[{','.join(lines)}]" if is_array else "\n".join(lines))


def write_avro(path: Path) -> None:
    lists = {"type": "array", "items": {"type": "array", "items": "long"}}
    inner = [{"name": "x", "type": "string"}, {"name": "bad", "type": lists}]
    # What is dropped defines a type that is named later.
    word = {"type": "enum", "name": "Word", "symbols": ["a", "b"]}
    fields = [
        {"name": "n", "type": "long"},
        {"name": "bad", "type": lists},
        {"name": "m", "type": {"type": "map", "values": ["null", "long", word]}},
        {"name": "s", "type": {"type": "record", "name": "S", "fields": inner}},
        {"name": "w", "type": "Word"},
    ]
    schema = fastavro.parse_schema({"type": "record", "name": "R", "fields": fields})
    with path.open("wb") as sink:
        fastavro.writer(sink, schema, [{**row, "m": dict(row["m"]), "w": "b"} for row in ROWS])


def write_orc(path: Path) -> None:
    orc.write_table(TABLE, path)


WRITERS = {
    "parquet": lambda path: pq.write_table(TABLE, path, row_group_size=50),
    "orc": write_orc,
    "arrow": lambda path: feather.write_feather(TABLE, path, chunksize=50),
    "jsonl": lambda path: write_json(path, ROWS, is_array=False),
    "json": lambda path: write_json(path, ROWS, is_array=True),
    "avro": write_avro,
}


def read(path: Path, format_: str, **options):
    """Returns the batches of all splits, and their rows as dicts."""
    settings_ = SourceOptions(format=format_, **options)
    source, files = source_for(format_), list_inputs([str(path)]).files
    features = source.infer(files, settings_)
    source.notes(files, settings_)
    parts = [p for split in source.split(files, settings_) for p in source.read(split, files, features, settings_)]
    assert all(p.batch.schema == arrow_schema(features) for p in parts)
    return parts, [row for p in parts for row in p.batch.to_pylist()]


@pytest.mark.parametrize("format_", WRITERS)
def test_what_no_example_can_hold_is_left_out(tmp_path, format_):
    WRITERS[format_](tmp_path / "a")
    _, rows = read(tmp_path / "a", format_, drop_columns=(*UNSTORABLE, *(["w"] if format_ == "avro" else [])))
    assert rows == WANTED


@pytest.mark.parametrize("format_", WRITERS)
def test_what_is_nested_is_json_unless_it_is_left_out(tmp_path, format_):
    WRITERS[format_](tmp_path / "a")
    _, rows = read(tmp_path / "a", format_)
    for row, wanted in zip(rows, ROWS, strict=True):
        found = {name: json.loads(row[name]) for name in ("bad", "s/bad")}
        assert found == {"bad": wanted["bad"], "s/bad": wanted["s"]["bad"]}
    # JSON does not tell a map from an object.
    assert format_ in ("jsonl", "json") or [json.loads(row["m"]) for row in rows] == [dict(row["m"]) for row in ROWS]


def test_the_error_names_the_option(tmp_path):
    union = pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])])
    feather.write_feather(pa.table({"n": [1], "bad": union}), tmp_path / "a", compression="uncompressed")
    with pytest.raises(UsageError) as caught:
        read(tmp_path / "a", "arrow")
    assert "--drop-columns bad" in (caught.value.next_step or "")


@pytest.mark.parametrize("format_", WRITERS)
def test_a_name_stands_for_all_below_it(tmp_path, format_):
    WRITERS[format_](tmp_path / "a")
    _, rows = read(tmp_path / "a", format_, drop_columns=("bad", "s", "m"))
    assert [row["n"] for row in rows] == [row["n"] for row in ROWS]
    assert {name for row in rows for name in row} <= {"n", "w"}


def test_nothing_left_is_refused(tmp_path):
    pq.write_table(TABLE, tmp_path / "a")
    with pytest.raises(BadInputError, match="no column is left"):
        read(tmp_path / "a", "parquet", drop_columns=("n", "bad", "s", "m"))


def test_all_parquet_says_of_the_rest_still_counts(tmp_path):
    pq.write_table(TABLE, tmp_path / "a")
    source, files = source_for("parquet"), list_inputs([str(tmp_path / "a")]).files
    (n, _) = source.infer(files, SourceOptions(drop_columns=UNSTORABLE))
    assert not n.nullable


def test_what_is_dropped_is_not_read(tmp_path):
    # The pages of the column are overwritten: whoever reads them fails.
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": range(1000), "t": [f"text {i}" for i in range(1000)]}), path, compression="zstd")
    chunk = pq.read_metadata(path).row_group(0).column(1)
    content = bytearray(path.read_bytes())
    content[chunk.dictionary_page_offset : chunk.dictionary_page_offset + chunk.total_compressed_size] = bytes(
        chunk.total_compressed_size
    )
    path.write_bytes(content)
    with pytest.raises(BadInputError):
        read(path, "parquet")
    assert [row["n"] for row in read(path, "parquet", drop_columns=("t",))[1]] == list(range(1000))


def test_columns_of_a_table_and_of_folders(tmp_path):
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("CREATE TABLE t (n INTEGER, x, s TEXT)")
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", [(1, b"\0", "a"), (2, "text", "b")])
    connection.close()
    assert read(tmp_path / "a.db", "sqlite", drop_columns=("x",))[1] == [{"n": 1, "s": "a"}, {"n": 2, "s": "b"}]
    (tmp_path / "in/year=2013").mkdir(parents=True)
    pq.write_table(pa.table({"a": [1], "b": [2]}), tmp_path / "in/year=2013/x.parquet")
    assert read(tmp_path / "in", "parquet", drop_columns=("b",))[1] == [{"a": 1, "year": 2013}]
    assert read(tmp_path / "in", "parquet", drop_columns=("year",))[1] == [{"a": 1, "b": 2}]


def test_a_column_of_one_file_only_may_be_dropped(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "x.parquet")
    pq.write_table(pa.table({"a": [2], "b": [2]}), tmp_path / "y.parquet")
    assert read(tmp_path, "parquet", drop_columns=("b",))[1] == [{"a": 1}, {"a": 2}]
    csvs = tmp_path / "csv"
    csvs.mkdir()
    (csvs / "x.csv").write_text("a\n1\n")
    (csvs / "y.csv").write_text("b,a\nz,2\n")
    assert read(csvs, "csv", drop_columns=("b",))[1] == [{"a": 1}, {"a": 2}]


def test_csv_with_a_bad_row(tmp_path):
    (tmp_path / "a.csv").write_text("a,b,c\n1,x,5\nword,y\n3,,7\n" + "4,z,8\n" * 50)
    parts, rows = read(tmp_path / "a.csv", "csv", drop_columns=("b",), tolerates_bad_rows=True)
    assert rows == [{"a": 1, "c": 5}, {"a": 3, "c": 7}, *[{"a": 4, "c": 8}] * 50]
    assert [r.position for p in parts for r in p.rejected] == ["line 3"]
    with pytest.raises(UsageError) as caught:
        read(tmp_path / "a.csv", "csv", drop_columns=("d",))
    assert "Columns are 'a', 'b', 'c'" in (caught.value.next_step or "")


@pytest.mark.parametrize("format_", ["jsonl", "json"])
def test_what_stays_is_as_strict_as_before(tmp_path, format_):
    lines = ['{"a": 1, "x": {"y": []}, "z": 1}'] * 20
    lines += ['{"a": 2, "x": [1, null], "z": 2, "late": 3}', '{"a": 3, "a": 4, "z": 1}', '{"z": "other", "a": 5}']
    (tmp_path / "a").write_text(f"[{','.join(lines)}]" if format_ == "json" else "\n".join(lines))
    options = {"drop_columns": ("x", "z"), "tolerates_bad_rows": True}
    source, files = source_for(format_), list_inputs([str(tmp_path / "a")]).files
    features = source.infer(files, SourceOptions(drop_columns=("x", "z", "late")))
    assert [f.name for f in features] == ["a"]
    settings_ = SourceOptions(**options)
    parts = [p for s in source.split(files, settings_) for p in source.read(s, files, features, settings_)]
    assert [row["a"] for p in parts for row in p.batch.to_pylist()] == [1] * 20 + [5]
    reasons = [r.reason for p in parts for r in p.rejected]
    assert len(reasons) == 2
    assert "the key 'late' is no column" in reasons[0]
    assert "the key 'a' appears twice" in reasons[1]


@settings(max_examples=draws(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {"keep": st.integers(0, 9)},
            optional={
                "gone": st.recursive(
                    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
                    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
                    max_leaves=5,
                )
            },
        ),
        min_size=1,
        max_size=20,
    )
)
def test_whatever_a_dropped_key_holds(tmp_path, rows):
    (tmp_path / "a").write_text("\n".join(map(json.dumps, [{"keep": 1, "gone": {}}, *rows])))
    assert [row["keep"] for row in read(tmp_path / "a", "jsonl", drop_columns=("gone",))[1]] == [
        1,
        *(row["keep"] for row in rows),
    ]


def test_a_slash_is_nesting_or_itself():
    row = {"a/b": 1, "a": {"b": 2, "c": 3}, "d": 4}
    assert without_keys(row, ("a/b", "e", "d/x")) == {"a/b"}
    assert row == {"a": {"c": 3}, "d": 4}


def test_a_key_with_a_slash_can_be_dropped(tmp_path):
    (tmp_path / "a").write_text('{"a/b": 1, "n": 2}\n{"n": 3}\n')
    assert read(tmp_path / "a", "jsonl", drop_columns=("a/b",))[1] == [{"n": 2}, {"n": 3}]


def test_only_fields_without_any_wanted_column_are_left_out():
    assert wanted_fields(SCHEMA, ("s/x",)) is None
    assert wanted_fields(SCHEMA, ("s/x", "s/bad")) == [0, 1, 3]
    assert wanted_fields(SCHEMA, ()) is None
