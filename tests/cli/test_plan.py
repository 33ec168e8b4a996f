"""`shardkit plan`: sizes without files, what cannot work and what does, exit codes."""

import json
import re
import shlex

import msgspec
import pytest
from PIL import Image

from beam_pipelines.engines.dataflow.settings import DATAFLOW
from beam_pipelines.engines.settings import Facts
from shardkit.cli import main
from shardkit.cli.plan import command
from shardkit.cli.shell.recipes import options_of
from shardkit.conversion.engines import ENGINES
from shardkit.dataset.open import open_dataset
from shardkit.sources.base import SourceOptions
from shardkit.units import MiB


def plan(capsys, *args):
    code = main(["plan", *args])
    out, err = capsys.readouterr()
    return code, out, err


def store_of(engine):
    """Returns the options with which the workers of an engine reach the destination."""
    return ("--store", "gs") if engine == "dataflow" else ()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_gigabyte_can_be_converted_by_all_engines(capsys, engine):
    code, out, err = plan(
        capsys,
        "--input-size",
        "1GB",
        "--runner",
        engine,
        "--workers",
        "2",
        "--worker-memory",
        "4GiB",
        *store_of(engine),
    )
    assert (code, err) == (0, "")
    assert re.search(r"^train +4 +1,000,000 +477 MiB", out, re.MULTILINE)
    assert "cannot work" not in out


@pytest.mark.parametrize("size", ["1PB", "1EB"])
@pytest.mark.parametrize("engine", ENGINES)
def test_what_it_says_to_set_instead_works(capsys, size, engine):
    asked = ("--input-size", size, "--runner", engine, "--workers", "16", "--worker-memory", "16GiB")
    code, out, _ = plan(capsys, *asked)
    assert code == 2
    assert "shards; at most 1,000,000 shards" in out
    assert out.count("  limit: ") == out.count("  instead: ") == out.count("cannot work: ") + out.count("warning: ")
    (way,) = re.findall(r"^This works: (.*) \(.*\)$", out, re.MULTILINE)
    code, out, _ = plan(capsys, *asked, *shlex.split(way))
    assert code == 0
    assert "limit: " not in out


@pytest.mark.parametrize(
    ("args", "most", "why"),
    [
        (("--input-size", "1PB", "--whole-files", "--num-files", "10"), 10, "10 files that cannot be read in parts"),
        (("--input-size", "1PB", "--whole-files", "--num-files", "3"), 3, "3 files that cannot be read in parts"),
        (("--input-size", "1TB", "--row-size", "3GB"), 333, "333 rows"),
    ],
)
def test_more_datasets_are_not_advised_where_they_cannot_be_made(capsys, args, most, why):
    code, out, _ = plan(capsys, *args, "--worker-memory", "16GiB")
    assert code == 2
    assert all(int(number) <= most for number in re.findall(r"--datasets (\d+)", out))
    assert f"No number of datasets is enough: there can be no more than {why}" in out
    assert "This works" not in out
    code, out, _ = plan(capsys, *args, "--datasets", "4002")
    assert code == 2
    assert f"cannot be cut into so many datasets: 4,002 datasets; at most {most} datasets" in out


@pytest.mark.parametrize("size", ["1GB", "1TB", "1PB"])
def test_dataflow_cannot_write_to_a_folder_of_this_machine(capsys, size):
    asked = ("--input-size", size, "--runner", "dataflow", "--worker-memory", "16GiB")
    code, out, _ = plan(capsys, *asked)
    assert code == 2
    assert "cannot work: the destination is out of the reach of the workers: a folder of this machine\n" in out
    assert "  instead: --store gs, or another store" in out
    (way,) = re.findall(r"^This works: (.*) \(.*\)$", out, re.MULTILINE)
    assert "--store gs" in way
    code, out, _ = plan(capsys, *asked, *shlex.split(way))
    assert code == 0
    assert "out of the reach" not in out
    code, out, _ = plan(capsys, *asked, "--store", "s3")
    assert "out of the reach" not in out


# A job service of Beam holds all records.
@pytest.mark.parametrize(
    ("engine", "memory"),
    [*((engine, "16GiB") for engine in ("dask", "flink", "spark", "ray")), ("portable", "160GiB")],
)
def test_a_work_folder_in_a_store_sends_the_records_through_the_shuffle(capsys, engine, memory):
    asked = ("--input-size", "10GB", "--runner", engine, "--store", "s3", "--workers", "4", "--worker-memory", memory)
    for work_dir in ((), ("--work-dir", "/mnt/shared/work")):
        _, out, _ = plan(capsys, *asked, *work_dir)
        assert "elements: descriptors; records lie in the spool" in out
        assert re.search(r"^spool .* on storage that all workers share$", out, re.MULTILINE)
    code, out, _ = plan(capsys, *asked, "--work-dir", "s3://bucket/work")
    assert code == 0
    assert re.search(r"^shuffle +([\d.]+) GiB .* elements: records, in chunks$", out, re.MULTILINE)
    assert re.search(r"^spool .* in the work folder's store$", out, re.MULTILINE)
    assert re.search(r"^disk .* of each worker, for the shard that it makes, and its records$", out, re.MULTILINE)


def test_the_values_of_a_key_are_records_where_those_go_through_the_shuffle(capsys):
    asked = ("--input-size", "1TB", "--runner", "flink", "--store", "s3", "--workers", "4", "--worker-memory", "1GiB")
    code, out, _ = plan(capsys, *asked, "--work-dir", "s3://bucket/work")
    assert code == 2
    assert "the values of one key do not fit into a worker's memory" in out


@pytest.mark.parametrize(
    ("args", "name"),
    [
        (("--runner", "flink", "--work-dir", "s3://bucket/work"), "destination"),
        (("--runner", "dataflow", "--store", "gs", "--work-dir", "/mnt/work"), "work folder"),
    ],
)
def test_what_convert_refuses_of_a_work_folder_cannot_work(capsys, args, name):
    code, out, _ = plan(capsys, "--input-size", "1GB", *args)
    assert code == 2
    assert f"cannot work: the {name} is out of the reach of the workers: a folder of this machine\n" in out
    (way,) = re.findall(r"^This works: (.*) \(.*\)$", out, re.MULTILINE)
    code, out, _ = plan(capsys, "--input-size", "1GB", *args, *shlex.split(way))
    assert code == 0


def test_a_work_folder_on_a_web_server_is_refused(capsys):
    code, out, err = plan(capsys, "--input-size", "1GB", "--runner", "flink", "--work-dir", "https://example.com/work")
    assert (code != 0, out) == (True, "")
    assert "https" in err


def test_a_worker_of_dataflow_does_as_much_at_the_same_time_as_convert_asks_for(capsys):
    # A group and its order, the shard and the records of a unit, for each of them.
    asked = ("--input-size", "100GB", "--store", "gs", "--json")
    _, out, _ = plan(capsys, *asked, "--runner", "dataflow")
    eight = json.loads(out)["forecast"]
    _, out, _ = plan(capsys, *asked, "--runner", "portable", "--work-dir", "gs://bucket/work")
    one = json.loads(out)["forecast"]
    asked_for = {s.key: s.default(Facts(1, 1, {})) for s in DATAFLOW.settings}
    processes, threads = int(asked_for["machine-type"].rpartition("-")[2]), int(asked_for["threads"])
    assert eight["disk_bytes"] == processes * threads * one["disk_bytes"]
    shared = 250 * MiB
    assert eight["worker_bytes"] == processes * (shared + threads * (one["worker_bytes"] - shared))


def test_the_disk_of_dataflow_is_not_said_to_hold_the_spool(capsys):
    code, out, _ = plan(capsys, "--input-size", "1TB", "--runner", "dataflow", "--store", "gs", "--disk", "1GiB")
    assert code == 2
    assert "cannot work: the disk of a worker is too small for the shards that it makes, and their records: " in out
    assert re.search(r"^spool .* in the work folder's store$", out, re.MULTILINE)
    assert re.search(r"^memory .* of each worker, with \d+ workers? of 8 pieces of work at the same time$", out, re.M)


def test_the_manifest_size_is_estimated_for_sizes_and_for_files(capsys, tmp_path):
    _, out, _ = plan(capsys, "--input-size", "1GB")
    assert re.search(r"^manifest +[\d.]+ KiB +about", out, re.MULTILINE)
    (tmp_path / "a.csv").write_text("a,b\n" + "1,x\n" * 100)
    _, out, _ = plan(capsys, str(tmp_path / "a.csv"))
    assert re.search(r"^manifest +[\d.]+ KiB", out, re.MULTILINE)


def test_json_has_the_same(capsys):
    code, out, _ = plan(capsys, "--input-size", "1PB", "--json", "--worker-memory", "8GiB")
    document = json.loads(out)
    assert code == 2
    assert document["forecast"]["num_shards"] == 1_000_000
    assert any(f["is_fatal"] for f in document["findings"])
    assert document["setting_that_works"]["num_datasets"] > 1


def test_splits_and_a_number_of_shards(capsys):
    code, out, _ = plan(capsys, "--input-size", "1TB", "--split", "train=0.9", "--split", "test=0.1", "--num-shards",
                        "500", "--worker-memory", "256GiB")  # fmt: skip
    assert code == 0
    assert re.search(r"^train +500 +900,000,000", out, re.MULTILINE)
    assert re.search(r"^test +500 +100,000,000", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((), "Name INPUT files, or --input-size instead"),
        (("a.csv", "--input-size", "1GB"), "Name INPUT files, or --input-size instead"),
        (("--input-size", "1GB", "--split", "train=0.5"), "add up to 0.5"),
        (("--input-size", "4EiB", "--expansion", "100"), "more than one dataset can count"),
        (("nothing-there.csv",), "nothing-there.csv"),
        (("--input-size", "1GB", "--columns", "a,b"), "--columns says how INPUT files are read"),
        (("a.csv", "--row-size", "5KB"), "--row-size stands for what is measured of INPUT files"),
        (("a.csv", "--whole-files"), "--whole-files stands for what is measured of INPUT files"),
    ],
)
def test_what_cannot_be_planned(capsys, monkeypatch, tmp_path, args, text):
    monkeypatch.chdir(tmp_path)
    code, out, err = plan(capsys, *args)
    assert (code, out) == (2, "")
    assert text in err
    assert list(tmp_path.iterdir()) == []


def test_rows_that_convert_refuses_cannot_work(capsys):
    asked = ("--input-size", "1GB", "--row-size", "300MiB", "--worker-memory", "16GiB")
    code, out, _ = plan(capsys, *asked)
    assert code == 2
    assert "rows of the inputs are too large: 300 MiB; at most 256 MiB" in out
    (way,) = re.findall(r"^This works: (.*) \(.*\)$", out, re.MULTILINE)
    assert "--max-record-size 300MiB" in way
    code, out, _ = plan(capsys, *asked, *shlex.split(way))
    assert (code, "limit: " in out) == (0, False)


@pytest.fixture
def odd_inputs(tmp_path, monkeypatch):
    """Changes to a folder of inputs that are not understood without a word on how to read them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "either.csv").write_text("a,b\nx,y\n")
    (tmp_path / "twice.csv").write_text("1,1,x\n3,4,y\n5,NA,z\n")
    (tmp_path / "numbers.csv").write_text("1,2\n3,4\n5,6\n")
    (tmp_path / "lines.txt").write_text("a b\nc d\n\ne f\n\ng\n")
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / "a.csv").write_text("a;b;c\n1;2;3\n4;5;6\n")
    (tmp_path / "mixed" / "b.jsonl").write_text('{"other": 1}\n')
    (tmp_path / "latin.csv").write_bytes("name,n\nMüller,1\nMeier,2\n".encode("latin-1"))
    for name in ("one", "two"):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{name}.png")
    (tmp_path / "labels.csv").write_text("file,label\none.png,cat\ntwo.png,dog\n")
    (tmp_path / "schema.toml").write_text('[features."1"]\ndtype = "string"\n')


@pytest.mark.full
@pytest.mark.parametrize(
    "args",
    [
        ("twice.csv", "--columns", "a,b,c"),
        ("twice.csv", "--columns", "a,b,c", "--null-value", "NA"),
        ("twice.csv", "--columns", "a,b,c", "--drop-columns", "b"),
        ("numbers.csv", "--header"),
        ("numbers.csv", "--header", "--schema", "schema.toml"),
        ("mixed", "--include", "*.csv", "--delimiter", ";"),
        ("mixed", "--exclude", "*.csv"),
        ("lines.txt", "--text-record", "paragraph"),
        ("latin.csv", "--encoding", "latin-1"),
        ("one.png", "two.png", "--labels", "labels.csv"),
    ],
)
def test_inputs_are_read_as_convert_reads_them(capsys, odd_inputs, args):
    code, out, err = plan(capsys, *args, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    inputs = [a for a in args if "." in a and "*" not in a and a not in ("schema.toml", "labels.csv")] or ["mixed"]
    assert main(["convert", *inputs, "out", *args[len(inputs) :]]) == 0
    (split,) = (manifest := open_dataset("out").manifest).splits
    (entry,) = document["forecast"]["splits"]
    assert (entry["num_examples"], entry["num_framed_bytes"]) == (split.num_examples, split.num_uncompressed_bytes)
    assert document["inputs"]["num_features"] == len(manifest.features)


@pytest.mark.parametrize("args", [("either.csv",), ("mixed",), ("latin.csv",)])
def test_without_a_word_such_inputs_are_refused_with_options_that_plan_has(capsys, odd_inputs, args):
    code, out, err = plan(capsys, *args)
    assert code != 0
    assert out == ""
    known = {name for p in command.params for name in p.opts}
    assert known.issuperset(re.findall(r"--[a-z-]+", err))


def test_every_option_of_convert_that_says_how_inputs_are_read_is_one_of_plan():
    given = options_of({"source": {f.name: "x" for f in msgspec.structs.fields(SourceOptions)}})
    unset = options_of({})
    reading = {f"--{name}" for name, value in given.items() if value != unset[name]}
    assert len(reading) >= 20
    assert reading <= {name for p in command.params for name in p.opts}


def test_the_engines_are_those_of_the_forecast():
    (engine,) = (p for p in command.params if p.name == "runner")
    assert tuple(engine.type.choices) == tuple(ENGINES)
