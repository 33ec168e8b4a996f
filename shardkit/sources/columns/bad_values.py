"""All the values of a column that do not fit its feature, found without looking at each by itself."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.features import Feature
from shardkit.messages import shown
from shardkit.sources.columns.casting import BadValueError, CastColumn, cast_column
from shardkit.sources.columns.halving import find_bad_rows, first_bad_row

_SPACE = r"[ \t]*"
_DAY = r"(1[0-9]{3}|2[0-9]{3})-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,6})?)?"
# By the start of a dtype: texts that fit in any case, and texts that may fit.
_SURE = {
    "int64": r"^-?[0-9]{1,18}$",
    "int32": r"^-?[0-9]{1,9}$",
    "int16": r"^-?[0-9]{1,4}$",
    "int8": r"^-?[0-9]{1,2}$",
    "uint64": r"^[0-9]{1,18}$",
    "uint32": r"^[0-9]{1,9}$",
    "uint16": r"^[0-9]{1,4}$",
    "uint8": r"^[0-9]{1,2}$",
    "float": r"^-?[0-9]{1,30}(\.[0-9]{0,30})?$",
    "date": f"^{_DAY}$",
    "timestamp": f"^{_DAY}[ T]{_TIME}$",
}
_POSSIBLE = {
    "int": r"^\s*[-+]?(0[xX][0-9a-fA-F]*|[0-9]+)\s*$",
    "uint": r"^\s*[-+]?(0[xX][0-9a-fA-F]*|[0-9]+)\s*$",
    "float": r"(?i)^\s*[-+]?([0-9.eE+-]+|nan|inf|infinity)\s*$",
    "date": r"^[\s0-9:TtZz.+-]*$",
    "time": r"^[\s0-9:TtZz.+-]*$",
}


def cast_exactly(column: pa.Array, feature: Feature) -> CastColumn:
    """Returns the same as `cast_column`, and also refuses decimals of more digits than their type has.

    Raises:
        BadValueError: At the first row that does not fit.
        UsageError: If no value of the column's type could fit.
    """
    found = cast_column(column, feature)
    if pa.types.is_decimal(feature.value_type) and not _is_valid(found.column):
        row = first_bad_row(lambda start, stop: _is_valid(found.column.slice(start, stop - start)), len(column))
        raise BadValueError(feature.name, row, feature.describe_type(), "a number of more digits")
    return found


def _is_valid(column: pa.Array) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def find_bad_values(column: pa.Array, feature: Feature) -> dict[int, BadValueError]:
    """Returns the fault of each row that does not fit, by its position in the column."""
    found: dict[int, BadValueError] = {}
    rows = np.arange(len(column), dtype=np.int64)
    for is_bad, got in (_nulls(column, feature), _out_of_range(column, feature)):
        for row in rows[is_bad].tolist():
            value = "null" if got is None else shown(column[row].as_py())
            found[row] = BadValueError(feature.name, row, feature.describe_type(), value)
    if found:
        is_left = np.ones(len(column), dtype=np.bool_)
        is_left[list(found)] = False
        rows = rows[is_left]
        column = without_rows(column, is_left)
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    search = _search_texts if is_text and feature.is_scalar else _search
    for position, error in search(column, feature).items():
        found[int(rows[position])] = error
    return found


def without_rows(column: pa.Array, is_kept: npt.NDArray[np.bool_]) -> pa.Array:
    """Returns the rows of a column that are kept."""
    try:
        return column.filter(pa.array(is_kept))
    except pa.ArrowNotImplementedError:
        # Some kinds of views cannot be filtered.
        edges = np.flatnonzero(np.diff(is_kept, prepend=False, append=False)).tolist()
        parts = [column.slice(start, stop - start) for start, stop in zip(edges[::2], edges[1::2], strict=True)]
        return pa.concat_arrays(parts) if parts else column.slice(0, 0)


def _search_texts(column: pa.Array, feature: Feature) -> dict[int, BadValueError]:
    # Texts in the form of a value are passed over, and each other text is checked once.
    column = column.cast(pa.string())
    suspects = np.flatnonzero(are_suspect(column, feature))
    encoded = column.take(pa.array(suspects)).dictionary_encode("encode")
    texts, codes = encoded.dictionary, encoded.indices.to_numpy(zero_copy_only=False)
    impossible = np.array(find_impossible(texts, feature), dtype=np.int64)
    got = pc.utf8_trim_whitespace(texts.take(pa.array(impossible))).to_pylist()
    why = {
        code: BadValueError(feature.name, 0, feature.describe_type(), shown(text))
        for code, text in zip(impossible.tolist(), got, strict=True)
    }
    is_open = np.ones(len(texts), dtype=np.bool_)
    is_open[impossible] = False
    others = np.flatnonzero(is_open)
    for position, error in _search(texts.take(pa.array(others)), feature).items():
        why[int(others[position])] = error
    is_bad = np.isin(codes, np.array(list(why), dtype=np.int64))
    return {
        row: BadValueError(feature.name, row, why[code].expected, why[code].got)
        for row, code in zip(suspects[is_bad].tolist(), codes[is_bad].tolist(), strict=True)
    }


def _search(column: pa.Array, feature: Feature) -> dict[int, BadValueError]:
    def cast(start: int, stop: int) -> CastColumn:
        return cast_exactly(column.slice(start, stop - start), feature)

    return find_bad_rows(cast, len(column), BadValueError)


def _nulls(column: pa.Array, feature: Feature) -> tuple[npt.NDArray[np.bool_], None]:
    if feature.nullable or not column.null_count:
        return np.zeros(len(column), dtype=np.bool_), None
    return column.is_null().to_numpy(zero_copy_only=False), None


def _out_of_range(column: pa.Array, feature: Feature) -> tuple[npt.NDArray[np.bool_], str]:
    wanted = feature.value_type
    is_checked = feature.is_scalar and feature.vocabulary is None and pa.types.is_integer(wanted)
    if not is_checked or not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return np.zeros(len(column), dtype=np.bool_), ""
    limits = np.iinfo(feature.dtype)
    values = column.fill_null(0).to_numpy(zero_copy_only=False)
    if pa.types.is_floating(column.type):
        # Floats that are not whole; a value that only a float rounds to the limit is left to the search.
        return ~((values == np.rint(values)) & (np.abs(values) <= float(limits.max))), ""
    return (values < int(limits.min)) | (values > int(limits.max)), ""


def are_suspect(texts: pa.Array, feature: Feature) -> npt.NDArray[np.bool_]:
    if feature.vocabulary is not None:
        sure = pc.is_in(texts, value_set=pa.array(feature.vocabulary, pa.string()))
    else:
        key = next((k for k in _SURE if feature.dtype.startswith(k)), None)
        has_rule = key is not None and feature.dtype != "float16" and feature.timezone is None
        sure = pc.match_substring_regex(texts, _SURE[key]) if has_rule and key else pa.nulls(len(texts), pa.bool_())
    # Null is left to whether the feature takes it.
    sure = pc.if_else(texts.is_null(), feature.nullable, pc.fill_null(sure, False))
    suspect: npt.NDArray[np.bool_] = ~sure.to_numpy(zero_copy_only=False)
    return suspect


def find_impossible(values: pa.Array, feature: Feature) -> list[int]:
    # Positions of values that no number of the feature's kind is written like.
    key = next((k for k in _POSSIBLE if feature.dtype.startswith(k)), None)
    if key is None or feature.vocabulary is not None:
        return []
    possible = pc.match_substring_regex(values, _POSSIBLE[key])
    impossible: list[int] = np.flatnonzero(~pc.fill_null(possible, True).to_numpy(zero_copy_only=False)).tolist()
    return impossible
