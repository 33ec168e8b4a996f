"""`shardkit convert` as a user meets it: what it shows, what it refuses, and with which exit code."""

import json
import subprocess
import sys

import pytest

from shardkit.cli import main

pytestmark = pytest.mark.full


@pytest.fixture
def run(capsys):
    def invoke(*arguments):
        code = main(["convert", *map(str, arguments)])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.out, captured.err

    return invoke


def test_features_are_shown_first_and_the_result_last(run, table, tmp_path):
    code, out, err = run(table, tmp_path / "out", "--split", "train=0.8", "--split", "test=0.2", "--num-shards", "3")
    assert code == 0
    assert [line.split()[0] for line in err.splitlines()[2:5]] == ["id", "zip", "x"]
    assert "string" in err.splitlines()[3], "leading zeros are no number"
    assert "200 rows in, 200 examples out\nversion 1 of" in out
    assert [line.split()[:2] for line in out.strip().splitlines()[1:3]] == [["train", "3"], ["test", "3"]]
    assert out.splitlines()[-1] == f"Next: shardkit inspect {tmp_path / 'out'}"


def test_too_little_data_for_a_shard_is_said(run, table, tmp_path):
    _, _, err = run(table, tmp_path / "out")
    assert "is too little data for 128 MiB; it becomes 1 shard of" in " ".join(err.split())


def test_rounded_floats_are_said(run, tmp_path):
    (tmp_path / "a.csv").write_text("x\n" + "0.5\n" * 20_000 + "0.123456789\n")
    (tmp_path / "schema.toml").write_text('[features]\nx = "float32"\n')
    code, _, err = run(tmp_path / "a.csv", tmp_path / "out", "--schema", tmp_path / "schema.toml")
    assert code == 0
    assert "note: 'x': 1 value rounded to float32" in " ".join(err.split())


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["missing.csv", "out"], 2, "no such file"),
        (["nothing*.csv", "out"], 2, "no file matches"),
        (["table.csv", "table.csv"], 2, "the destination is a file"),
        (["table.csv", "out", "--split", "train=0.5"], 2, "add up to 0.5"),
        (["table.csv", "out", "--split", "train"], 2, "has no fraction"),
        (["table.csv", "out", "--split", "train=x"], 2, "names no file of the inputs"),
        (["table.csv", "out", "--shard-size", "big"], 2, "is not a size"),
        (["table.csv", "out", "--shard-size", "10"], 2, "at least 1 KiB"),
        (["table.csv", "out", "--shard-size", "1MiB", "--num-shards", "2"], 2, "exclude each other"),
        (["table.csv", "out", "--num-shards", "0"], 2, "--num-shards"),
        (["table.csv", "out", "--num-shards", "201"], 2, "--num-shards 200 or less"),
        (["table.csv", "out", "--max-pixels", "-1"], 2, "--max-pixels"),
        (["table.csv", "out", "--workers", "0"], 2, "--workers"),
        (["table.csv", "out", "--tfds"], 2, "--compression none"),
        (["table.csv", "out", "--compression-level", "best"], 2, "--compression-level"),
        (["table.csv", "out", "--compression", "none", "--compression-level", "small"], 2, "has no meaning with"),
        (["table.csv", "out", "--format", "images"], 2, "of the format images in table.csv"),
        (["table.csv", "out", "--labels", "ragged.csv"], 2, "--labels has no meaning for csv"),
        (["table.csv", "out", "--audio-rate", "8000"], 2, "--audio-rate has no meaning for csv"),
        (["cut.parquet", "out", "--format", "parquet", "--null-value", "NA"], 2, "--null-value has no meaning"),
        (["table.csv", "out", "--schema", "missing.json"], 2, "no such file"),
        (["table.csv", "http://example.com/x"], 7, "is refused"),
        (["ragged.csv", "out"], 3, "ragged.csv, line 3: expected 2 fields, got 1"),
        (["empty.csv", "out"], 3, "no rows"),
        (["cut.parquet", "out"], 3, "cut.parquet"),
        (["photos", "out", "--format", "images", "--no-labels"], 3, "content is text"),
    ],
)
def test_what_cannot_be_done_is_refused_and_leaves_nothing(run, table, tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ragged.csv").write_text("a,b\n1,2\n3\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1\x15\x04\x15" + bytes(100))
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    (tmp_path / "photos" / "cat" / "1.jpg").write_text("not found")
    found, _, err = run(*arguments)
    assert (found, message in " ".join(err.split())) == (code, True), err
    assert not (tmp_path / "out").exists()


def test_errors_of_planning_say_what_the_destination_holds_and_what_to_do(run, table, tmp_path):
    (tmp_path / "cut.parquet").write_bytes(b"PAR1\x15\x04\x15" + bytes(100))
    _, _, err = run(tmp_path / "cut.parquet", tmp_path / "out")
    assert "Nothing was committed.\n" in err
    assert "--on-bad-record skip or quarantine" in " ".join(err.split())
    assert run(table, tmp_path / "out")[0] == 0
    for dry_run in ([], ["--dry-run"]):
        code, _, err = run(
            tmp_path / "cut.parquet", tmp_path / "out", "--overwrite", "--on-bad-record", "skip", *dry_run
        )
        assert code == 3
        assert "Nothing was committed; version 1 is untouched.\n" in err
        assert "or leave it out with --exclude GLOB" in " ".join(err.split())
        code, _, err = run(table, tmp_path / "out", "--overwrite", "--split", "train=0.5", *dry_run)
        assert code == 2
        assert "version 1 is untouched" in err


def test_the_level_is_part_of_the_recipe_and_shown(run, table, tmp_path, capsys):
    found = {}
    for level in (None, "fast", "balanced", "small"):
        folder = tmp_path / str(level)
        assert run(table, folder, *(["--compression-level", level] if level else []))[0] == 0
        assert main(["inspect", str(folder)]) == 0
        assert f"gzip in blocks, level {level or 'balanced'} (" in capsys.readouterr().out
        assert main(["inspect", str(folder), "--json"]) == 0
        found[level] = json.loads(capsys.readouterr().out)
        assert found[level]["recipe"]["compression_level"] == (level or "balanced")
    assert found[None]["fingerprint"] == found["balanced"]["fingerprint"]
    assert len({document["fingerprint"] for document in found.values()}) == 3
    sizes = {level: document["splits"][0]["num_bytes"] for level, document in found.items()}
    assert sizes["small"] < sizes["balanced"] == sizes[None] <= sizes["fast"]


def test_without_compression_there_is_no_level(run, table, tmp_path, capsys):
    assert run(table, tmp_path / "out", "--compression", "none")[0] == 0
    assert main(["inspect", str(tmp_path / "out")]) == 0
    assert "TFRecord, not compressed (" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recipe"]["compression_level"] is None


def test_an_existing_dataset_is_kept_unless_options_say_otherwise(run, table, tmp_path):
    assert run(table, tmp_path / "out")[0] == 0
    code, _, err = run(table, tmp_path / "out")
    assert code == 4
    assert "It is untouched" in err
    assert "--overwrite" in err
    code, out, _ = run(table, tmp_path / "out", "--overwrite")
    assert code == 0
    assert "version 2" in out


def test_control_characters_of_the_data_never_reach_the_terminal(run, tmp_path):
    (tmp_path / "a.csv").write_text("\x1b[31mred,b\n1,2\n")
    code, out, err = run(tmp_path / "a.csv", tmp_path / "out")
    assert code == 0
    assert "\x1b[31mred" not in out + err
    assert r"\x1b[31mred" in err


def test_the_command_starts_without_data_frames_and_beam(table, tmp_path):
    pytest.importorskip("pandas")
    command = [sys.executable, "-X", "importtime", "-m", "shardkit", "convert", str(table), str(tmp_path / "out")]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in run.stderr.splitlines()}
    assert [name for name in imported if name.startswith(("pandas.", "apache_beam"))] == []
