"""The stock tf.data graph over a split: parallel interleave over shards, and batches parsed as a whole.

Order is a pure function of (shards, seed, epoch): shards are permuted, `CYCLE_LENGTH` of them are read in turn, and
records are permuted inside consecutive windows. Nothing depends on the number of threads. Records are never handled
one by one: that halves the reading rate, and parsing them one by one costs eight times as much.

Every shard's records are counted against the manifest while they are read, because TFRecord cannot see a shard that
was cut between two records.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import numpy as np
import tensorflow as tf

from shardkit.dataset.manifest import ShardInfo
from shardkit.dataset.open import Dataset
from shardkit.errors import DamageError, ShardkitError, StorageError, UsageError
from shardkit.features import Feature, Features
from shardkit.storage import files as storage
from shardkit.units import KiB, MiB

CYCLE_LENGTH = 16
CHUNK_BYTES = 512 * KiB
MAX_CHUNK_EXAMPLES = 256
WINDOW_BYTES = 64 * MiB
MAX_WINDOW_EXAMPLES = 16_384

_COUNT_MARK = "shardkit-count"
_COUNT_MESSAGE = re.compile(re.escape(f"[{_COUNT_MARK}]") + r" \[(.*)\] \[(\d+)\] \[(\d+)\]", re.DOTALL)
# Message of TensorFlow's client of gs://.
_NO_ANSWER = re.compile(r"executing an HTTP request")
_READABLE = ("file", "gs")


class ParsedBatch(NamedTuple):
    """Some examples as columns.

    Attributes:
        values: By feature name: `[n, *shape]` of the logical dtype (decimals and strings as bytes, dates and times as
            int64 counts), a `tf.RaggedTensor` for lists. A null is 0, NaN or empty.
        present: By name of every nullable feature: bool `[n]`, False where the example lacks it.
    """

    values: dict[str, tf.Tensor | tf.RaggedTensor]
    present: dict[str, tf.Tensor]


class ShardFiles(NamedTuple):
    """What reading a split needs to know about its shards.

    Attributes:
        num_examples: Of each shard.
        compression: `GZIP`, or empty.
        check_step: What to run after damage.
    """

    urls: tuple[str, ...]
    num_examples: tuple[int, ...]
    compression: str
    mean_num_bytes: float
    check_step: str

    @property
    def num_chunk_examples(self) -> int:
        """Records that are handled as one piece while shards are read in turn."""
        return max(1, min(MAX_CHUNK_EXAMPLES, int(CHUNK_BYTES / self.mean_num_bytes)))

    @property
    def num_window_examples(self) -> int:
        """Records that are shuffled together, at most `WINDOW_BYTES` and `MAX_WINDOW_EXAMPLES`."""
        return max(1, min(MAX_WINDOW_EXAMPLES, int(WINDOW_BYTES / self.mean_num_bytes)))


def shard_files(dataset: Dataset, split: str) -> ShardFiles:
    """Returns the shards of a split as TensorFlow opens them. Empty shards are left out.

    Raises:
        UsageError: If TensorFlow has no reader for the store.
    """
    protocol = storage.protocol_of(dataset.url)
    if protocol.replace("gcs", "gs") not in _READABLE:
        raise UsageError(
            f"TensorFlow's own reader opens local files and gs://, not {protocol}://",
            where=storage.redact(dataset.url),
            next_step="Copy the dataset to a local folder; a dataset is its folder and nothing else",
        )
    shards = [s for s in dataset.split_shards(split) if s.num_examples]
    num_examples = sum(s.num_examples for s in shards)
    num_bytes = sum(s.num_uncompressed_bytes for s in shards)
    return ShardFiles(
        urls=tuple(dataset.shard_url(s).replace("gcs://", "gs://", 1) for s in shards),
        num_examples=tuple(s.num_examples for s in shards),
        compression="GZIP" if dataset.manifest.compression == "gzip" else "",
        mean_num_bytes=max(1.0, num_bytes / max(1, num_examples)),
        check_step=dataset.check_step,
    )


def load_split(
    dataset: Dataset,
    split: str,
    *,
    batch_size: int,
    features: Features | None = None,
    shuffle_seed: int | None = None,
    epoch: int = 0,
    with_presence: bool = False,
) -> tf.data.Dataset:
    """Returns one epoch of a split as a dataset of columns by feature name.

    Args:
        batch_size: Examples a batch; the last batch holds what is left.
        features: Which to parse; None means all.
        shuffle_seed: None reads the shards in their stored order, one after the other.
        epoch: Gives another order for the same seed.
        with_presence: Whether each element is a pair of the columns and, for nullable features, bools that say where
            a value is present.

    Raises:
        UsageError: If there is no such split, or TensorFlow cannot open the store.
    """
    chosen = dataset.manifest.features if features is None else features
    files = shard_files(dataset, split)
    seed = None if shuffle_seed is None else tf.constant([shuffle_seed, epoch], tf.int64)
    records = read_records(files, seed=seed)
    if seed is not None:
        records = shuffle_windows(records, files.num_window_examples, seed)

    def parse(serialized: tf.Tensor) -> Any:
        batch = parse_examples(serialized, chosen)
        return tuple(batch) if with_presence else batch.values

    batches = records.rebatch(batch_size).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    return batches.prefetch(tf.data.AUTOTUNE).with_options(reading_options())


def read_records(files: ShardFiles, *, seed: tf.Tensor | None) -> tf.data.Dataset:
    """Returns the serialized examples of all shards in chunks of unequal size, string `[n]`.

    Args:
        seed: int64 `[2]`; permutes the shards and reads `CYCLE_LENGTH` of them in turn. None reads them in order.
    """
    order = tf.range(len(files.urls))
    if seed is not None:
        order = tf.random.experimental.stateless_shuffle(order, seed)
    urls = tf.gather(tf.constant(files.urls, tf.string), order)
    counts = tf.gather(tf.constant(files.num_examples, tf.int64), order)
    shards = tf.data.Dataset.from_tensor_slices((urls, counts))

    def chunks(url: tf.Tensor, num_examples: tf.Tensor) -> tf.data.Dataset:
        records = tf.data.TFRecordDataset(url, files.compression).batch(files.num_chunk_examples)
        # Not ignore_errors, after which the count would name any damaged shard: it never ends if a file is missing.
        return _counted(records, url, num_examples, files.check_step)

    if seed is None:
        return shards.flat_map(chunks)
    cycle_length = min(CYCLE_LENGTH, max(1, len(files.urls)))
    return shards.interleave(
        chunks,
        cycle_length=cycle_length,
        num_parallel_calls=min(cycle_length, os.cpu_count() or 1),
        deterministic=True,
    )


def shuffle_windows(records: tf.data.Dataset, num_window_examples: int, seed: tf.Tensor) -> tf.data.Dataset:
    """Returns the same records, permuted inside consecutive windows, one window an element.

    A function of (order of the records, seed) alone, unlike a shuffle buffer of single records, and no dearer.

    Args:
        records: Strings `[n]` with any n.
        num_window_examples: Records a window; the last one is shorter.
        seed: int64 `[2]`.
    """

    def permute(window_index: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
        return tf.random.experimental.stateless_shuffle(window, fold_in(seed, window_index))

    # The next window is read while this one is used up; otherwise every window begins with a stall.
    return records.rebatch(num_window_examples).enumerate().map(permute).prefetch(1)


def fold_in(seed: tf.Tensor, data: tf.Tensor) -> tf.Tensor:
    """Returns another seed, int64 `[2]`, for each value of data."""
    return tf.random.experimental.stateless_fold_in(seed, data)


def reading_options() -> tf.data.Options:
    """Returns options under which elements come in the same order every time, and reading starts at once."""
    options = tf.data.Options()
    options.deterministic = True
    options.experimental_warm_start = True
    return options


def parse_examples(serialized: tf.Tensor, features: Features) -> ParsedBatch:
    """Returns the columns of serialized examples.

    Args:
        serialized: String `[n]`.
        features: Which to parse, at least one.
    """
    raw = tf.io.parse_example(serialized, {f.name: _stored_feature(f) for f in features})
    values: dict[str, tf.Tensor | tf.RaggedTensor] = {}
    present: dict[str, tf.Tensor] = {}
    for feature in features:
        column = raw[feature.name]
        if feature.nullable:
            present[feature.name] = column.row_lengths() > 0
        values[feature.name] = logical_values(column, feature)
    return ParsedBatch(values, present)


@contextmanager
def damage_named(dataset: Dataset, split: str) -> Iterator[None]:
    """Lets an error of TensorFlow pass, unless a shard is damaged; see `shardkit.adapters.tensorflow.naming_damage`."""
    try:
        yield
    except tf.errors.OpError as error:
        if (lost := unreachable(error, dataset)) is not None:
            raise lost from error
        if _COUNT_MESSAGE.search(error.message) or _damaged_shard(dataset, split) is not None:
            raise find_damage(error, dataset, split) from error
        raise


def unreachable(error: tf.errors.OpError, dataset: Dataset) -> StorageError | None:
    """Returns the error where TensorFlow's own client of a store got no answer; None for any other error."""
    is_missing = isinstance(error, tf.errors.NotFoundError)
    if storage.is_local(dataset.url) or is_missing or not _NO_ANSWER.search(error.message):
        return None
    return StorageError(
        "TensorFlow cannot reach the store",
        where=storage.redact(dataset.url),
        why=first_line(error.message),
        next_step="It uses another client, which knows neither --storage-options nor another endpoint: leave stock "
        "tf.data out, as --reader shardkit does",
    )


def find_damage(error: tf.errors.OpError, dataset: Dataset, split: str) -> ShardkitError:
    """Returns what an error of a reading graph says about the shards, or about the way to them.

    Where TensorFlow does not name the shard, sizes and then checksums of the split are compared with the shard table.
    """
    if (lost := unreachable(error, dataset)) is not None:
        return lost
    next_step = f"Run `shardkit verify {storage.redact(dataset.url)}` for all damages, then convert again"
    if match := _COUNT_MESSAGE.search(error.message):
        url, expected, found = match.groups()
        more = "or more" if int(found) > int(expected) else "and nothing after them"
        return DamageError(
            "a shard does not hold the records that the manifest promises",
            where=storage.redact(url),
            why=f"expected {int(expected):,}, found {int(found):,} {more}",
            next_step=next_step,
        )
    where = _damaged_shard(dataset, split)
    return DamageError(
        "a shard cannot be read" if where else f"a shard of split {split!r} cannot be read",
        where=where,
        why=first_line(error.message),
        next_step=next_step,
    )


def first_line(message: str) -> str:
    """Returns the first line of a message of TensorFlow without the names of graph nodes."""
    lines = message.strip().splitlines() or ["no message"]
    return re.sub(r"^\{\{.*?\}\}\s*|\s*\[\[?\{\{.*$|\s*\[Op:.*$", "", lines[0]).strip()


def _counted(records: tf.data.Dataset, url: tf.Tensor, num_examples: tf.Tensor, check_step: str) -> tf.data.Dataset:
    def count(num_before: tf.Tensor, chunk: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        num_seen = num_before + tf.size(chunk, tf.int64)
        is_end = tf.equal(tf.size(chunk), 0)
        is_right = tf.where(is_end, tf.equal(num_seen, num_examples), num_seen <= num_examples)
        check = tf.debugging.Assert(is_right, [_COUNT_MARK, url, num_examples, num_seen, check_step])
        with tf.control_dependencies([check]):
            return tf.identity(num_seen), chunk

    end = tf.data.Dataset.from_tensors(tf.constant([], tf.string))
    return records.concatenate(end).scan(tf.constant(0, tf.int64), count)


def _stored_feature(feature: Feature) -> tf.io.FixedLenFeature | tf.io.RaggedFeature:
    dtype = {
        "int64_list": tf.int64,
        "float_list": tf.float32,
        "bytes_list": tf.string,
        "little_endian_bytes": tf.string,
    }[feature.stored_as]
    if feature.nullable or feature.num_values is None:
        return tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int64)
    is_packed = feature.stored_as == "little_endian_bytes"
    return tf.io.FixedLenFeature([] if is_packed else list(feature.shape), dtype)


def logical_values(column: tf.Tensor | tf.RaggedTensor, feature: Feature) -> tf.Tensor | tf.RaggedTensor:
    """Returns a parsed column in the shape and of the dtype that the feature has."""
    if feature.stored_as == "little_endian_bytes":
        column = _unpack(column, feature)
    if isinstance(column, tf.RaggedTensor) and feature.num_values is not None:
        absent = {tf.string: b"", tf.float32: np.nan, tf.float64: np.nan}.get(column.dtype, 0)
        dense = column.to_tensor(absent, shape=[None, feature.num_values])
        column = tf.reshape(dense, [-1, *cast("tuple[int, ...]", feature.shape)])
    logical = _tensor_dtype(feature.dtype)
    return column if column.dtype == logical else tf.cast(column, logical)


def _unpack(column: tf.Tensor | tf.RaggedTensor, feature: Feature) -> tf.Tensor | tf.RaggedTensor:
    dtype = tf.as_dtype(feature.dtype)
    if isinstance(column, tf.RaggedTensor):
        # decode_raw wants equal lengths, so all rows are unpacked as one string and cut again.
        row_bytes = tf.strings.reduce_join(column, axis=1)
        values = tf.io.decode_raw(tf.strings.reduce_join(row_bytes), dtype, little_endian=True)
        lengths = tf.strings.length(row_bytes) // dtype.size
        return tf.RaggedTensor.from_row_lengths(values, tf.cast(lengths, tf.int64))
    values = tf.io.decode_raw(column, dtype, little_endian=True)
    return tf.reshape(values, [-1, *cast("tuple[int, ...]", feature.shape)])


def _tensor_dtype(dtype: str) -> tf.DType:
    if dtype.startswith("decimal") or dtype in ("string", "bytes"):
        return tf.string
    if dtype == "date" or "[" in dtype:
        return tf.int64
    return tf.as_dtype(dtype)


def check_sizes(dataset: Dataset, split: str) -> None:
    """Checks that the shards of a local dataset are files of the right size; TensorFlow would wait for a pipe.

    Raises:
        DamageError: If one is not; names it.
    """
    for shard in dataset.split_shards(split) if storage.is_local(dataset.url) else ():
        if (why := _wrong_size(dataset, shard)) is not None:
            where = storage.redact(dataset.shard_url(shard))
            raise DamageError("a shard cannot be read", where=where, why=why, next_step=dataset.check_step)


def _wrong_size(dataset: Dataset, shard: ShardInfo) -> str | None:
    url = dataset.shard_url(shard)
    try:
        num_bytes = storage.stat_file(url).num_bytes if storage.exists(url) else None
    except UsageError as error:
        return error.why or "it is not a regular file"
    if num_bytes is None:
        return "it is missing"
    return None if num_bytes == shard.num_bytes else f"expected {shard.num_bytes:,} bytes, found {num_bytes:,}"


def _damaged_shard(dataset: Dataset, split: str) -> str | None:
    shards = dataset.split_shards(split)
    wrong = next((s for s in shards if _wrong_size(dataset, s) is not None), None)
    if wrong is None:
        wrong = next((s for s in shards if storage.hash_file(dataset.shard_url(s)) != s.sha256), None)
    return None if wrong is None else storage.redact(dataset.shard_url(wrong))
