"""Rows of arrays as batches of the conversion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import msgspec
import pyarrow as pa

from shardkit.errors import BadInputError, DamagedFileError
from shardkit.features import Features
from shardkit.messages import shown
from shardkit.sources.arrays.columns import Array, ArrayColumn, check_same_columns, feature_of, field_of, to_arrow
from shardkit.sources.arrays.rows import ArrayLayout, RowReader
from shardkit.sources.base import InputSplit, RawFile, RowBatch, SourceOptions, place, rejected_row, row_identities
from shardkit.sources.columns.casting import BadValueError
from shardkit.sources.columns.row_casting import bad_value_error, cast_rows
from shardkit.sources.files.many_files import undamaged
from shardkit.units import format_size


class OpenArray(NamedTuple):
    """An array of which rows are read.

    Attributes:
        layout: Its type, shape and order in the file.
    """

    columns: tuple[ArrayColumn, ...]
    layout: ArrayLayout
    rows: RowReader


@dataclass(frozen=True)
class ArrayRows:
    """The rows of a split of arrays that belong together.

    Attributes:
        arrays: Opened at the first row of the split.
        split: Rows, half-open; all of them where it has no stop.
        file: That the rows are counted in.
        options: Say whether bad rows are tolerated.
    """

    arrays: Sequence[OpenArray]
    features: Features
    split: InputSplit
    file: RawFile
    options: SourceOptions

    def read(self, batch_bytes: int) -> Iterator[RowBatch]:
        """Yields the rows in batches of about so many bytes.

        Raises:
            BadInputError: If a row does not fit and may not be left out, or a planned column is missing.
            DamagedFileError: If an array ends too early, or bytes follow it.
        """
        self._check_has_columns()
        num_rows = self.arrays[0].layout.num_rows
        stop = self.split.stop or num_rows
        step = max(1, batch_bytes // sum(array.layout.row_bytes for array in self.arrays))
        for row in range(self.split.start, stop, step):
            yield self._batch(row, [array.rows.read(min(step, stop - row)) for array in self.arrays])
        if stop == num_rows:
            for array in self.arrays:
                array.rows.finish()

    def _check_has_columns(self) -> None:
        names = {column.name for array in self.arrays for column in array.columns}
        missing = [f.name for f in self.features if f.name not in names]
        if missing:
            why = f"{', '.join(map(shown, missing))} was there when planned"
            raise BadInputError("a column is missing", where=place(self.file), why=why)

    def _batch(self, first_row: int, values: Sequence[Array]) -> RowBatch:
        wanted = {f.name for f in self.features}

        def take(start: int, stop: int) -> Mapping[str, pa.Array]:
            return {
                column.name: to_arrow(field_of(own[start:stop], column), column)
                for array, own in zip(self.arrays, values, strict=True)
                for column in array.columns
                if column.name in wanted
            }

        num_rows = len(values[0])
        try:
            cast = cast_rows(take, num_rows, self.features, tolerates_bad_rows=self.options.tolerates_bad_rows)
        except BadValueError as error:
            raise bad_value_error(error, place(self.file, row=first_row + error.row + 1)) from error
        rejected = []
        for row, bad_value in cast.bad_values:
            # Bytes of the array, because some values make no Python object.
            raw = b"".join(own[row : row + 1].tobytes() for own in values)
            number, index = first_row + row + 1, self.split.file_start
            bad = bad_value_error(bad_value, place(self.file, row=number))
            rejected.append(rejected_row(bad, file_index=index, position=f"row {number}", first_byte=None, raw=raw))
        identities = row_identities(self.file, self.split.start, first_row - self.split.start, num_rows)
        identities = identities[cast.kept] if rejected else identities
        return RowBatch(cast.batch, identities, self.split.file_start, cast.num_rounded, rejected)


def cut_rows(whole: InputSplit, num_rows: int, row_bytes: int, wanted_bytes: int) -> list[InputSplit]:
    """Returns splits of so many rows as have about `wanted_bytes`."""
    step = max(1, wanted_bytes // row_bytes)
    bounds = pairwise([*range(0, num_rows, step), num_rows])
    return [
        msgspec.structs.replace(whole, start=start, stop=stop, num_bytes=(stop - start) * row_bytes)
        for start, stop in bounds
    ]


def common_features(
    listed: Iterable[tuple[RawFile, Sequence[ArrayColumn] | DamagedFileError]], options: SourceOptions
) -> Features:
    """Returns the features of the columns that all files have.

    Raises:
        UsageError: If files have different columns.
        DamagedFileError: If a file is damaged; where bad rows are tolerated, only if all are.
    """
    files, columns_of = zip(*listed, strict=True)
    found = [(f, c) for f, c in zip(files, undamaged(columns_of, options), strict=True) if c is not None]
    first, columns = found[0]
    for other, others in found[1:]:
        check_same_columns(columns, first.name, others, other.name)
    return tuple(feature_of(column) for column in columns)


def check_row_size(row_bytes: int, file: RawFile, max_record_bytes: int) -> None:
    """Checks that the rows of arrays are not too large. Raises BadInputError if they are."""
    if row_bytes > min(max_record_bytes, 2**31 - 1):
        why = f"each has {format_size(row_bytes)}, more than the {format_size(max_record_bytes)} that a record may have"
        raise BadInputError("the rows are too large", where=place(file), why=why)
