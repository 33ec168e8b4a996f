"""Parquet: features from the schemas of all files, splits of row groups, rows streamed in batches.

Page checksums are verified where the writer left them; without them a flipped bit inside a page goes unnoticed in
seven of ten cases, in every reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from shardkit.errors import BadInputError, ShardkitError, UsageError
from shardkit.features import Feature, Features, feature_from_arrow
from shardkit.sources.base import (
    BATCH_BYTES,
    SPLIT_BYTES,
    InputSplit,
    RawFile,
    RowBatch,
    SourceOptions,
    row_identities,
)
from shardkit.sources.fitting import UnfitValueError, fit_column
from shardkit.sources.streams import guard_unchanged, open_raw, place, printable

_MAX_BATCH_ROWS = 65_536
_MAX_DIFFERENCES = 10


class ParquetSource:
    """Parquet files; see `Source`."""

    format = "parquet"

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns the features of the schema that all files share."""
        _refuse_compressed(files)
        merged: Features | None = None
        for file in files:
            with _opened(file) as parquet:
                found = _features_of(parquet, file)
            merged = found if merged is None else _merge(merged, found, files[0], file)
        if not merged:
            raise UsageError("the files have no columns", where=place(files[0]))
        return merged

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns nothing: a schema leaves no doubts."""
        return ()

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Cuts files into splits of whole row groups of about SPLIT_BYTES."""
        splits: list[InputSplit] = []
        for file_index, file in enumerate(files):
            with _opened(file) as parquet:
                metadata = parquet.metadata
                sizes = [metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)]
            total = max(1, sum(sizes))
            for start, stop in _row_group_ranges(sizes):
                splits.append(
                    InputSplit(
                        index=len(splits),
                        file_start=file_index,
                        file_stop=file_index + 1,
                        start=start,
                        stop=stop,
                        num_bytes=file.num_bytes * sum(sizes[start:stop]) // total,
                    )
                )
        return splits

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields the rows of one split.

        Raises:
            BadInputError: At the first row that does not fit, or if the file is damaged or changed.
        """
        file = files[split.file_start]
        with guard_unchanged(file), _opened(file) as parquet:
            row_groups = list(range(split.start, split.stop))
            stated = [parquet.metadata.row_group(i) for i in row_groups]
            num_stated = sum(g.num_rows for g in stated)
            first_row_in_file = sum(parquet.metadata.row_group(i).num_rows for i in range(split.start))
            row_bytes = max(1, sum(g.total_byte_size for g in stated) // max(1, num_stated))
            batches = parquet.iter_batches(
                batch_size=max(1, min(_MAX_BATCH_ROWS, BATCH_BYTES // row_bytes)),
                row_groups=row_groups,
                use_threads=False,
            )
            first_row = 0
            for batch in _each(batches, file):
                for piece in _pieces(batch):
                    yield _fit(piece, features, file, split, first_row, first_row_in_file)
                    first_row += piece.num_rows
            if first_row != num_stated:
                raise BadInputError(
                    "the file is damaged",
                    where=place(file),
                    why=f"the footer says {num_stated} rows, {first_row} were read",
                )


@contextmanager
def _opened(file: RawFile) -> Iterator[pq.ParquetFile]:
    with open_raw(file) as raw:
        try:
            parquet = pq.ParquetFile(raw, page_checksum_verification=True, pre_buffer=False)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _damaged(file, error) from error
        with parquet:
            yield parquet


def _each(batches: Iterator[pa.RecordBatch], file: RawFile) -> Iterator[pa.RecordBatch]:
    while True:
        try:
            batch = next(batches, None)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _damaged(file, error) from error
        if batch is None:
            return
        yield batch


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    # A dictionary of long strings stays small in the file and grows when it is decoded.
    num_pieces = max(1, batch.nbytes // (4 * BATCH_BYTES))
    rows = max(1, -(-batch.num_rows // num_pieces))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _fit(
    batch: pa.RecordBatch, features: Features, file: RawFile, split: InputSplit, first_row: int, first_row_in_file: int
) -> RowBatch:
    columns = dict(_flatten(batch))
    arrays: list[pa.Array] = []
    rounded: dict[str, int] = {}
    for feature in features:
        try:
            fitted = fit_column(columns[feature.name], feature)
        except UnfitValueError as error:
            raise BadInputError(
                f"column {feature.name!r} does not fit",
                where=place(file, row=first_row_in_file + first_row + error.row + 1),
                why=f"expected {error.expected}, got {error.got}",
                next_step="Declare the column in a --schema file, or mend the source",
            ) from error
        arrays.append(fitted.column)
        if fitted.num_rounded:
            rounded[feature.name] = fitted.num_rounded
    fitted_batch = pa.RecordBatch.from_arrays(arrays, names=[f.name for f in features])
    identities = row_identities(file, split.start, first_row, batch.num_rows)
    return RowBatch(fitted_batch, identities, split.file_start, rounded)


def _flatten(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Array]]:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        yield from _flatten_column(name, column)


def _flatten_column(name: str, column: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    if not pa.types.is_struct(column.type):
        yield name, column
        return
    for field, child in zip(column.type, column.flatten(), strict=True):
        yield from _flatten_column(f"{name}/{field.name}", child)


def _flat_fields(name: str, type_: pa.DataType, nullable: bool) -> Iterator[tuple[str, pa.DataType, bool]]:
    if not pa.types.is_struct(type_):
        yield name, type_, nullable
        return
    for field in type_:
        yield from _flat_fields(f"{name}/{field.name}", field.type, nullable or field.nullable)


def _features_of(parquet: pq.ParquetFile, file: RawFile) -> Features:
    try:
        schema = parquet.schema_arrow
    except (pa.ArrowException, ValueError) as error:
        raise _damaged(file, error) from error
    names = [name for field in schema for name, _, _ in _flat_fields(field.name, field.type, field.nullable)]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"column {name!r} appears twice", where=place(file))
    without_nulls = _columns_without_nulls(parquet)
    return tuple(
        feature_from_arrow(
            name,
            type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_,
            nullable=nullable and name not in without_nulls,
            where=place(file),
        )
        for field in schema
        for name, type_, nullable in _flat_fields(field.name, field.type, field.nullable)
    )


def _columns_without_nulls(parquet: pq.ParquetFile) -> set[str]:
    # Most writers mark every column as nullable; the statistics of all row groups tell whether one holds nulls. A list
    # column counts the nulls of its elements, so only plain columns are asked.
    metadata = parquet.metadata
    plain = {i: metadata.schema.column(i).name for i in range(metadata.num_columns)}
    found = {
        name for i, name in plain.items() if metadata.schema.column(i).path == name and metadata.num_row_groups > 0
    }
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for i, name in plain.items():
            statistics = row_group.column(i).statistics
            if statistics is None or not statistics.has_null_count or statistics.null_count:
                found.discard(name)
    return found


def _merge(first: Features, other: Features, first_file: RawFile, other_file: RawFile) -> Features:
    by_name = {f.name: f for f in other}
    differences = [f"- {f.name}: {f.describe_type()}" for f in first if f.name not in by_name]
    differences += [f"+ {f.name}: {f.describe_type()}" for f in other if f.name not in {g.name for g in first}]
    merged: list[Feature] = []
    for feature in first:
        twin = by_name.get(feature.name)
        if twin is None:
            continue
        common = _common(feature, twin)
        if common is None:
            differences.append(f"~ {feature.name}: {feature.describe_type()} against {twin.describe_type()}")
        else:
            merged.append(common)
    if differences:
        shown = "; ".join(differences[:_MAX_DIFFERENCES])
        more = f"; and {len(differences) - _MAX_DIFFERENCES} more" if len(differences) > _MAX_DIFFERENCES else ""
        raise UsageError(
            f"the schemas of {printable(first_file.name)} and {printable(other_file.name)} differ",
            why=f"{shown}{more}",
            next_step="Convert them apart, or bring them to one schema",
        )
    return tuple(merged)


def _common(first: Feature, other: Feature) -> Feature | None:
    nullable = first.nullable or other.nullable
    if msgspec.structs.replace(first, nullable=nullable) == msgspec.structs.replace(other, nullable=nullable):
        return msgspec.structs.replace(first, nullable=nullable)
    for ladder in (("int8", "int16", "int32", "int64"), ("float32", "float64"), ("uint8", "uint16", "uint32")):
        if {first.dtype, other.dtype} <= set(ladder) and first.shape == other.shape:
            wider = max(first, other, key=lambda f: ladder.index(f.dtype))
            return msgspec.structs.replace(wider, nullable=nullable)
    return None


def _row_group_ranges(sizes: list[int]) -> Iterator[tuple[int, int]]:
    start, total = 0, 0
    for index, size in enumerate(sizes):
        if index > start and total + size > SPLIT_BYTES:
            yield start, index
            start, total = index, 0
        total += size
    if sizes:
        yield start, len(sizes)


def _refuse_compressed(files: tuple[RawFile, ...]) -> None:
    for file in files:
        if file.compression is not None:
            raise UsageError(
                f"a Parquet file inside {file.compression} cannot be read",
                where=place(file),
                why="its footer stands at the end",
                next_step="Decompress it first",
            )


def _damaged(file: RawFile, error: Exception) -> ShardkitError:
    reason = str(error).split("\n", 1)[0].strip().rstrip(".")
    return BadInputError(
        "the Parquet file is cut off, damaged or of an unknown kind",
        where=place(file),
        why=f"{reason[:1].lower()}{reason[1:200]} ({file.num_bytes} bytes)",
        next_step="Get the file again, or leave it out",
    )
