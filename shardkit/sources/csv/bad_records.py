"""Finds the records of a block of delimited text that do not fit.

Faults are searched in whole columns: the bytes, the number of fields, then the values of each column that Arrow
refuses. A record counts as bad only if the parser itself or one of the parser's rules refuses it. The other records
are parsed again as a whole. So the work grows with the block and with the number of different bad values, hardly with
the number of bad records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.features import Feature, Features
from shardkit.file_types import is_utf8
from shardkit.messages import shown
from shardkit.sources.base import SourceOptions
from shardkit.sources.columns.bad_values import are_suspect, find_impossible
from shardkit.sources.columns.casting import BadValueError, cast_column
from shardkit.sources.columns.halving import find_bad_rows
from shardkit.sources.csv.dialect import Dialect
from shardkit.sources.csv.leading_zeros import find_padded, is_unpadded, padded_error
from shardkit.sources.csv.parser import RECORD_ERRORS, CsvParser, Parsed, is_text, parsed_type
from shardkit.sources.text.blocks import Positions, TextBlock, as_array
from shardkit.sources.text.quoting import QuotedRecords
from shardkit.sources.text.rejected_records import BadRecord, GoodRecords, Problem, without_line_end
from shardkit.units import format_number, format_size

_CHECKED_TOGETHER = 64
_INTEGER = re.compile(r"\s*-?[0-9]+\s*")


def parse_good_records(
    block: TextBlock,
    data: bytes,
    dialect: Dialect,
    features: Features,
    options: SourceOptions,
) -> GoodRecords:
    """Returns the rows of a block that fit, and the fault of each of the others.

    Args:
        block: Says where it stands in the file.
        options: Hold the spellings of null, the longest field, and the columns in which 00123 is a number.
    """
    record_filter = _RecordFilter(block.offset, data, dialect, features, options)
    record_filter.check_bytes()
    record_filter.check_quotes()
    record_filter.check_widths()
    record_filter.check_lengths()
    parsed = record_filter.try_rest() if record_filter.has_found else None
    if parsed is None:
        record_filter.check_columns()
        parsed = record_filter.try_rest()
    if parsed is None:
        record_filter.check_each()
        parsed = record_filter.try_rest()
    if parsed is None:
        raise AssertionError("records that fit one by one do not fit together")
    return GoodRecords(*parsed, record_filter.bad())


class _RecordFilter:
    # Numbers of records count those that are rows.

    def __init__(
        self,
        offset: int,
        data: bytes,
        dialect: Dialect,
        features: Features,
        options: SourceOptions,
    ) -> None:
        self._offset = offset
        self._data = data
        self._rule: QuotedRecords = dialect.rule
        self._dialect = dialect
        self._features = features
        self._null_values = options.null_values
        self._max_field_bytes = options.max_field_bytes
        self._leading_zeros = options.leading_zeros
        self._parser = CsvParser(dialect, features, options.null_values, options.max_field_bytes, options.leading_zeros)
        self._records = self._rule.records(data)
        self._problems: dict[int, Problem] = {}
        self._is_good = np.ones(len(self._records.starts), dtype=np.bool_)

    @property
    def has_found(self) -> bool:
        """Whether some records are known to be bad."""
        return bool(self._problems)

    def check_bytes(self) -> None:
        """Finds NUL bytes, and text that is not UTF-8 in files without columns of bytes."""
        if b"\0" in self._data:
            places = np.flatnonzero(as_array(self._data) == 0)
            for number, place in zip(*_first_of_each(self._numbers_at(places), places), strict=True):
                before = self._data[self._records.starts[number] : place]
                self._add(number, _nul_byte(self._rule.count_lines(before)))
        found = dict(self._places_not_utf8())
        numbers = list(found)
        if any(f.dtype == "bytes" for f in self._features):
            suspects = np.array(numbers, dtype=np.int64)
            bad = find_bad_rows(lambda a, b: self._parse(suspects[a:b], self._parser), len(suspects), RECORD_ERRORS)
            numbers = [numbers[position] for position in bad]
        for number in numbers:
            self._add(number, _not_utf8(self._offset + found[number]))

    def check_quotes(self) -> None:
        """Finds records in which text stands behind a closing quote."""
        places = self._rule.texts_behind_quotes(self._data)
        for number, place in zip(*_first_of_each(self._numbers_at(places), places), strict=True):
            # Blank records have no number.
            before = self._data[self._records.starts[number] : place]
            self._add(number, _text_behind_quote(self._data[place + 1 : place + 21], self._rule.count_lines(before)))

    def check_widths(self) -> None:
        """Finds records with too few or too many fields."""
        expected = len(self._dialect.columns)
        for number in np.flatnonzero((self._records.widths != expected) & self._is_good).tolist():
            self._add(number, _wrong_width(expected, int(self._records.widths[number])))

    def check_lengths(self) -> None:
        """Finds records with a field that is too long."""
        for record, field, num_bytes in self._rule.long_fields(self._data, self._max_field_bytes):
            self._add(record, _long_field(self._dialect.columns[field : field + 1], num_bytes, self._max_field_bytes))

    def try_rest(self) -> Parsed | None:
        """Returns the rows of the records in which nothing was found; None if something is wrong with them too."""
        try:
            return self._parse(self._rest(), self._parser)
        except RECORD_ERRORS:
            return None

    def check_columns(self) -> None:
        """Finds values that do not fit, column by column."""
        rest = self._rest()
        try:
            texts = self._parser.read_texts(self._joined(rest))
        except pa.ArrowInvalid:
            return
        if any(len(column) != len(rest) for column in texts.values()):
            return
        for feature in (f for f in self._features if f.name in texts):
            for number, value, error in self._bad_values(feature, texts[feature.name], rest):
                self._add(number, _bad_value(feature, value, error))

    def check_each(self) -> None:
        """Finds the bad records that no other check found, by parsing ever smaller parts."""
        rest = self._rest()
        for position in find_bad_rows(lambda a, b: self._parse(rest[a:b], self._parser), len(rest), RECORD_ERRORS):
            self._add(int(rest[position]), self._explain(int(rest[position])))

    def bad(self) -> Sequence[BadRecord]:
        """Returns the bad records, in their order."""
        numbers = sorted(self._problems)
        starts = self._records.starts[np.array(numbers, dtype=np.int64)]
        lines = self._rule.lines_before(self._data, starts).tolist()
        stops = [self._stop(number) for number in numbers]
        return [
            BadRecord(number, start, stop, num_lines, self._problems[number])
            for number, start, stop, num_lines in zip(numbers, starts.tolist(), stops, lines, strict=True)
        ]

    def _add(self, number: int, problem: Problem) -> None:
        if self._is_good[number]:
            self._is_good[number] = False
            self._problems[number] = problem

    def _rest(self) -> Positions:
        return np.flatnonzero(self._is_good)

    def _stop(self, number: int) -> int:
        return without_line_end(self._data, int(self._records.starts[number]), int(self._records.ends[number]))

    def _numbers_at(self, places: Positions) -> Positions:
        return np.searchsorted(self._records.ends, places, side="right")

    def _joined(self, numbers: Positions) -> bytes:
        # Consecutive records are one slice.
        if not len(numbers):
            return b""
        breaks = np.flatnonzero(np.diff(numbers) != 1)
        firsts = numbers[np.concatenate([[0], breaks + 1])]
        lasts = numbers[np.append(breaks, len(numbers) - 1)]
        starts, ends = self._records.starts[firsts].tolist(), self._records.ends[lasts].tolist()
        pieces = [self._data[start:end] for start, end in zip(starts, ends, strict=True)]
        return b"".join(p if p[-1] in b"\r\n" else p + b"\n" for p in pieces)

    def _parse(self, numbers: Positions, parser: CsvParser) -> Parsed:
        parsed = parser.parse(self._joined(numbers))
        if parsed[0].num_rows != len(numbers):
            # Rows that the parser and the rule of record ends count differently are not trusted.
            raise pa.ArrowInvalid(f"{len(numbers)} records give {parsed[0].num_rows} rows")
        return parsed

    def _places_not_utf8(self) -> Iterable[tuple[int, int]]:
        # Returns the first bad place of each record that is not UTF-8.
        if is_utf8(self._data):
            return
        starts, ends = self._records.starts.tolist(), self._records.ends.tolist()
        for first in range(0, len(starts), _CHECKED_TOGETHER):
            last = min(first + _CHECKED_TOGETHER, len(starts))
            if is_utf8(self._data[starts[first] : ends[last - 1]]):
                continue
            for number in range(first, last):
                try:
                    self._data[starts[number] : ends[number]].decode()
                except UnicodeDecodeError as error:
                    yield number, starts[number] + error.start

    def _bad_values(
        self, feature: Feature, texts: pa.Array, numbers: Positions
    ) -> Iterable[tuple[int, str, Exception | None]]:
        # Numbers of records, their text, and the parser's error where it was asked.
        if is_unpadded(feature, self._leading_zeros):
            for place in np.flatnonzero(find_padded(texts).to_numpy(zero_copy_only=False)).tolist():
                value = texts[place].as_py()
                yield int(numbers[place]), value, padded_error(feature, place, value)
        if _fits_as_text(texts, feature):
            return
        suspects = np.flatnonzero(are_suspect(texts, feature))
        encoded = texts.take(pa.array(suspects)).dictionary_encode("encode")
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        values = encoded.dictionary.to_pylist()
        errors: dict[int, Exception | None] = dict.fromkeys(find_impossible(encoded.dictionary, feature))
        asked, first_places = np.unique(codes, return_index=True)
        is_open = np.array([code not in errors for code in asked.tolist()], dtype=np.bool_)
        asked, askable = asked[is_open], numbers[suspects[first_places[is_open]]]
        parser = self._parser_of(feature)
        bad = find_bad_rows(lambda a, b: self._parse(np.sort(askable[a:b]), parser), len(askable), RECORD_ERRORS)
        errors |= {int(asked[position]): error for position, error in bad.items()}
        for place, code in zip(suspects.tolist(), codes.tolist(), strict=True):
            if code in errors:
                number = int(numbers[place])
                value = values[code]
                yield number, self._field(number, feature.name) if value is None else value, errors[code]

    def _field(self, number: int, name: str) -> str:
        # Null hides how it is spelled.
        return self._fields(number)[self._dialect.columns.index(name)].decode("utf-8", "replace")

    def _fields(self, number: int) -> list[bytes]:
        return self._rule.fields(self._data[self._records.starts[number] : self._records.ends[number]])

    def _error_of(self, number: int, parser: CsvParser) -> Exception | None:
        try:
            parser.parse(self._joined(np.array([number])))
        except RECORD_ERRORS as error:
            return error
        return None

    def _parser_of(self, feature: Feature) -> CsvParser:
        return CsvParser(self._dialect, (feature,), self._null_values, leading_zeros=self._leading_zeros)

    def _explain(self, number: int) -> Problem:
        for feature in self._features:
            parser = self._parser_of(feature)
            error = self._error_of(number, parser)
            if error is not None:
                return _bad_value(feature, self._field(number, feature.name), error)
        error = self._error_of(number, self._parser)
        return Problem("a row cannot be read", None if error is None else str(error))


def _first_of_each(numbers: Positions, places: Positions) -> tuple[list[int], list[int]]:
    found, positions = np.unique(numbers, return_index=True)
    return found.tolist(), places[positions].tolist()


def _fits_as_text(texts: pa.Array, feature: Feature) -> bool:
    # Whether a cast of the column shows that all of it fits. It is stricter than the parser where they differ.
    if texts.null_count and not feature.nullable:
        return False
    type_ = parsed_type(feature)
    try:
        values = texts if is_text(type_) else texts.cast(type_)
        if pa.types.is_floating(type_) and bool(pc.any(pc.is_inf(values)).as_py()):
            return False
        if not values.type.equals(feature.arrow_type) or feature.vocabulary is not None or feature.is_json:
            cast_column(values, feature)
    except RECORD_ERRORS:
        return False
    return True


def _nul_byte(num_lines: int) -> Problem:
    return Problem("a NUL byte is in the text", "the file is damaged, binary, or UTF-16 or UTF-32", num_lines=num_lines)


def _not_utf8(offset: int) -> Problem:
    step = "Name its encoding with --encoding, such as cp1252 (of Windows) or latin-1"
    return Problem("the text is not UTF-8", f"not UTF-8 at byte {offset}", step)


def _text_behind_quote(text: bytes, num_lines: int) -> Problem:
    why = f"it is {shown(text.splitlines()[0].decode('utf-8', 'replace'))}"
    opened = f", and the row begins {format_number(num_lines, 'line')} before" if num_lines else ""
    return Problem(
        "text stands behind a closing quote",
        f"{why}{opened}",
        "Double the quotes that are part of a text, or add --quote none if quotes are nothing else in these files",
        num_lines=num_lines,
    )


def _wrong_width(expected: int, got: int) -> Problem:
    why = f"expected {expected} field{'s' * (expected > 1)}, got {got}"
    return Problem("a row has the wrong number of fields", why)


def _long_field(column: tuple[str, ...], num_bytes: int, max_bytes: int) -> Problem:
    what = f"column {shown(column[0])}" if column else "a row"
    why = f"it has {num_bytes:,} bytes, more than the {format_size(max_bytes)} that a field may have"
    next_step = "If it is right, raise --max-field; if not, look for a quote that is not closed"
    return Problem(f"{what} holds a field that is too long", why, next_step)


def _bad_value(feature: Feature, value: str, error: Exception | None) -> Problem:
    expected = feature.describe_type()
    got = shown(value) if value else "an empty field"
    if isinstance(error, BadValueError):
        expected, got = error.expected, error.got if error.got != "null" else got
    elif feature.dtype == "int64" and _INTEGER.fullmatch(value):
        got += ", which is out of its range"
    return Problem(
        f"column {shown(feature.name)} does not fit",
        f"expected {expected}, got {got}",
        "Correct the row, declare the column's type (string takes all) in a --schema file, or name a spelling of null "
        "with --null-value",
        is_of_wider_type=True,
    )
