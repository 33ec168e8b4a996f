"""Datasets of rows that a program holds: whole or not there, with the bytes of the same rows in a file."""

import contextlib
import multiprocessing
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

import shardkit
from shardkit.dataset.open import list_versions, open_dataset
from shardkit.errors import BadInputError, ConflictError, UsageError
from shardkit.features import make_feature
from tests.support.commands import run_shardkit
from tests.support.in_process import read_rows

pytestmark = pytest.mark.full


def rows_in(folder):
    dataset = open_dataset(str(folder))
    return [row for split in dataset.manifest.splits for row in read_rows(dataset, split.name)]


def files_in(folder):
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file() and "data" in p.parts
    }


def test_paths_give_the_bytes_that_the_command_gives(tmp_path):
    (tmp_path / "a.csv").write_text("x,s\n" + "".join(f"{i},word {i}\n" for i in range(300)))
    typed = ("--split", "train=0.8", "--split", "test=0.2", "--shard-size", "1KiB", "--cast", "x=float32")
    assert run_shardkit("convert", tmp_path / "a.csv", tmp_path / "one", *typed).returncode == 0
    options = {"split": {"train": 0.8, "test": 0.2}, "shard_size": "1KiB", "cast": {"x": "float32"}}
    splits = shardkit.convert(tmp_path / "a.csv", tmp_path / "two", **options)
    assert sum(split.num_examples for split in splits.values()) == 300
    assert files_in(tmp_path / "two") == files_in(tmp_path / "one")


def test_rows_of_a_program_are_all_there_and_nothing_else_is(tmp_path):
    made = shardkit.convert(
        ({"i": i, "v": np.float32([i, i / 2])} for i in range(9_000)), tmp_path / "out", num_shards=3
    )
    assert made["train"].num_examples == 9_000
    rows = {row["i"]: list(row["v"]) for row in rows_in(tmp_path / "out")}
    assert rows == {i: [i, i / 2] for i in range(9_000)}
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["data", "manifests"]


def test_the_same_rows_give_the_same_bytes_and_others_a_version_of_their_own(tmp_path):
    def convert(name, first, **options):
        shardkit.convert({"x": [first, 2, 3]}, tmp_path / name, **options)
        return open_dataset(str(tmp_path / name)).manifest.fingerprint

    assert convert("a", 1) == convert("b", 1)
    assert files_in(tmp_path / "a") == files_in(tmp_path / "b")
    with pytest.raises(ConflictError):
        convert("a", 5)
    assert convert("b", 5, overwrite=True) != convert("c", 1)
    assert sorted(row["x"] for row in rows_in(tmp_path / "b")) == [2, 3, 5]


def test_a_type_that_changes_late_holds_all_values(tmp_path):
    rows = [{"n": i if i < 5_000 else i + 0.5, **({"late": "x"} if i > 8_000 else {})} for i in range(8_500)]
    shardkit.convert(iter(rows), tmp_path / "out", shuffle=False)
    assert rows_in(tmp_path / "out") == [{"n": float(row["n"]), "late": row.get("late")} for row in rows]


def test_a_writer_commits_at_the_end_and_not_after_an_error(tmp_path):
    with shardkit.Writer(tmp_path / "out", shuffle=False) as writer:
        writer.write({"i": 0})
        writer.write_batch(pa.table({"i": [1, 2]}))
        writer.write_batch({"i": [3]})
        writer.write({"i": 4})
        assert list_versions(str(tmp_path / "out")) == []
    assert [row["i"] for row in rows_in(tmp_path / "out")] == [0, 1, 2, 3, 4]
    with contextlib.suppress(KeyError), shardkit.Writer(tmp_path / "none") as writer:
        writer.write({"i": 0})
        raise KeyError
    assert not (tmp_path / "none").exists()
    with shardkit.Writer(tmp_path / "out", append=True) as writer:
        writer.write({"i": 5})
    assert sorted(row["i"] for row in rows_in(tmp_path / "out")) == [0, 1, 2, 3, 4, 5]


def test_features_declare_what_rows_do_not_say(tmp_path):
    features = (
        make_feature("score", "float32", nullable=True),
        make_feature("label", "int64", vocabulary=("cat", "dog")),
        make_feature("vector", "float32", (3,)),
    )
    with shardkit.Writer(tmp_path / "out", features, shuffle=False) as writer:
        writer.write({"score": 1, "label": 1, "vector": [1, 2, 3]})
        writer.write({"label": 0, "vector": np.zeros(3)})
        with pytest.raises(UsageError, match="'lable' that no feature names"):
            writer.write_batch([{"lable": 1}])
        with pytest.raises(UsageError, match="a value of column 'score' does not fit float"):
            writer.write_batch({"score": ["high"], "label": [1], "vector": [[1.0, 2.0, 3.0]]})
    assert open_dataset(str(tmp_path / "out")).manifest.features == features
    assert [(row["score"], row["label"]) for row in rows_in(tmp_path / "out")] == [(1.0, 1), (None, 0)]


def write_part(spool, destination, index, rows):
    with shardkit.Writer(destination, spool=spool).part(index) as part:
        for row in rows:
            part.write(row)


def test_processes_write_parts_that_are_committed_together(tmp_path):
    spool, destination = tmp_path / "spool", tmp_path / "out"
    context = multiprocessing.get_context("spawn")
    parts = {index: [{"i": 10 * index + i} for i in range(10)] for index in (0, 1, 2)}
    write_part(spool, destination, 1, [{"i": -1}])
    workers = [context.Process(target=write_part, args=(spool, destination, *part)) for part in parts.items()]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not destination.exists()
    shardkit.Writer(destination, spool=spool, shuffle=False).commit()
    assert [row["i"] for row in rows_in(destination)] == list(range(30))
    assert not spool.exists()


def test_a_writer_that_is_killed_leaves_no_dataset_and_can_begin_again(tmp_path):
    code = f"""
import os, signal, shardkit
writer = shardkit.Writer({str(tmp_path / "out")!r})
for i in range(20_000):
    writer.write({{"i": i}})
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert list_versions(str(tmp_path / "out")) == []
    assert list(tmp_path.rglob("*.open"))
    with shardkit.Writer(tmp_path / "out") as alive:
        alive.write({"i": 1})
        # A writer that lives keeps its rows, whatever another one begins.
        other = shardkit.Writer(tmp_path / "out")
        other.write({"i": 2})
        other.close()
    assert rows_in(tmp_path / "out") == [{"i": 1}]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["data", "manifests"]


def test_errors_say_what_and_leave_the_dataset_as_it_was(tmp_path):
    shardkit.convert([{"x": 1}], tmp_path / "out")
    with pytest.raises(ConflictError, match="version 1"):
        shardkit.convert([{"x": 2}], tmp_path / "out")
    with pytest.raises(UsageError, match="there are no rows"):
        shardkit.convert([], tmp_path / "none")
    (tmp_path / "bad.csv").write_text("x,y\n1,2\n3\n")
    with pytest.raises(BadInputError, match="wrong number of fields"):
        shardkit.convert(tmp_path / "bad.csv", tmp_path / "bad")
    assert rows_in(tmp_path / "out") == [{"x": 1}]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.csv", "out"]


def test_rows_are_as_they_were_when_they_were_written(tmp_path):
    row, vector = {}, np.zeros(2)
    with shardkit.Writer(tmp_path / "out", shuffle=False) as writer:
        for i in range(3):
            row["i"], row["v"] = i, vector
            vector[:] = i
            writer.write(row)
    assert [(row["i"], list(row["v"])) for row in rows_in(tmp_path / "out")] == [(i, [i, i]) for i in range(3)]


def test_a_row_that_does_not_fit_is_an_error_until_the_end(tmp_path):
    writer = shardkit.Writer(tmp_path / "out")
    for i in range(5_000):
        writer.write({"a": i})
    writer.write({"a": "x"})
    for _ in range(2):
        with pytest.raises(UsageError, match="'a' have no common type"):
            writer.commit()
    writer.close()
    assert list(tmp_path.iterdir()) == []
    for call in (writer.commit, lambda: writer.write({"a": 1}), lambda: writer.write_batch({"a": [1]})):
        with pytest.raises(UsageError, match="the writer is closed"):
            call()


def test_a_commit_that_fails_keeps_the_parts(tmp_path):
    spool, destination = tmp_path / "spool", tmp_path / "out"
    write_part(spool, destination, 0, [{"i": 1}])
    shardkit.convert([{"i": 0}], destination)
    writer = shardkit.Writer(destination, spool=spool)
    with pytest.raises(ConflictError):
        writer.commit()
    writer.close()
    assert sorted(p.name for p in spool.iterdir()) == ["part-00000.arrow", "part-00000.done"]
    shardkit.Writer(destination, spool=spool, append=True).commit()
    assert sorted(row["i"] for row in rows_in(destination)) == [0, 1]


def test_options_that_cannot_be_are_refused_before_the_rows(tmp_path):
    for options, said in (({"stratify": "a"}, "two splits"), ({"delimiter": ";"}, "delimiter is for files")):
        with pytest.raises(UsageError, match=said):
            shardkit.convert(iter(lambda: pytest.fail("a row was asked for"), None), tmp_path / "out", **options)


def test_parts_are_numbered_and_whole(tmp_path):
    spool, destination = tmp_path / "spool", tmp_path / "out"
    for index in (100_000, 99_999, 7):
        write_part(spool, destination, index, [{"i": index}])
    writer = shardkit.Writer(destination, spool=spool, shuffle=False)
    unfinished = writer.part(3)
    unfinished.write_batch({"i": [-1]})
    first, second = writer.part(8), writer.part(8)
    for part in (first, second):
        part.write({"i": 8})
    first.close()
    second.close()
    for wrong in (-1, 1.5, "0"):
        with pytest.raises(UsageError, match="a part is a whole number"):
            writer.part(wrong)
    with pytest.raises(UsageError, match="go to parts"):
        writer.write({"i": 1})
    with pytest.raises(UsageError, match="part 3 was begun and is not whole"):
        writer.commit()
    unfinished.discard()
    with pytest.raises(UsageError, match="4 parts are whole, and not 5"):
        writer.commit(num_parts=5)
    with pytest.raises(UsageError, match=f"part 7 was written for {re.escape(str(destination))}"):
        shardkit.Writer(tmp_path / "other", spool=spool).commit()
    writer.commit(num_parts=4)
    assert [row["i"] for row in rows_in(destination)] == [7, 8, 99_999, 100_000]


def test_a_part_that_ended_with_an_error_is_missed(tmp_path):
    writer = shardkit.Writer(tmp_path / "out", spool=tmp_path / "spool")
    with contextlib.suppress(ZeroDivisionError), writer.part(0) as part:
        part.write({"i": 1})
        raise ZeroDivisionError
    write_part(tmp_path / "spool", tmp_path / "out", 1, [{"i": 2}])
    with pytest.raises(UsageError, match="part 0 was begun and is not whole"):
        writer.commit()
    write_part(tmp_path / "spool", tmp_path / "out", 0, [{"i": 1}])
    writer.commit()
    assert sorted(row["i"] for row in rows_in(tmp_path / "out")) == [1, 2]
    assert not (tmp_path / "spool").exists()


def test_a_closed_part_takes_no_rows(tmp_path):
    with shardkit.Writer(tmp_path / "out") as writer:
        with writer.part(0) as part:
            part.write({"i": 1})
        with pytest.raises(UsageError, match="the part is closed"):
            part.write({"i": 2})
        with pytest.raises(UsageError, match="the part is closed"):
            part.write_batch({"i": [2]})
        part.close()
    assert [row["i"] for row in rows_in(tmp_path / "out")] == [1]


def test_rows_go_to_parts_or_to_the_writer(tmp_path):
    for first, second in (("write", "part"), ("part", "write")):
        with contextlib.suppress(UsageError), shardkit.Writer(tmp_path / "out") as writer:
            writer.write({"i": 1}) if first == "write" else writer.part(0).discard()
            with pytest.raises(UsageError, match="rows were written to"):
                writer.write({"i": 1}) if second == "write" else writer.part(0)
            raise UsageError("no dataset", next_step="None")
    assert not (tmp_path / "out").exists()


def test_a_part_that_was_killed_is_missed(tmp_path):
    code = f"""
import os, signal, shardkit
part = shardkit.Writer({str(tmp_path / "out")!r}, spool={str(tmp_path / "spool")!r}).part(1)
part.write({{"i": 2}})
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    write_part(tmp_path / "spool", tmp_path / "out", 0, [{"i": 1}])
    with pytest.raises(UsageError, match="part 1 was begun"):
        shardkit.Writer(tmp_path / "out", spool=tmp_path / "spool").commit()
    write_part(tmp_path / "spool", tmp_path / "out", 1, [{"i": 2}])
    shardkit.Writer(tmp_path / "out", spool=tmp_path / "spool").commit()
    assert sorted(row["i"] for row in rows_in(tmp_path / "out")) == [1, 2]


def test_features_refuse_what_they_do_not_hold_and_take_their_shape(tmp_path):
    features = (make_feature("n", "int32"), make_feature("grid", "float32", (2, 3)), make_feature("ids", "int8", (2,)))
    grid = [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    writer = shardkit.Writer(tmp_path / "out", features)
    writer.write({"n": 3.0, "grid": grid, "ids": [1, 2]})
    writer.write_batch({"n": [4], "grid": np.array([grid], np.float32), "ids": [[1, 2]]})
    writer.commit()
    assert [np.asarray(row["grid"]).tolist() for row in shardkit.open(tmp_path / "out")["train"]] == [grid, grid]
    for wrong in ({"n": 3.7}, {"ids": [1.5, 2]}, {"n": 2**40}):
        with pytest.raises(UsageError), shardkit.Writer(tmp_path / "wrong", features) as writer:
            writer.write(wrong)
    with pytest.raises(UsageError, match="features are made by"):
        shardkit.Writer(tmp_path / "out", {"n": "int32"})


def test_two_writers_of_one_destination_do_not_disturb_each_other(tmp_path):
    first, second = shardkit.Writer(tmp_path / "out"), shardkit.Writer(tmp_path / "out")
    first.write({"a": 1})
    second.write({"a": 2})
    first.commit()
    with pytest.raises(ConflictError):
        second.commit()
    second.close()
    assert rows_in(tmp_path / "out") == [{"a": 1}]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["data", "manifests"]


def test_threads_write_to_one_writer(tmp_path):
    with shardkit.Writer(tmp_path / "out") as writer, ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda i: writer.write({"i": i}), range(20_000)))
    assert sorted(row["i"] for row in rows_in(tmp_path / "out")) == list(range(20_000))


def test_equal_rows_are_appended_again(tmp_path):
    for append in (False, True, True):
        shardkit.convert([{"a": 7}], tmp_path / "out", append=append)
    assert rows_in(tmp_path / "out") == [{"a": 7}] * 3


def test_a_destination_is_where_it_was_named(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    with shardkit.Writer("out") as writer:
        writer.write({"a": 1})
        monkeypatch.chdir(tmp_path)
    assert rows_in(tmp_path / "there" / "out") == [{"a": 1}]
    for wrong in ("", None, 5):
        with pytest.raises(UsageError, match="no path or URL"):
            shardkit.convert([{"a": 1}], wrong)
    for workers in (0, -1, "x", 10**6):
        with pytest.raises(UsageError, match="workers is 1 to"):
            shardkit.convert([{"a": 1}], "other", workers=workers)


def test_what_was_interrupted_leaves_no_rows(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("shardkit.conversion.run.convert.run_local", interrupt)
    with contextlib.suppress(KeyboardInterrupt):
        shardkit.convert({"x": range(10_000)}, tmp_path / "out")
    assert list(tmp_path.rglob("*.arrow")) == []
    assert list_versions(str(tmp_path / "out")) == []
