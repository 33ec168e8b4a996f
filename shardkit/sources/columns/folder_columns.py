"""Columns that folders name, as rows have them: `year=2013/part.csv` gives each of its rows the year 2013."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.errors import UsageError
from shardkit.features import Feature, Features, arrow_schema
from shardkit.messages import shown
from shardkit.sources.base import RawFile, RowBatch, place
from shardkit.sources.columns.casting import BadValueError, cast_column
from shardkit.sources.columns.dropped_columns import is_dropped
from shardkit.sources.columns.partitions import partition_features, partition_values


def folder_column(value: str | None, feature: Feature, file: RawFile, num_rows: int) -> pa.Array:
    """Returns the value of a folder for so many rows. Raises UsageError if it does not fit."""
    try:
        single = cast_column(pa.array([value], pa.string()), feature).column
    except BadValueError as error:
        raise UsageError(
            f"the folder's value of column {shown(feature.name)} does not fit",
            where=place(file),
            why=f"expected {error.expected}, got {error.got}",
            next_step="Rename the folder, or declare the column in a --schema file",
        ) from error
    return pa.repeat(single[0], num_rows)


def differing_row(column: pa.Array, value: str | None, feature: Feature, file: RawFile) -> int:
    """Returns the first row of a column that says something else than the folder, -1 if none does."""
    expected = folder_column(value, feature, file, 1)[0]
    try:
        found = cast_column(column, feature).column
        differs = pc.is_valid(found) if value is None else pc.fill_null(pc.not_equal(found, expected), True)
        return int(pc.index(differs, True).as_py())
    except BadValueError as error:
        return error.row


def differing_error(value: str | None, got: pa.Scalar, feature: Feature, where: str) -> UsageError:
    """Returns the error for a column that says something else than the folder."""
    value_shown = shown(got.as_py()) if got.is_valid and pa.types.is_primitive(got.type) else str(got)
    return UsageError(
        f"column {shown(feature.name)} says something else than the folder",
        where=where,
        why=f"expected {'null' if value is None else shown(value)}, got {value_shown}",
        next_step="Correct the column, or rename the folder",
    )


def folder_names(files: Sequence[RawFile]) -> tuple[str, ...]:
    """Returns the columns that the folders of all files name that are not empty.

    Raises:
        UsageError: If the folders of two files name different columns.
    """
    return tuple(f.name for f in partition_features([f for f in files if f.num_bytes]))


def with_folder_columns(features: Features, files: Sequence[RawFile], dropped: Iterable[str]) -> Features:
    """Returns the features of files, and behind them those that only their folders name.

    Args:
        dropped: Columns that are left out.

    Raises:
        UsageError: If folders do not go together, or say what a column of the files cannot hold.
    """
    filled = [f for f in files if f.num_bytes]
    own = {f.name: f for f in features}
    found = [f for f in partition_features(filled) if not is_dropped(f.name, dropped)]
    for feature in found:
        if feature.name in own:
            for file in filled:
                folder_column(partition_values(file)[feature.name], own[feature.name], file, 1)
    return (*features, *(f for f in found if f.name not in own))


class FolderColumns:
    """Puts the values in the folders of a file into its rows.

    Args:
        columns: Those that the file holds; None if only reading tells, as of keys.
        is_union: Whether a row is null in a column that neither the file nor its folders have.
    """

    def __init__(
        self, file: RawFile, features: Features, columns: Iterable[str] | None = None, *, is_union: bool = False
    ) -> None:
        names = {f.name for f in features}
        self._file = file
        self._features = features
        self._values = {n: v for n, v in partition_values(file).items() if n in names}
        held = names if columns is None else set(columns)
        if is_union:
            self._values |= {f.name: None for f in features if f.name not in held and f.name not in self._values}
        self.stored = tuple(self._as_stored(f, columns is None) for f in features if self._is_stored(f, held))

    def fill(self, rows: RowBatch) -> RowBatch:
        """Returns rows of the `stored` features with all features.

        Raises:
            UsageError: If a row says something else than the folder.
        """
        if not self._values:
            return rows
        found = {f.name: rows.batch.column(i) for i, f in enumerate(self.stored)}
        columns = [
            self._filled(found.get(f.name), f, rows.batch.num_rows) if f.name in self._values else found[f.name]
            for f in self._features
        ]
        return rows._replace(batch=pa.RecordBatch.from_arrays(columns, schema=arrow_schema(self._features)))

    def _is_stored(self, feature: Feature, held: set[str]) -> bool:
        return feature.name not in self._values or feature.name in held

    def _as_stored(self, feature: Feature, may_lack: bool) -> Feature:
        may_lack = may_lack and feature.name in self._values
        return msgspec.structs.replace(feature, nullable=True) if may_lack else feature

    def _filled(self, column: pa.Array | None, feature: Feature, num_rows: int) -> pa.Array:
        value = self._values[feature.name]
        whole = folder_column(value, feature, self._file, num_rows)
        if column is None or column.null_count == num_rows:
            return whole
        is_there = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        written = column.take(pa.array(is_there))
        row = differing_row(written, value, feature, self._file)
        if row >= 0:
            raise differing_error(value, written[row], feature, place(self._file))
        return whole
