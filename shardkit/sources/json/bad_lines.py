"""Finds the lines of a block of JSON that do not fit."""

from __future__ import annotations

import functools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from shardkit.features import Feature, Features
from shardkit.messages import shown
from shardkit.sources.base import SourceOptions
from shardkit.sources.columns.casting import BadValueError
from shardkit.sources.columns.dropped_columns import is_dropped
from shardkit.sources.json.decoder import LINE_ERRORS, RowDecoder, try_decode, whole_lines
from shardkit.sources.json.keys import repeated_key, spelled_out
from shardkit.sources.json.type_inference import MAX_DEPTH, flatten, is_too_deep, parents
from shardkit.sources.json.values import Mode
from shardkit.sources.text.blocks import NEWLINE, Positions, as_array, with_end
from shardkit.sources.text.rejected_records import BadRecord, GoodRecords, Problem, without_line_end

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_NAMES = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "a boolean"}
_SHOWN_DIGITS = 40
_DECLARE = "Correct the row, or declare the column in a --schema file, with dtype and nullable = true"
_CORRECT = "Correct the row, or declare the column's type in a --schema file"


class JsonLineFilter:
    """Separates the good lines of one file from the bad ones.

    Args:
        allows_duplicate_keys: Whether an object may hold a key twice.
        dropped: Keys that are no columns and may hold anything.
    """

    def __init__(
        self,
        features: Features,
        modes: Mapping[str, Mode],
        *,
        allows_duplicate_keys: bool = False,
        dropped: tuple[str, ...] = (),
    ) -> None:
        self._features = features
        self._allows_duplicate_keys = allows_duplicate_keys
        self._dropped = dropped
        self._decoder = RowDecoder(features, modes, allows_duplicate_keys=allows_duplicate_keys, dropped=dropped)
        self._by_feature: dict[str, RowDecoder] = {}
        self._modes = modes

    def split_lines(
        self, data: bytes, offset: int, *, only_first: bool, offsets: Positions | None = None
    ) -> GoodRecords:
        """Returns the rows of a block that fit, and the fault of each of the others.

        Args:
            data: Whole lines.
            offset: Where they are in the file.
            only_first: Whether it is enough to know the first that is bad.
            offsets: Where each line is in the file, if it is not all of a piece.
        """
        batches: list[pa.RecordBatch] = []
        num_rounded: Counter[str] = Counter()
        bad: list[BadRecord] = []
        num_lines = num_rows = 0
        for start, stop in whole_lines(data):
            piece = data[start:stop]
            rest = None if offsets is None else offsets[num_rows:]
            batch, rounded, found = self._parse_piece(piece, offset + start, only_first, rest)
            batches.append(batch)
            num_rounded.update(rounded)
            bad += (_moved(b, num_rows, start, num_lines) for b in found)
            if bad and only_first:
                break
            num_lines += piece.count(b"\n")
            num_rows += len(batch) + len(found)
        columns = [pa.concat_arrays([b.column(i) for b in batches]) for i in range(len(self._features))]
        return GoodRecords(pa.RecordBatch.from_arrays(columns, schema=batches[0].schema), dict(num_rounded), bad)

    def _parse_piece(self, data: bytes, offset: int, only_first: bool, offsets: Positions | None) -> GoodRecords:
        lines = list(_filled_lines(data))
        rows, numbers, bad = [], [], set()
        for number, (_, start, stop) in enumerate(lines):
            try:
                rows.append(self._decoder.decode_line(data[start:stop]))
                numbers.append(number)
            except LINE_ERRORS:
                bad.add(number)
        parsed, bad_values = self._decoder.cast_most(rows)
        bad |= {numbers[position] for position in bad_values}
        good = [number for number in range(len(lines)) if number not in bad]
        texts = [data[start:stop] for _, start, stop in (lines[number] for number in good)]
        repeated = self._decoder.repeated_keys(texts, parsed[0])
        if repeated:
            bad |= {good[position] for position in repeated}
            kept = [row for row, number in zip(rows, numbers, strict=True) if number not in bad]
            parsed = self._decoder.fit(kept)
        found = []
        problems = {good[position]: _repeated(key) for position, key in repeated.items()}
        for number in sorted(bad)[: 1 if only_first else None]:
            num_lines, start, stop = lines[number]
            place = offset + start if offsets is None else int(offsets[number])
            problem = problems.get(number) or self.explain(data[start:stop], place)
            found.append(BadRecord(number, start, stop, num_lines, problem))
        return GoodRecords(*parsed, found)

    def explain(self, line: bytes, offset: int) -> Problem:
        """Returns the fault of a line that does not fit.

        Args:
            offset: Where it is in the file.
        """
        row, problem = parse_line(line, offset)
        if problem is not None:
            return problem
        values = dict(flatten(row))
        for feature in self._features:
            problem = self._problem_of(line, feature, values)
            if problem is not None:
                return problem
        names = {f.name for f in self._features}
        anything = (*self._dropped, *(f.name for f in self._features if f.is_json))
        others = (path for path in values if path not in names and not is_dropped(path, anything))
        unknown = next(others, None)
        if unknown is not None:
            why = "no row that the features were inferred from has it"
            return Problem(f"the key {shown(unknown)} is no column", why, _DECLARE, is_of_wider_type=True)
        repeated = None if self._allows_duplicate_keys else repeated_key(line)
        return Problem("a line cannot be read", None) if repeated is None else _repeated(repeated)

    def _problem_of(self, line: bytes, feature: Feature, values: dict[str, Any]) -> Problem | None:
        decoder = self._by_feature.get(feature.name)
        if decoder is None:
            decoder = self._by_feature[feature.name] = RowDecoder(
                (feature,), self._modes, is_strict=False, allows_duplicate_keys=self._allows_duplicate_keys
            )
        try:
            decoder.fit([decoder.decode_line(line)])
            return None
        except LINE_ERRORS as error:
            name, expected = feature.name, feature.describe_type()
            got = shown(values[name]) if name in values else "an object"
            if (parent := next((p for p in parents(name) if p in values), None)) is not None:
                name, expected, got = parent, "an object", shown(values[parent])
            if isinstance(error, BadValueError):
                expected, got = error.expected, error.got
            elif isinstance(error, OverflowError):
                got += ", which is out of range"
        why = f"expected {expected}, got {got}"
        return Problem(f"column {shown(name)} does not fit", why, _CORRECT, is_of_wider_type=True)


def readers(features: Features, modes: Mapping[str, Mode], options: SourceOptions) -> tuple[RowDecoder, JsonLineFilter]:
    """Returns the decoder of a file's lines, and the filter that finds bad lines where it fails."""
    return _readers(features, tuple(sorted(modes.items())), options.allows_duplicate_keys, options.drop_columns)


# Of thousands of small files all have the same.
@functools.lru_cache(maxsize=8)
def _readers(
    features: Features, modes: tuple[tuple[str, Mode], ...], allows: bool, dropped: tuple[str, ...]
) -> tuple[RowDecoder, JsonLineFilter]:
    decoder = RowDecoder(features, dict(modes), allows_duplicate_keys=allows, dropped=dropped)
    return decoder, JsonLineFilter(features, dict(modes), allows_duplicate_keys=allows, dropped=dropped)


def wider_lines(decoder: RowDecoder, line_filter: JsonLineFilter, data: bytes) -> Iterable[tuple[int, bytes]]:
    """Returns the lines of a block that may hold what the features do not, each with its 0-based number in it.

    Where a value would be rounded, these are all lines.
    """
    parsed = try_decode(decoder, data)
    if parsed is not None and not parsed[1]:
        return ()
    if parsed is None:
        found = line_filter.split_lines(data, 0, only_first=False)
        if not found.num_rounded:
            return ((bad.num_lines, data[bad.start : bad.stop]) for bad in found.bad)
    return enumerate(data.split(b"\n"))


def parse_line(text: bytes, offset: int) -> tuple[Any, Problem | None]:
    """Returns the object of a line, or why it is none.

    Args:
        offset: Where it is in the file.
    """
    try:
        text.decode()
    except UnicodeDecodeError as error:
        why = f"not UTF-8 at byte {offset + error.start}"
        return None, Problem("the text is not UTF-8", why, "Name its encoding with --encoding")
    if is_too_deep(text):
        return None, _not_json(f"it is nested deeper than {MAX_DEPTH} levels")
    spelled = spelled_out(text)
    try:
        value = msgspec.json.decode(text if spelled is None else spelled)
    except msgspec.DecodeError as error:
        return None, _too_large(text) or _not_json(_reason(text, str(error)))
    if spelled is not None:
        value = json.loads(text)
    if not isinstance(value, dict):
        got = _NAMES.get(type(value), "null")
        return None, Problem("a line is no JSON object", f"expected an object, got {got}")
    return value, None


def _filled_lines(data: bytes) -> Iterator[tuple[int, int, int]]:
    # Number, start and stop of each line that is not blank.
    ends = with_end(np.flatnonzero(as_array(data) == NEWLINE) + 1, len(data)).tolist()
    start = 0
    for number, end in enumerate(ends):
        stop = without_line_end(data, start, end)
        if data[start:stop].strip():
            yield number, start, stop
        start = end


def _moved(bad: BadRecord, num_rows: int, num_bytes: int, num_lines: int) -> BadRecord:
    return bad._replace(
        number=bad.number + num_rows,
        start=bad.start + num_bytes,
        stop=bad.stop + num_bytes,
        num_lines=bad.num_lines + num_lines,
    )


def _repeated(key: str) -> Problem:
    next_step = "Correct the row, or let the last value count with --allow-duplicate-keys"
    return Problem(f"the key {shown(key)} appears twice", None, next_step)


def _not_json(why: str) -> Problem:
    return Problem("a line is not valid JSON", why)


class _TooLarge(str):
    """Text of a number that no float can hold."""


def _too_large(text: bytes) -> Problem | None:
    try:
        value = json.loads(text, parse_float=_float, parse_int=len)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    for path, found in flatten(value):
        for item in found if isinstance(found, list) else (found,):
            if isinstance(item, _TooLarge):
                why = f"column {shown(path)} holds {item[:_SHOWN_DIGITS]}, which is out of range for a float64"
                return Problem("a line is not valid JSON", why, "Write null, or a finite number, in its place")
    return None


def _float(text: str) -> float | _TooLarge:
    return _TooLarge(text) if math.isinf(float(text)) else 0.0


def _reason(text: bytes, message: str) -> str:
    if text.strip() == b"{" or (message == "Input data was truncated" and not _SURROGATE.search(text)):
        return "unexpected end of the line"
    if _SURROGATE.search(text) and ("truncated" in message or "surrogate" in message):
        return "a string holds half of a surrogate pair"
    message = message.removeprefix("JSON is malformed: ").split(" - at ")[0]
    return message[:1].lower() + message[1:]
