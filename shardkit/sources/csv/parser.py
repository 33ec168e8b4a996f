"""Blocks of delimited text to Arrow columns of exactly the features' types."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from shardkit.errors import UsageError
from shardkit.features import Feature, Features, arrow_schema
from shardkit.messages import shown
from shardkit.sources.base import MAX_FIELD_BYTES
from shardkit.sources.columns.casting import BadValueError, cast_column
from shardkit.sources.csv.dialect import Dialect
from shardkit.sources.csv.leading_zeros import find_padded, is_unpadded, may_hold_padded, padded_error
from shardkit.sources.text.blocks import Text, as_array

Parsed = tuple[pa.RecordBatch, dict[str, int]]

# Errors of parsing at records that do not fit.
RECORD_ERRORS = (pa.ArrowInvalid, BadValueError)

_INFINITE = r"(?i)inf"
_EXACT_INTEGER = 2.0**53
_LONG_INTEGER = r"^\s*-?[0-9]{16,400}\s*$"
_WORDS = {
    word: ["".join(letters) for letters in itertools.product(*((c, c.upper()) for c in word))]
    for word in ("true", "false")
}
_MAX_BLANKS = 8


class CsvParser:
    """Parses blocks of one file.

    Args:
        features: The columns that are wanted; each is one of the dialect's.
        null_values: Spellings of null besides the empty field. In strings, only outside of quotes.
        leading_zeros: Columns in which 00123 is a number.

    Raises:
        UsageError: If a feature is none that one field can hold.
    """

    def __init__(
        self,
        dialect: Dialect,
        features: Features,
        null_values: tuple[str, ...],
        max_field_bytes: int = MAX_FIELD_BYTES,
        leading_zeros: tuple[str, ...] = (),
    ) -> None:
        for feature in features:
            if not feature.is_scalar:
                raise UsageError(
                    f"column {feature.name!r} cannot be {feature.describe_type()}",
                    why="a field of a CSV file holds one value",
                    next_step="Declare it as one value, or as string, in the --schema file",
                )
        self._dialect = dialect
        self._features = features
        self._schema = arrow_schema(features)
        self._nulls = ["", *with_blanks(null_values)]
        self._max_field_bytes = max_field_bytes
        self._types = {f.name: parsed_type(f) for f in features}
        self._texts = [name for name, type_ in self._types.items() if is_text(type_)]
        self._others = [name for name, type_ in self._types.items() if not is_text(type_)]
        self._unpadded = [f for f in features if is_unpadded(f, leading_zeros)]
        self._has_quoted_nulls = False

    def parse(self, data: Text) -> Parsed:
        """Returns the rows of some whole records, and per column how many values were rounded.

        Raises:
            RECORD_ERRORS: If something does not fit; `bad_records` finds out what.
        """
        if is_blank(data):
            return pa.RecordBatch.from_pylist([], schema=self._schema), {}
        if not as_array(data).min():
            raise pa.ArrowInvalid("NUL byte")
        if len(self._dialect.rule.texts_behind_quotes(data)):
            raise pa.ArrowInvalid("text behind a quote")
        if self._dialect.rule.long_fields(data, self._max_field_bytes):
            raise pa.ArrowInvalid("long field")
        table = self._parse_columns(data)
        if self._unpadded and may_hold_padded(data, self._dialect.delimiter):
            self._check_padding(data)
        columns, rounded = [], {}
        for feature in self._features:
            parsed = one_chunk(table.column(feature.name))
            num_inexact = 0
            if pa.types.is_floating(parsed.type):
                self._check_infinities(parsed, feature, data)
                num_inexact = self._count_inexact(parsed, feature, data)
            cast = cast_column(parsed, feature) if _needs_cast(parsed, feature) else None
            columns.append(parsed if cast is None else cast.column)
            if num_rounded := max(num_inexact, 0 if cast is None else cast.num_rounded):
                rounded[feature.name] = num_rounded
        return pa.RecordBatch.from_arrays(columns, schema=self._schema), rounded

    def read_texts(self, data: Text) -> dict[str, pa.Array]:
        """Returns, as text, the columns in which a value may not fit; null is what counts as null where it fits."""
        plain = {f.name for f in self._features if f.nullable and not f.is_json and parsed_type(f).equals(f.arrow_type)}
        texts = self._read(data, [n for n in self._texts if n not in plain], nulls_in_quotes=False, as_text=True)
        others = self._read(data, self._others, nulls_in_quotes=True, as_text=True)
        return {name: one_chunk(table.column(name)) for table in (texts, others) for name in table.column_names}

    def _parse_columns(self, data: Text) -> pa.Table:
        if not self._has_quoted_nulls:
            try:
                return self._read(data, [f.name for f in self._features], nulls_in_quotes=False)
            except pa.ArrowInvalid:
                if not self._others or not (as_array(data) == ord('"')).any():
                    raise
        # An empty pair of quotes is a string, but no number: columns that are not strings take it for null.
        others = self._read(data, self._others, nulls_in_quotes=True)
        texts = self._read(data, self._texts, nulls_in_quotes=False)
        self._has_quoted_nulls = True
        for name in self._texts:
            others = others.append_column(name, texts.column(name))
        return others

    def _read(self, data: Text, names: list[str], *, nulls_in_quotes: bool, as_text: bool = False) -> pa.Table:
        if not names:
            return pa.table({})
        types = dict.fromkeys(names, pa.string()) if as_text else {n: self._types[n] for n in names}
        return pacsv.read_csv(
            pa.BufferReader(data),
            pacsv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=list(self._dialect.columns)),
            pacsv.ParseOptions(
                delimiter=self._dialect.delimiter,
                quote_char='"' if self._dialect.has_quotes else False,
                newlines_in_values=self._dialect.has_quotes,
            ),
            pacsv.ConvertOptions(
                column_types=types,
                include_columns=names,
                null_values=self._nulls,
                strings_can_be_null=True,
                quoted_strings_can_be_null=nulls_in_quotes,
                true_values=["1", *_WORDS["true"]],
                false_values=["0", *_WORDS["false"]],
            ),
        )

    def _check_padding(self, data: Text) -> None:
        texts = self._read(data, [f.name for f in self._unpadded], nulls_in_quotes=True, as_text=True)
        for feature in self._unpadded:
            column = one_chunk(texts.column(feature.name))
            row = int(pc.index(find_padded(column), True).as_py())
            if row >= 0:
                raise padded_error(feature, row, column[row].as_py())

    def _count_inexact(self, parsed: pa.Array, feature: Feature, data: Text) -> int:
        # Integers beyond 2**53 that float64 does not hold.
        with np.errstate(invalid="ignore"):
            is_large = np.abs(parsed.to_numpy(zero_copy_only=False)) >= _EXACT_INTEGER
        if not is_large.any():
            return 0
        texts = one_chunk(self._read(data, [feature.name], nulls_in_quotes=True, as_text=True).column(0))
        found = texts.filter(pa.array(is_large))
        found = found.filter(pc.match_substring_regex(found, _LONG_INTEGER))
        return sum(int(text) != float(text) for text in found.to_pylist())

    def _check_infinities(self, parsed: pa.Array, feature: Feature, data: Text) -> None:
        # A number beyond float64 would become infinite without a word.
        infinite = np.isinf(parsed.to_numpy(zero_copy_only=False))
        if not infinite.any():
            return
        texts = one_chunk(self._read(data, [feature.name], nulls_in_quotes=True, as_text=True).column(0))
        numbers = pc.invert(pc.match_substring_regex(texts, _INFINITE))
        wrong = pc.and_(pa.array(infinite), pc.fill_null(numbers, False))
        if pc.any(wrong).as_py():
            row = int(pc.index(wrong, True).as_py())
            raise BadValueError(feature.name, row, feature.describe_type(), shown(texts[row].as_py()))


def with_blanks(null_values: Iterable[str]) -> tuple[str, ...]:
    """Returns spellings of null with up to eight blanks before and behind each, as aligned columns have them."""
    blanks = [" " * number for number in range(_MAX_BLANKS + 1)]
    spellings = (f"{before}{value}{behind}" for value in null_values for before in blanks for behind in blanks)
    return tuple(dict.fromkeys(spellings))


def is_blank(data: Text) -> bool:
    """Whether a text has nothing but line ends."""
    return not len(data) or (data[0] in b"\r\n" and not bytes(data).strip(b"\r\n"))


def parsed_type(feature: Feature) -> pa.DataType:
    """Returns the type that a column is parsed to, before it is made to fit."""
    if feature.vocabulary is not None or pa.types.is_decimal256(feature.value_type):
        return pa.string()
    if feature.dtype in ("float16", "float32"):
        # Through float64, so that rounding to float32 is noticed.
        return pa.float64()
    return feature.arrow_type


def _needs_cast(parsed: pa.Array, feature: Feature) -> bool:
    # Arrow's CSV parser has checked the encoding already.
    return bool(
        not parsed.type.equals(feature.arrow_type)
        or feature.vocabulary is not None
        or feature.is_json
        or (parsed.null_count and not feature.nullable)
    )


def is_text(type_: pa.DataType) -> bool:
    """Whether values of a type are parsed as they stand."""
    return bool(pa.types.is_string(type_) or pa.types.is_binary(type_))


def one_chunk(column: Any) -> pa.Array:
    """Returns the values of a table's column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks()
