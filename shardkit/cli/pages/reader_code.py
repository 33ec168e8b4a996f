"""`shardkit inspect --reader`: Python that reads a split with nothing but TensorFlow, Ray or Spark.

It is made from the manifest and the shard table alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from shardkit.cli.pages.tf_spec import describe, list_files, render_spec
from shardkit.dataset.open import Dataset
from shardkit.errors import UsageError
from shardkit.features import Feature
from shardkit.storage import files as storage

_OF_RAY = {"int64_list": "INT", "float_list": "FLOAT"}
_OF_SPARK = {"int64_list": "BIGINT", "float_list": "FLOAT"}

_RAY = """\
import ray
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

FILES = {files}
SCHEMA = [
{schema}
]

rows = ray.data.read_tfrecords(
    FILES,
    tf_schema=text_format.Parse("\\n".join(SCHEMA), schema_pb2.Schema()),
    arrow_open_stream_args={{"compression": {compression}}},
)
"""

_SPARK = """\
# Takes the package spark-tfrecord of LinkedIn, which spark.jars.packages names.
from pyspark.sql import SparkSession

FILES = {files}
SCHEMA = [
{schema}
]

spark = SparkSession.builder.getOrCreate()
rows = spark.read.format("tfrecord").option("recordType", "Example").schema(", ".join(SCHEMA)).load(FILES)
"""


def render_reader(dataset: Dataset, split: str | None, library: str) -> str:
    """Returns Python source that reads one split of a dataset, the first if none is named.

    Args:
        dataset: What is read.
        split: Its name.
        library: One of `READERS`.

    Raises:
        UsageError: If the dataset has no split.
    """
    manifest = dataset.manifest
    if not manifest.splits:
        raise UsageError(
            "the dataset has no split", where=storage.redact(dataset.url), next_step="Convert inputs that have rows"
        )
    name = manifest.splits[0].name if split is None else manifest.split(split).name
    return READERS[library](dataset, name)


def _render_ray(dataset: Dataset, split: str) -> str:
    # It takes no globs.
    files = [storage.join(storage.redact(dataset.url), shard.path) for shard in dataset.split_shards(split)]
    schema = _lines(map(_field_of_ray, dataset.manifest.features))
    compression = '"gzip"' if dataset.manifest.compression == "gzip" else "None"
    return _RAY.format(files=files, schema=schema, compression=compression)


def _render_spark(dataset: Dataset, split: str) -> str:
    files, _ = list_files(dataset, split)
    return _SPARK.format(files=files, schema=_lines(map(_column_of_spark, dataset.manifest.features)))


def _lines(texts: Iterable[str]) -> str:
    # Names of a dataset of others are texts in the program, and nothing else.
    return "\n".join(f"    {text!r}," for text in texts)


def _field_of_ray(feature: Feature) -> str:
    remark = _remark(feature)
    field = f"feature {{ name: {json.dumps(feature.name)} type: {_OF_RAY.get(feature.stored_as, 'BYTES')} }}"
    return f"{field}  # {remark}" if remark else field


def _column_of_spark(feature: Feature) -> str:
    kind = _OF_SPARK.get(feature.stored_as) or ("STRING" if feature.dtype == "string" else "BINARY")
    if not feature.is_scalar and feature.stored_as != "little_endian_bytes":
        kind = f"ARRAY<{kind}>"
    column = f"`{feature.name.replace('`', '``')}` {kind}"
    remark = _remark(feature).replace("\\", "").replace("'", "")
    return f"{column} COMMENT '{remark}'" if remark else column


def _remark(feature: Feature) -> str:
    """Returns what the type of the other tool does not say."""
    shape = [-1 if size is None else size for size in feature.shape]
    array = "" if feature.is_scalar else f", of shape {shape}"
    if feature.stored_as == "little_endian_bytes":
        return f"little-endian {feature.dtype}{array}: numpy.frombuffer"
    if feature.is_json or feature.dtype.startswith("decimal"):
        return f"{'JSON' if feature.is_json else feature.dtype} in UTF-8{array}"
    meaning = "text in UTF-8" if feature.dtype == "string" else describe(feature)
    is_plain = feature.is_scalar and feature.dtype in ("int64", "float32", "bytes")
    return f"{meaning or ('' if is_plain else feature.dtype)}{array}"


READERS = {"tensorflow": render_spec, "ray": _render_ray, "spark": _render_spark}
"""By library: what renders the source for a dataset and a split."""
