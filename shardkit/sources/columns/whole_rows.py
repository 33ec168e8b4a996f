"""Batches of rows that are a file each, and the files that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.errors import BadInputError
from shardkit.features import Features, arrow_schema
from shardkit.sources.base import RawFile, RejectedRow, RowBatch, SourceOptions, file_identities, place, rejected_row
from shardkit.sources.columns.casting import BadValueError
from shardkit.sources.columns.row_casting import bad_value_error, cast_rows


class WholeRows:
    """Gathers the content of some files.

    Args:
        options: Say whether files that do not fit are handed over.
    """

    def __init__(self, files: tuple[RawFile, ...], features: Features, options: SourceOptions) -> None:
        self._files = files
        self._features = features
        self._options = options
        self._rejected: list[RejectedRow] = []

    @property
    def num_rejected_bytes(self) -> int:
        """Bytes of the rejected rows that no batch has handed over."""
        return sum(len(row.raw) for row in self._rejected)

    @property
    def has_rejected(self) -> bool:
        """Whether there are such rows."""
        return bool(self._rejected)

    def reject(self, index: int, error: BadInputError, raw: bytes) -> None:
        """Takes note of a file that does not fit.

        Args:
            index: Position in the list of files.
            raw: The start of its content.

        Raises:
            BadInputError: The error, if bad rows are not tolerated.
        """
        if not self._options.tolerates_bad_rows:
            raise error
        self._rejected.append(rejected_row(error, file_index=index, position="", first_byte=None, raw=raw))

    def batch(
        self,
        columns: Mapping[str, pa.Array],
        indices: Sequence[int],
        raw_of: Callable[[int], bytes],
        numbers: npt.NDArray[np.uint64] | None = None,
    ) -> RowBatch:
        """Returns the rows of some files, and hands over the rows rejected so far.

        Args:
            columns: By name of the feature; a value for each of the files.
            indices: Positions of these files in the list of files.
            raw_of: Gives the start of the content of a file by its position in the list.
            numbers: uint64 `[n]`: of the rows in their files, where a file is several.

        Raises:
            BadInputError: If a value does not fit, unless bad rows are tolerated.
        """
        tolerates = self._options.tolerates_bad_rows
        try:
            cast = cast_rows(
                lambda a, b: {name: column.slice(a, b - a) for name, column in columns.items()},
                len(indices),
                self._features,
                tolerates_bad_rows=tolerates,
            )
        except BadValueError as error:
            raise bad_value_error(error, place(self._files[indices[error.row]])) from error
        for position, bad_values in cast.bad_values:
            index = indices[position]
            self.reject(index, bad_value_error(bad_values, place(self._files[index])), raw_of(index))
        kept = np.array(indices, np.int64)[cast.kept]
        rows = self._rows(cast.batch, kept, cast.num_rounded)
        return rows if numbers is None else rows._replace(identities=rows.identities + numbers[cast.kept])

    def nothing(self) -> RowBatch:
        """Returns a batch without rows, which hands over the rows rejected so far."""
        empty = pa.RecordBatch.from_pylist([], schema=arrow_schema(self._features))
        return self._rows(empty, np.zeros(0, np.int64), {})

    def _rows(self, batch: pa.RecordBatch, kept: npt.NDArray[np.int64], num_rounded: Mapping[str, int]) -> RowBatch:
        rejected = sorted(self._rejected, key=lambda row: row.file_index)
        self._rejected = []
        names = [self._files[i].name for i in kept.tolist()]
        return RowBatch(batch, file_identities(names), kept, num_rounded, rejected)
