"""Arrow: IPC files, which Feather 2 are, and streams. Splits are record batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

import msgspec
import pyarrow as pa

from shardkit import storage
from shardkit.errors import DamagedFileError, ShardkitError, StorageError, UsageError
from shardkit.features import Features
from shardkit.sources.arrow_layout import (
    MAX_WALKED_BATCHES,
    BatchTooLargeError,
    Layout,
    MessageStream,
    read_layout,
    read_message,
    split_messages,
    stream_messages,
)
from shardkit.sources.arrow_messages import FILE_MAGIC, starts_stream
from shardkit.sources.arrow_structure import check_structure, leaf_nodes
from shardkit.sources.base import BATCH_BYTES, InputSplit, RawFile, RowBatch, SourceOptions, choose_split_bytes
from shardkit.sources.columnar import RowFitter, check_columns, cut_pieces, infer_features, map_files
from shardkit.sources.parquet_schema import Column, flatten_schema
from shardkit.sources.streams import guard_unchanged, open_raw, open_stream, place, read_head
from shardkit.sources.text_splits import numbered
from shardkit.units import MiB, format_size

_FEATHER_MAGIC = b"FEA1"
_MAGIC_BYTES = 8
_MAPPED_BYTES = 64 * MiB
_MAX_EXPANSION = 200


@dataclass(frozen=True)
class ArrowSource:
    """Arrow IPC files, which Feather 2 are, and streams.

    Attributes:
        format: `arrow`.
        split_bytes: Wanted size of a split; None chooses by the size of the file.
        batch_bytes: Wanted size of a batch in memory.
    """

    format: str = "arrow"
    split_bytes: int | None = None
    batch_bytes: int = BATCH_BYTES

    def recognizes(self, head: bytes, name: str) -> bool:
        """Returns whether a file starts as one of the kinds does."""
        # The names of the magic bytes could start a text.
        is_padded = head[len(FILE_MAGIC) : _MAGIC_BYTES] == b"\0\0" or name.lower().endswith((".arrow", ".feather"))
        if head.startswith(FILE_MAGIC) and is_padded:
            return True
        return (head.startswith(_FEATHER_MAGIC) and b"\0" in head) or starts_stream(head)

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns the columns that all files have; nullable where a schema says so and no count of nulls denies it.

        Raises:
            UsageError: If schemas or partitions do not go together, a column has no place in an example, or a file is
                of Feather's first version.
            BadInputError: If a file is damaged, or all are empty.
        """
        return infer_features(files, _read_columns)

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns nothing: a schema says what a file is."""
        return ()

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Cuts the files between record batches; one that is compressed as a whole is one split.

        Raises:
            DamagedFileError: If a file is damaged.
        """
        filled = [(i, f) for i, f in enumerate(files) if f.num_bytes]
        layouts = map_files(_find_layout, [f for _, f in filled])
        return numbered(
            chain.from_iterable(self._cut(i, f, layout) for (i, f), layout in zip(filled, layouts, strict=True))
        )

    def _cut(self, file_index: int, file: RawFile, layout: Layout | None) -> Iterator[InputSplit]:
        if layout is None:
            yield InputSplit(index=0, file_start=file_index, file_stop=file_index + 1, num_bytes=file.num_bytes)
            return
        pieces = [(b.body_bytes, b.metadata_bytes + b.body_bytes) for b in layout.batches]
        wanted = self.split_bytes or choose_split_bytes(file.num_bytes)
        yield from cut_pieces(file_index, pieces, wanted)

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields the rows of one split.

        Raises:
            BadInputError: At the first row that does not fit, unless bad rows are tolerated, or if the file changed
                since it was listed.
            DamagedFileError: If the file is damaged, or a record batch takes up too much memory.
        """
        file = files[split.file_start]
        with guard_unchanged(file), _translated(file):
            fitter = RowFitter(
                split,
                files,
                features,
                options,
                rows_before=lambda: _count_rows(file, split.start),
                batch_bytes=self.batch_bytes,
            )
            is_first = True
            for batch in _batches(split, file, options):
                if is_first:
                    check_columns(flatten_schema(batch.schema, place(file)), features, file)
                    is_first = False
                check_structure(batch)
                yield from fitter.fit(batch)


def _batches(split: InputSplit, file: RawFile, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    if split.start == split.stop:
        with open_stream(file, is_read_through=True) as stream:
            yield from pa.ipc.open_stream(MessageStream(stream_messages(stream, options.max_expansion)))
        return
    with open_raw(file) as raw:
        layout = read_layout(raw, file.num_bytes)
        if layout is None or split.stop > len(layout.batches):
            raise ValueError("it has fewer batches than when it was planned")
        largest = max(layout.batches[split.start : split.stop], key=lambda b: b.body_bytes)
        is_large = largest.body_bytes > _MAPPED_BYTES and storage.is_local(file.path) and file.member is None
        if is_large and not read_message(raw, largest).is_compressed:
            yield from _mapped_batches(split, file, layout)
            return
        messages = split_messages(raw, layout, split.start, split.stop, options.max_expansion)
        yield from pa.ipc.open_stream(MessageStream(messages))


def _mapped_batches(split: InputSplit, file: RawFile, layout: Layout) -> Iterator[pa.RecordBatch]:
    # Of a mapped batch only the rows at hand are in memory. What is small is read, as a mapped file that is cut off
    # by another process ends this one.
    with pa.memory_map(str(storage.local_path(file.path))) as mapped:
        if layout.schema.offset:
            reader = pa.ipc.open_file(mapped)
            for index in range(split.start, split.stop):
                yield reader.get_batch(index)
            return
        stream = pa.ipc.open_stream(mapped)
        for index in range(split.stop):
            batch = stream.read_next_batch()
            if index >= split.start:
                yield batch


def _find_layout(file: RawFile) -> Layout | None:
    with _translated(file):
        if file.compression not in (None, "archive"):
            _refuse_file(file)
            return None
        _refuse_feather(file)
        with open_raw(file) as raw:
            return read_layout(raw, file.num_bytes)


def _read_columns(file: RawFile) -> tuple[Column, ...]:
    with _translated(file):
        layout = _find_layout(file)
        if layout is None:
            with open_stream(file) as stream:
                return flatten_schema(_open_schema(stream_messages(stream, _MAX_EXPANSION)), place(file))
        with open_raw(file) as raw:
            schema = _open_schema(split_messages(raw, layout, 0, 0, _MAX_EXPANSION))
            columns = flatten_schema(schema, place(file))
            if len(layout.batches) > MAX_WALKED_BATCHES:
                return columns
            counts = [read_message(raw, block).null_counts for block in layout.batches]
            return tuple(
                msgspec.structs.replace(c, nullable=c.nullable and not _are_zero(nodes, counts))
                for c, nodes in zip(columns, leaf_nodes(schema), strict=True)
            )


def _are_zero(nodes: tuple[int, ...], counts: list[tuple[int, ...]]) -> bool:
    return bool(nodes) and all(node < len(nulls) and nulls[node] == 0 for nulls in counts for node in nodes)


def _open_schema(messages: Iterator[bytes]) -> pa.Schema:
    return pa.ipc.open_stream(MessageStream(messages)).schema


def _count_rows(file: RawFile, num_batches: int) -> int:
    # Of the first so many batches.
    if not num_batches:
        return 0
    with open_raw(file) as raw:
        layout = read_layout(raw, file.num_bytes)
        return sum(read_message(raw, b).num_rows for b in layout.batches[:num_batches]) if layout else 0


def _refuse_file(file: RawFile) -> None:
    # A stream is read from front to back, a file is not.
    if read_head(file, len(FILE_MAGIC)) == FILE_MAGIC:
        raise UsageError(
            f"an Arrow file inside {file.compression} is not read", where=place(file), next_step="Decompress it first"
        )


def _refuse_feather(file: RawFile) -> None:
    # Arrow's reader of this version, which it will drop, ends the process on damaged files.
    with open_raw(file) as raw:
        if raw.read(len(_FEATHER_MAGIC)) == _FEATHER_MAGIC:
            raise UsageError(
                "Feather files of version 1 are not read",
                where=place(file),
                next_step="Write it as version 2: pyarrow.feather.write_feather(pyarrow.feather.read_table(OLD), NEW)",
            )


@contextmanager
def _translated(file: RawFile) -> Iterator[None]:
    try:
        yield
    except ShardkitError:
        raise
    except BatchTooLargeError as error:
        raise DamagedFileError(
            "the Arrow file takes up too much memory",
            where=place(file),
            why=str(error),
            next_step="Write it again in smaller record batches",
        ) from error
    except (pa.ArrowException, OSError, ValueError, OverflowError, KeyError) as error:
        if getattr(error, "errno", None):
            raise StorageError("the file cannot be read", where=place(file), why=str(error)) from error
        text = str(error).splitlines()[0].strip() if str(error) else type(error).__name__
        raise DamagedFileError(
            "the Arrow file is cut off or damaged",
            where=place(file),
            why=f"{text.rstrip('.')} ({format_size(file.num_bytes)})",
        ) from error
