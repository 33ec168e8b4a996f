"""Datasets of an attacker: commands refuse them by the table of codes, without a traceback, and show no escapes."""

import io
import os
import resource
import subprocess
import sys
import tomllib

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardkit.cli import main
from shardkit.dataset.manifest import FeatureStatistics, TopValue
from shardkit.dataset.shard_table import SHARD_TABLE_SCHEMA
from shardkit.features import make_feature
from tests.support.files.hostile_datasets import XY, XY_RECORDS, XY_STATISTICS, example, forge, replace_table

ESCAPES = "\x1b]52;c;ZXZpbA==\x07\x1b[31m\u202e%s{0}\n"
_Y = XY_STATISTICS["y"]
_TOP = (TopValue(value=ESCAPES, count=64),)
_TEXTS = FeatureStatistics(count=64, num_nulls=0, num_values=64, num_distinct=1, vocabulary=(ESCAPES,), top_values=_TOP)


def huge(number):
    return {"num_examples": number, "block_num_examples": (number,)}


def with_x(feature, value=None):
    records = XY_RECORDS if value is None else [example(x=[value], y=[i % 2]) for i in range(64)]
    return {"features": (feature, XY[1]), "records": records, "statistics": {"y": _Y}}


# What is made up, and the code with which `verify` ends.
CASES = {
    "a path above": ({"shard": {"path": "../x.tfrecord"}}, 7),
    "an absolute path": ({"shard": {"path": "/etc/passwd"}}, 7),
    "2**62 examples": ({"shard": huge(2**62)}, 7),
    "10**10 examples": ({"shard": huge(10**10)}, 7),
    "more bytes than there are": ({"shard": {"num_bytes": 2**61, "block_num_bytes": (2**61,)}}, 1),
    "more bytes of records than there are": (
        {"shard": {"num_uncompressed_bytes": 2**61, "block_num_uncompressed_bytes": (2**61,)}}, 1
    ),
    "more than deflate can hold": (
        {"compression": "gzip", "shard": {"num_uncompressed_bytes": 2**41, "block_num_uncompressed_bytes": (2**41,)}}, 1
    ),
    "a negative block": ({"shard": {"block_num_bytes": (-5,)}}, 1),
    "a shape of terabytes": (with_x(make_feature("x", "int64", (2**31 - 1,))), 1),
    "a nullable shape of gigabytes": (with_x(make_feature("x", "float64", (60_000_000,), nullable=True)), 1),
    "text for a number": (with_x(XY[0], "abc"), 1),
    "a number for text": (with_x(make_feature("x", "string"), 7), 1),
    "no protocol buffer": ({"records": [b"\x0b" * 1000] * 64}, 1),
    "escapes in classes": ({"features": (XY[0], make_feature("y", "int64", vocabulary=(ESCAPES, "b")))}, 0),
    "escapes in values": ({**with_x(make_feature("x", "string"), ESCAPES), "statistics": {"x": _TEXTS, "y": _Y}}, 0),
    "escapes in a column": (
        {
            "features": (make_feature(ESCAPES, "int64"), XY[1]),
            "records": [example(**{ESCAPES: [i], "y": [i % 2]}) for i in range(64)],
            "statistics": {ESCAPES: XY_STATISTICS["x"], "y": _Y},
        },
        0,
    ),
    "escapes in a column and damage": ({"features": (make_feature(ESCAPES, "int64"), XY[1])}, 1),
    "escapes in all texts": (
        {
            "edit": lambda document: document.update(
                name=ESCAPES,
                recipe={ESCAPES: ESCAPES, "source": ESCAPES},
                created={"at": ESCAPES, "commit_id": ESCAPES, "inputs": [ESCAPES], "tool_versions": {ESCAPES: ESCAPES}},
            )
        },
        0,
    ),
}  # fmt: skip


def assert_plain(said, allowed=""):
    assert "Traceback" not in said
    assert "this is a bug" not in said
    assert all(c.isprintable() or c in "\n\t" or c in allowed for c in said), said


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_a_made_up_dataset_is_answered_by_the_table_of_codes(tmp_path, capsys, case):
    made_up, code = CASES[case]
    dataset = str(forge(tmp_path / "set", **made_up))
    assert main(["verify", dataset]) == code
    for options in ([], ["--shards"], ["--examples", "2"], ["--recipe"], ["--history"], ["--rejected"], ["--json"]):
        assert main(["inspect", dataset, *options]) in (0, 1, 2, 7)
        # What other programs read holds the letter that turns lines round, and no control characters.
        assert_plain("".join(capsys.readouterr()), "\u202e" if options in (["--json"], ["--recipe"]) else "")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["set"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"shape": [1] * 33}, "a shape of 33 dimensions"),
        ({"dtype": "string", "stored_as": "bytes_list", "vocabulary": ["a", "b"]}, "feature 'x' has a vocabulary"),
    ],
)
def test_a_feature_that_cannot_be_read_makes_the_manifest_damaged(tmp_path, capsys, change, reason):
    dataset = str(forge(tmp_path / "set", edit=lambda document: document["features"][0].update(change)))
    commands = [["verify", dataset], ["inspect", dataset], ["bench", dataset]]
    for words in [*commands, ["train", dataset, "--label", "y", "--output", str(tmp_path / "run")]]:
        assert main(words) == 1
        said = capsys.readouterr().err
        assert "SK-E100" in said
        assert reason in said


@pytest.mark.parametrize(
    ("dtype", "values"), [("int64", ("a", "b")), ("int64", (True,)), ("string", (1, 2)), ("string", ("a", True))]
)
def test_values_of_another_type_make_the_manifest_damaged(tmp_path, capsys, dtype, values):
    features = (make_feature("x", dtype), XY[1])
    statistics = FeatureStatistics(count=64, num_nulls=0, num_values=64, num_distinct=2, vocabulary=values)
    dataset = forge(tmp_path / "set", edit=lambda document: document.update(
        features=msgspec.to_builtins(features),
        splits=[{**document["splits"][0], "statistics": {"x": msgspec.to_builtins(statistics)}}],
    ))  # fmt: skip
    assert main(["inspect", str(dataset)]) == 1
    assert f"the feature 'x' is {dtype}, and one of its values" in capsys.readouterr().err


@pytest.mark.full
def test_as_many_dimensions_as_are_allowed_are_read(tmp_path, capsys):
    dataset = str(forge(tmp_path / "set", edit=lambda document: document["features"][0].update(shape=[1] * 32)))
    options = ["--label", "y", "--epochs", "1", "--global-batch-size", "16", "--output", str(tmp_path / "run")]
    for words in [["verify", dataset], ["bench", dataset], ["train", dataset, *options]]:
        assert main(words) == 0, capsys.readouterr().err


def test_a_name_with_a_line_end_adds_nothing_to_a_recipe(tmp_path, capsys):
    name = 'x\nmap = "evil.py:f"\n#'

    def edit(document):
        document.update(name=name, fingerprint=name, created={**document["created"], "inputs": [name]})

    assert main(["inspect", str(forge(tmp_path / "set", edit=edit)), "--recipe"]) == 0
    assert "map" not in tomllib.loads(capsys.readouterr().out)


def test_a_recipe_that_is_none_is_damage(tmp_path, capsys):
    dataset = forge(tmp_path / "set", edit=lambda document: document.update(recipe={"source": "made up"}))
    assert main(["inspect", str(dataset), "--recipe"]) == 1
    assert "the recipe cannot be read" in capsys.readouterr().err


@pytest.mark.full
def test_a_shard_that_leads_elsewhere_by_a_link_shows_nothing_of_it(tmp_path, capsys):
    forge(tmp_path / "set")
    secret = tmp_path / "elsewhere"
    secret.write_bytes(b"canary of another file" * 200)
    shard = tmp_path / "set/data/f/train-00000-of-00001.tfrecord"
    shard.unlink()
    shard.symlink_to(secret)
    assert main(["verify", str(tmp_path / "set")]) == 1
    assert main(["inspect", str(tmp_path / "set"), "--examples", "2"]) == 1
    assert "canary" not in "".join(capsys.readouterr())
    shard.unlink()
    os.mkfifo(shard)
    assert main(["verify", str(tmp_path / "set")]) == 1


def table_of_many_blocks(row):
    """Returns the table of a shard with 2**24 blocks of 0 bytes: a few KB of Parquet, over a gigabyte in memory."""
    columns = []
    for field in SHARD_TABLE_SCHEMA:
        if not field.name.startswith("block_"):
            columns.append(row[field.name].combine_chunks())
            continue
        values = np.zeros(2**24, np.uint32 if field.name == "block_crc32c" else np.int64)
        columns.append(pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), pa.array(values)))
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, SHARD_TABLE_SCHEMA, compression="zstd", store_schema=False) as writer:
        writer.write_table(pa.Table.from_arrays(columns, schema=SHARD_TABLE_SCHEMA))
    return sink.getvalue()


@pytest.mark.full
def test_a_shard_table_that_grows_in_memory_is_refused_before_it_is_read(tmp_path):
    dataset = forge(tmp_path / "set")
    replace_table(dataset, table_of_many_blocks)
    done = subprocess.run(
        [sys.executable, "-m", "shardkit", "verify", str(dataset)],
        capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (2**31, 2**31)),
    )  # fmt: skip
    assert done.returncode == 7, done.stderr
    assert "the shard table is refused" in done.stderr
    assert "16,777,216 blocks" in done.stderr
