"""`--source-column`: the name of the file of each row, as a column."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from shardkit.errors import UsageError
from shardkit.features import Features, make_feature
from shardkit.messages import shown
from shardkit.sources.base import RawFile, RowBatch


def with_source_column(features: Features, name: str | None) -> Features:
    """Returns the features with the column behind them; as they are without a name.

    Raises:
        UsageError: If there is a column of that name.
    """
    if name is None:
        return features
    if any(feature.name == name for feature in features):
        raise UsageError(
            f"--source-column names the column {shown(name)}, which the inputs have",
            next_step="Choose another name, or leave that column out with --drop-columns",
        )
    return (*features, make_feature(name, "string"))


def add_source_column(rows: RowBatch, files: Sequence[RawFile], name: str) -> pa.RecordBatch:
    """Returns the columns of a batch, and behind them the names of the files, relative to the root of all inputs."""
    indices = np.broadcast_to(rows.file_indices, rows.batch.num_rows)
    found, positions = np.unique(indices, return_inverse=True)
    names = pa.array([files[index].name for index in found.tolist()], pa.string()).take(pa.array(positions, pa.int64()))
    return pa.RecordBatch.from_arrays([*rows.batch.columns, names], names=[*rows.batch.schema.names, name])
