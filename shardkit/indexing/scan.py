"""One TFRecord file read once: its records checked, its blocks and hashes noted, what its features hold observed.

A plain file is cut into blocks of whole records of about 1 MiB. A gzip file is one block, because nothing tells where
else it could be inflated from; it is read in pieces of 1 MiB all the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple, cast

import msgspec

from shardkit.encoding.byte_stream import ByteStream
from shardkit.encoding.codec import BLOCK_BYTES
from shardkit.encoding.gzip_files import GzipStream
from shardkit.encoding.kernel import crc32c
from shardkit.encoding.tfrecord import FOOTER_BYTES
from shardkit.errors import BadInputError, DamagedFileError, ShardkitError, StorageError, UsageError
from shardkit.features import Features
from shardkit.indexing.listing import IndexOptions
from shardkit.messages import printable
from shardkit.sources.base import RawFile, SourceOptions, place
from shardkit.sources.files.expansion_limit import ExpansionGuard
from shardkit.sources.files.read_ahead import read_ahead
from shardkit.sources.files.streams import GuardedStream, guard_unchanged, open_raw
from shardkit.sources.tfrecord.blocks import CutOffError, Form, Frames, RecordBlock, byte_place, max_length, read_blocks
from shardkit.sources.tfrecord.feature_shapes import FileShape, features_of, observe
from shardkit.sources.tfrecord.rows import BlockDecoder
from shardkit.statistics.collector import StatisticsCollector
from shardkit.storage import files as storage
from shardkit.units import format_number, format_size

NOTHING_WRITTEN = "Nothing was written"
_CONVERT = "shardkit convert FILES DESTINATION"
_GET_AGAIN = f"Get the file again, or leave damaged records out: {_CONVERT} --on-bad-record skip"


class StatisticsPart(NamedTuple):
    """What a collector saw of one file, as bytes, and the features it took the records to have."""

    features: Features
    content: bytes


class ScannedFile(msgspec.Struct, frozen=True, kw_only=True):
    """What one file holds.

    Attributes:
        shape: What its features hold, over all records.
        num_examples, num_uncompressed_bytes, crc32c, sha256: As `ShardInfo` has them.
        block_num_bytes, block_num_uncompressed_bytes, block_num_examples, block_crc32c: Likewise.
    """

    file: RawFile
    shape: FileShape
    num_examples: int
    num_uncompressed_bytes: int
    crc32c: int
    sha256: str
    block_num_bytes: tuple[int, ...]
    block_num_uncompressed_bytes: tuple[int, ...]
    block_num_examples: tuple[int, ...]
    block_crc32c: tuple[int, ...]


class Scan:
    """Reads files; holds a few pieces of 1 MiB, or one record if that is larger.

    Args:
        report: Called with the numbers of stored bytes just read; what it raises ends the scan.
    """

    def __init__(self, options: IndexOptions, report: Callable[[int], None]) -> None:
        self._source = SourceOptions(max_record_bytes=options.max_record_bytes, max_expansion=options.max_expansion)
        self._report = report

    def scan(
        self, file: RawFile, expected: FileShape | None, *, with_statistics: bool
    ) -> tuple[ScannedFile, StatisticsPart | None]:
        """Returns the content of a file, and statistics where the guess at its features was right.

        Args:
            file: Plain or gzip, not empty.
            expected: What other files hold; with the first records of this one it is what the features are guessed by.

        Raises:
            BadInputError: At the first record that is damaged, cut off, too large or no Example; names file, record
                and byte.
            UsageError: If it holds SequenceExamples.
            StorageError: If it cannot be read.
        """
        shape = FileShape(printable(file.name))
        index = _Index()
        part: _PartCollector | None = None
        with guard_unchanged(file), self._open(file) as (stream, stored):
            for num_before, block in self._blocks(file, stream):
                self._observe(file, block, num_before, shape)
                index.add(block, is_plain=file.compression is None)
                if with_statistics and part is None:
                    shapes = [shape] if expected is None else [expected, shape]
                    part = _PartCollector(features_of(shapes), shape, max_length(self._source))
                if part is not None:
                    part.add(block)
        return index.finish(file, shape, stored), None if part is None else part.finish()

    def collect(self, scanned: ScannedFile, features: Features) -> StatisticsPart:
        """Returns statistics of a file that was scanned before, by reading it once more.

        Raises:
            BadInputError, StorageError: If it changed since.
        """
        part = _PartCollector(features, scanned.shape, max_length(self._source))
        with guard_unchanged(scanned.file), self._open(scanned.file) as (stream, _):
            for _, block in self._blocks(scanned.file, stream):
                part.add(block)
        found = part.finish()
        if found is None:
            raise DamagedFileError("the file changed while it was indexed", where=place(scanned.file))
        return found

    def _blocks(self, file: RawFile, stream: ByteStream) -> Iterator[tuple[int, RecordBlock]]:
        form: Form = "plain" if file.compression is None else "compressed"
        stop = file.num_bytes if file.compression is None else 0
        num_records = 0
        try:
            for block in read_blocks(Frames(stream, file, form, 0, stop), self._source, block_bytes=BLOCK_BYTES):
                yield num_records, block
                num_records += len(block.starts)
        except DamagedFileError as error:
            whole = format_number(num_records, "whole record")
            error.where = f"{error.where}, behind {whole}" if error.where and num_records else error.where
            raise error.with_state(NOTHING_WRITTEN, _next_step(error)) from error

    def _observe(self, file: RawFile, block: RecordBlock, num_before: int, shape: FileShape) -> None:
        limit = max_length(self._source)
        for row in (block.lengths > limit).nonzero()[0].tolist():
            size = f"its {format_size(int(block.lengths[row]))} are more than the {format_size(limit)} allowed"
            raise _bad_record(file, block, row, num_before, size, "Allow more with --max-record-size")
        bad = observe(block, shape)
        if shape.is_sequence:
            raise UsageError(
                "the records are SequenceExamples",
                where=printable(file.name),
                why="a dataset holds Examples; feature lists are read as lists when they are converted",
                state=NOTHING_WRITTEN,
                next_step=f"Convert them instead: {_CONVERT}",
            )
        if bad:
            row, why = bad[0]
            next_step = _GET_AGAIN if block.is_damaged[row] else "Name only files that hold the same kind of Examples"
            raise _bad_record(file, block, row, num_before, f"it {why}", next_step)

    @contextmanager
    def _open(self, file: RawFile) -> Iterator[tuple[ByteStream, _StoredBytes]]:
        try:
            with open_raw(file) as raw:
                stored = _StoredBytes(raw, self._report)
                stream: ByteStream = stored
                if file.compression is not None:
                    guard = ExpansionGuard(file, place(file))
                    stream = GuardedStream(GzipStream(cast(BinaryIO, stored)), guard, file)
                elif storage.is_local(file.path):
                    yield stored, stored
                    return
                with read_ahead(stream) as ahead:
                    yield ahead, stored
        except ShardkitError:
            raise
        except OSError as error:
            raise StorageError(
                "the file cannot be read", where=place(file), why=error.strerror or str(error), state=NOTHING_WRITTEN
            ) from error


class _Index:
    """Where the blocks of one file are."""

    def __init__(self) -> None:
        self._num_bytes: list[int] = []
        self._num_examples: list[int] = []
        self._crc32c: list[int] = []

    def add(self, block: RecordBlock, *, is_plain: bool) -> None:
        end = int(block.starts[-1] + block.lengths[-1]) + FOOTER_BYTES
        self._num_bytes.append(end)
        self._num_examples.append(len(block.starts))
        if is_plain:
            self._crc32c.append(crc32c(memoryview(block.data)[:end]))

    def finish(self, file: RawFile, shape: FileShape, stored: _StoredBytes) -> ScannedFile:
        num_bytes, num_examples = sum(self._num_bytes), sum(self._num_examples)
        is_plain = file.compression is None
        # A gzip file without records has no block at all.
        whole = 1 if num_examples else 0
        return ScannedFile(
            file=file,
            shape=shape,
            num_examples=num_examples,
            num_uncompressed_bytes=num_bytes,
            crc32c=stored.crc32c,
            sha256=stored.sha256.hexdigest(),
            block_num_bytes=tuple(self._num_bytes) if is_plain else (file.num_bytes,) * whole,
            block_num_uncompressed_bytes=tuple(self._num_bytes) if is_plain else (num_bytes,) * whole,
            block_num_examples=tuple(self._num_examples) if is_plain else (num_examples,) * whole,
            block_crc32c=tuple(self._crc32c) if is_plain else (stored.crc32c,) * whole,
        )


class _PartCollector:
    """Statistics of one file under features that may turn out wrong."""

    def __init__(self, features: Features, shape: FileShape, max_record_bytes: int) -> None:
        self._features = features
        # Nulls are counted whether or not there may be any, and those of fixed arrays would take up room.
        decoded = [
            msgspec.structs.replace(f if f.is_scalar else f.with_shape((None,)), nullable=True) for f in features
        ]
        self._decoder = BlockDecoder(tuple(decoded), shape, max_record_bytes) if features else None
        self._collector = StatisticsCollector(features)

    def add(self, block: RecordBlock) -> None:
        if self._decoder is None:
            return
        for rows in self._decoder.decode(block):
            if rows.bad_values:
                self._decoder = None
                return
            self._collector.update(rows.batch)

    def finish(self) -> StatisticsPart | None:
        return None if self._decoder is None else StatisticsPart(self._features, self._collector.to_bytes())


class _StoredBytes(ByteStream):
    """The bytes of a file as they are stored, hashed on the way."""

    def __init__(self, raw: BinaryIO, report: Callable[[int], None]) -> None:
        self._raw = raw
        self._report = report
        self.sha256 = hashlib.sha256()
        self.crc32c = 0

    def read(self, num_bytes: int, /) -> bytes:
        data = self._raw.read(num_bytes)
        self.sha256.update(data)
        self.crc32c = crc32c(data, self.crc32c)
        self._report(len(data))
        return data


def statistics_key(features: Features) -> list[tuple[str, str, tuple[int | None, ...]]]:
    """Returns the parts of features that statistics depend on: names, dtypes and shapes."""
    return [(f.name, f.dtype, f.shape) for f in features]


def _bad_record(
    file: RawFile, block: RecordBlock, row: int, num_before: int, why: str, next_step: str
) -> BadInputError:
    where = byte_place(
        file, block.first_byte(row), is_compressed=file.compression is not None, row=num_before + row + 1
    )
    return BadInputError(
        "a record cannot be indexed",
        where=where,
        why=why,
        state=NOTHING_WRITTEN,
        next_step=next_step,
    )


def _next_step(error: DamagedFileError) -> str:
    if error.what == "the file holds no TFRecords":
        return "Name only TFRecord files"
    other = "its whole records" if isinstance(error, CutOffError) else "other damage"
    return f"Get the file again, or leave it out; for {other}: {_CONVERT} --on-bad-record quarantine"
