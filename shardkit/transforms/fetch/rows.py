"""Rows with what the web address in one of their columns gives; those without it are bad rows.

Rows are fetched far ahead of those that are handed on, so one slow host does not hold up the others. They are handed on
in their order, and where batches end depends on what was fetched alone, not on when it came.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from shardkit.errors import UsageError
from shardkit.features import Features, make_feature
from shardkit.file_types import image_type_of
from shardkit.media.audio_headers import audio_type_of
from shardkit.media.video_headers import video_type_of
from shardkit.messages import shown
from shardkit.runtime.threads import WorkerThreads, worker_threads
from shardkit.sources.base import InputSplit, RawFile, RejectedRow, RowBatch, SourceOptions
from shardkit.transforms.fetch.limits import FetchError, Limits
from shardkit.transforms.options import FetchKind, TransformOptions
from shardkit.transforms.row_origin import bad_row, rejected_rows
from shardkit.transforms.steps import RowError, RowFailure, find_feature
from shardkit.units import MiB

if TYPE_CHECKING:
    from shardkit.transforms.fetch.client import Client

OPTION = "--fetch"

_NUM_THREADS = 32
# Pauses before further tries last seconds, in which others fetch so many rows.
_ROWS_AHEAD = 4_096
_BATCH_ROWS = 1_024
_BATCH_BYTES = 32 * MiB
_HELD_BYTES = 64 * MiB
_HEAD_BYTES = 64
_NEXT_STEP = "Correct the row, or leave such rows out with --on-bad-record skip or quarantine"
NO_CONTENT = "the URL cannot be fetched"
_Found = bytes | RowError | None


def with_fetched_column(features: Features, options: TransformOptions) -> Features:
    """Returns the features with the column of what is fetched behind them; as they are where nothing is.

    Raises:
        UsageError: If the column of addresses is not there or holds no text, or the other one is there.
    """
    if options.fetch is None:
        return features
    feature = find_feature(features, options.fetch[0], OPTION)
    if feature.dtype != "string" or not feature.is_scalar:
        raise UsageError(
            f"{OPTION} takes a column of text",
            why=f"{shown(feature.name)} is {feature.describe_type()}",
            next_step="Name the column of the web addresses",
        )
    kind = options.fetch[1]
    # Without an address there is no content.
    media_type = None if kind == "bytes" else f"{kind}/*"
    added = make_feature(_name_of(kind), "bytes", media_type=media_type, nullable=feature.nullable)
    if any(f.name == added.name for f in features):
        raise UsageError(
            f"{OPTION} adds the column {shown(added.name)}, which the inputs have",
            next_step=f"Leave that column out with --drop-columns {added.name}",
        )
    return (*features, added)


def fetched(
    batches: Iterable[RowBatch],
    options: TransformOptions,
    files: tuple[RawFile, ...],
    split: InputSplit,
    source: SourceOptions,
) -> Iterator[RowBatch]:
    """Yields the rows with one more column, those that could not be fetched as rejected rows.

    Raises:
        BadInputError: At the first such row, unless bad rows are tolerated.
    """
    limits = Limits(max_bytes=source.max_record_bytes, allows_private=options.fetch_private)
    assert options.fetch is not None
    name = _name_of(options.fetch[1])
    fetcher = _Fetcher(options, client_of(limits, heeds_robots=not options.fetch_disallowed))
    with worker_threads(_NUM_THREADS, "shardkit-fetch") as threads:
        for rows in batches:
            start = 0
            for found in fetcher.each(rows, threads):
                stop = start + len(found)
                failures = [RowFailure(start + i, f) for i, f in enumerate(found) if isinstance(f, RowError)]
                if failures and not source.tolerates_bad_rows:
                    raise bad_row(failures[0], rows, files, split, source, _NEXT_STEP)
                yield _with_column(rows, name, start, found, rejected_rows(failures, rows, files, split, source))
                start = stop


@functools.lru_cache(maxsize=4)
def client_of(limits: Limits, *, heeds_robots: bool) -> Client:
    """Returns the client of this process, which knows the hosts that were asked for other parts of a list."""
    from shardkit.transforms.fetch.client import Client

    return Client(limits, heeds_robots=heeds_robots)


class _Fetcher:
    def __init__(self, options: TransformOptions, client: Client) -> None:
        assert options.fetch is not None
        self._column, self._kind = options.fetch
        self._client = client
        self._lock = threading.Lock()
        self._num_held_bytes = 0

    def each(self, rows: RowBatch, threads: WorkerThreads) -> Iterator[list[_Found]]:
        """Yields what all rows give, a batch at a time; one batch for no rows."""
        addresses: Iterator[str | None] = iter(rows.batch.column(self._column).to_pylist())
        ahead: deque[Future[_Found]] = deque()
        found: list[_Found] = []
        num_bytes, is_first = 0, True
        while True:
            room = _ROWS_AHEAD if self._num_held_bytes < _HELD_BYTES else 1
            ahead.extend(threads.submit(self._fetch, a) for a in itertools.islice(addresses, max(0, room - len(ahead))))
            if not ahead:
                break
            found.append(self._taken(ahead.popleft().result()))
            num_bytes += _size(found[-1])
            if len(found) == _BATCH_ROWS or num_bytes >= _BATCH_BYTES:
                yield found
                found, num_bytes, is_first = [], 0, False
        if found or is_first:
            yield found

    def _taken(self, found: _Found) -> _Found:
        with self._lock:
            self._num_held_bytes -= _size(found)
        return found

    def _fetch(self, address: str | None) -> _Found:
        if address is None:
            return None
        try:
            content = self._client.fetch(address)
        except FetchError as error:
            return RowError(NO_CONTENT, error.why)
        if not _IS_OF_KIND[self._kind](content[:_HEAD_BYTES]):
            return RowError(NO_CONTENT, f"what it gives is no {self._kind}")
        with self._lock:
            self._num_held_bytes += len(content)
        return content


_IS_OF_KIND: dict[FetchKind, Callable[[bytes], bool]] = {
    "bytes": lambda head: True,
    "image": lambda head: image_type_of(head, None) is not None,
    "audio": lambda head: audio_type_of(head, ".mp3") is not None,
    "video": lambda head: video_type_of(head) is not None,
}


def _name_of(kind: FetchKind) -> str:
    return "content" if kind == "bytes" else kind


def _size(found: _Found) -> int:
    return len(found) if isinstance(found, bytes) else 0


def _with_column(rows: RowBatch, name: str, start: int, found: list[_Found], rejected: list[RejectedRow]) -> RowBatch:
    """Returns the rows from a position on that were fetched; what is known of all rows goes to the first of them."""
    contents = [content for content in found if not isinstance(content, RowError)]
    kept = start + np.array([i for i, content in enumerate(found) if not isinstance(content, RowError)], dtype=np.int64)
    batch = rows.batch.take(pa.array(kept))
    indices = rows.file_indices
    return RowBatch(
        batch.append_column(name, pa.array(contents, pa.binary())),
        rows.identities[kept],
        indices if isinstance(indices, int) else indices[kept],
        {} if start else rows.num_rounded,
        (*(() if start else rows.rejected), *rejected),
    )
