"""Batches of the reader as Arrow rows, and as files, hold what was written."""

from __future__ import annotations

import datetime
import decimal
import json

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from shardkit.errors import ConflictError, UsageError
from shardkit.exporting.tables import write_rows
from shardkit.features import arrow_schema, make_feature
from shardkit.reading.row_files import record_batch
from shardkit.reading.splits import open_splits
from shardkit.testing import write_dataset

DAY = datetime.date(2020, 2, 29)
MOMENT = datetime.datetime(2020, 2, 29, 1, 2, 3, 4, tzinfo=datetime.UTC)
COLUMNS = (
    (make_feature("flag", "bool"), [True, False, True]),
    (make_feature("small", "int8", nullable=True), [1, None, -128]),
    (make_feature("big", "uint64"), [2**64 - 1, 0, 7]),
    (make_feature("half", "float16"), [0.5, 1.0, -2.0]),
    (make_feature("double", "float64", nullable=True), [0.1, None, float("inf")]),
    (make_feature("text", "string", nullable=True), ["é", None, ""]),
    (make_feature("raw", "bytes"), [b"\0\xff", b"", b"x"]),
    (make_feature("price", "decimal(9,2)", nullable=True), [decimal.Decimal("1.10"), None, decimal.Decimal("-7.00")]),
    (make_feature("day", "date", nullable=True), [DAY, None, DAY]),
    (make_feature("when", "timestamp[us]", nullable=True, timezone="Europe/Berlin"), [MOMENT, None, MOMENT]),
    (make_feature("clock", "time[s]"), [datetime.time(1, 2, 3)] * 3),
    (make_feature("span", "duration[ms]"), [datetime.timedelta(seconds=1)] * 3),
    (make_feature("vector", "float32", (2,), nullable=True), [[1.0, 2.0], None, [3.0, 4.0]]),
    (make_feature("words", "string", (None,)), [["a", "bc"], [], ["d"]]),
    (make_feature("counts", "int64", (None,), nullable=True), [[1], None, [2, 3]]),
    (make_feature("days", "date", (2,)), [[DAY, DAY]] * 3),
)
FEATURES = tuple(feature for feature, _ in COLUMNS)


@pytest.fixture
def rows(tmp_path):
    """Returns the rows that were written, and the batches that are read."""
    arrays = [pa.array(values, feature.arrow_type) for feature, values in COLUMNS]
    written = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(FEATURES))
    write_dataset(tmp_path / "data", FEATURES, {"train": written})
    reader = open_splits(tmp_path / "data")["train"].batches(
        global_batch_size=2, shuffle=False, remainder="pad", decodes_text=False
    )
    return written, [record_batch(batch, FEATURES) for batch in reader]


def test_every_type_comes_back(rows):
    written, found = rows
    assert [b.num_rows for b in found] == [2, 1]
    assert pa.Table.from_batches(found).to_pylist() == written.to_pylist()
    assert all(b.schema.equals(written.schema) for b in found)
    for batch in found:
        batch.validate(full=True)


def test_files_hold_the_rows(rows, tmp_path):
    written, found = rows
    assert write_rows(tmp_path / "new" / "a.parquet", FEATURES, found) == 3
    assert pq.read_table(tmp_path / "new" / "a.parquet").to_pylist() == written.to_pylist()
    write_rows(tmp_path / "a.jsonl", FEATURES, found)
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [line["text"] for line in lines] == ["é", None, ""]
    assert lines[0]["words"] == ["a", "bc"]
    assert (lines[0]["when"], lines[0]["price"]) == ("2020-02-29 01:02:03.000004Z", "1.10")
    chosen = tuple(f for f in FEATURES if f.name in ("flag", "small", "text"))
    names = [f.name for f in chosen]
    write_rows(tmp_path / "a.csv", chosen, [b.select(names) for b in found])
    assert pyarrow.csv.read_csv(tmp_path / "a.csv")["small"].to_pylist() == [1, None, -128]


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_a_file_is_whole_or_absent(rows, tmp_path, ending):
    _, found = rows
    chosen = FEATURES[:1]

    def broken():
        yield found[0].select(["flag"])
        raise UsageError("a shard is damaged", next_step="Mend it")

    with pytest.raises(UsageError, match="damaged"):
        write_rows(tmp_path / f"a.{ending}", chosen, broken())
    assert [p.name for p in tmp_path.iterdir()] == ["data"]
    (tmp_path / f"a.{ending}").write_text("mine")
    with pytest.raises(ConflictError, match="untouched"):
        write_rows(tmp_path / f"a.{ending}", chosen, [b.select(["flag"]) for b in found])
    assert (tmp_path / f"a.{ending}").read_text() == "mine"


def test_what_has_no_place_is_refused(rows, tmp_path):
    _, found = rows
    with pytest.raises(UsageError, match="CSV has no place for 'raw'"):
        write_rows(tmp_path / "a.csv", FEATURES, found)
    with pytest.raises(UsageError, match=r"ending '.txt'"):
        write_rows(tmp_path / "a.txt", FEATURES, found)
