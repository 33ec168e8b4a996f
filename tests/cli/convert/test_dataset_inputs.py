"""Datasets as inputs: filtered, merged, divided anew; stock TensorFlow reads the records of both sides."""

from __future__ import annotations

import datetime
import decimal
import shutil
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from shardkit.cli import main
from shardkit.dataset.open import open_dataset

pytestmark = pytest.mark.full

NUM_ROWS = 600


def run(*args):
    return main(["convert", *map(str, args)])


def table_of(first=0, num_rows=NUM_ROWS):
    numbers = range(first, first + num_rows)
    values = np.random.default_rng(first).random(num_rows)
    messages = [[{"role": "user", "content": f"é {i}"}] * (i % 3) for i in numbers]
    return pa.table({
        "id": pa.array(numbers),
        "x": pa.array(values),
        "small": pa.array(values, pa.float32()),
        "word": pa.array([None if i % 7 == 0 else f"w{i % 13}" for i in numbers]),
        "when": pa.array([datetime.datetime(2020, 1, 1) for _ in numbers], pa.timestamp("us", "UTC")),
        "day": pa.array([datetime.date(2020, 1, 1 + i % 28) for i in numbers]),
        "price": pa.array([decimal.Decimal(i) / 100 for i in numbers], pa.decimal128(12, 2)),
        "chat": pa.array(messages),
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(values, 4)), 4),
        "list": pa.array([[i % 250] * (i % 4) for i in numbers], pa.list_(pa.uint8())),
        "big": pa.array([2**63 + i for i in numbers], pa.uint64()),
    })  # fmt: skip


@pytest.fixture
def dataset(tmp_path):
    pq.write_table(table_of(), tmp_path / "a.parquet")
    out = tmp_path / "dataset"
    splits = ("--split", "train=0.8", "--split", "holdout=0.2", "--num-shards", "3")
    assert run(tmp_path / "a.parquet", out, *splits) == 0
    return out


def records_of(folder, split=None):
    """Returns the records as stock TensorFlow reads them, and how often each is there."""
    import tensorflow as tf

    opened = open_dataset(folder)
    paths = [opened.shard_url(shard) for shard in opened.shards if split in (None, shard.split)]
    kind = "GZIP" if opened.manifest.compression == "gzip" else ""
    return Counter(record for path in paths for record in tf.data.TFRecordDataset(path, kind).as_numpy_iterator())


def test_without_an_option_features_splits_and_records_stay(dataset, tmp_path, capfd):
    assert run(dataset, tmp_path / "again", "--compression", "none", "--num-shards", "5") == 0
    before, after = (open_dataset(folder).manifest for folder in (dataset, tmp_path / "again"))
    assert after.features == before.features
    assert {split.name for split in after.splits} == {"train", "holdout"}
    for name in ("train", "holdout"):
        assert records_of(tmp_path / "again", name) == records_of(dataset, name)
        assert after.split(name).statistics["word"] == before.split(name).statistics["word"]
    output = capfd.readouterr().err
    assert f"version 1 of the dataset 'dataset' is read, whose fingerprint is {before.fingerprint}" in output
    assert all(before.fingerprint in source.name for source in after.accounting.inputs)


def test_the_order_stays_without_shuffling(dataset, tmp_path):
    assert run(dataset, tmp_path / "once", "--no-shuffle", "--num-shards", "1") == 0
    assert run(tmp_path / "once", tmp_path / "twice", "--no-shuffle", "--num-shards", "1") == 0
    assert list(records_of(tmp_path / "twice", "train")) == list(records_of(dataset, "train"))


def test_rows_are_filtered_and_divided_anew_and_counted_again(dataset, tmp_path, capfd):
    asked = ("--split", "train=0.5", "--split", "test=0.5", "--drop-columns", "chat,vector,list,when,day,price,big")
    assert run(dataset, tmp_path / "out", "--select", "SELECT * FROM rows WHERE id < 100", *asked) == 0
    manifest = open_dataset(tmp_path / "out").manifest
    assert [feature.name for feature in manifest.features] == ["id", "x", "small", "word"]
    assert {split.name for split in manifest.splits} == {"train", "test"}
    assert sum(split.num_examples for split in manifest.splits) == 100
    assert max(split.statistics["id"].max for split in manifest.splits) == 99
    assert "the dataset has splits (train, holdout), which are pooled" in capfd.readouterr().err


def test_classes_of_merged_datasets_are_those_of_all(tmp_path, capfd):
    import tensorflow as tf

    shades = {"cat": 10, "dog": 20, "bird": 30}
    for name, classes in (("one", ("cat", "dog")), ("two", ("bird", "cat"))):
        for split in ("train", "test"):
            for class_name in classes:
                folder = tmp_path / name / split / class_name
                folder.mkdir(parents=True)
                Image.new("RGB", (8, 8), (shades[class_name], 0, 0)).save(folder / f"{name}.png")
        assert run(tmp_path / name, tmp_path / f"{name}-dataset") == 0
    assert run(tmp_path / "one-dataset", tmp_path / "two-dataset", tmp_path / "out") == 0
    assert "different classes in 'label', together 3" in capfd.readouterr().err
    names = open_dataset(tmp_path / "out").manifest.feature("label").vocabulary
    assert names == ("cat", "dog", "bird")
    for split in ("train", "test"):
        found = Counter()
        for record in records_of(tmp_path / "out", split).elements():
            values = tf.train.Example.FromString(record).features.feature
            shade = int(tf.io.decode_png(values["image"].bytes_list.value[0]).numpy()[0, 0, 0])
            found[names[values["label"].int64_list.value[0]], shade] += 1
        assert found == {("cat", 10): 2, ("dog", 20): 1, ("bird", 30): 1}


def test_the_newest_version_is_read_or_the_one_whose_manifest_is_named(dataset, tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(2):
        pq.write_table(table_of(number * NUM_ROWS), tmp_path / "in" / f"{number}.parquet")
        assert run(tmp_path / "in", tmp_path / "grown", *(("--append",) if number else ())) == 0
    assert run(tmp_path / "grown", tmp_path / "new") == 0
    assert run(tmp_path / "grown/manifests/00000001.json", tmp_path / "old") == 0
    assert sum(records_of(tmp_path / "new").values()) == 2 * NUM_ROWS
    assert sum(records_of(tmp_path / "old").values()) == NUM_ROWS


def test_what_a_dataset_gained_is_appended(tmp_path, capfd):
    (tmp_path / "in").mkdir()
    for number in range(2):
        pq.write_table(table_of(number * NUM_ROWS), tmp_path / "in" / f"{number}.parquet")
        more = ("--append",) if number else ()
        assert run(tmp_path / "in", tmp_path / "grown", *more) == 0
        assert run(tmp_path / "grown", tmp_path / "copy", *more) == 0
        assert records_of(tmp_path / "copy") == records_of(tmp_path / "grown")
    assert run(tmp_path / "grown", tmp_path / "copy", "--append") == 0
    assert "Nothing to append" in capfd.readouterr().out


def test_an_indexed_dataset_is_read_with_its_features(dataset, tmp_path):
    shutil.copytree(next((dataset / "data").iterdir()), tmp_path / "theirs")
    assert main(["index", str(tmp_path / "theirs")]) == 0
    assert run(tmp_path / "theirs", tmp_path / "out") == 0
    assert open_dataset(tmp_path / "out").manifest.features == open_dataset(tmp_path / "theirs").manifest.features
    assert records_of(tmp_path / "out") == records_of(dataset)


def test_without_shuffling_what_was_appended_stays_behind(tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(3):
        pq.write_table(table_of(number * 10, 10), tmp_path / "in" / f"{number}.parquet")
        assert run(tmp_path / "in", tmp_path / "grown", "--no-shuffle", *(("--append",) if number else ())) == 0
    assert run(tmp_path / "grown", tmp_path / "out", "--no-shuffle", "--num-shards", "1") == 0
    assert list(records_of(tmp_path / "out")) == list(records_of(tmp_path / "grown"))
    assert run(tmp_path / "grown", tmp_path / "few", "--limit", "5") == 0
    assert open_dataset(tmp_path / "few").manifest.splits[0].statistics["id"].max == 4


def test_two_versions_of_one_dataset_are_not_one_input(dataset, tmp_path, capfd):
    for inputs in ((dataset, dataset / "manifests/00000001.json"), (tmp_path, dataset / "manifests/00000001.json")):
        assert run(*inputs, tmp_path.parent / f"{tmp_path.name}-out") == 2
        assert "two versions of one dataset are named" in capfd.readouterr().err


def test_files_that_the_manifest_does_not_name_are_left_out_with_a_note(dataset, tmp_path, capfd):
    shutil.copytree(next((dataset / "data").iterdir()), tmp_path / "theirs", ignore=shutil.ignore_patterns("stat*"))
    assert main(["index", str(tmp_path / "theirs")]) == 0
    shutil.copy(next((tmp_path / "theirs").glob("train-*")), tmp_path / "theirs/train-new.tfrecord.gz")
    (tmp_path / "theirs/README.md").write_text("of no interest")
    assert run(tmp_path / "theirs", tmp_path / "out") == 0
    output = capfd.readouterr().err
    assert output.count("is in the folder of a dataset that does not name it, and was left out") == 1
    assert "note: train-new.tfrecord.gz is in the folder" in output
    assert records_of(tmp_path / "out") == records_of(dataset)


def test_a_dataset_in_the_folder_of_another_one_is_read_too(dataset, tmp_path):
    shutil.copytree(dataset, tmp_path / "outer")
    shutil.copytree(dataset, tmp_path / "outer" / "inner")
    assert run(tmp_path / "outer", tmp_path / "out") == 0
    assert sum(records_of(tmp_path / "out").values()) == 2 * NUM_ROWS


def test_a_dataset_that_was_made_anew_at_its_place_is_read_as_it_is_now(dataset, tmp_path):
    assert run(dataset, tmp_path / "first") == 0
    shutil.rmtree(dataset)
    pq.write_table(table_of(1000, 50).select(["id", "word"]), tmp_path / "b.parquet")
    assert run(tmp_path / "b.parquet", dataset) == 0
    assert run(dataset, tmp_path / "second") == 0
    assert records_of(tmp_path / "second") == records_of(dataset)


def test_a_shard_table_that_is_named_alone_is_parquet(dataset, tmp_path):
    assert run(f"{dataset}/manifests/*.parquet", tmp_path / "out") == 0
    assert "sha256" in [feature.name for feature in open_dataset(tmp_path / "out").manifest.features]


def test_a_dataset_without_rows_has_none(tmp_path, capfd):
    (tmp_path / "a.csv").write_text("id\n1\n")
    assert (
        run(tmp_path / "a.csv", tmp_path / "none", "--select", "SELECT * FROM rows WHERE id < 0", "--allow-empty") == 0
    )
    for options in ((), ("--allow-empty",)):
        assert run(tmp_path / "none", tmp_path / "out", *options) in (2, 3)
        assert "SK-E" in capfd.readouterr().err
    assert main(["inspect", str(tmp_path / "none"), "--reader", "tensorflow"]) == 2


def test_an_older_version_is_offered_where_the_newest_is_broken(dataset, tmp_path, capfd):
    pq.write_table(table_of(NUM_ROWS), tmp_path / "b.parquet")
    assert run(tmp_path / "b.parquet", dataset, "--append") == 0
    (dataset / "manifests/00000002.json").write_text("{}")
    assert run(dataset, tmp_path / "out") == 3
    assert f"{dataset}/manifests/00000001.json" in " ".join(capfd.readouterr().err.split())
    assert run(dataset / "manifests/00000001.json", tmp_path / "out") == 0


def test_classes_and_words_become_one_column_of_words(tmp_path):
    (tmp_path / "schema.toml").write_text('[features.v]\ndtype = "int64"\nvocabulary = ["a", "b"]\n')
    for name, options in (("classes", ("--schema", tmp_path / "schema.toml")), ("words", ())):
        (tmp_path / f"{name}.csv").write_text("v,n\nb,1\na,2\n")
        assert run(tmp_path / f"{name}.csv", tmp_path / name, *options) == 0
    assert run(tmp_path / "classes", tmp_path / "words", tmp_path / "out") == 2
    assert run(tmp_path / "classes", tmp_path / "words", tmp_path / "out", "--cast", "v=string") == 0
    found = open_dataset(tmp_path / "out").manifest
    assert found.splits[0].statistics["v"].vocabulary == ("a", "b")
    assert found.feature("v").dtype == "string"


@pytest.mark.parametrize("harm", ["missing", "cut off", "other bytes", "manifest"])
@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_a_damaged_dataset_is_no_input(dataset, tmp_path, capfd, harm, policy):
    shard = sorted((dataset / "data").rglob("train-*"))[1]
    content = shard.read_bytes()
    if harm == "missing":
        shard.unlink()
    elif harm == "cut off":
        shard.write_bytes(content[:-100])
    elif harm == "other bytes":
        shard.write_bytes(content[:50] + bytes(100) + content[150:])
    else:
        (dataset / "manifests/00000001.json").write_text("{}")
    # A file whose content is damaged may be left out, in every format.
    is_left_out = (harm, policy) == ("other bytes", "skip")
    assert run(dataset, tmp_path / "out", "--on-bad-record", policy) == (0 if is_left_out else 3)
    output = capfd.readouterr()
    assert (shard.name if harm != "manifest" else "00000001.json") in output.out + output.err
    assert (tmp_path / "out" / "manifests").exists() == is_left_out


def test_a_dataset_and_other_files_are_not_one_input(dataset, tmp_path, capfd):
    assert run(dataset, tmp_path / "a.parquet", tmp_path / "out") == 2
    assert "the inputs are datasets of shardkit and other files" in capfd.readouterr().err
    assert run(dataset, tmp_path / "a.parquet", tmp_path / "out", "--format", "dataset") == 0
    assert records_of(tmp_path / "out") == records_of(dataset)


def test_shards_that_are_named_alone_are_records_and_a_note_names_the_folder(dataset, tmp_path, capfd):
    assert run(f"{dataset}/data/*/train*", tmp_path / "out") == 0
    assert "name the folder of the dataset instead" in capfd.readouterr().err


def test_a_folder_with_manifests_of_others_is_no_dataset(tmp_path):
    (tmp_path / "in/manifests").mkdir(parents=True)
    (tmp_path / "in/manifests/20240101.json").write_text('[{"a": 1}, {"a": 2}]')
    assert run(tmp_path / "in", tmp_path / "out") == 0
    assert run(tmp_path / "in/manifests/20240101.json", tmp_path / "alone") == 0
    assert sum(records_of(tmp_path / "alone").values()) == 2
