"""A source of another package: text files of columns of fixed width, such as old weather records.

    name      temperature
    Oslo             -3.5

A column starts where its name starts in the first line; all values are text. After `pip install examples/fixed_width`,
`shardkit convert` reads files that end in `.fwf`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from shardkit.sources.api import (
    BadInputError,
    BadValueError,
    DamagedFileError,
    Features,
    InputSplit,
    RawFile,
    RowBatch,
    SourceOptions,
    bad_value_error,
    cast_rows,
    guard_unchanged,
    make_feature,
    open_stream,
    place,
    rejected_row,
    row_identities,
)


@dataclass(frozen=True)
class FixedWidthSource:
    """Text files whose columns have fixed places."""

    format: str = "fixed_width"

    def recognizes(self, head: bytes, name: str) -> bool:
        """Returns whether the name says so."""
        return name.endswith(".fwf")

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns a text feature for each column of the first line."""
        names = list(_column_starts(files[0], _lines(files[0])[0]))
        for file in files:
            if list(_column_starts(file, _lines(file)[0])) != names:
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
        starts = _column_starts(file, header)
        missing = [feature.name for feature in features if feature.name not in starts]
        if missing:
            why = f"expected {missing[0]!r}, got {', '.join(map(repr, starts))}"
            raise DamagedFileError("the first line names other columns", where=place(file, line=1), why=why)
        ends = itertools.pairwise([*starts.values(), None])
        bounds = {name: slice(start, stop) for name, (start, stop) in zip(starts, ends, strict=True)}
        is_whole = np.array([len(line) > max(starts.values()) for line in lines], np.bool_)
        indices = np.flatnonzero(is_whole)
        columns = {
            name: pa.array([lines[i][where].strip() or None for i in indices.tolist()], pa.string())
            for name, where in bounds.items()
        }
        # A schema may make something else of a column, which not every value can become.
        try:
            cast = cast_rows(
                lambda a, b: {name: column.slice(a, b - a) for name, column in columns.items()},
                len(indices),
                features,
                tolerates_bad_rows=options.tolerates_bad_rows,
            )
        except BadValueError as error:
            raise bad_value_error(error, place(file, line=int(indices[error.row]) + 2)) from error
        bad = {int(indices[row]): bad_value_error(error, place(file)) for row, error in cast.bad_values}
        for i in np.flatnonzero(~is_whole).tolist():
            why = f"it has {len(lines[i])} letters"
            bad[i] = BadInputError("a line is too short", where=place(file, line=i + 2), why=why)
            if not options.tolerates_bad_rows:
                raise bad[i]
        rejected = [
            rejected_row(
                bad[i],
                file_index=split.file_start,
                position=f"line {i + 2}",
                first_byte=None,
                raw=lines[i].encode(),
            )
            for i in sorted(bad)
        ]
        # The name of a row is that of its line, whichever others are bad.
        identities = row_identities(file, 0, 0, len(lines))[indices[cast.kept]]
        yield RowBatch(cast.batch, identities, split.file_start, cast.num_rounded, rejected)


def _lines(file: RawFile) -> list[str]:
    with open_stream(file) as stream:
        content = b"".join(iter(lambda: stream.read(1 << 20), b""))
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError as error:
        why = f"not UTF-8 at byte {error.start}"
        raise DamagedFileError("the text is not UTF-8", where=place(file), why=why) from error
    # What follows the last line end is no line.
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1] or [""])]


def _column_starts(file: RawFile, header: str) -> dict[str, int]:
    found = list(re.finditer(r"\S+", header))
    starts = {match.group(): match.start() for match in found}
    if not found or len(starts) < len(found) or "\0" in header:
        what = "the first line names no columns" if not found else "a column is there twice"
        what = "a name of a column holds a NUL byte" if "\0" in header else what
        raise BadInputError(what, where=place(file, line=1), next_step="Correct the first line")
    return starts
