"""ORC."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import BinaryIO, ClassVar

import msgspec
import pyarrow as pa
import pyarrow.dataset as arrow_dataset

from shardkit.errors import DamagedFileError
from shardkit.features import Features
from shardkit.sources.base import InputSplit, RawFile, SourceOptions, choose_split_bytes, place
from shardkit.sources.columnar.arrow_columns import Column, flatten_schema
from shardkit.sources.columnar.arrow_structure import check_structure
from shardkit.sources.columnar.orc_footer import MAGIC, Tail, full_columns, read_tail, stripe_bytes, with_stripes
from shardkit.sources.columnar.schemas import MAX_BATCH_ROWS, cut_pieces
from shardkit.sources.columnar.source import ColumnarSource, Container, CountedContainer, refuse_compressed
from shardkit.sources.columns.dropped_columns import wanted_fields
from shardkit.sources.files.streams import open_raw

_PROBED_ROWS = 64


@dataclass(frozen=True)
class OrcSource(ColumnarSource):
    """ORC. Splits are stripes."""

    format: str = "orc"
    kind: ClassVar[str] = "ORC"

    def recognizes(self, head: bytes, name: str) -> bool:
        """Returns whether a file starts as an ORC file does; a text may do so too, if it is not called `.orc`."""
        return head.startswith(MAGIC) and (not head[3:4].isascii() or name.lower().endswith(".orc") or b"\0" in head)

    @contextmanager
    def open_file(self, file: RawFile, options: SourceOptions) -> Iterator[Container]:
        """Opens a file by its tail."""
        refuse_compressed(file, "an ORC file")
        with open_raw(file) as raw:
            yield _OrcFile(file, raw, read_tail(raw, file.num_bytes), options.drop_columns)

    def explain(self, error: Exception, file: RawFile) -> DamagedFileError | None:
        """Returns the error for a timestamp that Arrow, which reads all as nanoseconds, cannot hold."""
        found = re.search(r"ORC timestamp \((-?\d+)s", str(error))
        if found is None:
            return None
        return DamagedFileError(
            "a timestamp of the ORC file is out of range",
            where=place(file),
            why=f"{_when(int(found[1]))} is not within 1677-09-21 to 2262-04-11",
            next_step="Write the column as a date or as text, or the file as Parquet",
        )


def _when(seconds: int) -> str:
    try:
        return str(datetime(1970, 1, 1) + timedelta(seconds=seconds))
    except OverflowError:
        return f"{seconds} s since 1970"


class _OrcFile(CountedContainer):
    def __init__(self, file: RawFile, raw: BinaryIO, tail: Tail, dropped: tuple[str, ...]) -> None:
        self._file = file
        self._raw = raw
        self._tail = tail
        self._dropped = dropped

    def columns(self) -> tuple[Column, ...]:
        fragment = _fragment(self._raw, self._tail, 0, len(self._tail.footer.stripes))
        columns = flatten_schema(fragment.physical_schema, place(self._file))
        return tuple(
            msgspec.structs.replace(column, nullable=not is_full)
            for column, is_full in zip(columns, full_columns(self._tail), strict=True)
        )

    def cuts(self, split_bytes: int | None) -> Iterator[InputSplit]:
        wanted = split_bytes or choose_split_bytes(self._file.num_bytes)
        return cut_pieces([(stripe_bytes(s), stripe_bytes(s)) for s in self._tail.footer.stripes], wanted)

    def batches(self, split: InputSplit, features: Features, batch_bytes: int) -> Iterator[pa.RecordBatch]:
        fragment = _fragment(self._raw, self._tail, split.start, split.stop)
        schema = fragment.physical_schema
        wanted = wanted_fields(schema, self._dropped)
        names = None if wanted is None else [schema.field(i).name for i in wanted]
        for batch in _batches(fragment, _batch_rows(fragment, names, batch_bytes), names):
            check_structure(batch)
            yield batch

    def count_rows(self, start: int, stop: int) -> int:
        return sum(s.num_rows for s in self._tail.footer.stripes[start:stop])


def _fragment(raw: BinaryIO, tail: Tail, start: int, stop: int) -> arrow_dataset.FileFragment:
    stripes = pa.PythonFile(with_stripes(raw, tail, start, stop), mode="r")
    return arrow_dataset.OrcFileFormat().make_fragment(stripes)


def _batches(fragment: arrow_dataset.FileFragment, num_rows: int, names: list[str] | None) -> Iterator[pa.RecordBatch]:
    batches: Iterator[pa.RecordBatch] = fragment.to_batches(
        columns=names, batch_size=num_rows, batch_readahead=0, fragment_readahead=0, use_threads=False
    )
    return batches


def _batch_rows(fragment: arrow_dataset.FileFragment, names: list[str] | None, batch_bytes: int) -> int:
    first = next(_batches(fragment, _PROBED_ROWS, names), None)
    row_bytes = first.nbytes / first.num_rows if first is not None and first.num_rows else 1.0
    return int(min(MAX_BATCH_ROWS, max(1, batch_bytes / max(1.0, row_bytes))))
