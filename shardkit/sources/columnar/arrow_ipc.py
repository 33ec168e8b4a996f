"""Arrow: IPC files, which Feather 2 are, and streams."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import BinaryIO, ClassVar

import msgspec
import pyarrow as pa

from shardkit.errors import UsageError
from shardkit.features import Features
from shardkit.sources.base import InputSplit, RawFile, SourceOptions, choose_split_bytes, place
from shardkit.sources.columnar.arrow_columns import Column, flatten_schema
from shardkit.sources.columnar.arrow_layout import (
    MAX_WALKED_BATCHES,
    Layout,
    MessageStream,
    read_layout,
    read_message,
    split_messages,
    stream_messages,
)
from shardkit.sources.columnar.arrow_messages import FILE_MAGIC, starts_stream
from shardkit.sources.columnar.arrow_structure import check_structure, leaf_nodes
from shardkit.sources.columnar.schemas import cut_pieces
from shardkit.sources.columnar.source import ColumnarSource, Container
from shardkit.sources.columns.dropped_columns import wanted_fields
from shardkit.sources.files.streams import open_raw, open_stream, read_head
from shardkit.storage import files as storage
from shardkit.units import MiB

_FEATHER_MAGIC = b"FEA1"
_MAGIC_BYTES = 8
_MAPPED_BYTES = 64 * MiB


@dataclass(frozen=True)
class ArrowSource(ColumnarSource):
    """Arrow IPC files, which Feather 2 are, and streams.

    Splits are record batches; what is compressed as a whole, and a stream of very many batches, is one split.
    """

    format: str = "arrow"
    kind: ClassVar[str] = "Arrow"

    def recognizes(self, head: bytes, name: str) -> bool:
        """Returns whether a file starts as one of the kinds does."""
        # The names of the magic bytes could start a text.
        is_padded = head[len(FILE_MAGIC) : _MAGIC_BYTES] == b"\0\0" or name.lower().endswith((".arrow", ".feather"))
        if head.startswith(FILE_MAGIC) and is_padded:
            return True
        return (head.startswith(_FEATHER_MAGIC) and b"\0" in head) or starts_stream(head)

    @contextmanager
    def open_file(self, file: RawFile, options: SourceOptions) -> Iterator[Container]:
        if file.compression not in (None, "archive"):
            _refuse_file(file)
            yield _ArrowFile(file, None, options.drop_columns)
            return
        with open_raw(file) as raw:
            _refuse_feather(raw, file)
            yield _ArrowFile(file, raw, options.drop_columns)


class _ArrowFile(Container):
    def __init__(self, file: RawFile, raw: BinaryIO | None, dropped: tuple[str, ...]) -> None:
        # Without `raw` it is a stream that can only be read from front to back.
        self._file = file
        self._raw = raw
        self._dropped = dropped

    @cached_property
    def _layout(self) -> Layout | None:
        return None if self._raw is None else read_layout(self._raw, self._file.num_bytes)

    @cached_property
    def _schema(self) -> pa.Schema:
        if self._raw is None or self._layout is None:
            with open_stream(self._file) as stream:
                return _open_schema(stream_messages(stream, self._file))
        return _open_schema(split_messages(self._raw, self._layout, 0, 0, self._file))

    def columns(self) -> tuple[Column, ...]:
        columns = flatten_schema(self._schema, place(self._file))
        if self._raw is None or self._layout is None or len(self._layout.batches) > MAX_WALKED_BATCHES:
            return columns
        counts = [read_message(self._raw, block)[1].null_counts for block in self._layout.batches]
        return tuple(
            msgspec.structs.replace(c, nullable=c.nullable and not _are_zero(nodes, counts))
            for c, nodes in zip(columns, leaf_nodes(self._schema), strict=True)
        )

    def cuts(self, split_bytes: int | None) -> Iterator[InputSplit]:
        if self._layout is None:
            return iter((InputSplit(index=0, file_start=0, file_stop=1, num_bytes=self._file.num_bytes),))
        pieces = [(b.body_bytes, b.metadata_bytes + b.body_bytes) for b in self._layout.batches]
        return cut_pieces(pieces, split_bytes or choose_split_bytes(self._file.num_bytes))

    def batches(self, split: InputSplit, features: Features, batch_bytes: int) -> Iterator[pa.RecordBatch]:
        for batch in self._batches(split):
            check_structure(batch)
            yield batch

    def rows_before(self, start: int) -> int:
        if not start or self._raw is None or self._layout is None:
            return 0
        return sum(read_message(self._raw, b)[1].num_rows for b in self._layout.batches[:start])

    def num_rows_to_cut(self, split: InputSplit) -> int:
        # Without the mapping each reader of a part would hold the whole in memory.
        if self._raw is None or self._layout is None or not self._is_mapped(split, self._raw, self._layout):
            return 0
        return read_message(self._raw, self._layout.batches[split.start])[1].num_rows

    def _batches(self, split: InputSplit) -> Iterator[pa.RecordBatch]:
        wanted = pa.ipc.IpcReadOptions(included_fields=wanted_fields(self._schema, self._dropped))
        if split.start == split.stop:
            with open_stream(self._file, is_read_through=True) as stream:
                messages = MessageStream(stream_messages(stream, self._file))
                yield from pa.ipc.open_stream(messages, options=wanted)
            return
        if self._raw is None or self._layout is None or split.stop > len(self._layout.batches):
            raise ValueError("it has fewer batches than when it was planned")
        if self._is_mapped(split, self._raw, self._layout):
            yield from _mapped_batches(split, self._file, self._layout, wanted)
            return
        pieces = split_messages(self._raw, self._layout, split.start, split.stop, self._file)
        yield from pa.ipc.open_stream(MessageStream(pieces), options=wanted)

    def _is_mapped(self, split: InputSplit, raw: BinaryIO, layout: Layout) -> bool:
        largest = max(layout.batches[split.start : split.stop], key=lambda b: b.body_bytes)
        is_large = largest.body_bytes > _MAPPED_BYTES
        is_plain = storage.is_local(self._file.path) and self._file.member is None
        return is_large and is_plain and not read_message(raw, largest)[1].is_compressed


def _mapped_batches(
    split: InputSplit, file: RawFile, layout: Layout, wanted: pa.ipc.IpcReadOptions
) -> Iterator[pa.RecordBatch]:
    # Only the rows at hand of a mapped batch are in memory. Small batches are read, because a mapped file that another
    # process cuts off ends this one.
    with pa.memory_map(str(storage.local_path(file.path))) as mapped:
        if layout.schema.offset:
            reader = pa.ipc.open_file(mapped, options=wanted)
            for index in range(split.start, split.stop):
                yield reader.get_batch(index)
            return
        stream = pa.ipc.open_stream(mapped, options=wanted)
        for index in range(split.stop):
            batch = stream.read_next_batch()
            if index >= split.start:
                yield batch


def _are_zero(nodes: tuple[int, ...], counts: list[tuple[int, ...]]) -> bool:
    return bool(nodes) and all(node < len(nulls) and nulls[node] == 0 for nulls in counts for node in nodes)


def _open_schema(messages: Iterator[bytes]) -> pa.Schema:
    return pa.ipc.open_stream(MessageStream(messages)).schema


def _refuse_file(file: RawFile) -> None:
    # A stream is read from front to back, a file is not.
    if read_head(file, len(FILE_MAGIC)) == FILE_MAGIC:
        raise UsageError(
            f"an Arrow file inside {file.compression} is not read", where=place(file), next_step="Decompress it first"
        )


def _refuse_feather(raw: BinaryIO, file: RawFile) -> None:
    # Arrow's reader of this version, which it will drop, ends the process on damaged files.
    if raw.read(len(_FEATHER_MAGIC)) == _FEATHER_MAGIC:
        new = f"{file.path.removesuffix('.feather')}.arrow"
        command = (
            f"import pyarrow.feather as f; f.write_feather(f.read_table({json.dumps(file.path)}), {json.dumps(new)})"
        )
        raise UsageError(
            "Feather files of version 1 are not read",
            where=place(file),
            next_step=f"Write it as version 2: python -c {shlex.quote(command)}",
        )
