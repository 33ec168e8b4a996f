"""Sources of other packages. Each call is checked, and an error blames the source instead of shardkit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from shardkit.errors import ShardkitError, UsageError
from shardkit.features import Feature, Features, arrow_schema
from shardkit.messages import printable
from shardkit.sources.base import InputSplit, RawFile, RecognizingSource, RowBatch, SourceOptions


@dataclass(frozen=True)
class PluginSource:
    """A source of another package."""

    source: RecognizingSource
    format: str
    place: str

    def recognizes(self, head: bytes, name: str) -> bool:
        """Returns whether a file is of this format. Raises UsageError if the source fails."""
        with self._blamed():
            return self.source.recognizes(head, name) is True

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns the features. Raises UsageError if the source fails or gives none."""
        with self._blamed():
            features = tuple(self.source.infer(files, options))
        if not features or not all(isinstance(f, Feature) for f in features):
            raise self._broken("it gives something else than features" if features else "it gives no features")
        return features

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns what a user should know. Raises UsageError if the source fails."""
        with self._blamed():
            return tuple(self.source.notes(files, options))

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Cuts the files into splits. Raises UsageError if the source fails."""
        with self._blamed():
            splits = list(self.source.split(files, options))
            is_right = all(0 <= s.file_start < s.file_stop <= len(files) for s in splits)
        if not is_right:
            raise self._broken(f"it cuts files that are not there: {len(files):,} are")
        return splits

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields the rows of one split.

        Raises:
            UsageError: If the source fails, or gives something else than the features promise.
        """
        with self._blamed():
            batches = iter(self.source.read(split, files, features, options))
        while True:
            with self._blamed():
                batch = next(batches, None)
                fault = None if batch is None else fault_of(batch, split, features)
            if batch is None:
                return
            if fault is not None:
                raise self._broken(fault)
            yield batch

    @contextlib.contextmanager
    def _blamed(self) -> Iterator[None]:
        try:
            yield
        except (ShardkitError, MemoryError, OSError):
            raise
        except Exception as error:
            raise self._broken(f"{type(error).__name__}: {printable(str(error))}") from error

    def _broken(self, why: str) -> UsageError:
        return UsageError(
            f"the source {self.format!r} of an installed package does not work",
            where=self.place,
            why=why,
            next_step="Repair or uninstall that package, or say with --format what the files are",
        )


def fault_of(rows: RowBatch, split: InputSplit, features: Features) -> str | None:
    """Returns how a batch breaks the promises of `Source.read`; None if it does not."""
    batch, schema = rows.batch, arrow_schema(features)
    if not isinstance(batch, pa.RecordBatch):
        return f"it gives a {type(batch).__name__}, expected a RecordBatch"
    if batch.schema.names != schema.names:
        return f"it gives the columns {batch.schema.names}, expected {schema.names}"
    for feature, column in zip(features, batch.columns, strict=True):
        if column.type != feature.arrow_type:
            return f"its column {feature.name!r} is {column.type}, expected {feature.arrow_type}"
        if column.null_count and not feature.nullable:
            return f"its column {feature.name!r} holds nulls, which its feature rules out"
    num_rows = batch.num_rows
    if not _is_array(rows.identities, num_rows) or rows.identities.dtype != np.uint64:
        return f"it gives {num_rows:,} rows, but not as many identities of type uint64"
    indices = rows.file_indices
    if not isinstance(indices, int) and not (_is_array(indices, num_rows) and indices.dtype.kind in "iu"):
        return f"it gives {num_rows:,} rows, but not one index of a file, nor as many"
    named = {*(np.unique(indices).tolist() if num_rows else ()), *(row.file_index for row in rows.rejected)}
    if not all(split.file_start <= index < split.file_stop for index in named):
        return "it gives rows of files that are not in their split"
    return None


def _is_array(values: object, num_rows: int) -> bool:
    return isinstance(values, np.ndarray) and values.shape == (num_rows,)
