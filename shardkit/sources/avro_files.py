"""Avro object container files. Splits are runs of blocks between sync markers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import cast

import msgspec

from shardkit.errors import DamagedFileError, ShardkitError
from shardkit.features import Features
from shardkit.sources.avro_container import (
    MAGIC,
    SYNC_BYTES,
    Block,
    Header,
    Reader,
    find_block,
    inflate,
    read_blocks,
    read_header,
)
from shardkit.sources.avro_rows import RecordReader, columns_of
from shardkit.sources.avro_schema import AvroSchema, read_schema
from shardkit.sources.base import BATCH_BYTES, InputSplit, RawFile, RowBatch, SourceOptions, choose_split_bytes
from shardkit.sources.columnar import RowFitter, check_columns, infer_features, map_files
from shardkit.sources.parquet_schema import Column
from shardkit.sources.streams import ByteStream, guard_unchanged, open_raw, open_stream, place
from shardkit.sources.text_splits import numbered
from shardkit.units import MiB, format_size

_SMALL_BLOCK_BYTES = 16 * MiB


@dataclass(frozen=True)
class AvroSource:
    """Avro object container files.

    Attributes:
        format: `avro`.
        split_bytes: Wanted size of a split; None chooses by the size of the file.
        batch_bytes: Wanted size of a batch, as encoded.
    """

    format: str = "avro"
    split_bytes: int | None = None
    batch_bytes: int = BATCH_BYTES

    def recognizes(self, head: bytes, name: str) -> bool:
        """Returns whether a file starts as an Avro file does."""
        return head.startswith(MAGIC)

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns the columns that all files have, from the schemas in their headers.

        Raises:
            UsageError: If schemas or partitions do not go together, or a column has no place in an example.
            BadInputError: If a header is damaged, or all files are empty.
        """
        return infer_features(files, _read_columns)

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns nothing: a schema says what a file is."""
        return ()

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Cuts the files behind sync markers; one that is compressed as a whole is one split.

        Raises:
            DamagedFileError: If a header is damaged.
        """
        filled = [(i, f) for i, f in enumerate(files) if f.num_bytes]
        found = map_files(self._starts, [f for _, f in filled])
        return numbered(chain.from_iterable(_cut(i, f, starts) for (i, f), starts in zip(filled, found, strict=True)))

    def _starts(self, file: RawFile) -> list[int]:
        # Where splits start; nothing if there is but one.
        wanted = self.split_bytes or choose_split_bytes(file.num_bytes)
        with _translated(file):
            if file.compression is not None or file.num_bytes <= wanted:
                return []
            with open_raw(file) as raw:
                header = read_header(Reader(cast(ByteStream, raw)))
                starts = [header.num_bytes]
                while (place_ := starts[-1] + wanted) < file.num_bytes:
                    start = find_block(raw, header, max(place_, header.num_bytes) - SYNC_BYTES)
                    if start is None or start >= file.num_bytes:
                        break
                    starts.append(start)
        return starts

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
        with guard_unchanged(file), _translated(file):
            header, schema = _read_start(file)
            check_columns([leaf.column for leaf in schema.leaves], features, file)
            names = {f.name for f in features}
            leaves = [leaf for leaf in schema.leaves if leaf.column.name in names]
            records = RecordReader(schema)
            fitter = RowFitter(
                split,
                files,
                features,
                options,
                rows_before=lambda: _count_rows(file, header, split.start, options),
                batch_bytes=self.batch_bytes,
            )
            blocks = (
                (_inflated(block, header, options), block.num_rows)
                for block in _blocks(file, header, split.start, split.stop, options)
            )
            for rows in records.batches(blocks, self.batch_bytes):
                yield from fitter.fit(columns_of(rows, leaves))


def _cut(file_index: int, file: RawFile, starts: list[int]) -> Iterator[InputSplit]:
    whole = InputSplit(index=0, file_start=file_index, file_stop=file_index + 1, num_bytes=file.num_bytes)
    if len(starts) < 2:
        yield whole
        return
    for start, stop in zip(starts, [*starts[1:], file.num_bytes], strict=True):
        yield msgspec.structs.replace(whole, start=start, stop=stop, num_bytes=stop - start)


def _read_columns(file: RawFile) -> tuple[Column, ...]:
    with _translated(file):
        return tuple(leaf.column for leaf in _read_start(file)[1].leaves)


def _read_start(file: RawFile) -> tuple[Header, AvroSchema]:
    with open_stream(file) as stream:
        header = read_header(Reader(stream))
    try:
        schema = msgspec.json.decode(header.schema)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"its schema is no JSON, {error}") from error
    return header, read_schema(schema, place(file))


def _blocks(file: RawFile, header: Header, start: int, stop: int, options: SourceOptions) -> Iterator[Block]:
    start = start or header.num_bytes
    with open_stream(file, start, is_read_through=True) as stream:
        yield from read_blocks(Reader(stream, start), header, stop, options.max_record_bytes)


def _inflated(block: Block, header: Header, options: SourceOptions) -> bytes:
    limit = max(_SMALL_BLOCK_BYTES, options.max_expansion * len(block.data))
    return inflate(block.data, header.codec, min(limit, options.max_record_bytes))


def _count_rows(file: RawFile, header: Header, stop: int, options: SourceOptions) -> int:
    return sum(b.num_rows for b in _blocks(file, header, 0, stop, options)) if stop else 0


@contextmanager
def _translated(file: RawFile) -> Iterator[None]:
    try:
        yield
    except ShardkitError:
        raise
    except (ValueError, OverflowError) as error:
        why = f"{str(error).rstrip('.')} ({format_size(file.num_bytes)})"
        raise DamagedFileError("the Avro file is cut off or damaged", where=place(file), why=why) from error
