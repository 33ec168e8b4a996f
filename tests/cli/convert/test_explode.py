"""`--explode`: a row of each item of a list, against a loop in Python."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardkit
from shardkit.cli import main
from tests.support.in_process import convert

pytestmark = pytest.mark.full

ROWS = [
    {"id": n, "tags": [f"t{i}" for i in range(n % 4)], "boxes": [{"x": i, "y": n} for i in range(n % 3)],
     "pairs": [[i, n] for i in range(n % 5)], "one": None if n % 2 else [n]}
    for n in range(500)
]  # fmt: skip
PAIRS = pa.list_(pa.list_(pa.int64(), 2))


def write(folder, form):
    path = folder / f"a.{form}"
    if form == "jsonl":
        path.write_text("\n".join(map(json.dumps, ROWS)))
    else:
        fields = {"id": pa.int64(), "tags": pa.list_(pa.string()), "pairs": PAIRS, "one": pa.list_(pa.int64(), 1)}
        boxes = pa.array([row["boxes"] for row in ROWS])
        columns = {name: pa.array([row[name] for row in ROWS], type_) for name, type_ in fields.items()}
        pq.write_table(pa.table({**columns, "boxes": boxes}), path)
    return path


def rows_of(out, column):
    split = shardkit.open(out)["train"]
    rows = [split[position] for position in range(len(split))]
    return sorted((int(row["id"]), json.dumps(row[column], default=lambda value: value.item())) for row in rows)


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize("column", ["tags", "boxes", "one", "pairs"])
def test_each_item_is_a_row_and_a_row_without_items_stays(tmp_path, capfd, form, column):
    path = write(tmp_path, form)
    code, output = convert(capfd, path, tmp_path / "out", "--explode", column)
    assert code == 0, output
    wanted = sorted((row["id"], json.dumps(item)) for row in ROWS for item in row[column] or [None])
    assert rows_of(tmp_path / "out", column) == wanted
    assert f"{len(wanted):,} rows in, {len(wanted):,} examples out" in output
    assert main(["verify", str(tmp_path / "out")]) == 0


def test_rows_are_the_same_however_the_file_is_cut_and_whatever_the_workers(tmp_path, capfd):
    rows = [{"id": n, "tags": [random.Random(n).randbytes(20).hex()] * (n % 6)} for n in range(40_000)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    fingerprints = set()
    for workers in (1, 2):
        out = tmp_path / f"out{workers}"
        assert convert(capfd, tmp_path / "a.jsonl", out, "--explode", "tags", "--workers", workers)[0] == 0
        fingerprints.add(tuple(sorted(p.read_bytes() for p in out.glob("data/*/*.gz"))))
    assert len(fingerprints) == 1


def test_a_bad_item_is_named_and_others_stay(tmp_path, capfd):
    path = write(tmp_path, "jsonl")
    options = ("--explode", "tags", "--cast", "tags=json", "--on-bad-record", "skip", "--max-bad", "100%")
    select = ("--select", "SELECT id, CAST(tags[2:] AS INTEGER) AS n FROM rows WHERE tags IS NOT NULL")
    code, output = convert(capfd, path, tmp_path / "out", *options[:2], *select)
    assert code == 0
    code, output = convert(capfd, path, tmp_path / "bad", *options)
    assert "a.jsonl, row 2, item 1" in output
    assert code != 0 or "rejected" in output


@pytest.mark.parametrize(
    ("column", "message"), [("id", "whose items are not known"), ("nope", "column 'nope' that is not there")]
)
def test_a_column_without_items_is_refused(tmp_path, capfd, column, message):
    code, text = convert(capfd, write(tmp_path, "jsonl"), tmp_path / "out", "--explode", column)
    assert code == 2
    assert message in " ".join(text.split())
    assert not (tmp_path / "out").exists()
