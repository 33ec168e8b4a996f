"""JAX: batches as arrays that lie on the devices of all processes.

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
from shardkit.reading.columns import Batch, Ragged
from shardkit.reading.reader import BatchReader
from shardkit.reading.split import Split

_INT32 = np.iinfo(np.int32)


class DeviceBatches:
    """Iterates over global batches of device arrays; each process reads its own part.

    A batch is a dict of arrays by feature name; where a feature is nullable, `NAME/present` is a bool array, and where
    the last batch is filled up, `mask` is one.

    Attributes:
        reader: Of this process; `reader.state()` and `reader.restore()` are those of the run.
    """

    def __init__(self, reader: BatchReader, sharding: jax.sharding.Sharding) -> None:
        self.reader = reader
        self._sharding = sharding

    def __iter__(self) -> Iterator[dict[str, jax.Array]]:
        for batch in self.reader:
            yield {name: self._to_device(name, column) for name, column in _columns(batch)}

    def __len__(self) -> int:
        return self.reader.num_steps

    def _to_device(self, name: str, column: np.ndarray[Any, Any]) -> jax.Array:
        is_wide = column.dtype.kind in "iu" and column.dtype.itemsize == 8 and column.size > 0
        # JAX would cut the numbers to 32 bits without a word.
        is_cut = is_wide and not jax.config.read("jax_enable_x64")
        if is_cut and (column.min() < _INT32.min or column.max() > _INT32.max):
            raise BadInputError(
                f"feature {name!r} holds numbers of more than 32 bits, and JAX works with 32",
                why=f"they go from {column.min()} to {column.max()}",
                next_step='Call jax.config.update("jax_enable_x64", True) first, or leave the feature out',
            )
        return jax.make_array_from_process_local_data(self._sharding, column)


def batches(split: Split, *, global_batch_size: int, sharding: jax.sharding.Sharding, **settings: Any) -> DeviceBatches:
    """Returns what iterates over the global batches of a split.

    Args:
        split: What is read.
        global_batch_size: Examples that all processes together take a step.
        sharding: Of the arrays; their first axis is the batch.
        **settings: Others of `Split.batches`, such as `seed`, `epoch`, `num_epochs`, `remainder`, `features`.

    Raises:
        UsageError: If the numbers do not fit together, or a feature has no place on a device; says what to do.
    """
    names = settings.get("features")
    chosen = split.features if names is None else [f for f in split.features if f.name in names]
    unfit = [f.name for f in chosen if not _fits_device(f)]
    if unfit:
        raise UsageError(
            f"features cannot lie on a device: {', '.join(map(repr, unfit))}",
            why="text, bytes, decimals, times and lists of any length are no arrays of JAX",
            next_step="Name the others with features=[...], and read these with Split.batches",
        )
    reader = split.batches(
        global_batch_size=global_batch_size,
        worker_index=jax.process_index(),
        num_workers=jax.process_count(),
        **settings,
    )
    return DeviceBatches(reader, sharding)


def _fits_device(feature: Feature) -> bool:
    is_number = feature.dtype.rstrip("0123456789") in ("int", "uint", "float", "bool")
    return is_number and feature.num_values is not None


def _columns(batch: Batch) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    for name, column in batch.items():
        if not isinstance(column, Ragged):
            yield name, column
    for name, bools in batch.present.items():
        yield f"{name}/present", bools
    if batch.mask is not None:
        yield "mask", batch.mask
