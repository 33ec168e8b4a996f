"""What every kind of raw file offers the conversion: features, splits, and rows as Arrow batches.

One file per format; `shardkit.sources` chooses among them. A source decides nothing about shards: it lists files,
infers features from heads and schemas, cuts inputs into splits, and reads one split as batches whose columns fit the
features exactly. Everything here crosses process borders as JSON, in the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from shardkit.features import Features
from shardkit.units import MiB

MIN_SPLIT_BYTES = 8 * MiB
MAX_SPLIT_BYTES = 64 * MiB
BATCH_BYTES = 4 * MiB


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How raw files are to be understood. Part of the recipe.

    Attributes:
        format: `csv`, `tsv`, `jsonl`, `parquet` or `images`; None finds out from the content.
        columns: Names for a CSV without a header line.
        delimiter: Of CSV; None means a comma, or what the content shows.
        null_values: Further spellings of null in CSV besides the empty field.
        max_pixels: Images that declare more are refused before anything is decoded.
        max_record_bytes: Rows larger than this are refused.
    """

    format: str | None = None
    columns: tuple[str, ...] | None = None
    delimiter: str | None = None
    null_values: tuple[str, ...] = ()
    max_pixels: int = 64_000_000
    max_record_bytes: int = 256 * MiB


class RawFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One input file.

    Attributes:
        path: Absolute path or URL.
        name: Path relative to the common root of all inputs, with `/`.
        num_bytes: Size as stored.
        version: Modification time or etag; changes when the content does.
        compression: `gzip`, `zstd`, `bz2` or None, by content.
    """

    path: str
    name: str
    num_bytes: int
    version: str
    compression: str | None = None


class InputSplit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the inputs that one worker reads in one go.

    Attributes:
        index: 0-based position among all splits; the order of `--no-shuffle`.
        file_start, file_stop: The files it reads, half-open. More than one only for formats with a row a file.
        start, stop: Bytes of text formats, row groups of Parquet, half-open. 0 and 0 where files are read whole.
        num_bytes: Input bytes it covers (as stored), for progress and for dealing work out evenly.
    """

    index: int
    file_start: int
    file_stop: int
    start: int = 0
    stop: int = 0
    num_bytes: int = 0


class RowBatch(NamedTuple):
    """Some rows of one split.

    Attributes:
        batch: Columns in the order of the features, each of the feature's `arrow_type`.
        identities: uint64 per row; a stable name of the row that does not depend on other files. See
            `row_identities`.
        file_indices: Position in the list of files, one for all rows or one per row.
        num_rounded: By column, values that a narrower float could not hold; columns without any are left out.
    """

    batch: pa.RecordBatch
    identities: npt.NDArray[np.uint64]
    file_indices: int | npt.NDArray[np.int64]
    num_rounded: Mapping[str, int] = {}


class Source(Protocol):
    """One format."""

    @property
    def format(self) -> str:
        """Name of the format."""
        ...

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns the features, from schemas or from the heads of all files.

        Raises:
            UsageError: If files differ in a way no rule reconciles, or a column has no place in an example.
            BadInputError: If a file cannot be read at all.
        """
        ...

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns what a user should know about how the files were understood, one sentence each."""
        ...

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Cuts the files into splits, each file by `choose_split_bytes`, in the order of the files."""
        ...

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields the rows of one split in order, in batches of about BATCH_BYTES.

        Raises:
            BadInputError: At the first row that does not fit; names column, expected, got, file and row.
        """
        ...


def choose_split_bytes(num_bytes: int) -> int:
    """Returns the size of the splits of a file: small enough that no core waits long for the last one.

    Args:
        num_bytes: Of this file alone. The identity of a row depends on where its split starts, so other files must
            not matter.
    """
    return max(MIN_SPLIT_BYTES, min(num_bytes // 32, MAX_SPLIT_BYTES))


def row_identities(file: RawFile, start: int, first_row: int, num_rows: int) -> npt.NDArray[np.uint64]:
    """Returns identities for consecutive rows of one split of one file.

    Args:
        file: The file; only its name counts.
        start: Where the split starts in the file.
        first_row: 0-based number of the first row, within the split.
        num_rows: How many.
    """
    base = xxhash.xxh3_64_intdigest(f"{file.name}\0{start}".encode())
    return np.uint64(base) + np.arange(first_row, first_row + num_rows, dtype=np.uint64)


def file_identities(names: list[str]) -> npt.NDArray[np.uint64]:
    """Returns identities for files that are one row each."""
    return np.array([xxhash.xxh3_64_intdigest(name.encode()) for name in names], dtype=np.uint64)
