"""Parquet: schemas and counts from the footers, rows from the row groups."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from shardkit import storage
from shardkit.errors import BadInputError, ShardkitError, StorageError, UsageError
from shardkit.features import Features, arrow_schema, feature_from_arrow
from shardkit.sources.base import (
    BATCH_BYTES,
    InputSplit,
    RawFile,
    RowBatch,
    SourceOptions,
    choose_split_bytes,
    row_identities,
)
from shardkit.sources.fitting import UnfitValueError, fit_column
from shardkit.sources.parquet_footer import RowGroup, parse_row_groups
from shardkit.sources.parquet_schema import Column, flatten_batch, flatten_schema, unite_columns
from shardkit.sources.streams import guard_unchanged, open_raw, place, shown
from shardkit.units import KiB, MiB, format_size

_REMOTE_THREADS = 32
_PROBED_ROWS = 64
_TAIL_BYTES = 8
_MAX_BATCH_ROWS = 65_536
_OPEN_BUFFERS_BYTES = 64 * MiB


class _Footer(msgspec.Struct, frozen=True):
    columns: tuple[Column, ...]
    groups: tuple[RowGroup, ...]


@dataclass(frozen=True)
class ParquetSource:
    """Parquet.

    Attributes:
        format: `parquet`.
        split_bytes: Wanted uncompressed size of a split; None chooses by the size of the file.
        batch_bytes: Wanted size of a batch in memory.
    """

    format: str = "parquet"
    split_bytes: int | None = None
    batch_bytes: int = BATCH_BYTES

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns the columns that all files have; nullable where a schema says so and no statistics deny it.

        Raises:
            UsageError: If schemas do not go together, or a column has no place in an example.
            BadInputError: If a footer is damaged, or all files are empty.
        """
        filled = [f for f in files if f.num_bytes]
        if not filled:
            raise BadInputError("there are no rows", why="all input files are empty")
        columns, first = None, filled[0]
        for file, footer in zip(filled, _read_footers(filled), strict=True):
            if columns is None:
                columns = footer.columns
            else:
                columns = unite_columns(columns, first.name, footer.columns, file.name)
        where = place(first)
        found = tuple(feature_from_arrow(c.name, c.type_, nullable=c.nullable, where=where) for c in columns or ())
        if not found:
            raise BadInputError("the file has no columns", where=where)
        return found

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns nothing: a schema says what a file is."""
        return ()

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Cuts the files between row groups.

        Raises:
            BadInputError: If a footer is damaged.
        """
        filled = [(i, f) for i, f in enumerate(files) if f.num_bytes]
        splits: list[InputSplit] = []
        for (file_index, _), footer in zip(filled, _read_footers([f for _, f in filled]), strict=True):
            wanted = self.split_bytes or choose_split_bytes(sum(g.num_uncompressed_bytes for g in footer.groups))
            start = num_bytes = 0
            for stop, group in enumerate(footer.groups, start=1):
                num_bytes += group.num_uncompressed_bytes
                if num_bytes >= wanted or stop == len(footer.groups):
                    stored = sum(c.num_bytes for g in footer.groups[start:stop] for c in g.columns)
                    splits.append(
                        InputSplit(
                            index=len(splits),
                            file_start=file_index,
                            file_stop=file_index + 1,
                            start=start,
                            stop=stop,
                            num_bytes=stored,
                        )
                    )
                    start, num_bytes = stop, 0
        return splits

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields the rows of one split.

        Raises:
            BadInputError: At the first row that does not fit, if the file is damaged, or if it changed since it was
                listed.
        """
        file = files[split.file_start]
        with guard_unchanged(file), _open(file) as (parquet, _):
            _check_columns(parquet, features, file)
            metadata = parquet.metadata
            rows_before = sum(metadata.row_group(g).num_rows for g in range(split.start))
            num_expected = sum(metadata.row_group(g).num_rows for g in range(split.start, split.stop))
            groups = list(range(split.start, split.stop))
            num_read = 0
            for batch in parquet.iter_batches(
                batch_size=_batch_rows(parquet, groups, self.batch_bytes), row_groups=groups, use_threads=False
            ):
                _check_size(batch, file, rows_before + num_read, options)
                columns, rounded = _fit(batch, features, file, rows_before + num_read)
                identities = row_identities(file, split.start, num_read, batch.num_rows)
                num_read += batch.num_rows
                yield RowBatch(columns, identities, split.file_start, rounded)
            if num_read != num_expected:
                raise BadInputError(
                    "the file is damaged",
                    where=place(file),
                    why=f"its footer says {num_expected} rows, {num_read} were read",
                )


def _read_footers(files: list[RawFile]) -> list[_Footer]:
    if len(files) < 2 or all(storage.is_local(f.path) for f in files):
        return [_read_footer(f) for f in files]
    with ThreadPoolExecutor(_REMOTE_THREADS) as threads:
        return list(threads.map(_read_footer, files))


def _read_footer(file: RawFile) -> _Footer:
    with _open(file) as (parquet, footer):
        columns = flatten_schema(parquet.schema_arrow, place(file))
        groups = parse_row_groups(footer)
        if len(groups) != parquet.num_row_groups:
            raise ValueError("the footer counts its row groups in two ways")
        # One leaf a column, unless some type has no place in an example: that is told later, by name.
        if len(columns) == parquet.metadata.num_columns:
            columns = tuple(
                msgspec.structs.replace(column, nullable=column.nullable and not _is_known_full(groups, position))
                for position, column in enumerate(columns)
            )
        return _Footer(columns, groups)


def _is_known_full(groups: tuple[RowGroup, ...], position: int) -> bool:
    return all(position < len(g.columns) and g.columns[position].num_nulls == 0 for g in groups)


@contextmanager
def _open(file: RawFile) -> Iterator[tuple[pq.ParquetFile, bytes]]:
    if file.compression is not None:
        raise UsageError(
            f"a Parquet file inside {file.compression} is not read", where=place(file), next_step="Decompress it first"
        )
    with open_raw(file) as raw:
        try:
            # A column chunk is read in pieces, so that no row group is ever held whole.
            probe = pq.read_metadata(raw)
            footer = _read_footer_bytes(raw, probe, file)
            buffer_bytes = max(64 * KiB, min(MiB, _OPEN_BUFFERS_BYTES // max(1, probe.num_columns)))
            with pq.ParquetFile(
                raw, metadata=probe, buffer_size=buffer_bytes, pre_buffer=False, page_checksum_verification=True
            ) as parquet:
                yield parquet, footer
        except ShardkitError:
            raise
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
            if getattr(error, "errno", None):
                raise StorageError("the file cannot be read", where=place(file), why=str(error)) from error
            raise _damaged(error, file) from error


def _read_footer_bytes(raw: BinaryIO, metadata: pq.FileMetaData, file: RawFile) -> bytes:
    raw.seek(-_TAIL_BYTES, io.SEEK_END)
    (num_bytes,) = struct.unpack("<I", raw.read(4))
    # A footer in plain text is signed when columns are encrypted.
    if num_bytes != metadata.serialized_size:
        raise BadInputError("the Parquet file is encrypted", where=place(file), next_step="Decrypt it first")
    raw.seek(-_TAIL_BYTES - num_bytes, io.SEEK_END)
    return raw.read(num_bytes)


def _damaged(error: Exception, file: RawFile) -> BadInputError:
    text = str(error).splitlines()[0].strip() if str(error) else type(error).__name__
    if "encrypted metadata" in text:
        return BadInputError("the Parquet file is encrypted", where=place(file), next_step="Decrypt it first")
    if "Expected all lists to be of size" in text:
        return BadInputError(
            "a column of fixed-size lists holds nulls",
            where=place(file),
            why="Arrow writes such a column and cannot read it",
            next_step="Write the column as lists of any length, and declare its shape in a --schema file",
        )
    why = f"{text.rstrip('.')} ({format_size(file.num_bytes)})"
    return BadInputError("the Parquet file is cut off or damaged", where=place(file), why=why)


def _check_columns(parquet: pq.ParquetFile, features: Features, file: RawFile) -> None:
    names = {c.name for c in flatten_schema(parquet.schema_arrow, place(file))}
    missing = [f.name for f in features if f.name not in names]
    if missing:
        raise BadInputError(
            "a column is missing", where=place(file), why=f"{', '.join(map(shown, missing))} was there when planned"
        )


def _batch_rows(parquet: pq.ParquetFile, groups: list[int], batch_bytes: int) -> int:
    metadata = parquet.metadata
    num_rows = sum(metadata.row_group(g).num_rows for g in groups)
    num_bytes = sum(metadata.row_group(g).total_byte_size for g in groups)
    row_bytes = num_bytes / max(1, num_rows)
    if num_rows > _PROBED_ROWS:
        # Repeated values take up little room in the file and much in memory.
        types = {f.name: f.type for f in parquet.schema_arrow}
        fixed_bytes = sum(t.bit_width for t in types.values() if pa.types.is_primitive(t)) / 8
        others = [name for name, t in types.items() if not pa.types.is_primitive(t)]
        row_bytes = max(row_bytes, fixed_bytes + _probe_row_bytes(parquet, groups[:1], others))
    return int(min(_MAX_BATCH_ROWS, max(1, batch_bytes / max(1.0, row_bytes))))


def _probe_row_bytes(parquet: pq.ParquetFile, groups: list[int], columns: list[str]) -> float:
    if not columns:
        return 0.0
    rows = parquet.iter_batches(batch_size=_PROBED_ROWS, row_groups=groups, columns=columns, use_threads=False)
    first = next(rows, None)
    return first.nbytes / first.num_rows if first is not None and first.num_rows else 0.0


def _check_size(batch: pa.RecordBatch, file: RawFile, row: int, options: SourceOptions) -> None:
    if batch.nbytes <= options.max_record_bytes:
        return
    for position in range(batch.num_rows):
        num_bytes = batch.slice(position, 1).nbytes
        if num_bytes > options.max_record_bytes:
            raise BadInputError(
                "a row is too large",
                where=place(file, row=row + position + 1),
                why=f"{format_size(num_bytes)} is more than the {format_size(options.max_record_bytes)} allowed",
            )


def _fit(
    batch: pa.RecordBatch, features: Features, file: RawFile, rows_before: int
) -> tuple[pa.RecordBatch, dict[str, int]]:
    flat = flatten_batch(batch)
    columns, rounded = [], {}
    for feature in features:
        try:
            fitted = fit_column(flat[feature.name], feature)
        except UnfitValueError as error:
            raise BadInputError(
                f"column {shown(feature.name)} does not fit",
                where=place(file, row=rows_before + error.row + 1),
                why=f"expected {error.expected}, got {error.got}",
                next_step="Correct the row, or declare the column in a --schema file",
            ) from error
        columns.append(fitted.column)
        if fitted.num_rounded:
            rounded[feature.name] = fitted.num_rounded
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(features)), rounded
