"""Stock tf.data as people write it for speed, to compare with. Only the list of files comes from shardkit.

Shards are read in turn and in parallel (`interleave` over `TFRecordDataset`, in any order that is fast, in chunks,
because single records take more CPU time), batches are parsed as a whole (`parse_example`) and prefetched. Nothing is
shuffled but the order of the shards; more would cost more. Where a feature is nullable, a default stands for
nulls, and nothing says where it does.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from shardkit.adapters.tfdata import CYCLE_LENGTH, ShardFiles, find_damage, logical_values, shard_files, unreachable
from shardkit.bench.rates import Batches, Open
from shardkit.bench.run import Work
from shardkit.dataset.open import Dataset, open_dataset
from shardkit.features import Feature, Features
from shardkit.storage import files as storage

_STORED = {
    "int64_list": tf.int64,
    "float_list": tf.float32,
    "bytes_list": tf.string,
    "little_endian_bytes": tf.string,
}


def check_readable(dataset: Dataset) -> None:
    """Checks that TensorFlow can open the store.

    Raises:
        UsageError: If it cannot.
        StorageError: If it gets no answer.
    """
    files = shard_files(dataset, dataset.manifest.splits[0].name)
    if storage.is_local(dataset.url) or not files.urls:
        return
    try:
        tf.io.gfile.stat(files.urls[0])
    except tf.errors.OpError as error:
        if (lost := unreachable(error, dataset)) is not None:
            raise lost from error


def open_tfdata(work: Work, make: Callable[[ShardFiles, Work], tf.data.Dataset] | None = None) -> Open:
    """Returns a function that yields parsed batches of the dataset, eager tensors by feature name, without end.

    Args:
        make: How; None means `tuned`.
    """

    def read() -> Batches:
        dataset = open_dataset(work.location, work.version)
        batches = (make or tuned)(shard_files(dataset, work.split), work)
        try:
            yield from batches.with_options(threading_options(work.num_threads))
        except tf.errors.OpError as error:
            raise find_damage(error, dataset, work.split) from error

    return read


def threading_options(num_threads: int) -> tf.data.Options:
    """Returns options under which any order is right, and at most so many threads read, if there are more cores."""
    options = tf.data.Options()
    options.deterministic = False
    if num_threads < len(os.sched_getaffinity(0)):
        options.threading.private_threadpool_size = num_threads
        options.autotune.cpu_budget = num_threads
    return options


def tuned(files: ShardFiles, work: Work) -> tf.data.Dataset:
    """Returns batches of parsed columns, epoch after epoch, read in parallel and ahead."""
    shards = tf.data.Dataset.from_tensor_slices(list(files.urls))
    if work.shuffle:
        shards = shards.shuffle(len(files.urls))
    records = shards.interleave(
        lambda url: tf.data.TFRecordDataset(url, files.compression).batch(files.num_chunk_examples),
        cycle_length=min(CYCLE_LENGTH, len(files.urls)),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=False,
    )
    batches = records.rebatch(work.batch_size, drop_remainder=True).repeat()
    return batches.map(parser(work.features), num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def parser(features: Features) -> Callable[[tf.Tensor], dict[str, tf.Tensor | tf.RaggedTensor]]:
    """Returns a function that parses a batch of serialised examples into columns of the features' dtypes."""
    spec = {f.name: _spec_of(f) for f in features}

    def parse(serialized: tf.Tensor) -> dict[str, tf.Tensor | tf.RaggedTensor]:
        columns = tf.io.parse_example(serialized, spec)
        return {f.name: logical_values(columns[f.name], f) for f in features}

    return parse


def _spec_of(feature: Feature) -> tf.io.FixedLenFeature | tf.io.RaggedFeature:
    dtype = _STORED[feature.stored_as]
    if feature.num_values is None:
        return tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int32)
    is_packed = feature.stored_as == "little_endian_bytes"
    shape = [] if is_packed else list(feature.shape)
    if not feature.nullable:
        return tf.io.FixedLenFeature(shape, dtype)
    if is_packed:
        nulls = np.full(feature.num_values, np.nan if feature.dtype == "float64" else 0, feature.dtype)
        return tf.io.FixedLenFeature(shape, dtype, nulls.tobytes())
    empty = {tf.string: b"", tf.float32: np.nan}.get(dtype, 0)
    return tf.io.FixedLenFeature(shape, dtype, np.full([size or 0 for size in feature.shape], empty).tolist())
