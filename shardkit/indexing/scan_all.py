"""All files scanned, several at a time: the features that hold all of them, and statistics of every split.

The type of a feature depends on all records, and its statistics depend on the type. So they are collected with a guess
of the type, from the first records of a file and all files before it. A file with a wrong guess is read once more, for
its statistics alone. The result depends on neither the number of threads nor the guesses.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import IO, NamedTuple, TypeVar

import msgspec

from shardkit.dataset.manifest import FeatureStatistics
from shardkit.errors import BadInputError, UsageError
from shardkit.features import Features
from shardkit.indexing.listing import IndexOptions, Listed
from shardkit.indexing.scan import NOTHING_WRITTEN, Scan, ScannedFile, StatisticsPart, statistics_key
from shardkit.messages import shown
from shardkit.runtime.threads import WorkerThreads, worker_threads
from shardkit.sources.base import RawFile
from shardkit.sources.tfrecord.feature_shapes import FileShape, Seen, check_alike, features_of, never_filled
from shardkit.statistics.collector import StatisticsCollector
from shardkit.units import MiB, format_count, format_size

T = TypeVar("T")

_FILES_AHEAD = 2
_LARGE_BLOCK_BYTES = 64 * MiB
_LISTED_NAMES = 5


class ScanResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the files hold.

    Attributes:
        files: Those with records, in the order of the listing.
        empty: Those without.
        features: What all records have, by name.
        empty_features: Names that records have, but none with a value; they are no features.
        statistics: By split and feature; empty if none were asked for.
    """

    files: tuple[ScannedFile, ...]
    empty: tuple[RawFile, ...]
    features: Features
    empty_features: tuple[str, ...]
    statistics: dict[str, dict[str, FeatureStatistics]]
    notes: tuple[str, ...]


def scan_all(
    listed: Listed,
    options: IndexOptions,
    splits: Mapping[str, str] | None,
    *,
    num_threads: int = 1,
    progress: Callable[[int], None] | None = None,
) -> ScanResult:
    """Scans all files.

    Args:
        splits: The split of every file by name, for statistics; None collects none, which takes less time.
        num_threads: Files that are read at the same time. Memory is that many times a few MiB, or one record where that
            is larger, and what statistics hold.
        progress: Called from several threads with the numbers of stored bytes just read.

    Raises:
        BadInputError: At the first record that is damaged or no Example, or if there are no records.
        UsageError: If there are SequenceExamples, or a feature is of different kinds in different files.
        StorageError: If a file cannot be read.
    """
    with worker_threads(num_threads, "shardkit-index") as threads, _Parts() as parts:

        def report(num_bytes: int) -> None:
            threads.stop_event.check()
            if progress is not None:
                progress(num_bytes)

        scan, pool = Scan(options, report), _Pool(threads, num_threads * _FILES_AHEAD)
        scanned = _scan_all(scan, listed.files, pool, parts, with_statistics=splits is not None)
        full = [s for s in scanned if s.num_examples]
        features = _features_of_all([s.shape for s in full])
        statistics: dict[str, dict[str, FeatureStatistics]] = {}
        if splits is not None:
            statistics = _statistics(scan, full, features, splits, pool, parts)
    empty = [*listed.empty, *(s.file for s in scanned if not s.num_examples)]
    empty_features = tuple(never_filled([s.shape for s in full]))
    return ScanResult(
        files=tuple(full),
        empty=tuple(sorted(empty, key=lambda f: f.name)),
        features=features,
        empty_features=empty_features,
        statistics=statistics,
        notes=(*listed.notes, *_notes(full, empty, empty_features)),
    )


def _scan_all(
    scan: Scan, files: Sequence[RawFile], pool: _Pool, parts: _Parts, *, with_statistics: bool
) -> list[ScannedFile]:
    known: FileShape | None = None

    def work(file: RawFile) -> tuple[ScannedFile, StatisticsPart | None]:
        return scan.scan(file, known, with_statistics=with_statistics)

    found = []
    for scanned, part in pool.map(work, files):
        known = scanned.shape if known is None else _united(known, scanned.shape)
        parts.put(scanned.file.name, part)
        found.append(scanned)
    return found


def _features_of_all(shapes: Sequence[FileShape]) -> Features:
    if not shapes:
        raise BadInputError(
            "there are no records",
            why="all files are empty",
            state=NOTHING_WRITTEN,
            next_step="Name files that hold records",
        )
    try:
        check_alike(list(shapes))
        features = features_of(list(shapes))
    except UsageError as error:
        error.state, error.next_step = NOTHING_WRITTEN, "Name only files that hold the same kind of examples"
        raise
    if not features:
        raise BadInputError("the records hold no features", where=shapes[0].name, state=NOTHING_WRITTEN)
    return features


def _statistics(
    scan: Scan,
    files: Sequence[ScannedFile],
    features: Features,
    splits: Mapping[str, str],
    pool: _Pool,
    parts: _Parts,
) -> dict[str, dict[str, FeatureStatistics]]:
    totals = {name: StatisticsCollector(features) for name in splits.values()}
    key = statistics_key(features)
    again = [s for s in files if not parts.has(s.file.name, key)]
    collected = pool.map(lambda s: scan.collect(s, features), again)
    # Always in the order of the files, so that rounding does not depend on files that were read again.
    for scanned in files:
        name = scanned.file.name
        content = parts.get(name) if parts.has(name, key) else next(collected).content
        totals[splits[name]].merge(content)
    return {name: total.finish() for name, total in totals.items()}


def _united(known: FileShape, other: FileShape) -> FileShape:
    features: dict[str, Seen] = dict(known.features)
    for name, seen in other.features.items():
        features[name] = features[name].united(seen) if name in features else seen
    return FileShape(
        known.name,
        num_records=known.num_records + other.num_records,
        features=features,
        kindless=(known.kindless | other.kindless) - features.keys(),
    )


class _PlaceOfPart(NamedTuple):
    key: list[tuple[str, str, tuple[int | None, ...]]]
    start: int
    num_bytes: int


class _Parts:
    """Statistics of files, kept in a temporary file: there may be thousands, of a megabyte each."""

    def __enter__(self) -> _Parts:
        self._file: IO[bytes] = tempfile.TemporaryFile()
        self._places: dict[str, _PlaceOfPart] = {}
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def put(self, name: str, part: StatisticsPart | None) -> None:
        if part is not None:
            start = self._file.seek(0, 2)
            self._file.write(part.content)
            self._places[name] = _PlaceOfPart(statistics_key(part.features), start, len(part.content))

    def has(self, name: str, key: list[tuple[str, str, tuple[int | None, ...]]]) -> bool:
        return name in self._places and self._places[name].key == key

    def get(self, name: str) -> bytes:
        place = self._places[name]
        self._file.seek(place.start)
        return self._file.read(place.num_bytes)


class _Pool(NamedTuple):
    threads: WorkerThreads
    max_ahead: int

    def map(self, function: Callable[[_Item], T], items: Sequence[_Item]) -> Iterator[T]:
        """Yields the results in order; few more are begun than threads can work on."""
        pending: deque[Future[T]] = deque()
        for item in items:
            pending.append(self.threads.submit(function, item))
            if len(pending) >= self.max_ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


_Item = TypeVar("_Item")


def _notes(files: Sequence[ScannedFile], empty: Sequence[RawFile], empty_features: Sequence[str]) -> Iterator[str]:
    if empty:
        names = ", ".join(f.name for f in empty[:_LISTED_NAMES])
        more = f" and {len(empty) - _LISTED_NAMES:,} more" if len(empty) > _LISTED_NAMES else ""
        verb, be = ("holds", "is") if len(empty) == 1 else ("hold", "are")
        yield f"{names}{more} {verb} no records and {be} left out"
    for name in empty_features[:_LISTED_NAMES]:
        yield f"feature {shown(name)} is empty in all records and is left out"
    if len(empty_features) > _LISTED_NAMES:
        yield f"and so with {len(empty_features) - _LISTED_NAMES:,} more features"
    largest = max(files, key=lambda s: s.block_num_uncompressed_bytes[0])
    num_bytes = largest.block_num_uncompressed_bytes[0]
    if largest.file.compression is not None and num_bytes > _LARGE_BLOCK_BYTES:
        yield (
            f"each gzip file is one block, the largest {format_size(num_bytes)} uncompressed; shuffled batches hold up "
            f"to {format_count(min(48, len(files)))} of them in memory (num_lanes). shardkit convert makes small blocks"
        )
