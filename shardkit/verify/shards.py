"""Re-reads every byte of a dataset and compares it with its manifest, trusting neither.

It uses a separate parser, bounded by the bytes that are there: a shard is read once, block by block, never whole. Sizes
and counts that a damaged file claims are compared with what is left before they are used. Reading goes on after a
damage: after a bad record with the next one, after a bad length or block with the next block.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import BinaryIO, NamedTuple

import google_crc32c
import numpy as np

from shardkit.dataset.block_index import is_whole_file
from shardkit.dataset.manifest import ShardInfo
from shardkit.dataset.open import Dataset
from shardkit.encoding.codec import (
    GZIP_HEADER,
    GZIP_HEADER_BYTES,
    GZIP_TRAILER_BYTES,
    crc32,
    gzip_trailer,
    inflate_block,
)
from shardkit.encoding.decoder import RecordDecoder
from shardkit.encoding.gzip_files import inflate_file
from shardkit.encoding.kernel import scan
from shardkit.encoding.kernel_reference import WHOLE
from shardkit.encoding.tfrecord import HEADER_BYTES, OVERHEAD_BYTES, index_lines, iter_records
from shardkit.errors import DamageError, StorageError
from shardkit.features import Features, make_feature
from shardkit.runtime.process_limits import place_noted
from shardkit.runtime.threads import worker_threads
from shardkit.storage import files as storage
from shardkit.storage.regular_files import NotRegularError
from shardkit.verify.documents import count_other_files, find_problems
from shardkit.verify.media import MediaReader
from shardkit.verify.report import Damage, VerifyReport

MAX_LISTED = 100
_MOST_ANSWERS = 4
_CHUNK_BYTES = 4 * 1024 * 1024
_DAMAGED_RECORD = "a record is damaged: its CRC32C does not match"


def verify_dataset(
    dataset: Dataset,
    *,
    splits: Sequence[str] | None = None,
    progress: Callable[[int], None] | None = None,
    num_threads: int = 1,
    decodes_media: bool = False,
) -> VerifyReport:
    """Reads the shards of a dataset, or of some splits, and reports every damage.

    Args:
        dataset: An opened dataset; its manifest was parsed, nothing else is trusted.
        splits: Names; all if None.
        progress: Called from several threads with numbers of bytes just read.
        num_threads: Shards that are read at the same time. Memory is that many blocks, before and after inflation.

    Raises:
        UsageError: If there is no such split, nothing to decode, or an optional package is not installed.
        MemoryError: If a block needs more than this process may take; a note names the shard.
    """
    media = MediaReader(dataset.manifest) if decodes_media else None
    chosen = [dataset.manifest.split(name) for name in splits] if splits else list(dataset.manifest.splits)
    names = tuple(s.name for s in chosen)
    damages = [Damage(path=path, problem=problem) for path, problem in find_problems(dataset)]
    try:
        shards = [s for s in dataset.shards if s.split in names]
    except DamageError as error:
        shards = []
        damages.append(Damage(path=dataset.manifest.shard_table.path, problem=_problem_of(error)))
    results = _check_shards(dataset, shards, media, progress, num_threads)
    found = [d for r in results for d in r.damages]
    return VerifyReport(
        version=dataset.version,
        splits=names,
        num_shards=sum(s.num_shards for s in chosen),
        num_examples=sum(s.num_examples for s in chosen),
        num_bytes=sum(s.num_bytes for s in chosen),
        num_uncompressed_bytes=sum(s.num_uncompressed_bytes for s in chosen),
        num_read_shards=len(results),
        num_read_bytes=sum(r.num_read_bytes for r in results),
        damages=(*damages, *found),
        num_damages=len(damages) + sum(r.num_damages for r in results),
        num_undecodable=sum(r.num_undecodable for r in results),
        num_damaged_shards=sum(r.num_damages > 0 for r in results),
        num_other_files=count_other_files(dataset) if shards else 0,
    )


class _ShardResult(NamedTuple):
    num_read_bytes: int
    damages: tuple[Damage, ...]
    num_damages: int
    num_undecodable: int
    sha256: str


def _check_shards(
    dataset: Dataset,
    shards: Sequence[ShardInfo],
    media: MediaReader | None,
    progress: Callable[[int], None] | None,
    num_threads: int,
) -> list[_ShardResult]:
    decoders = _Decoders(RecordDecoder((*dataset.manifest.features, *_empty_features(dataset))), media)
    path_of_hash = {s.sha256: s.path for s in shards}
    with worker_threads(max(1, min(num_threads, len(shards))), "shardkit-verify") as threads:

        def report(num_bytes: int) -> None:
            threads.stop_event.check()
            if progress is not None:
                progress(num_bytes)

        def check(shard: ShardInfo) -> _ShardResult:
            with place_noted(storage.redact(dataset.shard_url(shard))):
                return _check(partial(_ShardReader, dataset, shard, decoders, path_of_hash), report)

        return [future.result() for future in [threads.submit(check, shard) for shard in shards]]


def _check(read: Callable[[Callable[[int], None]], _ShardReader], report: Callable[[int], None]) -> _ShardResult:
    """Reads a shard. It asks a store again after damage, which the network may make; it is real if two answers agree.

    Raises:
        StorageError: If the store gave another answer every time.
    """
    reader = read(report)
    found = reader.check()
    if storage.is_local(reader.url):
        return found
    for _ in range(_MOST_ANSWERS):
        if found.num_damages == found.num_undecodable:
            return found
        previous, found = found, read(lambda _: report(0)).check()
        if found == previous:
            return found
    raise StorageError(
        "the store gives no two answers alike", where=storage.redact(reader.url), next_step="Run the same again"
    )


class _Decoders(NamedTuple):
    records: RecordDecoder
    media: MediaReader | None


class _ShardReader:
    """Reads one shard once, from its first byte to its last."""

    def __init__(
        self,
        dataset: Dataset,
        shard: ShardInfo,
        decoders: _Decoders,
        path_of_hash: dict[str, str],
        report: Callable[[int], None],
    ) -> None:
        self.url = dataset.shard_url(shard)
        self._is_gzip = dataset.manifest.compression == "gzip"
        self._shard = shard
        self._decoders = decoders
        self._path_of_hash = path_of_hash
        self._report = report
        self._sha256 = hashlib.sha256()
        self._crc32c = 0
        self._position = 0
        self._damages: list[Damage] = []
        self._num_damages = 0
        self._undecodable: list[Damage] = []
        self._record_index = hashlib.sha256()
        self._first_records = list(itertools.accumulate(shard.block_num_examples, initial=0))

    def check(self) -> _ShardResult:
        try:
            with storage.open_read(self.url) as file:
                self._read(file)
        except FileNotFoundError:
            self._add("the file is missing")
        except PermissionError as error:
            raise StorageError(
                "a shard cannot be read",
                where=storage.redact(self.url),
                why=(error.strerror or str(error)).lower(),
                next_step="Check that it may be read, then verify again; its bytes may be right",
            ) from error
        except OSError as error:
            self._add(f"the file cannot be read: {(error.strerror or str(error)).lower()}", byte=self._position)
        # A record that does not decode must not hide damage to bytes, so both are counted apart.
        damages = (*self._damages, *self._undecodable)[:MAX_LISTED]
        num_damages = self._num_damages + len(self._undecodable)
        digest = self._sha256.hexdigest()
        return _ShardResult(self._position, damages, num_damages, len(self._undecodable), digest)

    def _read(self, file: BinaryIO) -> None:
        if self._is_gzip and is_whole_file(self._shard):
            self._read_whole(file)
        elif self._is_gzip:
            self._read_gzip(file)
        else:
            self._read_plain(file)
        while self._take(file, _CHUNK_BYTES):
            pass
        self._compare_whole()
        if not self._is_gzip and not self._num_damages:
            self._check_record_index()

    def _read_gzip(self, file: BinaryIO) -> None:
        if self._shard.num_bytes != GZIP_HEADER_BYTES + sum(self._shard.block_num_bytes) + GZIP_TRAILER_BYTES:
            self._add("the blocks of the index do not cover the file")
        header = self._take(file, GZIP_HEADER_BYTES)
        if len(header) == GZIP_HEADER_BYTES and header != GZIP_HEADER:
            self._add("the gzip header is damaged", byte=0)
        crc: int | None = 0
        for block, at, data in self._blocks(file):
            num_damages = self._num_damages
            stated = self._shard.block_num_uncompressed_bytes[block]
            try:
                frames = inflate_block(data, stated, "")
            except DamageError as error:
                crc = None
                self._add(_problem_of(error), block=block, byte=at)
                continue
            crc = None if crc is None else crc32(frames, crc)
            self._check_block(frames, block, at)
            if self._num_damages == num_damages:
                self._check_stored(data, block, at)
        at = self._position
        trailer = self._take(file, GZIP_TRAILER_BYTES)
        if len(trailer) < GZIP_TRAILER_BYTES or crc is None or self._num_damages:
            return
        if trailer != gzip_trailer(crc, self._shard.num_uncompressed_bytes):
            self._add("the gzip trailer is damaged: its CRC32 or size is not that of the records", byte=at)

    def _read_whole(self, file: BinaryIO) -> None:
        for block, at, data in self._blocks(file):
            try:
                frames = inflate_file(data, self._shard.num_uncompressed_bytes, "")
            except DamageError as error:
                self._add(_problem_of(error), block=block, byte=at)
            else:
                self._check_block(frames, block, at)

    def _read_plain(self, file: BinaryIO) -> None:
        if self._shard.num_bytes != sum(self._shard.block_num_bytes):
            self._add("the blocks of the index do not cover the file")
        for block, at, data in self._blocks(file):
            num_damages = self._num_damages
            stated = self._shard.block_num_uncompressed_bytes[block]
            if stated != len(data):
                self._add(f"the index says that it holds {stated} bytes of records", block=block, byte=at)
            self._check_block(data, block, at)
            if self._num_damages == num_damages:
                self._check_stored(data, block, at)

    def _blocks(self, file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
        for block, num_bytes in enumerate(self._shard.block_num_bytes):
            at = self._position
            data = self._take(file, num_bytes)
            if len(data) < num_bytes:
                return
            yield block, at, data

    def _check_block(self, frames: bytes | bytearray, block: int, at: int) -> None:
        first_record = self._first_records[block]
        found = scan(frames)
        positions = found.starts - HEADER_BYTES
        problems = dict.fromkeys(np.flatnonzero(found.states).tolist(), _DAMAGED_RECORD)
        whole = np.flatnonzero(found.states == WHOLE)
        for i, problem in self._decoders.records.find_problems(frames, found.starts[whole], found.lengths[whole]):
            problems[int(whole[i])] = problem
        if self._decoders.media is not None:
            good = np.array([i for i in whole.tolist() if i not in problems], np.int64)
            for i, problem in self._decoders.media.find_problems(frames, found.starts[good], found.lengths[good]):
                record = first_record + int(good[i])
                self._undecodable.append(Damage(path=self._shard.path, problem=problem, block=block, record=record))
        if found.end != len(frames):
            problems[len(positions)] = _why_it_ends(bytes(frames), found.end)
            positions = np.append(positions, found.end)
        for i, problem in sorted(problems.items()):
            byte = at if self._is_gzip else at + int(positions[i])
            self._add(problem, block=block, byte=byte, record=first_record + i)
        expected = self._shard.block_num_examples[block]
        if found.end == len(frames) and len(positions) != expected:
            self._add(f"it holds {len(positions)} records, the index says {expected}", block=block, byte=at)
        if not self._is_gzip:
            self._record_index.update(index_lines(at + found.starts - HEADER_BYTES, found.lengths + OVERHEAD_BYTES))

    def _check_stored(self, data: bytes, block: int, at: int) -> None:
        """Compares the bytes of a block that is otherwise whole with the CRC32C of the index."""
        if google_crc32c.value(data) != self._shard.block_crc32c[block]:
            self._add("its bytes do not have the CRC32C that the index states", block=block, byte=at)

    def _compare_whole(self) -> None:
        """Compares size and hashes, and names another format of the file where that explains all damages."""
        shard, digest = self._shard, self._sha256.hexdigest()
        other = self._path_of_hash.get(digest)
        if digest != shard.sha256 and other is not None:
            self._damages, self._num_damages = [], 0
            self._add(f"it holds the bytes of {other}")
        elif self._position < shard.num_bytes:
            self._add(f"the file is cut off: {self._position} of {shard.num_bytes} bytes are there", first=True)
        elif self._position > shard.num_bytes:
            self._add(f"the file goes on after its end, by {self._position - shard.num_bytes} bytes", first=True)
        elif digest != shard.sha256:
            if not self._num_damages:
                self._add("its SHA-256 is not the one that the shard table states")
        elif self._crc32c != shard.crc32c:
            self._add("its CRC32C is not the one that the shard table states")

    def _check_record_index(self) -> None:
        digest = hashlib.sha256()
        is_same = False
        try:
            with storage.open_read(f"{self.url}.idx") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    digest.update(chunk)
            is_same = digest.digest() == self._record_index.digest()
        except FileNotFoundError:
            return  # Only readers of other tools need it.
        except NotRegularError:
            pass
        if not is_same:
            damage = Damage(path=f"{self._shard.path}.idx", problem="it does not list the records of its shard")
            self._damages.append(damage)
            self._num_damages += 1

    def _take(self, file: BinaryIO, num_bytes: int) -> bytes:
        """Returns so many bytes, fewer at the end; asks for little at a time, because sizes may be lies."""
        parts: list[bytes] = []
        while num_bytes > 0:
            self._report(0)
            part = file.read(min(num_bytes, _CHUNK_BYTES))
            if not part:
                break
            self._sha256.update(part)
            self._crc32c = google_crc32c.extend(self._crc32c, part)
            self._position += len(part)
            self._report(len(part))
            num_bytes -= len(part)
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _add(self, problem: str, *, first: bool = False, **place: int) -> None:
        """Notes a damage; its place is `block`, `byte` and `record`, as far as they are known."""
        damage = Damage(path=self._shard.path, problem=problem, **place)
        self._num_damages += 1
        self._damages.insert(0 if first else len(self._damages), damage)
        del self._damages[MAX_LISTED:]


def _empty_features(dataset: Dataset) -> Features:
    """Returns the features without a value in records of others, as features that are always absent."""
    names = dataset.manifest.extensions.get("empty_features")
    known = {f.name for f in dataset.manifest.features}
    wanted = [n for n in names if isinstance(n, str) and n not in known] if isinstance(names, list) else []
    return tuple(make_feature(name, "int64", (None,), nullable=True) for name in wanted)


def _problem_of(error: DamageError) -> str:
    return error.what if error.why is None else f"{error.what}: {error.why}"


def _why_it_ends(frames: bytes, end: int) -> str:
    try:
        for _ in iter_records(frames[end:], ""):
            break
    except DamageError as error:
        return _problem_of(error)
    raise AssertionError("a frame that can be followed was not")
