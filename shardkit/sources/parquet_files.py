"""Parquet: schemas and counts from the footers, rows from the row groups."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from shardkit.errors import DamagedFileError, ShardkitError, StorageError, UsageError
from shardkit.features import Features
from shardkit.sources.base import BATCH_BYTES, InputSplit, RawFile, RowBatch, SourceOptions, choose_split_bytes
from shardkit.sources.columnar import (
    MAX_BATCH_ROWS,
    RowFitter,
    check_columns,
    cut_pieces,
    infer_features,
    map_files,
)
from shardkit.sources.parquet_footer import READABLE_CODECS, RowGroup, codec_name, parse_row_groups
from shardkit.sources.parquet_schema import Column, flatten_schema
from shardkit.sources.streams import guard_unchanged, open_raw, place
from shardkit.sources.text_splits import numbered
from shardkit.units import KiB, MiB, format_size

_PROBED_ROWS = 64
_TAIL_BYTES = 8
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
            UsageError: If schemas or partitions do not go together, or a column has no place in an example.
            BadInputError: If a footer is damaged, or all files are empty.
        """
        return infer_features(files, lambda file: _read_footer(file).columns)

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns nothing: a schema says what a file is."""
        return ()

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Cuts the files between row groups.

        Raises:
            DamagedFileError: If a footer is damaged.
        """
        filled = [(i, f) for i, f in enumerate(files) if f.num_bytes]
        footers = map_files(_read_footer, [f for _, f in filled])
        return numbered(
            chain.from_iterable(self._cut(i, footer) for (i, _), footer in zip(filled, footers, strict=True))
        )

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields the rows of one split.

        Raises:
            BadInputError: At the first row that does not fit, unless bad rows are tolerated, or if the file changed
                since it was listed.
            DamagedFileError: If the file is damaged.
        """
        file = files[split.file_start]
        with guard_unchanged(file), _open(file) as (parquet, _):
            check_columns(flatten_schema(parquet.schema_arrow, place(file)), features, file)
            groups = list(range(split.start, split.stop))
            num_rows = [parquet.metadata.row_group(g).num_rows for g in range(split.stop)]
            num_expected = sum(num_rows[split.start :])
            fitter = RowFitter(
                split,
                files,
                features,
                options,
                rows_before=lambda: sum(num_rows[: split.start]),
                batch_bytes=self.batch_bytes,
            )
            batch_rows = _batch_rows(parquet, groups, self.batch_bytes)
            for batch in parquet.iter_batches(batch_size=batch_rows, row_groups=groups, use_threads=False):
                yield from fitter.fit(batch)
            if fitter.num_rows != num_expected:
                raise DamagedFileError(
                    "the file is damaged",
                    where=place(file),
                    why=f"its footer says {num_expected} rows, {fitter.num_rows} were read",
                )

    def _cut(self, file_index: int, footer: _Footer) -> Iterator[InputSplit]:
        pieces = [(g.num_uncompressed_bytes, sum(c.num_bytes for c in g.columns)) for g in footer.groups]
        wanted = self.split_bytes or choose_split_bytes(sum(size for size, _ in pieces))
        return cut_pieces(file_index, pieces, wanted)


def _read_footer(file: RawFile) -> _Footer:
    with _open(file) as (parquet, groups):
        columns = flatten_schema(parquet.schema_arrow, place(file))
        if len(groups) != parquet.num_row_groups:
            raise ValueError("the footer counts its row groups in two ways")
        codec = next((c.codec for g in groups for c in g.columns if c.codec not in READABLE_CODECS), None)
        if codec is not None:
            raise DamagedFileError(
                "a column is compressed in a way that is not read", where=place(file), why=codec_name(codec)
            )
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
def _open(file: RawFile) -> Iterator[tuple[pq.ParquetFile, tuple[RowGroup, ...]]]:
    if file.compression not in (None, "archive"):
        raise UsageError(
            f"a Parquet file inside {file.compression} is not read", where=place(file), next_step="Decompress it first"
        )
    with open_raw(file) as raw:
        try:
            # A column chunk is read in pieces, so that no row group is ever held whole.
            probe = pq.read_metadata(raw)
            groups = parse_row_groups(_read_footer_bytes(raw, probe, file))
            buffer_bytes = max(64 * KiB, min(MiB, _OPEN_BUFFERS_BYTES // max(1, probe.num_columns)))
            if max((sum(c.num_bytes for c in g.columns) for g in groups), default=0) <= _OPEN_BUFFERS_BYTES:
                # Read in one piece: a damaged length of a page then cannot make Arrow allocate a buffer of that size.
                buffer_bytes = 0
            with pq.ParquetFile(
                raw, metadata=probe, buffer_size=buffer_bytes, pre_buffer=False, page_checksum_verification=True
            ) as parquet:
                yield parquet, groups
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
        raise DamagedFileError("the Parquet file is encrypted", where=place(file), next_step="Decrypt it first")
    raw.seek(-_TAIL_BYTES - num_bytes, io.SEEK_END)
    return raw.read(num_bytes)


def _damaged(error: Exception, file: RawFile) -> DamagedFileError:
    text = str(error).splitlines()[0].strip() if str(error) else type(error).__name__
    if "encrypted metadata" in text:
        return DamagedFileError("the Parquet file is encrypted", where=place(file), next_step="Decrypt it first")
    if "Expected all lists to be of size" in text:
        return DamagedFileError(
            "a column of fixed-size lists holds nulls",
            where=place(file),
            why="Arrow writes such a column and cannot read it",
            next_step="Write the column as lists of any length, and declare its shape in a --schema file",
        )
    why = f"{text.rstrip('.')} ({format_size(file.num_bytes)})"
    return DamagedFileError("the Parquet file is cut off or damaged", where=place(file), why=why)


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
    return int(min(MAX_BATCH_ROWS, max(1, batch_bytes / max(1.0, row_bytes))))


def _probe_row_bytes(parquet: pq.ParquetFile, groups: list[int], columns: list[str]) -> float:
    if not columns:
        return 0.0
    rows = parquet.iter_batches(batch_size=_PROBED_ROWS, row_groups=groups, columns=columns, use_threads=False)
    first = next(rows, None)
    return first.nbytes / first.num_rows if first is not None and first.num_rows else 0.0
