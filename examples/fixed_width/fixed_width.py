"""A source of another package: text files of columns of fixed width, such as old weather records.

    name      temperature
    Oslo             -3.5

A column starts where its name starts in the first line; all values are text. After `pip install examples/fixed_width`,
`shardkit convert` reads files that end in `.fwf`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from shardkit.errors import BadInputError
from shardkit.features import Features, arrow_schema, make_feature
from shardkit.sources.base import (
    InputSplit,
    RawFile,
    RejectedRow,
    RowBatch,
    SourceOptions,
    rejected_row,
    row_identities,
)
from shardkit.sources.streams import guard_unchanged, open_stream, place


@dataclass(frozen=True)
class FixedWidthSource:
    """Text files whose columns have fixed places."""

    format: str = "fixed_width"

    def recognizes(self, head: bytes, name: str) -> bool:
        """Returns whether the name says so."""
        return name.endswith(".fwf")

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns a text feature for each column of the first line."""
        names = list(_column_starts(_lines(files[0])[0]))
        for file in files:
            if list(_column_starts(_lines(file)[0])) != names:
                raise BadInputError("the files have different columns", where=place(file))
        return tuple(make_feature(name, "string", nullable=True) for name in names)

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns nothing."""
        return ()

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Returns one split a file."""
        return [InputSplit(index=i, file_start=i, file_stop=i + 1, num_bytes=f.num_bytes) for i, f in enumerate(files)]

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields the lines; one that ends before the last column starts is bad."""
        file = files[split.file_start]
        with guard_unchanged(file):
            header, *lines = _lines(file)
        starts = _column_starts(header)
        stops = [*list(starts.values())[1:], None]
        bounds = {name: slice(start, stop) for (name, start), stop in zip(starts.items(), stops, strict=True)}
        rows: list[str] = []
        rejected: list[RejectedRow] = []
        for number, line in enumerate(lines, start=2):
            if len(line) > max(starts.values()):
                rows.append(line)
                continue
            error = BadInputError(
                "a line is too short", where=place(file, line=number), why=f"it has {len(line)} letters"
            )
            if not options.tolerates_bad_rows:
                raise error
            position, raw = f"line {number}", line.encode()
            rejected.append(
                rejected_row(error, file_index=split.file_start, position=position, first_byte=None, raw=raw)
            )
        columns = [pa.array([line[bounds[f.name]].strip() or None for line in rows], pa.string()) for f in features]
        batch = pa.RecordBatch.from_arrays(columns, schema=arrow_schema(features))
        yield RowBatch(batch, row_identities(file, 0, 0, len(rows)), split.file_start, rejected=rejected)


def _lines(file: RawFile) -> list[str]:
    with open_stream(file) as stream:
        content = b"".join(iter(lambda: stream.read(1 << 20), b""))
    return content.decode().splitlines()


def _column_starts(header: str) -> dict[str, int]:
    return {match.group(): match.start() for match in re.finditer(r"\S+", header)}
