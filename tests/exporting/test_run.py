"""Exports begin, go on, are refused and are repeated: files are whole, and other files stay as they are."""

import json
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import ConflictError, OutOfSpaceError, UnsafeError, UsageError
from shardkit.exporting import run
from shardkit.exporting.options import FORMATS, ExportRequest
from shardkit.exporting.plan import decode_plan, encode_plan, files_of, plan_export
from tests.exporting.conftest import COLUMNS, NUMBERS, export, make_dataset

HELD = tuple(f.name for f, _ in COLUMNS if f.is_scalar and f.dtype != "bytes")


def contents(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}


@pytest.mark.full
@given(num_times=st.integers(1, 9), rows=st.integers(1, 200))
def test_files_hold_each_row_once(tmp_path_factory, num_times, rows):
    dataset = make_dataset(tmp_path_factory.mktemp("set"), NUMBERS, num_times)
    plan = plan_export(dataset.manifest, 1, ExportRequest("parquet", ("train",), rows_per_file=rows))
    files = files_of(plan)
    sizes = [f.stop - f.start for f in files]
    assert [f.start for f in files] == [0, *(f.stop for f in files[:-1])]
    assert files[-1].stop == 20 * num_times
    assert max(sizes) <= rows
    assert max(sizes) - min(sizes) <= 1
    assert decode_plan(encode_plan(plan), "here") == plan


def test_files_are_as_many_as_their_size_says(tmp_path):
    dataset = make_dataset(tmp_path, NUMBERS, 9)
    size = dataset.manifest.split("train").num_uncompressed_bytes // 4
    plan = plan_export(dataset.manifest, 1, ExportRequest("parquet", file_bytes=size + 1))
    assert [s.num_files for s in plan.splits] == [4, 1]


@pytest.mark.parametrize("format", FORMATS)
def test_the_same_dataset_gives_the_same_bytes(dataset, tmp_path, format):
    for name, threads in (("a", 1), ("b", 3)):
        export(dataset, tmp_path / name, format, columns=HELD, rows_per_file=1, num_threads=threads)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert len(contents(tmp_path / "a")) >= 5


@pytest.mark.parametrize("format", FORMATS)
def test_an_export_goes_on_and_keeps_what_is_there(dataset, tmp_path, format):
    done = export(dataset, tmp_path / "out", format, columns=HELD, rows_per_file=1)
    first = contents(tmp_path / "out")
    missing, kept = done.files["train"][1].name, tmp_path / "out" / done.files["train"][0].name
    (tmp_path / "out" / missing).unlink()
    (tmp_path / "out" / missing).with_name(f".{Path(missing).name}.0123456789abcdef").write_bytes(b"half")
    before = kept.stat().st_mtime_ns
    again = export(dataset, tmp_path / "out", format, columns=HELD, rows_per_file=1)
    assert again.num_kept == sum(map(len, done.files.values())) - 1
    assert contents(tmp_path / "out") == first
    assert kept.stat().st_mtime_ns == before


def test_foreign_folders_are_untouched(dataset, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(ConflictError, match="there is something already that is no export"):
            export(dataset, tmp_path / "out", "arrow", overwrite=overwrite)
    with pytest.raises(ConflictError):
        export(dataset, dataset.dataset.url, "arrow", overwrite=True)
    for text in ("{}", "[", json.dumps({"export_version": 1, "format": "arrow", "dataset": "", "version": 1,
                 "features": [], "splits": [{"name": "../../set", "num_rows": 1, "num_files": 1}]})):  # fmt: skip
        (tmp_path / "out" / "export.json").write_text(text)
        with pytest.raises(ConflictError, match="no export"):
            export(dataset, tmp_path / "out", "arrow", overwrite=True)
    assert sorted(contents(tmp_path / "out")) == ["export.json", "mine.txt"]
    with pytest.raises(UsageError):
        export(dataset, tmp_path / "out" / "mine.txt", "arrow")


def test_another_export_is_replaced_only_if_that_is_wanted(dataset, tmp_path):
    export(dataset, tmp_path / "out", "arrow", columns=HELD, rows_per_file=1)
    (tmp_path / "out" / "mine.txt").write_text("mine")
    before = contents(tmp_path / "out")
    newer = make_dataset(tmp_path / "set", NUMBERS, version=2)
    for other, request, why in (
        (dataset, {"format": "csv", "columns": HELD, "rows_per_file": 1}, "it is Arrow, not CSV"),
        (dataset, {"format": "arrow", "columns": HELD}, "files of other sizes"),
        (dataset, {"format": "arrow", "columns": HELD[:1], "rows_per_file": 1}, "other columns"),
        (newer, {"format": "arrow"}, "of version 1, not 2"),
    ):
        with pytest.raises(ConflictError, match=why) as caught:
            export(other, tmp_path / "out", **request)
        assert "--overwrite" in str(caught.value)
        assert contents(tmp_path / "out") == before
    export(newer, tmp_path / "out", "parquet", overwrite=True)
    names = {"export.json", "mine.txt", "test-00000-of-00001.parquet", "train-00000-of-00001.parquet"}
    assert set(contents(tmp_path / "out")) == names


def test_what_lies_behind_a_link_is_no_part_of_an_export(dataset, tmp_path):
    target, other = tmp_path / "out", tmp_path / "other"
    export(dataset, target, "mds", columns=HELD, rows_per_file=1)
    (target / "train").rename(other)
    (target / "train").symlink_to(other)
    before = {path.name: path.read_bytes() for path in other.iterdir()}
    for settings in ({"rows_per_file": 1}, {"rows_per_file": 2, "overwrite": True}):
        with pytest.raises(UnsafeError, match="train is a link"):
            export(dataset, target, "mds", columns=HELD, **settings)
    assert {path.name: path.read_bytes() for path in other.iterdir()} == before


def test_damage_ends_an_export_and_leaves_whole_files(tmp_path):
    dataset = make_dataset(tmp_path / "set", NUMBERS, 9)
    shard = Path(dataset.dataset.shard_url(dataset.dataset.shards[1]))
    content = shard.read_bytes()
    shard.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
    with pytest.raises(Exception, match="shardkit verify") as caught:
        export(dataset, tmp_path / "out", "parquet", rows_per_file=90, num_threads=1)
    assert caught.value.exit_code == 1
    assert [n for n in contents(tmp_path / "out") if n.startswith("train")] == ["train-00000-of-00002.parquet"]
    shard.write_bytes(content)
    assert export(dataset, tmp_path / "out", "parquet", rows_per_file=90).num_kept >= 1


# The library of ArrayRecord takes most of a second to load.
@pytest.mark.parametrize(
    "format", [pytest.param(f, marks=pytest.mark.full) if f == "array-record" else f for f in FORMATS]
)
def test_a_full_disk_is_an_error_of_its_own(tmp_path, monkeypatch, format):
    dataset = make_dataset(tmp_path / "set", NUMBERS, 900)
    monkeypatch.setattr(run, "scratch_file", lambda target: nullcontext(Path("/dev/full")))
    with pytest.raises(OutOfSpaceError) as caught:
        export(dataset, tmp_path / "out", format, num_threads=1)
    assert "Files that are there are whole. Free some space" in str(caught.value)
    assert sorted(contents(tmp_path / "out")) == ["export.json"]


@pytest.mark.parametrize("format", FORMATS)
def test_a_split_without_rows_has_a_file(tmp_path, format):
    dataset = make_dataset(tmp_path / "set", [(feature, []) for feature, _ in NUMBERS])
    done = export(dataset, tmp_path / "out", format)
    assert [(f.num_rows, f.num_bytes >= 0) for f in done.files["train"]] == [(0, True)]


# Kills the process before or behind the link by which a file gets its name.
KILLER = """
import os, signal, sys
link, left, after = os.link, int(sys.argv[1]), sys.argv[2] == "after"
def killing(source, target, **settings):
    global left
    left -= 1
    if left or after:
        link(source, target, **settings)
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
os.link = killing
from shardkit.cli import main
main(sys.argv[3:])
"""


@pytest.mark.full
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_killed_export_leaves_whole_files_and_goes_on(dataset, tmp_path, number, moment):
    arguments = ["export-data", str(tmp_path / "set"), str(tmp_path / "out"), "--to", "parquet", "--rows-per-file", "1"]
    export(dataset, tmp_path / "whole", "parquet", rows_per_file=1)
    whole = contents(tmp_path / "whole")
    done = subprocess.run([sys.executable, "-c", KILLER, str(number), moment, *arguments], check=False)
    assert done.returncode == -signal.SIGKILL
    left = {name: data for name, data in contents(tmp_path / "out").items() if not name.startswith(".")}
    assert len(left) == number - (moment == "before")
    assert left.items() <= whole.items()
    subprocess.run([sys.executable, "-m", "shardkit", *arguments], check=True, capture_output=True)
    assert contents(tmp_path / "out") == whole
