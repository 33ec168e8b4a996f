"""ORC. Splits are stripes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.dataset as arrow_dataset

from shardkit.errors import DamagedFileError, ShardkitError, StorageError, UsageError
from shardkit.features import Features
from shardkit.sources.arrow_structure import check_structure
from shardkit.sources.base import BATCH_BYTES, InputSplit, RawFile, RowBatch, SourceOptions, choose_split_bytes
from shardkit.sources.columnar import (
    MAX_BATCH_ROWS,
    RowFitter,
    check_columns,
    cut_pieces,
    infer_features,
    map_files,
)
from shardkit.sources.orc_footer import MAGIC, Tail, full_columns, read_tail, with_stripes
from shardkit.sources.parquet_schema import Column, flatten_schema
from shardkit.sources.streams import guard_unchanged, open_raw, place
from shardkit.sources.text_splits import numbered
from shardkit.units import format_size

_PROBED_ROWS = 64


@dataclass(frozen=True)
class OrcSource:
    """ORC.

    Attributes:
        format: `orc`.
        split_bytes: Wanted size of a split; None chooses by the size of the file.
        batch_bytes: Wanted size of a batch in memory.
    """

    format: str = "orc"
    split_bytes: int | None = None
    batch_bytes: int = BATCH_BYTES

    def recognizes(self, head: bytes, name: str) -> bool:
        """Returns whether a file starts as an ORC file does; a text may do so too, if it is not called `.orc`."""
        return head.startswith(MAGIC) and (not head[3:4].isascii() or name.lower().endswith(".orc") or b"\0" in head)

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns the columns that all files have; nullable unless the statistics deny it.

        Raises:
            UsageError: If schemas or partitions do not go together, or a column has no place in an example.
            BadInputError: If a file is damaged, or all are empty.
        """
        return infer_features(files, _read_columns)

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns nothing: a schema says what a file is."""
        return ()

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Cuts the files between stripes.

        Raises:
            DamagedFileError: If a footer is damaged.
        """
        filled = [(i, f) for i, f in enumerate(files) if f.num_bytes]
        tails = map_files(_tail_of, [f for _, f in filled])
        return numbered(chain.from_iterable(self._cut(i, f, tail) for (i, f), tail in zip(filled, tails, strict=True)))

    def _cut(self, file_index: int, file: RawFile, tail: Tail) -> Iterator[InputSplit]:
        wanted = self.split_bytes or choose_split_bytes(file.num_bytes)
        return cut_pieces(file_index, [(s.num_bytes, s.num_bytes) for s in tail.stripes], wanted)

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields the rows of one split.

        Raises:
            BadInputError: At the first row that does not fit, unless bad rows are tolerated, or if the file changed
                since it was listed.
            DamagedFileError: If the file is damaged.
        """
        file = files[split.file_start]
        with guard_unchanged(file), _open(file) as (raw, tail):
            fitter = RowFitter(
                split,
                files,
                features,
                options,
                rows_before=lambda: sum(s.num_rows for s in tail.stripes[: split.start]),
                batch_bytes=self.batch_bytes,
            )
            fragment = _fragment(raw, tail, split.start, split.stop)
            check_columns(flatten_schema(fragment.physical_schema, place(file)), features, file)
            for batch in _batches(fragment, _batch_rows(fragment, self.batch_bytes)):
                check_structure(batch)
                yield from fitter.fit(batch)
            num_expected = sum(s.num_rows for s in tail.stripes[split.start : split.stop])
            if fitter.num_rows != num_expected:
                raise DamagedFileError(
                    "the file is damaged",
                    where=place(file),
                    why=f"its footer says {num_expected} rows, {fitter.num_rows} were read",
                )


def _fragment(raw: BinaryIO, tail: Tail, start: int, stop: int) -> arrow_dataset.FileFragment:
    stripes = pa.PythonFile(with_stripes(raw, tail, start, stop), mode="r")
    return arrow_dataset.OrcFileFormat().make_fragment(stripes)


def _batches(fragment: arrow_dataset.FileFragment, num_rows: int) -> Iterator[pa.RecordBatch]:
    batches: Iterator[pa.RecordBatch] = fragment.to_batches(
        batch_size=num_rows, batch_readahead=0, fragment_readahead=0, use_threads=False
    )
    return batches


def _batch_rows(fragment: arrow_dataset.FileFragment, batch_bytes: int) -> int:
    first = next(_batches(fragment, _PROBED_ROWS), None)
    row_bytes = first.nbytes / first.num_rows if first is not None and first.num_rows else 1.0
    return int(min(MAX_BATCH_ROWS, max(1, batch_bytes / max(1.0, row_bytes))))


def _read_columns(file: RawFile) -> tuple[Column, ...]:
    with _open(file) as (raw, tail):
        columns = flatten_schema(_fragment(raw, tail, 0, len(tail.stripes)).physical_schema, place(file))
        return tuple(
            msgspec.structs.replace(column, nullable=not is_full)
            for column, is_full in zip(columns, full_columns(tail), strict=True)
        )


def _tail_of(file: RawFile) -> Tail:
    with _open(file) as (_, tail):
        return tail


@contextmanager
def _open(file: RawFile) -> Iterator[tuple[BinaryIO, Tail]]:
    if file.compression not in (None, "archive"):
        raise UsageError(
            f"an ORC file inside {file.compression} is not read", where=place(file), next_step="Decompress it first"
        )
    with open_raw(file) as raw:
        try:
            yield raw, read_tail(raw, file.num_bytes)
        except ShardkitError:
            raise
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
            if getattr(error, "errno", None):
                raise StorageError("the file cannot be read", where=place(file), why=str(error)) from error
            text = str(error).splitlines()[0].strip() if str(error) else type(error).__name__
            raise DamagedFileError(
                "the ORC file is cut off or damaged",
                where=place(file),
                why=f"{text.rstrip('.')} ({format_size(file.num_bytes)})",
            ) from error
