"""Reads all rows of some files with a source, and checks each batch against the promises of `Source.read`.

Files are changed the same way every time: compressed, cut off, damaged.
"""

from __future__ import annotations

import bz2
import gzip
import itertools
import lzma
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
import pyarrow as pa

from shardkit.errors import NoRowsError, ShardkitError
from shardkit.features import Features, arrow_schema
from shardkit.sources.base import (
    MAX_RAW_BYTES,
    InputSplit,
    RawFile,
    RejectedRow,
    RowBatch,
    Source,
    SourceOptions,
    settle,
)
from shardkit.sources.listing import list_inputs
from shardkit.sources.plugins import fault_of

_NUM_CUTS = 10

PACKERS: Mapping[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda content: cast(bytes, pa.compress(content, "zstd", asbytes=True)),
}
"""Ways to compress a file as a whole."""


Row = dict[str, Any]


class Reading(NamedTuple):
    """What a source reads of some files.

    Attributes:
        rows: The good rows of all splits in order.
        identities: One a good row.
        file_indices: Position of the file of each good row.
        rejected: The bad rows of all splits in order.
    """

    files: tuple[RawFile, ...]
    features: Features
    splits: list[InputSplit]
    rows: list[Row]
    identities: list[int]
    file_indices: list[int]
    rejected: list[RejectedRow]
    notes: tuple[str, ...] = ()

    @property
    def types(self) -> dict[str, str]:
        """The type of each column, such as `int64[3]`."""
        return {feature.name: feature.describe_type() for feature in self.features}

    @property
    def columns(self) -> dict[str, list[Any]]:
        """The values of each column."""
        return {feature.name: [row[feature.name] for row in self.rows] for feature in self.features}


def read_paths(
    source: Source, paths: Sequence[Path], options: SourceOptions, features: Features | None = None
) -> Reading:
    """Returns what a source reads of some files and folders.

    Args:
        features: Of the columns; None infers them.

    Raises:
        AssertionError: If a split or a batch is not as the source must give it.
    """
    files = list_inputs([str(path) for path in paths], options).files
    options = settle(source, files, options)
    features = source.infer(files, options) if features is None else features
    notes = source.notes(files, options)
    assert all(isinstance(note, str) for note in notes), f"notes are sentences, not {notes!r}"
    splits = source.split(files, options)
    _check_splits(splits, files)
    return read_splits(source, splits, files, features, options)._replace(notes=notes)


def read_splits(
    source: Source,
    splits: list[InputSplit],
    files: tuple[RawFile, ...],
    features: Features,
    options: SourceOptions,
) -> Reading:
    """Returns what a source reads of some splits.

    Raises:
        AssertionError: If a batch is not as the source must give it.
    """
    found = Reading(files, features, splits, [], [], [], [])
    for split in splits:
        for part in source.read(split, files, features, options):
            _check_batch(part, split, features)
            found.rows.extend(part.batch.to_pylist())
            found.identities.extend(part.identities.tolist())
            found.file_indices.extend(np.broadcast_to(part.file_indices, part.batch.num_rows).tolist())
            found.rejected.extend(part.rejected)
    assert options.tolerates_bad_rows or not found.rejected, "rows are rejected, but bad rows are not tolerated"
    assert len(set(found.identities)) == len(found.identities), "two rows have the same identity"
    return found


def files_of(folder: Path) -> list[Path]:
    """Returns the files in a folder, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def file_names_of(found: Reading) -> list[str]:
    """Returns the name of the file of each good row."""
    return [found.files[index].name for index in found.file_indices]


def through_json(value: Any, type_: Any) -> Any:
    """Returns what becomes of a value that crosses a process border."""
    return msgspec.json.decode(msgspec.json.encode(value), type=type_)


def check_same(what: str, found: Sequence[object], expected: Sequence[object]) -> None:
    """Asserts that two sequences are equal, with the first item that differs: pytest explains no installed package."""
    assert len(found) == len(expected), f"{what}: {len(found):,} are there, expected {len(expected):,}"
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one == other, f"{what}: number {number:,} is {one!r}, expected {other!r}"


def check_same_reading(when: str, found: Reading, expected: Reading) -> None:
    """Asserts that a source read the same."""
    for name in Reading._fields:
        check_same(f"{name} {when}", getattr(found, name), getattr(expected, name))


def check_names(error: ShardkitError, paths: Iterable[Path]) -> None:
    """Asserts that an error names one of some files; that nothing holds a row is said of all files together."""
    is_named = isinstance(error, NoRowsError) or any(path.name in str(error) for path in paths)
    assert is_named, f"an error names no file: {error!r}: {error}"


def _check_splits(splits: list[InputSplit], files: tuple[RawFile, ...]) -> None:
    indices = [split.index for split in splits]
    assert indices == list(range(len(splits))), f"splits have the indices {indices}"
    for split in splits:
        assert 0 <= split.file_start < split.file_stop <= len(files), f"a split of files that are not there: {split}"
    for one, other in itertools.pairwise(splits):
        assert one.file_start <= other.file_start, f"splits are not in the order of their files: {one}, {other}"
    num_bytes = sum(split.num_bytes for split in splits)
    assert num_bytes <= sum(file.num_bytes for file in files), f"splits cover {num_bytes:,} bytes, more than there are"


def _check_batch(part: RowBatch, split: InputSplit, features: Features) -> None:
    fault = fault_of(part, split, features)
    assert fault is None, f"a batch is not as its source promises: {fault}"
    schema = arrow_schema(features)
    assert part.batch.schema == schema, f"a batch has the schema {part.batch.schema}, expected {schema}"
    part.batch.validate(full=True)
    unknown = set(part.num_rounded) - set(schema.names)
    assert not unknown, f"rounded values are counted for {unknown}, which are no columns"
    for row in part.rejected:
        assert row.reason, f"a rejected row has no reason: {row}"
        assert len(row.raw) <= MAX_RAW_BYTES, f"a rejected row keeps {len(row.raw):,} bytes"


def cut_lengths(num_bytes: int) -> list[int]:
    """Returns lengths, at least 1, at which a test cuts off a file of so many bytes."""
    spread = range(1, num_bytes, num_bytes // _NUM_CUTS + 1)
    edges = (4, 8, 12, num_bytes // 2, num_bytes - 9, num_bytes - 8, num_bytes - 2, num_bytes - 1)
    return sorted(length for length in {*spread, *edges} if 0 < length < num_bytes)


def mutations(content: bytes, num_mutations: int) -> Iterator[bytes]:
    """Yields the content so many times with some of its bytes changed, removed or doubled."""
    rng = random.Random(0)
    for number in range(num_mutations):
        data = bytearray(content)
        for _ in range(rng.randint(1, 3)):
            # Headers and indexes mostly are at one of the ends.
            edge = min(len(data), 120)
            place = rng.choice((rng.randrange(len(data)), rng.randrange(edge), len(data) - 1 - rng.randrange(edge)))
            if number % 4 < 2:
                data[place] ^= 1 << rng.randrange(8)
            elif number % 4 == 2:
                data[place : place + rng.randint(1, 9)] = b"\0" * rng.randint(0, 9)
            else:
                data[place:place] = data[place : place + 20]
            data = data or bytearray(b"\0")
        yield bytes(data)
