"""Why columns of CSV are text: a few values that are no number, or numbers that would lose how they are written.

Such numbers are 00123 and +5; a sample makes them strings.
"""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.features import Feature
from shardkit.messages import shown
from shardkit.sources.base import RawFile, place
from shardkit.sources.columns.casting import BadValueError
from shardkit.sources.csv.dialect import Dialect
from shardkit.sources.text.blocks import NEWLINE, RETURN, Text, as_array
from shardkit.sources.text.type_inference import UntypedValue
from shardkit.units import KiB

# Small enough to stay in the cache.
_SCAN_BYTES = 128 * KiB
_LISTED_COLUMNS = 5
_ZERO, _NINE, _PLUS, _MINUS = b"09+-"
_SPACES = (0x20, 0x09)
_QUOTE = 0x22
_IN_TIMES = b"/:-"
_PATTERN = r"^[ \t]*([-+]?0[0-9xX]|\+)"

_Bytes = npt.NDArray[np.uint8]
_Flags = npt.NDArray[np.bool_]


class OddValue(NamedTuple):
    """A value that makes a column text, and where it is.

    Attributes:
        column: Name.
        odd: The value.
        file: That it is in.
        line: 1-based, None if it is not known.
    """

    column: str
    odd: UntypedValue
    file: RawFile
    line: int | None


def is_unpadded(feature: Feature, leading_zeros: tuple[str, ...]) -> bool:
    """Whether such numbers are refused in a column.

    Args:
        leading_zeros: Columns in which they are allowed.
    """
    is_number = feature.dtype.startswith(("int", "uint", "float"))
    return is_number and feature.vocabulary is None and feature.name not in leading_zeros


def find_padded(texts: pa.Array) -> pa.Array:
    """Returns which of the texts would lose a leading zero, a plus sign or a hexadecimal spelling as numbers."""
    return pc.fill_null(pc.match_substring_regex(texts, _PATTERN), False)


def padded_error(feature: Feature, row: int, text: str) -> BadValueError:
    """Returns the error for such a number in a row of a batch, counted from 0."""
    return BadValueError(feature.name, row, f"{feature.describe_type()} as in the first rows", shown(text))


def find_line(text: bytes, dialect: Dialect, column: str, value: str) -> int | None:
    """Returns the 1-based line of the first record of a head that has a value in a column."""
    position, before = dialect.columns.index(column), 0
    reader = csv.reader(io.StringIO(text.decode(errors="replace"), newline=""), delimiter=dialect.delimiter)
    try:
        for record in reader:
            if len(record) == len(dialect.columns) and record[position] == value:
                return dialect.first_line + before
            before = reader.line_num
    except csv.Error:
        # A longer field than the module takes.
        pass
    return None


def untyped_notes(found: Sequence[OddValue]) -> Iterator[str]:
    """Yields a note on each column, or on how many more there are."""
    for column, odd, file, line in found[:_LISTED_COLUMNS]:
        value = f"{shown(odd.value)} in {place(file, line=line)}"
        if odd.is_usual_null:
            otherwise = f"--null-value {shlex.quote(odd.value)}"
        else:
            otherwise = f"--schema or --cast {shlex.quote(f'{column}={odd.dtype}')}"
        yield f"column {shown(column)} is text because {value} is no {odd.dtype}, unless {otherwise} says otherwise"
    if len(found) > _LISTED_COLUMNS:
        yield f"and so are {len(found) - _LISTED_COLUMNS:,} more columns"


def may_hold_padded(data: Text, delimiter: str) -> bool:
    """Whether a field of a block may be such a number; True for hardly any block that has none."""
    values, cut = as_array(data), ord(delimiter)
    head = np.concatenate([np.full(2, NEWLINE, dtype=np.uint8), values[:3]])
    pieces = (values[start : start + _SCAN_BYTES + 3] for start in range(0, len(values), _SCAN_BYTES))
    has_pluses = bool((values == _PLUS).any())
    return any(len(_found(piece, cut, has_pluses)) for piece in (head, *pieces))


def _found(values: _Bytes, cut: int, has_pluses: bool) -> npt.NDArray[np.int64]:
    # Positions from 2 on: the first two bytes are searched together with the bytes before them.
    if len(values) < 4:
        return np.empty(0, dtype=np.int64)
    before, here, behind = values[1:-2], values[2:-1], values[3:]
    # Line ends, spaces, quotes, signs and the comma are below the point; digits and letters are above the slash.
    starts = before < ord(".")
    if cut >= ord("."):
        starts |= before == cut
    zeros = here == _ZERO
    zeros &= starts
    zeros &= behind >= _ZERO
    if cut >= _ZERO:
        zeros &= behind != cut
    if has_pluses:
        zeros |= (here == _PLUS) & starts
    if not zeros.any():
        return np.empty(0, dtype=np.int64)
    # Dates and times have many zeros behind a hyphen or a space, each with a digit before.
    earlier = values[:-3]
    zeros &= (earlier < ord(".")) | (earlier == cut) | _is_any(before, (cut, NEWLINE, RETURN, _QUOTE))
    places = np.flatnonzero(zeros) + 2
    return places[_start_numbers(values, places, cut)] if len(places) else places


def _start_numbers(values: _Bytes, places: npt.NDArray[np.int64], cut: int) -> _Flags:
    before, earlier, behind = values[places - 1], values[places - 2], values[places + 1]
    starts = _is_any(before, (cut, NEWLINE, RETURN, _QUOTE))
    inner = _is_any(before, (*_SPACES, _PLUS, _MINUS))
    starts |= inner & _is_any(earlier, (cut, NEWLINE, RETURN, _QUOTE, *_SPACES))
    # Times and dates go on with a character that no number has.
    later = values[np.minimum(places + 2, len(values) - 1)]
    is_zero = values[places] == _ZERO
    has_digit = (behind >= _ZERO) & (behind <= _NINE) & ~_is_any(later, tuple(_IN_TIMES))
    fits: _Flags = starts & (~is_zero | has_digit | _is_any(behind, tuple(b"xX")))
    return fits


def _is_any(values: _Bytes, wanted: tuple[int, ...]) -> _Flags:
    found: _Flags = values == wanted[0]
    for value in wanted[1:]:
        found |= values == value
    return found
