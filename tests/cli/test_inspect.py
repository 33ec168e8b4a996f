"""What `shardkit inspect` prints of datasets whose contents are known."""

import datetime
import json
import os
import re
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from shardkit.features import arrow_schema, make_feature
from shardkit.testing import write_dataset

pytestmark = pytest.mark.full

FEATURES = (
    make_feature("a_rather_long_feature_name_that_nobody_shortens", "int64", nullable=True),
    make_feature("price", "float64"),
    make_feature("city", "string"),
    make_feature("label", "int64", vocabulary=("cat", "dog")),
    make_feature("image", "bytes", media_type="image/*"),
    make_feature("height", "int64"),
    make_feature("width", "int64"),
    make_feature("when", "timestamp[s]"),
    make_feature("tags", "string", (None,)),
)


def rows(num_rows):
    numbers = range(num_rows)
    columns = [
        [None if i % 4 == 0 else i for i in numbers],
        [float("nan") if i == 1 else i / 2 for i in numbers],
        ["[red]Rome\x1b[2J" if i % 3 == 0 else "Oslo" for i in numbers],
        [int(i % 5 == 0) for i in numbers],
        [b"\xff\xd8\xff" + bytes(1021 + 1024 * (i % 2)) for i in numbers],
        [100 + i for i in numbers],
        [200 + i for i in numbers],
        [datetime.datetime(2020, 1, 1) + datetime.timedelta(days=i) for i in numbers],
        [["x"] * (i % 3) for i in numbers],
    ]
    arrays = [pa.array(c, f.arrow_type) for c, f in zip(columns, FEATURES, strict=True)]
    return pa.record_batch(arrays, schema=arrow_schema(FEATURES))


@pytest.fixture(scope="module")
def location(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets") / "pets"
    write_dataset(folder, FEATURES, {"train": rows(40), "test": rows(10)})
    return str(folder)


def inspect(*args, **env):
    command = [sys.executable, "-m", "shardkit", "inspect", *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **env})
    return done.returncode, done.stdout, done.stderr


def line_of(page, start):
    (line,) = [line for line in page.splitlines() if line.startswith(start)]
    return line.split()


def test_the_page_tells_splits_and_features(location):
    code, page, err = inspect(location)
    assert (code, err) == (0, "")
    assert page.startswith("pets  version 1\n")
    assert "50 rows in, 50 examples out" in page
    assert line_of(page, "train")[:4] == ["train", "2", "40", "80.0%"]
    assert line_of(page, "test")[:4] == ["test", "2", "10", "20.0%"]
    assert line_of(page[page.index("\nsplit") :], "      ")[0:3] == ["4", "50", "100.0%"]
    stored = re.findall(r"^  stored as   (\w+): (.*(?:\n {14}.*)*)", page, flags=re.MULTILINE)
    assert {kind: names.replace("\n", " ").replace(",", "").split() for kind, names in stored} == {
        kind: [f.name for f in FEATURES if f.stored_as == kind] for kind in {f.stored_as for f in FEATURES}
    }
    name = FEATURES[0].name
    assert line_of(page, name)[:6] == [name, "int64", "26.0%", "1", "1", "19"]
    assert "Oslo 65%" in page
    assert "cat 80%, dog 20%" in page
    assert "200 x 100 to 239 x 139 pixels" in page
    assert "1.00 KiB to 2.00 KiB" in page
    assert line_of(page, "when")[3:6] == ["2020-01-01", "2020-01-20", "2020-02-09"]
    assert "Vocabularies in the manifest: city of 2 values.\n" in page
    assert "price: of 50 values 2 NaN." in page


def test_the_page_tells_percentiles(tmp_path):
    features = (make_feature("price", "float64"), make_feature("tags", "string", (None,)))
    columns = [np.arange(1.0, 1_001.0), [["x"] * (n % 100) for n in range(1_000)]]
    arrays = [pa.array(c, f.arrow_type) for c, f in zip(columns, features, strict=True)]
    batch = pa.record_batch(arrays, schema=arrow_schema(features))
    write_dataset(tmp_path / "set", features, {"train": batch})
    _, page, _ = inspect(str(tmp_path / "set"))
    assert line_of(page, "numbers")[3:8] == ["min", "p1", "median", "p99", "max"]
    assert line_of(page, "price")[3:8] == ["1", "10", "500", "990", "1000"]
    heading, lengths = [line.split() for line in page.splitlines() if line.startswith(("lengths", "tags"))][-2:]
    assert heading == ["lengths", "min", "median", "p95", "p99", "max", "mean"]
    assert lengths == ["tags", "values", "0", "49", "94", "98", "99", "49.5"]


def test_the_page_is_plain_text_when_piped_and_steers_no_terminal(location):
    _, page, _ = inspect(location, COLUMNS="40", TERM="xterm-256color")
    assert "\x1b" not in page
    assert "[red]Rome\\x1b[2J 35%" in page
    assert FEATURES[0].name in page


def test_shards_are_listed_with_what_finds_them_again(location):
    code, page, _ = inspect(location, "--shards", "--split", "test")
    assert code == 0
    _, text, _ = inspect(location, "--json")
    (split,) = [s for s in json.loads(text)["splits"] if s["name"] == "test"]
    for shard in split["shards"]:
        name = shard["path"].rpartition("/")[2]
        cells = line_of(page, name)
        numbers = (shard["num_examples"], shard["num_bytes"], shard["num_uncompressed_bytes"])
        assert cells[1:] == [*(f"{n:,}" for n in numbers), str(len(shard["block_num_bytes"])), f"{shard['crc32c']:08x}"]
    assert "train-" not in page


def test_examples_are_shown_as_a_person_reads_them(location):
    code, page, _ = inspect(location, "--examples", "2", "--split", "test")
    assert code == 0
    assert "test, example 0" in page
    assert "test, example 1" in page
    assert "test, example 2" not in page
    assert "<1.00 KiB image/jpeg>" in page
    assert "(none)" in page
    assert "1 (dog)" in page
    assert "2020-01-02 00:00:00" in page
    assert "[red]Rome\\x1b[2J" in page
    assert "[x]" in page


def test_more_examples_than_there_are_give_all(location):
    _, page, _ = inspect(location, "--examples", "99", "--split", "test")
    assert page.count("test, example ") == 10


def test_json_holds_everything_as_numbers(location):
    code, text, _ = inspect(location, "--json", "--examples", "1")
    document = json.loads(text)
    assert code == 0
    assert (document["name"], document["version"], document["compression"]) == ("pets", 1, "gzip")
    assert [s["name"] for s in document["splits"]] == ["train", "test"]
    train = document["splits"][0]
    assert train["num_examples"] == 40 == sum(s["num_examples"] for s in train["shards"])
    assert train["statistics"]["height"]["max"] == 139
    assert train["statistics"]["price"]["num_nans"] == 1
    assert train["statistics"]["height"]["quantiles"]["p95"] == 137
    assert train["statistics"]["image"]["length_quantiles"]["p50"] == 1024
    assert sorted(train["statistics"]["city"]["vocabulary"]) == ["Oslo", "[red]Rome\x1b[2J"]
    assert [f["name"] for f in document["features"]] == [f.name for f in FEATURES]
    assert document["examples"][0]["image"] == {"num_bytes": 1024}
    assert document["examples"][0]["when"] == "2020-01-01T00:00:00"
    assert inspect(location, "--json", "--examples", "1")[1] == text


def test_an_older_version_can_be_asked_for(tmp_path):
    write_dataset(tmp_path / "set", FEATURES, {"train": rows(4)}, num_shards=1)
    write_dataset(tmp_path / "set", FEATURES, {"train": rows(8)}, num_shards=1, version=2)
    assert inspect(str(tmp_path / "set"))[1].startswith("set  version 2\n")
    assert "4 examples out" in inspect(str(tmp_path / "set"), "--version", "1")[1]


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--split", "nope"], 2, "no split 'nope'"),
        (["--version", "7"], 2, "no version 7"),
        (["--examples", "0"], 2, "--examples"),
    ],
)
def test_what_is_not_there_is_said_in_one_message(location, args, code, message):
    found, out, err = inspect(location, *args)
    assert (found, out) == (code, "")
    assert message in err
    assert "Traceback" not in err


def test_a_place_without_a_dataset_is_said(tmp_path):
    code, _, err = inspect(str(tmp_path))
    assert code == 2
    assert "there is no dataset" in err


def test_examples_of_a_damaged_shard_name_the_place(tmp_path):
    dataset = write_dataset(tmp_path / "set", FEATURES, {"train": rows(4)}, num_shards=1)
    (shard,) = (tmp_path / "set").rglob("*.tfrecord.gz")
    shard.write_bytes(shard.read_bytes()[:60])
    code, _, err = inspect(str(tmp_path / "set"), "--examples", "1")
    assert code == 1
    assert f"{dataset.shards[0].path}, block 0" in err
