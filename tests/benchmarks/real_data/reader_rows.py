"""Every example of a dataset once, through `shardkit.open` and the shuffled batches of several workers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import shardkit
from shardkit.reading.batch import Batch, Ragged
from tests.benchmarks.real_data.stored_rows import Stored

NUM_WORKERS = 3
GLOBAL_BATCH_SIZE = 300
_KINDS = {"int64_list": np.dtype(np.int64), "float_list": np.dtype(np.float32), "bytes_list": np.dtype(object)}


def read(folder: Path, features: list[Mapping[str, Any]]) -> dict[str, Stored]:
    """Returns the columns of all splits, in any order of the rows."""
    parts: dict[str, list[Stored]] = {f["name"]: [_column(f, None, np.zeros(0, bool))] for f in features}
    for split in shardkit.open(str(folder)).values():
        for worker in range(NUM_WORKERS):
            for batch in split.batches(
                global_batch_size=GLOBAL_BATCH_SIZE,
                seed=1,
                worker_index=worker,
                num_workers=NUM_WORKERS,
                remainder="pad",
                decodes_text=False,
            ):
                is_real = np.ones(GLOBAL_BATCH_SIZE // NUM_WORKERS, bool) if batch.mask is None else batch.mask
                for feature in features:
                    parts[feature["name"]].append(_column(feature, batch, is_real))
    return {
        name: Stored(np.concatenate([p.counts for p in own]), np.concatenate([p.values for p in own]))
        for name, own in parts.items()
    }


def _column(feature: Mapping[str, Any], batch: Batch | None, is_real: np.ndarray) -> Stored:
    kind = _KINDS.get(feature["stored_as"], np.dtype(np.float64))
    if batch is None:
        return Stored(np.zeros(0, np.int64), np.zeros(0, kind))
    column = batch[feature["name"]]
    if isinstance(column, Ragged):
        # What fills up a batch is empty.
        return Stored(np.diff(column.row_splits)[is_real].astype(np.int64), _stored(column.values, kind))
    is_there = is_real & batch.present.get(feature["name"], np.ones(len(column), bool))
    counts = np.where(is_there, math.prod(column.shape[1:]), 0)[is_real]
    return Stored(counts, _stored(column[is_there].reshape(-1), kind))


def _stored(values: np.ndarray, kind: np.dtype[Any]) -> np.ndarray:
    return values.view(np.int64) if values.dtype.kind in "mM" or values.dtype == np.uint64 else values.astype(kind)
