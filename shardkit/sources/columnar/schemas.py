"""What the sources share whose files know their columns: one schema of many files, and batches made to fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.errors import BadInputError, NarrowTypesError, NoRowsError, UsageError
from shardkit.features import Feature, Features, feature_from_arrow
from shardkit.messages import printable, shown
from shardkit.sources.base import (
    BATCH_BYTES,
    InputSplit,
    RawFile,
    RowBatch,
    SourceOptions,
    place,
    rejected_row,
    row_identities,
)
from shardkit.sources.columnar.arrow_columns import Column, flatten_batch, null_without_class, unite_columns
from shardkit.sources.columns.arrow_json import row_as_json
from shardkit.sources.columns.bad_values import without_rows
from shardkit.sources.columns.casting import BadValueError
from shardkit.sources.columns.dropped_columns import check_dropped, drop_option, is_dropped
from shardkit.sources.columns.folder_columns import differing_error, differing_row, folder_column
from shardkit.sources.columns.partitions import partition_features, partition_values
from shardkit.sources.columns.row_casting import cast_rows
from shardkit.sources.columns.row_sizes import cuts, largest_size, row_sizes
from shardkit.sources.columns.union_notes import check_shared
from shardkit.sources.files.many_files import map_files
from shardkit.units import format_number, format_size

MAX_BATCH_ROWS = 65_536

_NOTED_COLUMNS = 5
_CORRECT = "Correct the row, or declare the column in a --schema file"


def infer_features(
    files: Sequence[RawFile], read_columns: Callable[[RawFile], tuple[Column, ...]], options: SourceOptions
) -> Features:
    """Returns the columns that all files have, and behind them those that their folders name.

    Args:
        files: Empty ones are passed over.
        read_columns: Returns the columns of a file from its schema.
        options: Say which are left out, and whether a file may lack some.

    Raises:
        UsageError: If schemas or folders do not go together, or a column has no place in an example.
        BadInputError: If a schema cannot be read, or all files are empty.
    """
    dropped = options.drop_columns
    filled = [f for f in files if f.num_bytes]
    if not filled:
        raise NoRowsError(why="all input files are empty")
    where = place(filled[0])
    schemas = map_files(read_columns, filled)
    partitions = partition_features(filled)
    if dropped:
        names = dict.fromkeys([*(c.name for schema in schemas for c in schema), *(p.name for p in partitions)])
        check_dropped(dropped, names, where)
        schemas = [tuple(c for c in schema if not is_dropped(c.name, dropped)) for schema in schemas]
        partitions = tuple(p for p in partitions if not is_dropped(p.name, dropped))
    check_shared([(f.name, [c.name for c in schema]) for f, schema in zip(filled, schemas, strict=True)])
    columns = _unite(filled, _filled_up(schemas) if options.union_by_name else schemas, dict(options.declared))
    found = _features(columns, where)
    if not found:
        raise BadInputError("no column is left" if dropped else "the file has no columns", where=where)
    features = {f.name: f for f in found}
    for partition in partitions:
        if partition.name in features:
            for file in filled:
                folder_column(partition_values(file)[partition.name], features[partition.name], file, 1)
    return (*found, *(p for p in partitions if p.name not in features))


def _features(columns: Sequence[Column], where: str) -> Features:
    found: list[Feature] = []
    refused: list[tuple[str, UsageError]] = []
    for column in columns:
        try:
            feature = feature_from_arrow(column.name, column.type_, nullable=column.nullable, where=where)
            if column.media_type is not None or column.classes is not None:
                feature = msgspec.structs.replace(feature, media_type=column.media_type, vocabulary=column.classes)
            if column.shape is not None:
                feature = feature.with_shape(column.shape)
            found.append(feature)
        except UsageError as error:
            refused.append((column.name, error))
    if refused:
        first = refused[0][1]
        first.next_step = f"Leave it out with {drop_option([name for name, _ in refused])}, or change it in the source"
        raise first
    return tuple(found)


def _filled_up(schemas: Sequence[tuple[Column, ...]]) -> list[tuple[Column, ...]]:
    """Returns schemas that all have the columns of all, as nullable ones where they lack them."""
    known: dict[str, Column] = {}
    for schema in schemas:
        for column in schema:
            known.setdefault(column.name, msgspec.structs.replace(column, nullable=True))
    own = [{column.name for column in schema} for schema in schemas]
    return [
        (*schema, *(column for name, column in known.items() if name not in names))
        for schema, names in zip(schemas, own, strict=True)
    ]


def _unite(
    files: Sequence[RawFile], schemas: Sequence[tuple[Column, ...]], declared: Mapping[str, str]
) -> tuple[Column, ...]:
    # Most files have one of few schemas.
    first_with: dict[tuple[Column, ...], RawFile] = {}
    for schema, file in zip(schemas, files, strict=True):
        first_with.setdefault(schema, file)
    distinct = list(first_with.items())
    united = distinct[0][0]
    for number, (schema, file) in enumerate(distinct):
        try:
            united = unite_columns(united, files[0].name, schema, file.name, declared)
        except UsageError:
            # The type united so far may differ from that of the first file: the two that differ are named.
            for other, other_file in distinct[:number]:
                unite_columns(other, other_file.name, schema, file.name, declared)
            raise
    return united


def type_notes(schemas: Mapping[str, tuple[Column, ...]]) -> Iterator[str]:
    """Yields a note for each column that has one type in some files and another one in others.

    Args:
        schemas: Columns by the name of the file.
    """
    types: dict[str, dict[str, str]] = {}
    for columns in dict.fromkeys(schemas.values()):
        file = next(file for file, own in schemas.items() if own is columns)
        for column in columns:
            if not pa.types.is_null(column.type_):
                types.setdefault(column.name, {}).setdefault(_described(column), file)
    several = {name: found for name, found in types.items() if len(found) > 1}
    for name, found in list(several.items())[:_NOTED_COLUMNS]:
        where = ", ".join(f"{type_} in {printable(file)}" for type_, file in list(found.items())[:_NOTED_COLUMNS])
        yield f"column {shown(name)} is {where}: all are read as one type"
    if len(several) > _NOTED_COLUMNS:
        yield f"{format_number(len(several) - _NOTED_COLUMNS, 'more column')} of several types"


def _described(column: Column) -> str:
    try:
        return feature_from_arrow(column.name, column.type_, nullable=True, where="").describe_type()
    except UsageError:
        return str(column.type_)


def cut_pieces(pieces: Sequence[tuple[int, int]], wanted_bytes: int) -> Iterator[InputSplit]:
    """Yields splits of a file that can be cut between its pieces only, as if it were the only file.

    Args:
        pieces: Of each row group, record batch or stripe: bytes by which to cut, and bytes as stored.
        wanted_bytes: Of the first kind, in a split.
    """
    start = num_bytes = 0
    for stop, (piece_bytes, _) in enumerate(pieces, start=1):
        num_bytes += piece_bytes
        if num_bytes >= wanted_bytes or stop == len(pieces):
            stored = sum(p[1] for p in pieces[start:stop])
            yield InputSplit(index=0, file_start=0, file_stop=1, start=start, stop=stop, num_bytes=stored)
            start, num_bytes = stop, 0


class RowFitter:
    """Makes the rows of one split fit the features, and sets aside those that cannot fit.

    Args:
        split: Of one file.
        options: Limits, and whether bad rows are set aside or end the reading.
        rows_before: Returns how many rows of the file are before the split; asked for at the first bad row.
    """

    def __init__(
        self,
        split: InputSplit,
        files: Sequence[RawFile],
        features: Features,
        options: SourceOptions,
        *,
        rows_before: Callable[[], int],
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        self._split = split
        self._file = files[split.file_start]
        self._features = features
        self._options = options
        self._rows_before = rows_before
        self._batch_bytes = batch_bytes
        self._partitions = partition_values(self._file)
        self._first_row: int | None = None
        self.num_rows = split.row_start

    def fit(self, batch: pa.RecordBatch) -> Iterator[RowBatch]:
        """Yields the rows of a batch, in one or more batches.

        Raises:
            BadInputError: At a row that does not fit, unless bad rows are tolerated.
            UsageError: If no value of a column could fit, or a column says something else than the folders.
        """
        if not batch.num_rows:
            return
        limit = min(2 * self._batch_bytes, self._options.max_record_bytes)
        largest = largest_size(batch)
        if largest is not None and largest <= limit and batch.num_rows <= MAX_BATCH_ROWS:
            yield self._fit(batch, None)
            return
        sizes = row_sizes(batch)
        for start, stop in cuts(sizes, self._batch_bytes, MAX_BATCH_ROWS):
            yield self._fit(batch.slice(start, stop - start), sizes[start:stop])

    def position(self, row: int) -> int:
        """Returns the 1-based number in the file of a 0-based row of the split."""
        if self._first_row is None:
            self._first_row = self._rows_before()
        return self._first_row + row + 1

    def _fit(self, batch: pa.RecordBatch, sizes: npt.NDArray[np.int64] | None) -> RowBatch:
        bad: dict[int, BadInputError] = {}
        rows = np.arange(batch.num_rows, dtype=np.int64)
        small_rows = batch
        if sizes is not None and (is_large := sizes > self._options.max_record_bytes).any():
            bad = {row: self._too_large(row, int(sizes[row])) for row in np.flatnonzero(is_large).tolist()}
            # A row that is too large is not spelled out.
            rows = np.flatnonzero(~is_large)
            small = [without_rows(column, ~is_large) for column in batch.columns]
            small_rows = pa.RecordBatch.from_arrays(small, schema=batch.schema)
        columns = self._plain_columns(small_rows, rows)

        def take(start: int, stop: int) -> dict[str, pa.Array]:
            return {name: column.slice(start, stop - start) for name, column in columns.items()}

        cast = cast_rows(take, len(rows), self._features, tolerates_bad_rows=True)
        bad |= {int(rows[position]): self._bad_value(int(rows[position]), error) for position, error in cast.bad_values}
        if bad and not self._options.tolerates_bad_rows:
            raise bad[min(bad)]
        rejected = tuple(
            rejected_row(
                bad[row],
                file_index=self._split.file_start,
                position=f"row {self.position(self.num_rows + row)}",
                first_byte=None,
                raw=row_as_json(batch, row),
            )
            for row in sorted(bad)
        )
        identities = row_identities(self._file, self._split.start, self.num_rows, batch.num_rows)
        self.num_rows += batch.num_rows
        identities = identities[rows[cast.kept]] if bad else identities
        return RowBatch(cast.batch, identities, self._split.file_start, cast.num_rounded, rejected)

    def _plain_columns(self, batch: pa.RecordBatch, rows: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
        flat = flatten_batch(batch)
        columns = {}
        for feature in self._features:
            column = flat.get(feature.name)
            if column is None and feature.name in self._partitions:
                column = folder_column(self._partitions[feature.name], feature, self._file, batch.num_rows)
            elif column is None:
                column = pa.nulls(batch.num_rows, feature.arrow_type)
            elif feature.name in self._partitions:
                self._check_partition(column, feature, rows)
            column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
            columns[feature.name] = null_without_class(column) if feature.vocabulary else column
        return columns

    def _check_partition(self, column: pa.Array, feature: Feature, rows: npt.NDArray[np.int64]) -> None:
        value = self._partitions[feature.name]
        row = differing_row(column, value, feature, self._file)
        if row >= 0:
            where = place(self._file, row=self.position(self.num_rows + int(rows[row])))
            raise differing_error(value, column[row], feature, where)

    def _too_large(self, row: int, num_bytes: int) -> BadInputError:
        return BadInputError(
            "a row is too large",
            where=place(self._file, row=self.position(self.num_rows + row)),
            why=f"{format_size(num_bytes)} is more than the {format_size(self._options.max_record_bytes)} allowed",
        )

    def _bad_value(self, row: int, error: BadValueError) -> BadInputError:
        kind = NarrowTypesError if error.got == "null" else BadInputError
        return kind(
            f"column {shown(error.column)} does not fit",
            where=place(self._file, row=self.position(self.num_rows + row)),
            why=f"expected {error.expected}, got {error.got}",
            next_step=_CORRECT,
        )


def check_columns(columns: Sequence[Column], features: Features, file: RawFile, options: SourceOptions) -> None:
    """Checks that a file and its folders still have all columns that were planned for and that they may not lack.

    Raises:
        BadInputError: If not.
    """
    names = {c.name for c in columns} | partition_values(file).keys()
    missing = [f.name for f in features if f.name not in names and not (options.union_by_name and f.nullable)]
    if missing:
        raise BadInputError(
            "a column is missing", where=place(file), why=f"{', '.join(map(shown, missing))} was there when planned"
        )
