"""Where a row came from, for people: told from its identity, since batches carry no row numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from shardkit.sources.base import InputSplit, RawFile, RowBatch, row_identities
from shardkit.sources.streams import place

_MAX_ROWS = 2**40
_UNITS = {"parquet": "row group", "arrow": "record batch", "orc": "stripe"}


class Origin(NamedTuple):
    """Position in the list of files and where in the file, such as `row 5`; empty where the file is the row."""

    file_index: int
    position: str


def origin_of(rows: RowBatch, row: int, files: tuple[RawFile, ...], split: InputSplit, format: str | None) -> Origin:
    """Returns where a row came from. Rows are counted from 1, and from the start of the split.

    Args:
        rows: As the source gave them.
        row: Position in the batch.
        files: All inputs.
        split: The part of the inputs that the rows are from.
        format: Of the source; says what a split's start counts.
    """
    indices = rows.file_indices
    file_index = indices if isinstance(indices, int) else int(indices[row])
    first = int(row_identities(files[file_index], split.start, 0, 1)[0])
    number = (int(rows.identities[row]) - first) % 2**64
    if number >= _MAX_ROWS:
        return Origin(file_index, "")
    position = f"row {number + 1}"
    if split.start:
        position += f" counted from {_UNITS.get(format or '', 'byte')} {split.start}"
    return Origin(file_index, position)


def place_of(origin: Origin, files: tuple[RawFile, ...]) -> str:
    """Returns the origin for a message, such as `a.csv, row 5`."""
    name = place(files[origin.file_index])
    return f"{name}, {origin.position}" if origin.position else name


def raw_row(batch: pa.RecordBatch, row: int) -> bytes:
    """Returns a row as the source gave it, as JSON: bytes in base64, what JSON has no form for as text."""
    values = {name: _as_python(batch.column(i)[row]) for i, name in enumerate(batch.schema.names)}
    return msgspec.json.encode(values, enc_hook=str)


def _as_python(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return str(scalar)
