"""Avro object container files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, cast

import msgspec
import pyarrow as pa

from shardkit.decode_errors import DECODE_ERRORS
from shardkit.encoding.byte_stream import ByteStream
from shardkit.features import Features
from shardkit.sources.avro.container import (
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
from shardkit.sources.avro.rows import BatchReader
from shardkit.sources.avro.schema import AvroSchema, read_schema
from shardkit.sources.base import InputSplit, RawFile, SourceOptions, choose_split_bytes, place
from shardkit.sources.columnar.arrow_columns import Column
from shardkit.sources.columnar.source import ColumnarSource, Container
from shardkit.sources.files.streams import open_raw, open_stream
from shardkit.units import MiB

_SMALL_BLOCK_BYTES = 16 * MiB


@dataclass(frozen=True)
class AvroSource(ColumnarSource):
    """Avro object container files. Splits are runs of blocks; a file that is compressed as a whole is one split."""

    format: str = "avro"
    kind: ClassVar[str] = "Avro"

    def recognizes(self, head: bytes, name: str) -> bool:
        """Returns whether a file starts as an Avro file does."""
        return head.startswith(MAGIC)

    @contextmanager
    def open_file(self, file: RawFile, options: SourceOptions) -> Iterator[Container]:
        """Opens a file and reads its header; its blocks are read from front to back."""
        yield _AvroFile(file, options)


class _AvroFile(Container):
    def __init__(self, file: RawFile, options: SourceOptions) -> None:
        self._file = file
        self._options = options

    @cached_property
    def _header(self) -> Header:
        with open_stream(self._file) as stream:
            return read_header(Reader(stream))

    @cached_property
    def _schema(self) -> AvroSchema:
        try:
            schema = msgspec.json.decode(self._header.schema)
        except DECODE_ERRORS as error:
            raise ValueError(f"its schema is no JSON, {error}") from error
        return read_schema(schema, place(self._file), self._options.drop_columns)

    def columns(self) -> tuple[Column, ...]:
        return tuple(leaf.column for leaf in self._schema.leaves)

    def cuts(self, split_bytes: int | None) -> Iterator[InputSplit]:
        whole = InputSplit(index=0, file_start=0, file_stop=1, num_bytes=self._file.num_bytes)
        starts = self._starts(split_bytes or choose_split_bytes(self._file.num_bytes))
        if len(starts) < 2:
            yield whole
            return
        for start, stop in pairwise([*starts, self._file.num_bytes]):
            yield msgspec.structs.replace(whole, start=start, stop=stop, num_bytes=stop - start)

    def _starts(self, wanted: int) -> list[int]:
        if self._file.compression is not None or self._file.num_bytes <= wanted:
            return []
        with open_raw(self._file) as raw:
            header = read_header(Reader(cast(ByteStream, raw)))
            starts = [header.num_bytes]
            while (place_ := starts[-1] + wanted) < self._file.num_bytes:
                start = find_block(raw, header, max(place_, header.num_bytes) - SYNC_BYTES)
                if start is None or start >= self._file.num_bytes:
                    break
                starts.append(start)
        return starts

    def batches(self, split: InputSplit, features: Features, batch_bytes: int) -> Iterator[pa.RecordBatch]:
        names = {f.name for f in features}
        leaves = [leaf for leaf in self._schema.leaves if leaf.column.name in names]
        blocks = ((self._inflated(block), block.num_rows) for block in self._blocks(split.start, split.stop))
        yield from BatchReader(self._schema, leaves).batches(blocks, batch_bytes)

    def rows_before(self, start: int) -> int:
        return sum(block.num_rows for block in self._blocks(0, start)) if start else 0

    def _blocks(self, start: int, stop: int) -> Iterator[Block]:
        start = start or self._header.num_bytes
        with open_stream(self._file, start, is_read_through=True) as stream:
            yield from read_blocks(Reader(stream, start), self._header, stop, self._options.max_record_bytes)

    def _inflated(self, block: Block) -> bytes:
        limit = max(_SMALL_BLOCK_BYTES, self._options.max_expansion * len(block.data))
        return inflate(block.data, self._header.codec, min(limit, self._options.max_record_bytes))
