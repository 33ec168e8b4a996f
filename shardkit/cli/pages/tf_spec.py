"""`shardkit inspect --reader tensorflow`: Python that reads a split with nothing but TensorFlow.

A null is an absent key. `tf.io.parse_single_example` fills it in with a default; a comment says with which.
"""

from __future__ import annotations

import fnmatch
import re

from shardkit.dataset.open import Dataset
from shardkit.encoding.codec import FILE_SUFFIX
from shardkit.features import Feature
from shardkit.messages import visible
from shardkit.storage import files as storage

_STORED = {"int64_list": "tf.int64", "float_list": "tf.float32", "bytes_list": "tf.string"}
_MAX_CLASSES = 100
_WILDCARD = re.compile(r"[*?\[\\]")
_UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_NAN = 'b"\\x00\\x00\\x00\\x00\\x00\\x00\\xf8\\x7f"'

_HEAD = """\
import tensorflow as tf

FILES = {files}
SPEC = {{
{spec}
}}


def decode(record):
    row = tf.io.parse_single_example(record, SPEC)
{decoding}    return row


paths = {paths}
rows = tf.data.TFRecordDataset(paths, "{compression}").map(decode, tf.data.AUTOTUNE)
"""


def render_spec(dataset: Dataset, split: str) -> str:
    """Returns Python source that reads one split of a dataset with TensorFlow."""
    manifest = dataset.manifest
    files, are_globs = list_files(dataset, split)
    source = _HEAD.format(
        files=files,
        spec="\n".join(f"    {f.name!r}: {_entry(f)},{_comment(f)}" for f in manifest.features),
        decoding="".join(f"    row[{f.name!r}] = {step}\n" for f in manifest.features for step in _decoding(f)),
        paths="[path for glob in FILES for path in sorted(tf.io.gfile.glob(glob))]" if are_globs else "FILES",
        compression="GZIP" if manifest.compression == "gzip" else "",
    )
    return source + "".join(_classes(f.name, f.vocabulary) for f in manifest.features if f.vocabulary is not None)


def list_files(dataset: Dataset, split: str) -> tuple[list[str], bool]:
    """Returns globs that match the shards of a split, or their paths where no glob does, and whether they are globs."""
    location = storage.redact(dataset.url)
    paths = [shard.path for shard in dataset.split_shards(split)]
    globs = [] if _WILDCARD.search(location) else _globs(dataset, split, paths)
    return [storage.join(location, path) for path in globs or paths], bool(globs)


def describe(feature: Feature) -> str:
    """Returns what the values of a feature mean where its stored type does not say so, else nothing."""
    kind, _, unit = feature.dtype.rstrip("]").partition("[")
    if kind == "date":
        return "days since 1970-01-01"
    if unit:
        zone = "UTC" if feature.timezone else "the wall clock"
        since = {"timestamp": f" since 1970-01-01, {zone}", "time": " since midnight"}.get(kind, "")
        return f"{_UNITS[unit]}{since}"
    if kind.startswith("decimal"):
        return "exact text until it is decoded as float64"
    if feature.is_json:
        return "JSON: json.loads(value.numpy()) gives the objects"
    # A comment of a dataset of others is one line.
    return visible(feature.media_type or "")


def _classes(name: str, classes: tuple[str, ...]) -> str:
    if len(classes) > _MAX_CLASSES:
        return f"# {name!r} has {len(classes):,} classes, which shardkit inspect --json lists\n"
    return f"# The classes of {name!r}: {list(classes)}\n"


def _globs(dataset: Dataset, split: str, own: list[str]) -> list[str]:
    # A version that was appended to has shards in several folders. Shards of others may have any name: no glob.
    suffix = FILE_SUFFIX[dataset.manifest.compression]
    globs = [f"{folder}/{split}-*-of-*{suffix}" for folder in dict.fromkeys(path.rpartition("/")[0] for path in own)]
    found = [shard.path for shard in dataset.shards if any(fnmatch.fnmatchcase(shard.path, glob) for glob in globs)]
    return globs if sorted(found) == sorted(own) else []


def _entry(feature: Feature) -> str:
    if feature.stored_as == "little_endian_bytes":
        # One value holds all numbers of a row.
        size, null = feature.num_values, _NAN if feature.dtype == "float64" else 'b"\\x00"'
        empty = 'b""' if size is None else null if size == 1 else f"{null} * {size}"
        return f"tf.io.FixedLenFeature([], tf.string{f', {empty}' if feature.nullable or size is None else ''})"
    kind = _STORED[feature.stored_as]
    if feature.num_values is None:
        return f"tf.io.RaggedFeature({kind})"
    default = f", {_default(feature)}" if feature.nullable else ""
    return f"tf.io.FixedLenFeature({list(feature.shape)}, {kind}{default})"


def _default(feature: Feature) -> str:
    value = {"int64_list": "0", "float_list": 'float("nan")', "bytes_list": '""'}[feature.stored_as]
    if feature.dtype.startswith("decimal"):
        value = '"nan"'
    return value if feature.is_scalar else f"tf.fill({list(feature.shape)}, {value}).numpy()"


def _decoding(feature: Feature) -> list[str]:
    value, dtype = f"row[{feature.name!r}]", feature.dtype
    if feature.stored_as == "little_endian_bytes":
        shape = [-1 if size is None else size for size in feature.shape]
        return [f"tf.reshape(tf.io.decode_raw({value}, tf.{dtype}), {shape})"]
    if dtype == "uint64":
        return [f"tf.bitcast({value}, tf.uint64)"]
    if dtype.startswith("decimal"):
        return [f"tf.strings.to_number({value}, tf.float64)"]
    if feature.stored_as != "bytes_list" and dtype not in ("int64", "float32", "date") and "[" not in dtype:
        return [f"tf.cast({value}, tf.{dtype})"]
    return []


def _comment(feature: Feature) -> str:
    remarks = [describe(feature)]
    if feature.nullable:
        empty = feature.num_values is None
        remarks.append(f"null is {'an empty list' if empty else _null(feature)}")
    words = "; ".join(filter(None, remarks))
    return f"  # {words}" if words else ""


def _null(feature: Feature) -> str:
    if feature.stored_as == "bytes_list" and not feature.dtype.startswith("decimal"):
        return "an empty string"
    return "0" if feature.dtype in ("int8", "uint8") or feature.stored_as == "int64_list" else "NaN"
