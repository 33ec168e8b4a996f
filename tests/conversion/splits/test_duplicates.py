"""Duplicates, groups and split columns, as `shardkit convert` treats them, against pandas."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardkit.cli import main
from shardkit.dataset.block_reader import first_examples
from shardkit.dataset.open import open_dataset
from tests.support.examples import draws

pytestmark = pytest.mark.full

rows = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", None]), st.sampled_from([0.5, float("nan"), None])),
    min_size=1,
    max_size=60,
)


def write(folder, parts):
    folder.mkdir(parents=True)
    for number, part in enumerate(parts):
        names = ("n", "w", "x")
        columns = [list(c) for c in zip(*part, strict=True)] if part else [[], [], []]
        types = (pa.int64(), pa.string(), pa.float64())
        arrays = [pa.array(c, t) for c, t in zip(columns, types, strict=True)]
        pq.write_table(pa.table(arrays, names=names), folder / f"{number}.parquet", row_group_size=7)
    return folder


def convert(source, destination, *options):
    code = main(["convert", str(source), str(destination), "--workers", "1", *options])
    assert code == 0
    return open_dataset(str(destination))


def examples(dataset, split="train"):
    return list(first_examples(dataset, split, 10**6))


def key(example):
    return json.dumps(example, sort_keys=True, default=repr)


@given(st.lists(rows, min_size=1, max_size=3))
@settings(max_examples=draws(5), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_duplicates_are_gone_and_the_first_stays(parts):
    with tempfile.TemporaryDirectory() as folder:
        source = write(Path(folder, "in"), parts)
        dataset = convert(source, Path(folder, "out"), "--dedup", "--no-shuffle")
        frame = pd.concat([pd.read_parquet(f, dtype_backend="pyarrow") for f in sorted(source.iterdir())])
        expected = frame.drop_duplicates()
        found = examples(dataset)
        assert len({key(e) for e in found}) == len(found) == len(expected)
        assert [e["n"] for e in found] == expected["n"].tolist()
        accounting = dataset.manifest.accounting
        assert accounting.num_rows == len(frame)
        assert accounting.num_duplicates == len(frame) - len(expected)
        by_file = [i.num_rows - i.num_duplicates for i in accounting.inputs]
        assert by_file == [i.num_examples for i in accounting.inputs]
        statistics = dataset.manifest.split("train").statistics["n"]
        assert statistics.mean == pytest.approx(float(expected["n"].mean()))


@given(rows)
@settings(max_examples=draws(4), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_duplicates_in_some_columns(part):
    with tempfile.TemporaryDirectory() as folder:
        source = write(Path(folder, "in"), [part])
        dataset = convert(source, Path(folder, "out"), "--dedup-by", "n,w", "--no-shuffle")
        assert [(e["n"], e["w"]) for e in examples(dataset)] == list(dict.fromkeys((n, w) for n, w, _ in part))


def test_the_survivor_does_not_depend_on_workers(tmp_path):
    part = [(i % 50, "a", float(i)) for i in range(5000)]
    source = write(tmp_path / "in", [part, part[::-1], part[100:]])
    hashes = []
    for workers in ("1", "2"):
        command = [sys.executable, "-m", "shardkit", "convert", str(source), str(tmp_path / workers)]
        subprocess.run([*command, "--dedup-by", "n", "--workers", workers], check=True, capture_output=True)
        hashes.append([s.sha256 for s in open_dataset(str(tmp_path / workers)).shards])
    assert hashes[0] == hashes[1]


def test_no_group_is_in_two_splits(tmp_path):
    part = [(i % 200, "ab"[i % 2], float(i)) for i in range(3000)]
    source = write(tmp_path / "in", [part[:1000], part[1000:]])
    options = ("--group-by", "n", "--split", "train=0.7", "--split", "test=0.3")
    dataset = convert(source, tmp_path / "out", *options)
    train, test = ({e["n"] for e in examples(dataset, name)} for name in ("train", "test"))
    assert not train & test
    assert train | test == set(range(200))
    assert 40 <= len(test) <= 80
    more = convert(write(tmp_path / "more", [part, [(i, "c", 0.0) for i in range(400)]]), tmp_path / "out2", *options)
    assert train <= {e["n"] for e in examples(more, "train")}


def test_a_column_names_the_split(tmp_path):
    part = [(i, ("train", "test")[i % 3 == 0], 0.0) for i in range(100)]
    dataset = convert(write(tmp_path / "in", [part]), tmp_path / "out", "--split-column", "w")
    assert [s.name for s in dataset.manifest.splits] == ["train", "test"]
    assert sorted(e["n"] for e in examples(dataset, "test")) == list(range(0, 100, 3))


def test_a_row_that_names_no_split_is_a_bad_row(tmp_path, capsys):
    rows = [(1, "train", 0.0), (2, "holdout", 0.0), (3, "test", 0.0)]
    options = ("--split-column", "w", "--on-bad-record", "quarantine", "--dedup")
    dataset = convert(write(tmp_path / "in", [rows]), tmp_path / "out", *options)
    assert [[e["n"] for e in examples(dataset, name)] for name in ("train", "test")] == [[1], [3]]
    assert dataset.manifest.accounting.num_rejected == 1
    capsys.readouterr()
    assert main(["convert", str(tmp_path / "in"), str(tmp_path / "other"), "--split-column", "w"]) == 3
    assert "row 2: 'holdout' is no split" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--split-column", "w", "--split", "train"), "'test' is no split"),
        (("--split-column", "n"), "is no split"),
        (("--split-column", "x"), "its values must be names of splits"),
        (("--split-column", "no"), "which is not there"),
        (("--dedup-by", "n,no"), "which is not there"),
        (("--group-by", "no"), "which is not there"),
        (("--split", "train"), "has no fraction"),
        (("--split-column", "w", "--split", "train=0.5"), "has a fraction"),
        (("--split-column", "w", "--group-by", "n"), "exclude each other"),
    ],
)
def test_what_cannot_be_is_said(tmp_path, capsys, options, message):
    source = write(tmp_path / "in", [[(1, "train", 0.0), (2, "test", 0.0)]])
    assert main(["convert", str(source), str(tmp_path / "out"), *options]) in (2, 3)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "manifests").exists()
