"""JAX: batches as arrays on the devices of all processes.

sharding = jax.NamedSharding(jax.make_mesh((jax.device_count(),), ("data",)), jax.P("data"))
for batch in batches(train, global_batch_size=1024, sharding=sharding, features=["image_id", "score"]): ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from shardkit.errors import BadInputError, UsageError
from shardkit.features import Feature
from shardkit.reading.batch import Batch, Ragged
from shardkit.reading.hooks import BatchSource, MappedSource
from shardkit.reading.reader import BatchReader


class DeviceBatches:
    """Iterates over global batches of device arrays; each process reads its own part.

    A batch is a dict of arrays by feature name, of the features' dtypes. Without `jax_enable_x64`, JAX works with 32
    bits: float64 is rounded to float32, and numbers of 64 bits beyond the range of 32 are refused. Where a feature is
    nullable, `NAME/present` is a bool array, and a null itself is 0, False or NaN; where the last batch is filled up,
    `mask` is a bool array.

    Attributes:
        reader: Of this process; `reader.state()` and `reader.restore()` are those of the run.
    """

    def __init__(self, reader: BatchReader, sharding: jax.sharding.Sharding, num_rows: int | None) -> None:
        self.reader = reader
        self._sharding = sharding
        self._num_rows = num_rows

    def __iter__(self) -> Iterator[dict[str, jax.Array]]:
        for batch in self.reader:
            yield {name: self._to_device(name, column) for name, column in _columns(batch, self._expected_rows(batch))}

    def __len__(self) -> int:
        return self.reader.num_steps

    def _expected_rows(self, batch: Batch) -> int | None:
        buckets = self.reader.buckets
        if buckets is None or batch.pad_to is None:
            return self._num_rows
        return buckets.num_rows[buckets.boundaries.index(batch.pad_to)] // self.reader.worker.num_workers

    def _to_device(self, name: str, column: np.ndarray[Any, Any]) -> jax.Array:
        # JAX would cut the numbers to 32 bits without a word.
        if not jax.config.read("jax_enable_x64") and _exceeds_32_bits(column):
            raise BadInputError(
                f"feature {name!r} holds numbers of more than 32 bits, and JAX works with 32",
                why=f"they go from {np.nanmin(column)} to {np.nanmax(column)}",
                next_step='Call jax.config.update("jax_enable_x64", True) first, or leave the feature out',
            )
        return jax.make_array_from_process_local_data(self._sharding, column)


def batches(
    split: BatchSource, *, global_batch_size: int | None = None, sharding: jax.sharding.Sharding, **settings: Any
) -> DeviceBatches:
    """Returns an iterable of the global batches of a split.

    Args:
        split: What is read: a split, a mixture, or one of them with functions on its batches, which decide what comes
            to the devices. A filter has no place here: all batches have one size.
        global_batch_size: Examples that all processes together take a step; None if `buckets` say how many.
        sharding: Of the arrays; their first axis is the batch.
        **settings: Others of `Split.batches`, such as `seed`, `epoch`, `num_epochs`, `remainder`, `features`; or
            `buckets`, whose `padded` lists of numbers have a place on a device, in one shape a bucket.

    Raises:
        UsageError: If the numbers do not fit together, or a feature has no place on a device; says what to do.
    """
    _check_no_filter(split)
    names = settings.get("features")
    chosen = split.features if names is None else [f for f in split.features if f.name in names]
    if isinstance(split, MappedSource):
        chosen = []  # What the functions make of them is seen in the batches.
    buckets = settings.get("buckets")
    padded = () if buckets is None else buckets.padded
    bad_features = [f.name for f in chosen if not _fits_device(f, is_padded=f.name in padded)]
    if bad_features:
        raise UsageError(
            f"features cannot lie on a device: {', '.join(map(repr, bad_features))}",
            why="text, bytes, decimals, times and lists of any length are no arrays of JAX",
            next_step="Name the others with features=[...], and read these with Split.batches; "
            "lists of numbers can be padded, see LengthBuckets",
        )
    index, num_processes = place_of_process()
    reader = split.batches(
        global_batch_size=global_batch_size, worker_index=index, num_workers=num_processes, **settings
    )
    return DeviceBatches(reader, sharding, None if global_batch_size is None else global_batch_size // num_processes)


def place_of_process() -> tuple[int, int]:
    """Returns the index of this process and how many there are."""
    return jax.process_index(), jax.process_count()


def _check_no_filter(split: BatchSource) -> None:
    if isinstance(split, MappedSource) and split.num_filters:
        raise UsageError(
            "a filter makes batches of several sizes",
            why="all processes must agree on the shapes of JAX arrays, and each size is compiled anew",
            next_step="Add a column of weights with map instead, 0 for the rows that shall not count",
        )


def _fits_device(feature: Feature, *, is_padded: bool) -> bool:
    is_number = feature.dtype.rstrip("0123456789") in ("int", "uint", "float", "bool")
    return is_number and (is_padded or feature.num_values is not None)


def _exceeds_32_bits(column: np.ndarray[Any, Any]) -> bool:
    if column.dtype.itemsize < 8 or not column.size:
        return False
    if column.dtype.kind == "f":
        return bool((np.abs(column[np.isfinite(column)]) > np.finfo(np.float32).max).any())
    limits = np.iinfo(np.uint32 if column.dtype.kind == "u" else np.int32)
    return bool(column.min() < limits.min or column.max() > limits.max)


def _columns(batch: Batch, num_rows: int | None) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    for name, column in batch.items():
        # Only functions on batches make lists, texts and columns of other lengths.
        is_array = not isinstance(column, Ragged) and column.dtype.kind in "biufc"
        if isinstance(column, Ragged) or not is_array or (num_rows is not None and len(column) != num_rows):
            kind = "lists" if isinstance(column, Ragged) else f"{column.dtype} {list(column.shape)}"
            raise UsageError(
                f"column {name!r} cannot lie on a device",
                why=f"expected numbers [{'n' if num_rows is None else num_rows}, ...], got {kind}",
                next_step="Let a function of map make such numbers of it, or leave it out",
            )
        yield name, column
    for name, bools in batch.present.items():
        yield f"{name}/present", bools
    if batch.mask is not None:
        yield "mask", batch.mask
