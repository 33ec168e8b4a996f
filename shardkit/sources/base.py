"""What every kind of raw file offers the conversion: features, splits, and rows as Arrow batches.

One file per format; `shardkit.sources` chooses among them. A source decides nothing about shards: it lists files,
infers features from heads and schemas, cuts inputs into splits, and reads one split as batches whose columns fit the
features exactly. Everything here crosses process borders as JSON, in the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from shardkit.errors import BadInputError, NarrowTypesError, ShardkitError
from shardkit.features import Features
from shardkit.messages import printable
from shardkit.sources.options import MAX_FIELD_BYTES as MAX_FIELD_BYTES
from shardkit.sources.options import SourceOptions as SourceOptions
from shardkit.units import MiB

MIN_SPLIT_BYTES = 8 * MiB
MAX_SPLIT_BYTES = 64 * MiB
BATCH_BYTES = 4 * MiB
MAX_RAW_BYTES = MiB


class ArchiveMember(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Where an input file is in an archive.

    Attributes:
        start: Where its local header starts in a `zip`, or its data in a decompressed `tar`.
        is_deflated: Whether it is compressed by itself, as in a `zip`.
        crc32: Of its content; None where the archive does not say.
        archive_num_bytes: Size of the archive as stored.
        archive_compression: `gzip`, `zstd`, `bz2` or `xz` where the archive is compressed as a whole.
    """

    kind: Literal["zip", "tar"]
    start: int
    num_stored_bytes: int
    is_deflated: bool = False
    crc32: int | None = None
    archive_num_bytes: int
    archive_compression: str | None = None


class StoredShard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Where an input file is described that is a shard of a dataset of shardkit.

    Attributes:
        dataset: Path or URL of the dataset.
        commit_id: Of its manifest, which another one of that number does not have.
        position: 0-based row of the shard table.
    """

    dataset: str
    version: int
    commit_id: str
    position: int
    split: str


class RawFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One input file.

    Attributes:
        path: Absolute path or URL; that of the archive for its members.
        name: Path relative to the common root of all inputs, with `/`.
        num_bytes: Size as stored; of a member of an archive, what it would have beside it.
        version: Modification time or etag; changes when the content does.
        compression: `gzip`, `zstd`, `bz2`, `xz` or None, by content; `archive` for a plain file that can be read from
            front to back only, because its archive is compressed.
        encoding: Of a text that is not UTF-8; `open_stream` reads it as UTF-8, and its bytes are counted so.
        member: Where it is in an archive; None for a file outside of archives.
        max_expansion: How many times as large it may become when it is decompressed.
        skip_lines: Lines at its start that are read as empty ones.
        comment: Lines that begin with this are read as empty ones.
        records: Key of the array of a JSON document that is read; the rest of the document is read as blanks.
        split: Of the dataset, where a list, an option or a dataset names it; None leaves it to the name of the file.
        shard: Where it is described, if it is read as a shard of a dataset.
    """

    path: str
    name: str
    num_bytes: int
    version: str
    compression: str | None = None
    encoding: str | None = None
    member: ArchiveMember | None = None
    max_expansion: int = 200
    skip_lines: int = 0
    comment: str | None = None
    records: str | None = None
    split: str | None = None
    shard: StoredShard | None = None


class InputSplit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the inputs that one worker reads in one go.

    Attributes:
        index: 0-based position among all splits; the order of `--no-shuffle`.
        file_start, file_stop: The files it reads, half-open. More than one only for formats with a row a file, and
            where there are parts.
        start, stop: Bytes of text formats and Avro, row groups of Parquet, record batches of Arrow, stripes of ORC,
            rows of arrays; half-open. 0 and 0 where files are read whole.
        row_start, row_stop: Rows of a single row group, record batch or stripe, half-open; 0 and 0 for all of them.
        num_bytes: Input bytes it covers (as stored), for progress and for dealing work out evenly.
        max_rows: How many rows are read at most; 0 for all.
        parts: Of several small files that are worked at in one go, each as the source reads it; none otherwise.
    """

    index: int
    file_start: int
    file_stop: int
    start: int = 0
    stop: int = 0
    row_start: int = 0
    row_stop: int = 0
    num_bytes: int = 0
    max_rows: int = 0
    parts: tuple[InputSplit, ...] = ()


class RejectedRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A row that does not fit.

    Attributes:
        file_index: Position in the list of files.
        position: Where in the file, for people: `line 17`, `row 5`; empty where the file is the row.
        first_byte: Where it starts in the (decompressed) file; None where the format has no such place.
        raw: Its bytes as they are in the file, at most MAX_RAW_BYTES of them.
        is_of_wider_type: Whether a column of another type would hold it.
    """

    file_index: int
    position: str
    first_byte: int | None
    reason: str
    raw: bytes
    is_of_wider_type: bool = False


class RowBatch(NamedTuple):
    """Some rows of one split.

    Attributes:
        batch: Columns in the order of the features, each of the feature's `arrow_type`.
        identities: uint64 per row; a stable name of the row that does not depend on other files. See
            `row_identities`.
        file_indices: Position in the list of files, one for all rows or one per row.
        num_rounded: By column, values that a narrower float could not hold; columns without any are left out.
        rejected: Rows of the same stretch that do not fit. They have no place in the columns, but count for the
            identities of those behind them.
    """

    batch: pa.RecordBatch
    identities: npt.NDArray[np.uint64]
    file_indices: int | npt.NDArray[np.int64]
    num_rounded: Mapping[str, int] = {}
    rejected: Sequence[RejectedRow] = ()


@dataclass(frozen=True)
class SourceSettings:
    """What the sources of shardkit are made with.

    Attributes:
        split_bytes: Wanted size of a split; None chooses by the size of the file, or of all files.
        batch_bytes: Wanted size of a batch: of its text, its records, or its values in memory.
    """

    format: str
    split_bytes: int | None = None
    batch_bytes: int = BATCH_BYTES


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
            BadInputError: If a file cannot be read at all, or none has a row.
        """
        ...

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns notes for the user on how the files were understood, one sentence each."""
        ...

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Cuts the files into splits, each file by `choose_split_bytes`, in the order of the files.

        Raises:
            DamagedFileError: If a file is damaged, unless bad rows are tolerated: then reading tells of it.
        """
        ...

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields the rows of one split in order, in batches of about BATCH_BYTES.

        Raises:
            BadInputError: At the first row that does not fit, unless bad rows are tolerated; names column, expected,
                got, file and row. Or if a file changed since it was listed.
            DamagedFileError: If the rest of a file cannot be trusted, whether or not bad rows are tolerated.
        """
        ...


class RecognizingSource(Source, Protocol):
    """A source that knows its files by their first bytes or their names."""

    def recognizes(self, head: bytes, name: str) -> bool:
        """Returns whether a file is of this format.

        Args:
            head: The first bytes after decompression, up to `file_types.HEAD_BYTES`.
        """
        ...


def settle(source: Source, files: tuple[RawFile, ...], options: SourceOptions) -> SourceOptions:
    """Returns the options with all that the files decide before features are inferred; few sources decide anything.

    Raises:
        UsageError: If the files can be read in two ways, and no option says in which.
    """
    decided = getattr(source, "settle", None)
    return options if decided is None else cast(SourceOptions, decided(files, options))


def cut_to(source: Source, split_bytes: int | None) -> Source:
    """Returns the source that cuts files of lines into splits of about a size; as it is for other formats and None."""
    is_cut = split_bytes is not None and source.format in ("csv", "json", "text")
    return replace(source, split_bytes=split_bytes) if is_cut and isinstance(source, SourceSettings) else source


def read_together(
    source: Source, indices: Sequence[int], files: tuple[RawFile, ...], features: Features, options: SourceOptions
) -> RowBatch | None:
    """Returns the rows of small whole files at once; None if the source cannot, or each must be read alone.

    The rows and their order are those of reading one file after the other.

    Raises:
        BadInputError, UsageError: What reading one of them alone would raise.
    """
    together = getattr(source, "read_together", None)
    return None if together is None else cast("RowBatch | None", together(indices, files, features, options))


def place(file: RawFile, *, line: int | None = None, row: int | None = None) -> str:
    """Returns where something is, such as `a.csv, line 17`."""
    name = printable(file.name)
    if line is not None:
        return f"{name}, line {line}"
    return name if row is None else f"{name}, row {row}"


def choose_split_bytes(num_bytes: int) -> int:
    """Returns the size of the splits of a file: small enough that no core waits long for the last one.

    Args:
        num_bytes: Of this file alone. The identity of a row depends on where its split starts, so other files must
            not matter.
    """
    return max(MIN_SPLIT_BYTES, min(num_bytes // 32, MAX_SPLIT_BYTES))


def count_splits(num_bytes: int) -> int:
    """Returns into how many splits a file of so many bytes is cut, where it can be cut anywhere.

    The last split takes what would be less than a quarter of one.
    """
    split_bytes = choose_split_bytes(num_bytes)
    return max(1, -(-(num_bytes - split_bytes // 4) // split_bytes))


def numbered(splits: Iterator[InputSplit]) -> list[InputSplit]:
    """Returns splits with their positions filled in."""
    return [msgspec.structs.replace(s, index=index) for index, s in enumerate(splits)]


def rejected_row(
    error: BadInputError, *, file_index: int, position: str, first_byte: int | None, raw: bytes
) -> RejectedRow:
    """Returns the rejected row of an error, where bad rows are tolerated."""
    return RejectedRow(
        file_index=file_index,
        position=position,
        first_byte=first_byte,
        reason=reason_of(error),
        raw=raw[:MAX_RAW_BYTES],
        is_of_wider_type=isinstance(error, NarrowTypesError),
    )


def reason_of(error: ShardkitError) -> str:
    """Returns the fault in words, for callers that add the place."""
    return error.what if error.why is None else f"{error.what}: {error.why}"


MAX_ROWS_OF_A_SPLIT = 2**40
"""Identities of rows of a split lie closer; so far apart are those of the items of one row."""


def row_identities(file: RawFile, start: int, first_row: int, num_rows: int) -> npt.NDArray[np.uint64]:
    """Returns identities for consecutive rows of one split of one file.

    Args:
        file: The file; only its name counts.
        start: Where the split starts in the file.
        first_row: 0-based number of the first row, within the split.
    """
    base = xxhash.xxh3_64_intdigest(f"{file.name}\0{start}".encode())
    return np.uint64(base) + np.arange(first_row, first_row + num_rows, dtype=np.uint64)


def file_identities(names: list[str]) -> npt.NDArray[np.uint64]:
    """Returns identities for files that are one row each."""
    return np.array([xxhash.xxh3_64_intdigest(name.encode()) for name in names], dtype=np.uint64)
