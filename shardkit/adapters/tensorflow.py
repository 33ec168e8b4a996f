"""TensorFlow: batches of the reader as tensors, for a user's loop or as a `tf.data.Dataset`.

Numbers are where the reader decoded them: TensorFlow takes over aligned memory without a copy (DLPack), in a hundredth
of the time that `tf.convert_to_tensor` takes for 3 MB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, get_args

import numpy as np
import tensorflow as tf

from shardkit.adapters.tfdata import check_sizes, damage_named, load_split
from shardkit.errors import UsageError
from shardkit.features import Feature, Features
from shardkit.reading.batch import Batch, Ragged
from shardkit.reading.hooks import BatchSource, MappedSource
from shardkit.reading.length_buckets import length_name
from shardkit.reading.reader import BatchReader
from shardkit.reading.split import Split

Tensors = dict[str, Any]
Engine = Literal["reader", "tfdata"]

# EIGEN_MAX_ALIGN_BYTES.
_ALIGNMENT = 64
# sizeof(tensorflow::tstring).
_TSTRING_BYTES = 24
_NUM_SAMPLED = 16


class TensorBatches:
    """Iterates over a worker's batches as dicts of eager tensors.

    Numbers and bools are tensors of their dtype; times are int64 counts of their unit; text, bytes and decimals are
    strings; lists of any length are `tf.RaggedTensor`. Where a feature is nullable, `NAME/present` is a bool tensor,
    and where the last batch is filled up, `mask` is one.

    Attributes:
        reader: What is read; `reader.state()` and `reader.restore()` are those of the run.
    """

    def __init__(self, reader: BatchReader) -> None:
        self.reader = reader

    def __iter__(self) -> Iterator[Tensors]:
        return map(to_tensors, self.reader)

    def __len__(self) -> int:
        return self.reader.num_steps


def batches(split: BatchSource, *, global_batch_size: int | None = None, **settings: Any) -> TensorBatches:
    """Returns an iterable of a worker's batches.

    Args:
        split: What is read: a split, a mixture, or one of them with functions on its batches. Those get text as bytes.
        global_batch_size: Examples that all workers together take a step; None if `buckets` say how many.
        **settings: Others of `Split.batches`, such as `seed`, `worker_index`, `num_workers`, `remainder`, `features`.

    Raises:
        UsageError: If the numbers do not fit together; says what would.
    """
    return TensorBatches(split.batches(global_batch_size=global_batch_size, decodes_text=False, **settings))


def dataset(
    split: BatchSource, *, global_batch_size: int | None = None, engine: Engine = "reader", **settings: Any
) -> tf.data.Dataset:
    """Returns a worker's batches as a `tf.data.Dataset`; each iteration reads the same epochs from their start.

    With `engine="reader"` every batch passes through Python and is copied once more: a plain loop over `batches`
    is faster. `engine="tfdata"` is a graph of stock operations (interleave over the shards, `TFRecordDataset`, batch,
    `parse_example`), for graphs that are saved; tf.data service takes `shardkit.adapters.tfdata.load_split`, which
    promises no number of steps. It has another order and no state, reads one epoch, and takes `seed`, `epoch`,
    `shuffle`, `features` and `remainder="drop"` alone.

    Damage ends either graph with an error of TensorFlow (`tf.errors.OpError`), for only those leave a graph. That of
    the reader names the shard and what to run. With `engine="tfdata"` the sizes of local shards are looked at here, and
    the graph counts the records of each, which both name it; what TensorFlow itself meets, such as a wrong checksum, it
    often reports without a name: `naming_damage` finds the shard. One with as many other records passes.

    Args:
        split: What is read: a split, a mixture, or one of them with functions on its batches. Of all but a split the
            first batch is read here, to learn its columns.
        global_batch_size: Examples that all workers together take a step; None if `buckets` say how many: then the
            graph does not know the number of rows.
        **settings: Others of `Split.batches`.

    Raises:
        UsageError: If the numbers do not fit together; says what would. If there are no batches to learn from. If
            stock operations cannot do what is asked.
        DamageError: If the first batch cannot be read, or with `engine="tfdata"` if a local shard is missing, cut off
            or no file.
    """
    if engine not in get_args(Engine):
        raise UsageError(
            f"there is no engine {engine!r}", next_step=f"Give one of: {', '.join(map(repr, get_args(Engine)))}"
        )
    if engine == "tfdata":
        return _tfdata_dataset(split, global_batch_size, settings)
    opened = batches(split, global_batch_size=global_batch_size, **settings).reader
    num_rows = None if global_batch_size is None else global_batch_size // settings.get("num_workers", 1)
    signature = _signature(split, opened, num_rows, settings)

    def generate() -> Iterator[Tensors]:
        reader = batches(split, global_batch_size=global_batch_size, **settings)
        for tensors in reader:
            if "mask" in signature and "mask" not in tensors:
                tensors["mask"] = tf.ones([_num_rows(next(iter(tensors.values())))], tf.bool)
            yield tensors

    made = tf.data.Dataset.from_generator(generate, output_signature=signature)
    num_epochs = settings.get("num_epochs", 1)
    return made.apply(tf.data.experimental.assert_cardinality(opened.num_steps * num_epochs))


@contextmanager
def naming_damage(split: Split) -> Iterator[None]:
    """Makes an error of TensorFlow inside, such as of `model.fit`, one that names the damaged shard, if there is one.

        with naming_damage(train):
            model.fit(dataset(train, global_batch_size=256, engine="tfdata"))

    Then the sizes of the shards are compared with the manifest, and if they agree, their SHA-256: that reads them all.

    Raises:
        DamageError: In the place of the error, if a shard is missing, cut off or damaged; says what to run.
    """
    with damage_named(split.dataset, split.name):
        yield


def to_tensors(batch: Batch, piece_bytes: int | None = None) -> Tensors:
    """Returns the columns of a batch whose text was not decoded.

    Args:
        piece_bytes: Of text or bytes that are copied at a time, about, so that other threads have their turn between
            (TensorFlow holds Python's lock while it copies them); the pieces are then copied once more, without the
            lock. None for all at once.
    """
    tensors: Tensors = {name: _to_tensor(column, piece_bytes) for name, column in batch.items()}
    for name, bools in batch.present.items():
        tensors[f"{name}/present"] = tf.convert_to_tensor(bools)
    if batch.mask is not None:
        tensors["mask"] = tf.convert_to_tensor(batch.mask)
    return tensors


def _to_tensor(column: Any, piece_bytes: int | None) -> Any:
    if isinstance(column, Ragged):
        splits = _taken_over(column.row_splits)
        return tf.RaggedTensor.from_row_splits(_to_tensor(column.values, piece_bytes), splits, validate=False)
    if column.dtype.kind in "mM":
        return _taken_over(column.view(np.int64))
    if column.dtype == object:
        return _to_strings(column, piece_bytes) if column.size else tf.zeros(column.shape, tf.string)
    return _taken_over(column)


def _to_strings(column: np.ndarray[Any, Any], piece_bytes: int | None) -> tf.Tensor:
    num_pieces = 1
    if piece_bytes is not None:
        some = column.flat[:_NUM_SAMPLED]
        num_bytes = column.size * (sum(map(len, some)) // len(some) + _TSTRING_BYTES)
        num_pieces = min(len(column), num_bytes // piece_bytes)
    if num_pieces <= 1:
        return tf.constant(column, tf.string)
    return tf.concat([tf.constant(piece, tf.string) for piece in np.array_split(column, num_pieces)], axis=0)


def _taken_over(column: np.ndarray[Any, Any]) -> tf.Tensor:
    # Unaligned memory ends the process inside of from_dlpack.
    is_aligned = column.__array_interface__["data"][0] % _ALIGNMENT == 0
    if column.size and is_aligned and column.flags.writeable and column.flags.c_contiguous:
        return tf.experimental.dlpack.from_dlpack(column.__dlpack__())
    return tf.convert_to_tensor(column)


def _tfdata_dataset(split: BatchSource, batch_size: int | None, settings: dict[str, Any]) -> tf.data.Dataset:
    others = sorted(settings.keys() - {"seed", "epoch", "shuffle", "features", "remainder"})
    others += ["remainder='pad'"] if settings.get("remainder", "drop") != "drop" else []
    if not isinstance(split, Split) or batch_size is None or others:
        asked = f"a {type(split).__name__}" if not isinstance(split, Split) else ", ".join(others)
        raise UsageError(
            "stock tf.data cannot read this so",
            why=f"engine='tfdata' takes no {asked}" if asked else "global_batch_size is not given",
            next_step="Leave it out and use what tf.data has itself, such as shard; or leave out engine",
        )
    names = settings.get("features")
    features = split.features if names is None else tuple(split.dataset.manifest.feature(name) for name in names)
    num_steps = split.batches(global_batch_size=batch_size, **settings).num_steps
    check_sizes(split.dataset, split.name)
    tfdata = load_split(
        split.dataset,
        split.name,
        batch_size=batch_size,
        features=features,
        shuffle_seed=settings.get("seed", 0) if settings.get("shuffle", True) else None,
        epoch=settings.get("epoch", 0),
        with_presence=True,
    )

    def as_tensors(values: Tensors, present: Tensors) -> Tensors:
        same = {
            name: value.with_row_splits_dtype(tf.int32) if isinstance(value, tf.RaggedTensor) else value
            for name, value in values.items()
        }
        return same | {f"{name}/present": bools for name, bools in present.items()}

    return tfdata.map(as_tensors).take(num_steps).apply(tf.data.experimental.assert_cardinality(num_steps))


def tensor_specs(features: Features, num_rows: int | None, padded: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the specs of a batch's tensors, by name, without its mask.

    Args:
        num_rows: Of a batch; None if it is not known.
        padded: Lists that are filled up to one length.
    """
    signature = {f.name: _spec_of(f, num_rows, is_padded=f.name in padded) for f in features}
    signature |= {length_name(name): tf.TensorSpec([num_rows], tf.int32) for name in padded}
    return signature | {f"{f.name}/present": tf.TensorSpec([num_rows], tf.bool) for f in features if f.nullable}


def _signature(
    split: BatchSource, opened: BatchReader, num_rows: int | None, settings: dict[str, Any]
) -> dict[str, Any]:
    if isinstance(split, Split):
        names, buckets = settings.get("features"), settings.get("buckets")
        features = split.features if names is None else tuple(map(split.dataset.manifest.feature, names))
        signature = tensor_specs(features, num_rows, () if buckets is None else buckets.padded)
    else:
        signature = _learnt_signature(opened, None if isinstance(split, MappedSource) else num_rows)
    if settings.get("remainder") == "pad":
        signature["mask"] = tf.TensorSpec([None] if isinstance(split, MappedSource) else [num_rows], tf.bool)
    return signature


def _learnt_signature(reader: BatchReader, num_rows: int | None) -> dict[str, Any]:
    first = next(iter(reader), None)
    reader.close()
    if first is None:
        raise UsageError(
            "the columns cannot be learnt, for there are no batches",
            next_step="Read it with `batches`, or leave it out while it has fewer examples than a batch",
        )
    is_one_shape = reader.buckets is None
    return {name: _spec_like(value, num_rows, is_one_shape) for name, value in to_tensors(first).items()}


def _spec_like(value: Any, num_rows: int | None, is_one_shape: bool) -> Any:
    sizes = value.shape[1:] if is_one_shape else [None] * (value.shape.rank - 1)
    if isinstance(value, tf.RaggedTensor):
        return tf.RaggedTensorSpec([num_rows, *sizes], value.dtype, row_splits_dtype=value.row_splits.dtype)
    return tf.TensorSpec([num_rows, *sizes], value.dtype)


def _num_rows(value: Any) -> Any:
    return value.nrows() if isinstance(value, tf.RaggedTensor) else value.shape[0]


def _spec_of(feature: Feature, num_rows: int | None, *, is_padded: bool = False) -> Any:
    dtype = tensor_dtype(feature)
    if is_padded:
        return tf.TensorSpec([num_rows, None], dtype)
    if feature.num_values is None:
        return tf.RaggedTensorSpec([num_rows, None], dtype, row_splits_dtype=tf.int32)
    return tf.TensorSpec([num_rows, *(size or 0 for size in feature.shape)], dtype)


def tensor_dtype(feature: Feature) -> tf.DType:
    """Returns the dtype of a feature's tensor."""
    if feature.stored_as == "bytes_list":
        return tf.string
    if feature.dtype == "date" or "[" in feature.dtype:
        return tf.int64
    return tf.as_dtype(feature.dtype)
