"""The sources whose files know their columns and hold them in pieces: row groups, record batches, stripes, blocks."""

from __future__ import annotations

import functools
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import msgspec
import pyarrow as pa

from shardkit.errors import DamagedFileError, ShardkitError, StorageError, UsageError
from shardkit.features import Features, make_feature
from shardkit.file_types import image_type_of
from shardkit.media.audio_headers import audio_type_of
from shardkit.media.video_headers import video_type_of
from shardkit.messages import shown
from shardkit.runtime.bounded import open_file_reported
from shardkit.runtime.process_limits import bytes_left
from shardkit.sources.base import (
    MIN_SPLIT_BYTES,
    InputSplit,
    RawFile,
    RowBatch,
    SourceOptions,
    SourceSettings,
    numbered,
    place,
)
from shardkit.sources.columnar.arrow_columns import Column, flatten_batch, flatten_schema, null_without_class
from shardkit.sources.columnar.schemas import RowFitter, check_columns, infer_features, type_notes
from shardkit.sources.columns.dropped_columns import is_dropped
from shardkit.sources.columns.union_notes import union_notes
from shardkit.sources.files.expansion_limit import largest_expansion
from shardkit.sources.files.many_files import map_files
from shardkit.sources.files.streams import guard_unchanged
from shardkit.units import MiB, format_size

# With so many splits all workers are busy, and smaller splits would only read some rows in vain to reach others.
_ENOUGH_SPLITS = 4
# Of a column of bytes that may be images, sounds or videos.
_NUM_HEADS, _MAGIC_BYTES, _HEAD_BYTES = 16, 64, MiB
_KINDS = {"image": "images", "audio": "sounds", "video": "videos"}

_FAILURES = (MemoryError, pa.ArrowException, OSError, ValueError, OverflowError)


class Container(ABC):
    """An open file."""

    @abstractmethod
    def columns(self) -> tuple[Column, ...]:
        """Returns the columns of the schema; a column is not nullable where the file is known to hold no null in it."""

    @abstractmethod
    def cuts(self, split_bytes: int | None) -> Iterator[InputSplit]:
        """Yields the splits of the file, as if it were the only one.

        Args:
            split_bytes: Wanted size; None chooses by the size of the file.
        """

    @abstractmethod
    def batches(self, split: InputSplit, features: Features, batch_bytes: int) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a split, in the batches that come easiest; all columns that the features ask for."""

    @abstractmethod
    def rows_before(self, start: int) -> int:
        """Returns how many rows are in front of the place where a split starts."""

    def num_rows(self, split: InputSplit) -> int | None:
        """Returns how many rows the file says that a split has that is not cut by rows, None if it does not."""
        return None

    def num_rows_to_cut(self, split: InputSplit) -> int:
        """Returns how many rows a split has that costs little to begin anywhere, 0 if it should be read whole."""
        return 0


class CountedContainer(Container):
    """An open file whose footer counts the rows of its pieces, and which is read without ever holding one whole."""

    @abstractmethod
    def count_rows(self, start: int, stop: int) -> int:
        """Returns how many rows some pieces have, half-open."""

    def rows_before(self, start: int) -> int:
        """Returns how many rows the pieces in front of one have."""
        return self.count_rows(0, start)

    def num_rows(self, split: InputSplit) -> int:
        """Returns how many rows the footer says that a split has."""
        return self.count_rows(split.start, split.stop)

    def num_rows_to_cut(self, split: InputSplit) -> int:
        """Returns the rows of a split; rows in front of a part of it are decoded and dropped."""
        return self.num_rows(split)


@dataclass(frozen=True)
class ColumnarSource(SourceSettings, ABC):
    """One of these formats."""

    kind: ClassVar[str]
    """What the files are called in messages, such as `Parquet`."""

    @abstractmethod
    def open_file(self, file: RawFile, options: SourceOptions) -> AbstractContextManager[Container]:
        """Opens a file; whatever is wrong with it may be raised as Arrow or the system does."""

    def explain(self, error: Exception, file: RawFile) -> ShardkitError | None:
        """Returns the meaning of an error where the format knows better than "damaged", else None."""
        return None

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns the columns that all files have; nullable where a schema says so and nothing in the file denies it.

        Raises:
            UsageError: If schemas or partitions do not go together, a column has no place in an example, or a file is
                of a kind that is not read.
        """
        features = infer_features(files, _schemas(self, files, options).__getitem__, options)
        media = _media(self, files, options)
        features = tuple(
            msgspec.structs.replace(f, media_type=f"{media[f.name]}/*") if f.name in media else f for f in features
        )
        return self._of_all_rows(files, features, options) if options.types_of_all_rows else features

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns notes on columns of several types, and on those that some files lack, where that is allowed."""
        schemas = _schemas(self, files, options)
        is_described = any(column.is_described for columns in schemas.values() for column in columns)
        layout = ("layout: Hugging Face datasets, whose metadata describe the columns",) if is_described else ()
        media = (
            f"column {shown(name)} holds {_KINDS[kind]} by its first values; --cast {shlex.quote(f'{name}=bytes')} "
            "takes any"
            for name, kind in _media(self, files, options).items()
        )
        notes = (*layout, *type_notes({file.name: columns for file, columns in schemas.items()}), *media)
        if not options.union_by_name:
            return notes
        return (*notes, *union_notes([[column.name for column in columns] for columns in schemas.values()]))

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Cuts the files between their pieces; if there are few, large ones, those by their rows.

        The identity of a row does not depend on that.
        """
        filled = [(i, f) for i, f in enumerate(files) if f.num_bytes]
        found = map_files(lambda file: self._cuts(file, options), [f for _, f in filled])
        num_splits = sum(map(len, found))
        max_parts = _ENOUGH_SPLITS // num_splits if num_splits and self.split_bytes is None else 1
        return numbered(
            msgspec.structs.replace(part, file_start=i, file_stop=i + 1)
            for (i, _), splits in zip(filled, found, strict=True)
            for split, num_rows in splits
            for part in _cut_rows(split, num_rows, max_parts)
        )

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields the rows of one split."""
        file = files[split.file_start]
        with guard_unchanged(file), self._opened(file, options) as container:
            fitter = RowFitter(
                split,
                files,
                features,
                options,
                rows_before=lambda: container.rows_before(split.start),
                batch_bytes=self.batch_bytes,
            )
            is_first = True
            for batch in _rows_of(container.batches(split, features, self.batch_bytes), split):
                if is_first:
                    check_columns(flatten_schema(batch.schema, place(file)), features, file, options)
                    is_first = False
                yield from fitter.fit(batch)
            num_expected = split.row_stop or container.num_rows(split)
            if num_expected not in (None, fitter.num_rows):
                raise DamagedFileError(
                    "the file is damaged",
                    where=place(file),
                    why=f"its footer says {num_expected} rows, {fitter.num_rows} were read",
                )

    def read_head(self, file: RawFile, features: Features, options: SourceOptions) -> dict[str, pa.Array]:
        """Returns the first rows of a file by column; none of one that is damaged, of which reading tells."""
        try:
            with self._opened(file, options) as container:
                batches = (container.batches(s, features, _HEAD_BYTES) for s in container.cuts(None))
                batch = next(chain.from_iterable(batches), None)
                return {} if batch is None else flatten_batch(batch)
        except DamagedFileError:
            return {}

    def _of_all_rows(self, files: tuple[RawFile, ...], features: Features, options: SourceOptions) -> Features:
        # Counts in a file may deny nulls that are there, and none tells of nulls inside of lists.
        with_classes = {f.name for f in features if f.vocabulary}
        with_nulls: set[str] = set()
        with_null_items: set[str] = set()
        for file in (f for f in files if f.num_bytes):
            with self._opened(file, options) as container:
                splits = list(container.cuts(None))
                batches = chain.from_iterable(container.batches(s, features, self.batch_bytes) for s in splits)
                for name, column in chain.from_iterable(flatten_batch(batch).items() for batch in batches):
                    column = null_without_class(column) if name in with_classes else column
                    with_nulls |= {name} if column.null_count else set()
                    with_null_items |= {name} if _has_null_item(column) else set()
        return tuple(
            make_feature(f.name, "json", nullable=f.nullable or f.name in with_nulls)
            if f.name in with_null_items and f.shape
            else msgspec.structs.replace(f, nullable=f.nullable or f.name in with_nulls)
            for f in features
        )

    def read_schema(self, file: RawFile, options: SourceOptions) -> tuple[Column, ...]:
        """Returns the columns of a file."""
        with self._opened(file, options) as container:
            return container.columns()

    def _cuts(self, file: RawFile, options: SourceOptions) -> list[tuple[InputSplit, int]]:
        with self._opened(file, options) as container:
            splits = list(container.cuts(self.split_bytes))
            return [(s, container.num_rows_to_cut(s) if s.stop - s.start == 1 else 0) for s in splits]

    @contextmanager
    def _opened(self, file: RawFile, options: SourceOptions) -> Iterator[Container]:
        try:
            with open_file_reported(place(file)), self.open_file(file, options) as container:
                yield container
        except ShardkitError:
            raise
        except _FAILURES as error:
            if _is_of_memory(error, file):
                short = error if isinstance(error, MemoryError) else MemoryError(str(error))
                short.add_note(place(file))  # The message at the end of a command names it.
                raise short from error.__cause__
            if getattr(error, "errno", None):
                raise StorageError("the file cannot be read", where=place(file), why=str(error)) from error
            raise self.explain(error, file) or self._damaged(error, file) from error

    def _damaged(self, error: Exception, file: RawFile) -> DamagedFileError:
        text = str(error).splitlines()[0].strip() if str(error) else type(error).__name__
        return DamagedFileError(
            f"the {self.kind} file is cut off or damaged",
            where=place(file),
            why=f"{text.rstrip('.')} ({format_size(file.num_bytes)})",
        )


def _is_of_memory(error: Exception, file: RawFile) -> bool:
    # Arrow reports some allocations as errors of the file. No sound file asks for more than it may expand to.
    largest = largest_expansion(file.num_bytes, file.max_expansion)
    if found := re.search(r"alloc of size (\d+) failed", str(error)):
        return int(found[1]) <= largest
    if "bad_alloc" in str(error):
        # ORC does not say how much. A sound file may have asked for it if less is left than that.
        left = bytes_left()
        return left is not None and left < largest
    return isinstance(error, MemoryError)


def _has_null_item(column: pa.Array) -> bool:
    type_ = column.type
    is_list = pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_)
    return bool(is_list and column.flatten().null_count)


def _media_kind(column: pa.Array) -> str | None:
    """Returns `image`, `audio` or `video` where the first values all begin like such files, else None."""
    heads = [value[:_MAGIC_BYTES] for value in column.drop_null()[:_NUM_HEADS].to_pylist()]
    found = {
        (image_type_of(head) or audio_type_of(head) or video_type_of(head) or "").partition("/")[0] for head in heads
    }
    return (found.pop() or None) if len(found) == 1 else None


def _cut_rows(split: InputSplit, num_rows: int, max_parts: int) -> Iterator[InputSplit]:
    num_parts = min(max_parts, split.num_bytes // MIN_SPLIT_BYTES, num_rows)
    if num_parts < 2:
        yield split
        return
    for part in range(num_parts):
        start, stop = (num_rows * p // num_parts for p in (part, part + 1))
        num_bytes = split.num_bytes * (part + 1) // num_parts - split.num_bytes * part // num_parts
        yield msgspec.structs.replace(split, row_start=start, row_stop=stop, num_bytes=num_bytes)


def _rows_of(batches: Iterator[pa.RecordBatch], split: InputSplit) -> Iterator[pa.RecordBatch]:
    position = 0
    for batch in batches:
        stop = position + batch.num_rows
        if not split.row_stop:
            yield batch
        elif stop > split.row_start:
            start = max(split.row_start - position, 0)
            yield batch.slice(start, min(stop, split.row_stop) - position - start)
        position = stop
        if split.row_stop and position >= split.row_stop:
            return


def refuse_compressed(file: RawFile, what: str) -> None:
    """Refuses a file that is compressed as a whole, in a format that is read from its end.

    Args:
        what: It is, such as `a Parquet file`.

    Raises:
        UsageError: If it is compressed.
    """
    if file.compression not in (None, "archive"):
        raise UsageError(
            f"{what} inside {file.compression} is not read", where=place(file), next_step="Decompress it first"
        )


# Cached, as below.
@functools.lru_cache(maxsize=1)
def _media(source: ColumnarSource, files: tuple[RawFile, ...], options: SourceOptions) -> Mapping[str, str]:
    """Returns the kind of the columns of bytes whose first values in the first file all begin like files of one."""
    schemas = _schemas(source, files, options)
    first = next(iter(schemas), None)
    own = () if first is None else schemas[first]
    names = [c.name for c in own if pa.types.is_binary(c.type_) and c.media_type is None]
    wanted = tuple(make_feature(n, "bytes", nullable=True) for n in names if not is_dropped(n, options.drop_columns))
    if first is None or not wanted:
        return {}
    head = source.read_head(first, wanted, options)
    found = {feature.name: _media_kind(head[feature.name]) for feature in wanted if feature.name in head}
    return {name: kind for name, kind in found.items() if kind is not None}


# Cached: `notes` is asked behind `infer`. Equal schemas of many files are kept once.
@functools.lru_cache(maxsize=1)
def _schemas(
    source: ColumnarSource, files: tuple[RawFile, ...], options: SourceOptions
) -> Mapping[RawFile, tuple[Column, ...]]:
    filled = [file for file in files if file.num_bytes]
    found = map_files(lambda file: source.read_schema(file, options), filled)
    known: dict[tuple[Column, ...], tuple[Column, ...]] = {}
    return {file: known.setdefault(columns, columns) for file, columns in zip(filled, found, strict=True)}
