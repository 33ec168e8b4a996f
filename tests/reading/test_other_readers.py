"""Readers that know nothing of shardkit read its shards, and Grain takes a split as a source by position.

They are installed with the extra `test`; without them these tests are skipped.
"""

import ast
import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from subprocess import run

import numpy as np
import pyarrow as pa
import pytest

import shardkit
from shardkit.exporting.options import ExportRequest
from shardkit.exporting.run import Export
from shardkit.features import arrow_schema, make_feature
from shardkit.testing import write_dataset

pytestmark = pytest.mark.full

FEATURES = (
    make_feature("id", "int64"),
    make_feature("x", "float32", (2,)),
    make_feature("word", "string"),
    make_feature("tokens", "int64", (None,)),
)
NUM_ROWS = 60
ROWS = {
    "id": list(range(NUM_ROWS)),
    "x": [[i / 8, -i] for i in range(NUM_ROWS)],
    "word": [f"wört {i}" for i in range(NUM_ROWS)],
    "tokens": [list(range(i % 5)) for i in range(NUM_ROWS)],
}


@pytest.fixture(params=["gzip", "none"])
def dataset(request, tmp_path):
    return write(tmp_path / "set", FEATURES, request.param)


def write(folder, features, compression):
    arrays = [pa.array(ROWS[f.name], f.arrow_type) for f in features]
    rows = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(features))
    return write_dataset(folder, features, {"train": rows}, num_shards=3, compression=compression)


def check(rows):
    assert [int(np.asarray(row["id"]).item()) for row in rows] == ROWS["id"]
    assert [np.asarray(row["x"]).tolist() for row in rows] == ROWS["x"]
    assert [np.asarray(row["tokens"]).tolist() for row in rows] == ROWS["tokens"]


# A separate process: the package declares the messages of TensorFlow again.
LOADER = """
import json, sys
import tfrecord

for arguments in json.load(sys.stdin):
    for row in tfrecord.tfrecord_loader(**arguments):
        texts = {name: bytes(value).decode() for name, value in row.items() if isinstance(value, bytes)}
        print(json.dumps({name: value.tolist() for name, value in row.items() if name not in texts} | texts))
"""


def loaded(*arguments):
    """Returns the rows that the package `tfrecord` reads, for each set of arguments of its loader."""
    if find_spec("tfrecord") is None:
        pytest.skip("could not import 'tfrecord'")
    done = run([sys.executable, "-c", LOADER], input=json.dumps(arguments), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_package_tfrecord(dataset):
    compression = {"gzip": "gzip", "none": None}[dataset.manifest.compression]
    kinds = {"id": "int", "x": "float", "word": "byte", "tokens": "int"}
    shards = [dataset.shard_url(shard) for shard in dataset.shards]
    rows = loaded(
        *({"data_path": s, "index_path": None, "description": kinds, "compression_type": compression} for s in shards)
    )
    check(rows)
    assert [row["word"] for row in rows] == ROWS["word"]


def test_the_index_of_plain_shards_is_that_of_tfrecord(dataset):
    shard = dataset.shard_url(dataset.shards[1])
    if dataset.manifest.compression == "none":
        index = {"data_path": shard, "index_path": f"{shard}.idx", "description": {"id": "int"}}
        halves = loaded(*(index | {"shard": (i, 2)} for i in range(2)))
        assert sorted(int(np.asarray(row["id"]).item()) for row in halves) == list(range(20, 40))
    else:
        assert not Path(f"{shard}.idx").exists()


def printed_reader(dataset, library):
    asked = [sys.executable, "-m", "shardkit", "inspect", dataset.url, "--reader", library]
    return run(asked, capture_output=True, text=True, check=True).stdout


# A separate process: its cluster ends with it.
OF_RAY = """
import json, os, sys
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
import ray

ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
exec(sys.stdin.read())
print(json.dumps(rows.take_all(), default=lambda v: v.decode() if isinstance(v, bytes) else v.tolist()))
"""


@pytest.mark.slow
def test_ray_reads_the_shards(tmp_path):
    pytest.importorskip("ray")
    dataset = write(tmp_path / "set", FEATURES, "gzip")
    # Without the types Ray guesses them anew for each block, and takes lists of one value for values.
    code = printed_reader(dataset, "ray")
    done = run([sys.executable, "-c", OF_RAY], input=code, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    check(sorted(json.loads(done.stdout.splitlines()[-1]), key=lambda row: row["id"]))


# A separate process: Spark's Java ends with it.
OF_SPARK = """
import sys
from pyspark.sql import SparkSession

import shardkit

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.createDataFrame(shardkit.open(sys.argv[1])["train"].to_arrow())
print(frame.schema.simpleString())
print(spark.createDataFrame([], sys.argv[3]).schema.simpleString())
print(frame.toJSON().collect() == spark.read.parquet(sys.argv[2]).toJSON().collect())
print([row.asDict() for row in frame.collect()])
"""


@pytest.mark.slow
def test_spark_takes_a_split_and_its_parquet(tmp_path):
    if find_spec("pyspark") is None or shutil.which("java") is None:
        pytest.skip("Spark is not here")
    dataset = write(tmp_path / "set", FEATURES, "gzip")
    Export(shardkit.open(dataset.url), str(tmp_path / "out"), ExportRequest("parquet")).write(num_threads=1)
    names = {}
    exec(printed_reader(dataset, "spark").partition("\nspark =")[0], names)  # noqa: S102 - this is what users do with it
    schema = ", ".join(names["SCHEMA"])
    given = [dataset.url, str(tmp_path / "out" / "train-00000-of-00001.parquet"), schema]
    done = run([sys.executable, "-c", OF_SPARK, *given], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    kinds, of_shards, is_equal, rows = done.stdout.splitlines()[-4:]
    assert kinds == of_shards == "struct<id:bigint,x:array<float>,word:string,tokens:array<bigint>>"
    assert is_equal == "True"
    check(ast.literal_eval(rows))


@pytest.mark.parametrize("num_processes", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_grain_takes_a_split(dataset, num_processes):
    grain = pytest.importorskip("grain")
    # A program of absl has done so; the processes of Grain ask for its flags.
    pytest.importorskip("absl.flags").FLAGS.mark_as_parsed()
    split = shardkit.open(dataset.url)["train"]
    rows = grain.MapDataset.source(split)
    check(list(rows))
    shuffled = rows.shuffle(seed=1).to_iter_dataset()
    if num_processes:
        shuffled = shuffled.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(num_workers=num_processes))
    found = [int(row["id"]) for row in shuffled]
    assert found != ROWS["id"]
    assert sorted(found) == ROWS["id"]
    sampler = grain.samplers.IndexSampler(NUM_ROWS, grain.sharding.NoSharding(), shuffle=False, num_epochs=1, seed=0)
    check(list(grain.DataLoader(data_source=split, sampler=sampler, worker_count=num_processes)))
