"""Where records and fields of quoted, delimited text end.

A quote opens a field only at the field's start, and a doubled quote inside does not close it, as RFC 4180 has it and
as Python's csv module and Arrow read it. So the line ends between an opening and a closing quote end no record.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardkit.sources.text.blocks import NEWLINE, RETURN, Positions, Text, as_array, with_end
from shardkit.units import KiB

DELIMITERS = (",", "\t", ";", "|")
SNIFF_BYTES = 64 * KiB
Words = npt.NDArray[np.uint64]

_RARE_DELIMITERS = (":", "^", "~", "\x01", "\x1f")
_QUOTE = 0x22
_FIRST_RECORDS = 100
# More than two of three commas are before blanks.
_SPACED_SHARE = 1.5
_DECIMAL = re.compile(rb"\s*[-+]?[0-9]+,[0-9]+\s*")
_ALL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
# Small enough to stay in the cache: three times as fast as 4 MiB at once. A multiple of 64.
_SCAN_BYTES = 512 * KiB
_SEARCH_BYTES, _FEW_BYTES = 64 * KiB, KiB


class Records(NamedTuple):
    """Where the records of a text are that are not blank.

    Attributes:
        starts, ends: Half-open; the end is behind the line end.
        widths: Numbers of fields.
    """

    starts: Positions
    ends: Positions
    widths: Positions


class LongField(NamedTuple):
    """A field that is longer than it may be.

    Attributes:
        record: 0-based number of its record among those that are not blank.
        field: 0-based position in the record.
        num_bytes: Of the text between its quotes, if it has any.
    """

    record: int
    field: int
    num_bytes: int


class QuotedRecords(NamedTuple):
    """A record ends at a line end outside of quotes: line feed, carriage return, or both.

    Attributes:
        delimiter: One ASCII character.
        has_quotes: Whether quotes are more than text.
    """

    delimiter: str
    has_quotes: bool = True

    def last_end(self, data: Text) -> int:
        """Returns where the last whole record ends, 0 if none does."""
        inside, values = self._inside(data), as_array(data)
        # A return at the very end may be half of a line end.
        for line_end, limit in ((NEWLINE, len(data)), (RETURN, len(data) - 1)):
            for stop in range(limit, 0, -_SEARCH_BYTES):
                start = max(0, stop - _SEARCH_BYTES)
                found = np.flatnonzero(values[start:stop] == line_end) + start
                found = found if inside is None else found[~_bits(inside, found)]
                if len(found):
                    return int(found[-1]) + 1
        return 0

    def ends(self, data: Text) -> Positions:
        """Returns where the records end."""
        ends = _line_ends(data)
        inside = self._inside(data)
        if inside is not None:
            ends = ends[~_flags(inside, len(data))[ends - 1]]
        return with_end(ends, len(data))

    def count_lines(self, data: Text) -> int:
        """Returns the number of line ends, those inside quotes included."""
        values = as_array(data)
        num_returns = int(np.count_nonzero(values == RETURN))
        return len(_line_ends(data)) if num_returns else int(np.count_nonzero(values == NEWLINE))

    def lines_before(self, data: Text, positions: Positions) -> Positions:
        """Returns the number of line ends before each position."""
        return np.searchsorted(_line_ends(data), positions, side="right")

    def open_quote(self, data: Text) -> int | None:
        """Returns where the quote stands that nothing in `data` closes, None if all are closed."""
        inside = self._inside(data)
        if inside is None or not _bit(inside, -1):
            return None
        return self._marks(bytes(data))[-1]

    def fields(self, record: bytes) -> list[bytes]:
        """Returns the fields of one record, without their quotes."""
        record = record.rstrip(b"\r\n") if self.open_quote(record) is None else record
        cuts = as_array(record) == ord(self.delimiter)
        inside = self._inside(record)
        if inside is not None:
            cuts &= ~_flags(inside, len(record))
        bounds = [-1, *np.flatnonzero(cuts).tolist(), len(record)]
        return [self._unquoted(record[a + 1 : b]) for a, b in itertools.pairwise(bounds)]

    def records(self, data: Text) -> Records:
        """Returns the records that are not blank."""
        if isinstance(data, bytes) and len(data) <= SNIFF_BYTES:
            return _small_records(self, data)
        return self._records_and_cuts(data)[0]

    def texts_behind_quotes(self, data: Text) -> Positions:
        """Returns where quotes close that neither a delimiter nor the end of the record follows, but other text.

        Blanks may follow.
        """
        values = as_array(data)
        has_quotes = self.has_quotes and not (isinstance(data, bytes) and b'"' not in data)
        quotes: Positions = np.flatnonzero(values == _QUOTE) if has_quotes else np.zeros(0, np.int64)
        # Few quotes are between other characters, so that only then the fields are looked at.
        quotes = quotes[(quotes > 0) & (quotes < len(values) - 1)]
        if not len(quotes):
            return quotes
        edges = np.frombuffer(f"{self.delimiter}\r\n".encode(), np.uint8)
        blanks = np.setdiff1d(np.frombuffer(b" \t", np.uint8), edges)
        behind = quotes + 1
        while (is_blank := np.isin(values[behind], blanks) & (behind < len(values) - 1)).any():
            behind = behind + is_blank
        is_end = np.isin(values[behind], np.append(edges, blanks)) | (values[quotes + 1] == _QUOTE)
        quotes = quotes[~is_end & ~np.isin(values[quotes - 1], edges)]
        inside = self._inside(data) if len(quotes) else None
        closing = (
            np.zeros(0, np.int64)
            if inside is None
            else np.flatnonzero(~_bits(inside, quotes) & _bits(inside, quotes - 1))
        )
        found: Positions = quotes[closing]
        return found

    def long_fields(self, data: Text, max_bytes: int) -> list[LongField]:
        """Returns the fields that are longer than they may be, in order."""
        if len(data) <= max_bytes:
            return []
        values = as_array(data)
        records, cuts = self._records_and_cuts(data)
        # A record may end with a return and a line feed, or not at all.
        stops = records.ends.copy()
        for line_end in (NEWLINE, RETURN):
            stops -= (stops > records.starts) & (values[stops - 1] == line_end)
        starts, stops = np.sort(np.concatenate([records.starts, cuts + 1])), np.sort(np.concatenate([stops, cuts]))
        long = np.flatnonzero(stops - starts > max_bytes)
        sizes = stops[long] - starts[long]
        sizes -= 2 * ((values[starts[long]] == _QUOTE) & (values[stops[long] - 1] == _QUOTE))
        long, sizes = long[sizes > max_bytes], sizes[sizes > max_bytes]
        numbers = np.searchsorted(records.starts, starts[long], side="right") - 1
        fields = long - np.searchsorted(starts, records.starts[numbers])
        return list(map(LongField, numbers.tolist(), fields.tolist(), sizes.tolist()))

    def _records_and_cuts(self, data: Text) -> tuple[Records, Positions]:
        values = as_array(data)
        ends, is_cut = _line_ends(data), values == ord(self.delimiter)
        inside = self._inside(data)
        if inside is not None:
            is_outside = ~_flags(inside, len(data))
            ends = ends[is_outside[ends - 1]]
            is_cut &= is_outside
        ends, cuts = with_end(ends, len(data)), np.flatnonzero(is_cut)
        starts = np.concatenate([np.zeros(1, dtype=np.int64), ends[:-1]]) if len(ends) else ends
        widths = np.diff(np.searchsorted(cuts, ends), prepend=0) + 1
        filled = (values[starts] != NEWLINE) & (values[starts] != RETURN)
        if not filled.all():
            starts, ends, widths = starts[filled], ends[filled], widths[filled]
        return Records(starts, ends, widths), cuts

    def _unquoted(self, field: bytes) -> bytes:
        if not self.has_quotes or not field.startswith(b'"'):
            return field
        end = ([*self._marks(field), len(field)])[1]
        return field[1:end].replace(b'""', b'"') + field[end + 1 :]

    def _inside(self, data: Text) -> Words | None:
        # A bit a byte, set from an opening quote up to the closing one; None without quotes. Quotes alternate if every
        # other one is at the start of a field, or right behind the one that it doubles; else some are mere text,
        # and each is looked at.
        if not self.has_quotes or (isinstance(data, bytes) and b'"' not in data):
            return None
        values = as_array(data)
        inside: Words | None = None
        flags = np.empty(min(len(data), _SCAN_BYTES), dtype=np.bool_)
        is_open = 0
        for start in range(0, len(data), _SCAN_BYTES):
            piece = values[start : start + _SCAN_BYTES]
            found = np.equal(piece, _QUOTE, out=flags[: len(piece)])
            if not found.any():
                if is_open and inside is not None:
                    inside[start // 64 : (start + _SCAN_BYTES) // 64] = _ALL
                continue
            inside = np.zeros(-(-len(data) // 64), dtype=np.uint64) if inside is None else inside
            quotes = _packed(found)
            parity = _prefix_parity(quotes, is_open)
            # Nearly all that open are behind a delimiter or a quote; of the others the byte before is looked at.
            behind = _packed(np.equal(piece, ord(self.delimiter), out=found))
            behind |= quotes
            quotes &= parity
            quotes &= ~_shifted(behind)
            if quotes.any() and not self._open_fields(values, _positions(quotes) + start):
                return self._inside_with_stray_quotes(data)
            inside[start // 64 : start // 64 + len(parity)] = parity
            is_open = int(parity[-1] >> np.uint64(63))
        return inside

    def _open_fields(self, values: npt.NDArray[np.uint8], positions: Positions) -> bool:
        before = values[positions[positions > 0] - 1]
        opens = (before == ord(self.delimiter)) | (before == _QUOTE) | (before == NEWLINE) | (before == RETURN)
        return bool(opens.all())

    def _inside_with_stray_quotes(self, data: Text) -> Words:
        is_mark = np.zeros(-(-len(data) // 64) * 64, dtype=np.bool_)
        is_mark[self._marks(bytes(data))] = True
        return _prefix_parity(_packed(is_mark), 0)

    def _marks(self, data: bytes) -> list[int]:
        # The quotes that open and close fields, alternately; for texts in which others stand, and for short ones.
        starts = {ord(self.delimiter), NEWLINE, RETURN}
        marks: list[int] = []
        inside, escaped = False, -1
        for position in np.flatnonzero(as_array(data) == _QUOTE).tolist():
            if not inside:
                if position == 0 or data[position - 1] in starts:
                    marks.append(position)
                    inside = True
            elif position == escaped:
                continue
            elif data[position + 1 : position + 2] == b'"':
                escaped = position + 1
            else:
                marks.append(position)
                inside = False
        return marks


def _line_ends(data: Text) -> Positions:
    values = as_array(data)
    is_newline = values == NEWLINE
    is_end = is_newline | (values == RETURN)
    # Where a line feed follows a return, the line feed ends the line.
    is_end[:-1] &= ~(is_newline[1:] & (values[:-1] == RETURN))
    return np.flatnonzero(is_end) + 1


def _packed(flags: npt.NDArray[np.bool_]) -> Words:
    packed = np.packbits(flags, bitorder="little")
    if len(packed) % 8:
        packed = np.concatenate([packed, np.zeros(-len(packed) % 8, dtype=np.uint8)])
    return packed.view(np.uint64)


def _flags(words: Words, num_bits: int) -> npt.NDArray[np.bool_]:
    return np.unpackbits(words.view(np.uint8), count=num_bits, bitorder="little").astype(np.bool_)


def _prefix_parity(words: Words, start: int) -> Words:
    # Bit i of the result says whether an odd number of the bits up to and including i are set, `start` among them.
    parity, shifted = words.copy(), np.empty_like(words)
    for shift in (1, 2, 4, 8, 16, 32):
        np.left_shift(parity, np.uint64(shift), out=shifted)
        parity ^= shifted
    np.right_shift(parity, np.uint64(63), out=shifted)
    shifted[0] ^= np.uint64(start)
    carry = np.bitwise_xor.accumulate(shifted)
    np.negative(carry, out=carry)
    parity[1:] ^= carry[:-1]
    if start:
        parity[0] ^= _ALL
    return parity


def _shifted(words: Words) -> Words:
    # Every bit one position further on.
    shifted = words << np.uint64(1)
    shifted[1:] |= words[:-1] >> np.uint64(63)
    return shifted


# The delimiter, the title and the header of a small file are looked for in the same records.
@functools.lru_cache(maxsize=4)
def _small_records(rule: QuotedRecords, data: bytes) -> Records:
    if len(data) > _FEW_BYTES or (rule.has_quotes and b'"' in data):
        return rule._records_and_cuts(data)[0]
    # For a few lines NumPy takes many times as long.
    lines, cut = data.splitlines(keepends=True), rule.delimiter.encode()
    ends = itertools.accumulate(map(len, lines))
    found = [(end - len(s), end, s.count(cut) + 1) for s, end in zip(lines, ends, strict=True) if s.strip(b"\r\n")]
    return Records(*np.array(found, np.int64).reshape(-1, 3).T)


def _positions(words: Words) -> Positions:
    # Returns the positions of the bits that are set.
    filled = np.flatnonzero(words)
    bits = np.flatnonzero(_flags(words[filled], 64 * len(filled)))
    positions: Positions = filled[bits >> 6] * 64 + (bits & 63)
    return positions


def _bits(words: Words, positions: Positions) -> npt.NDArray[np.bool_]:
    flags: npt.NDArray[np.bool_] = (words[positions >> 6] >> (positions & 63).astype(np.uint64)) & np.uint64(1) != 0
    return flags


def _bit(words: Words, position: int) -> bool:
    # Position -1 is the last of all, behind the data where the bits go on as they ended.
    return bool(int(words[position >> 6]) >> (position & 63) & 1)


def sniff_delimiter(text: bytes, is_whole: bool, num_columns: int | None = None, *, has_quotes: bool = True) -> str:
    """Returns the delimiter that cuts the first records most evenly; a comma if none does.

    Args:
        text: Starts with a record.
        is_whole: Whether its last record is whole.
        num_columns: How many fields there must be, if known.
        has_quotes: Whether quotes are more than text.
    """
    scores = {d: _score(text, is_whole, QuotedRecords(d, has_quotes), num_columns) for d in DELIMITERS}
    best = max(DELIMITERS, key=lambda d: scores[d])
    if best == ",":
        best = _instead_of_commas(text, is_whole, scores, has_quotes)
    return best if scores[best] > (0.0, 0) else ","


def _instead_of_commas(text: bytes, is_whole: bool, scores: Mapping[str, tuple[float, int]], has_quotes: bool) -> str:
    # Commas are common in texts, before blanks above all, and in decimals; tabs are not.
    others = [d for d in DELIMITERS if d != "," and scores[d] > (0.0, 0) and scores[d][0] >= scores[","][0]]
    are_spaced = text.count(b", ") * _SPACED_SHARE > text.count(b",")
    if "\t" in others or (others and are_spaced):
        return max(others, key=lambda d: (d == "\t", scores[d]))
    return ";" if ";" in others and num_decimals(text, is_whole, has_quotes=has_quotes) else ","


def num_decimals(text: bytes, is_whole: bool, *, has_quotes: bool = True) -> int:
    """Returns how many decimals with commas each record has at least between semicolons; 0 where commas are others.

    The arguments are those of `sniff_delimiter`.
    """
    rule = QuotedRecords(";", has_quotes)
    sample = _whole_records(text, is_whole, rule)
    starts = [0, *rule.ends(sample)[:_FIRST_RECORDS].tolist()]
    records = [rule.fields(sample[start:stop]) for start, stop in itertools.pairwise(starts)]
    found = [[field for field in record if b"," in field] for record in records if record != [b""]]
    # The first record may name the columns.
    found = found[1:] if len(found) > 1 and not all(map(_DECIMAL.fullmatch, found[0])) else found
    if not found or not all(_DECIMAL.fullmatch(field) for fields in found for field in fields):
        return 0
    return min(map(len, found))


def _score(text: bytes, is_whole: bool, rule: QuotedRecords, num_columns: int | None) -> tuple[float, int]:
    if rule.delimiter.encode() not in text:
        return (0.0, num_columns if num_columns is not None and num_columns > 1 else 0)
    widths = rule.records(_whole_records(text, is_whole, rule)).widths
    expected = num_columns or (int(np.bincount(widths).argmax()) if len(widths) else 1)
    if expected < 2:
        return (0.0, 0)
    return (float((widths == expected).mean()), expected)


def other_delimiter(text: bytes, is_whole: bool, rule: QuotedRecords) -> str | None:
    """Returns another delimiter that cuts the first records into several fields; None if none does."""
    sample = _whole_records(text, is_whole, rule)
    for delimiter in (*DELIMITERS, *_RARE_DELIMITERS):
        widths = rule._replace(delimiter=delimiter).records(sample).widths
        if delimiter == rule.delimiter or not len(widths):
            continue
        # The rare ones are common in text.
        is_rare = delimiter in _RARE_DELIMITERS
        if (widths > 1).all() and (widths == widths[0]).all() if is_rare else (widths > 1).sum() * 2 > len(widths):
            return delimiter
    return None


def _whole_records(text: bytes, is_whole: bool, rule: QuotedRecords) -> bytes:
    text = text[:SNIFF_BYTES]
    return text if is_whole else text[: rule.last_end(text) or len(text)]
