"""Steps on whole columns: other dtypes, other names, rows that lack a value."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from functools import reduce

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.errors import UsageError
from shardkit.features import Feature, Features, make_feature
from shardkit.messages import shown
from shardkit.sources.columns.bad_values import cast_exactly, find_bad_values, without_rows
from shardkit.sources.columns.casting import BadValueError, CastColumn
from shardkit.transforms.options import ALL_COLUMNS
from shardkit.transforms.steps import (
    RowError,
    RowFailure,
    RowwiseStep,
    Step,
    StepResult,
    Taken,
    batch_of,
    check_distinct,
    empty_batch,
    find_feature,
)

_INTEGER = re.compile(r"u?int(8|16|32|64)")
_NUMBER = re.compile(r"u?int(8|16|32|64)|float(16|32|64)|decimal\(.*\)")
_LISTED_COLUMNS = 20


def cast_step(features: Features, casts: tuple[tuple[str, str], ...]) -> Step:
    """Returns the step that gives columns other dtypes.

    Values must fit exactly, as in a schema file; only floats may be rounded to narrower ones. The classes of a
    vocabulary become their names where they are cast to strings.

    Args:
        casts: Columns and their dtypes; see `_find_columns` for what stands for several columns. The name of a column
            counts more than these, and of these the last one that takes the column.

    Raises:
        UsageError: If a column is not there or a dtype is not known.
    """
    check_distinct([key for key, _ in casts], "--cast")
    after, notes = _cast_features(features, casts)

    def call(batch: pa.RecordBatch) -> Taken:
        columns, num_rounded = [], {}
        for column, before, feature in zip(batch.columns, features, after, strict=True):
            cast = _cast_column(column, before, feature) if feature is not before else CastColumn(column)
            columns.append(cast.column)
            if cast.num_rounded:
                num_rounded[feature.name] = cast.num_rounded
        return Taken(batch_of(after, columns), None, num_rounded)

    try:
        call(empty_batch(features))
    except UsageError as error:
        error.where = error.where or "--cast"
        raise
    return CastStep(RowwiseStep("--cast", after, call), features, notes)


def texts_as_written(features: Features, casts: tuple[tuple[str, str], ...]) -> Features:
    """Returns the columns of a file of texts, such as CSV, with those as strings that are cast to strings.

    A number would lose how it is written: 1.10 would become 1.1.

    Raises:
        UsageError: If a column is not there or a dtype is not known.
    """
    after, _ = _cast_features(features, casts)
    return tuple(
        new if new.dtype == "string" and new.is_scalar and old.vocabulary is None else old
        for old, new in zip(features, after, strict=True)
    )


def _cast_features(features: Features, casts: tuple[tuple[str, str], ...]) -> tuple[Features, tuple[str, ...]]:
    """Returns the columns as they are cast, and notes on casts that take none."""
    wanted: dict[str, Feature] = {}
    named = {f.name for f in features}
    notes: list[str] = []
    for key, dtype in sorted(casts, key=lambda cast: cast[0] in named):
        found = _find_columns(features, key, dtype)
        if not found:
            notes.append(
                f"--cast {key}={dtype} takes no column by the types that are known so far: {_listed(features)}"
            )
        for feature in found:
            try:
                wanted[feature.name] = _cast_feature(feature, dtype)
            except UsageError as error:
                error.where = error.where or f"--cast {key}={dtype}"
                raise
    return tuple(wanted.get(f.name, f) for f in features), tuple(notes)


class CastStep:
    """Casts columns. In tolerant runs all rows that fail are found at once, column by column.

    Attributes:
        notes: On casts of types that no column has.
    """

    def __init__(self, rowwise: RowwiseStep, before: Features, notes: tuple[str, ...]) -> None:
        self.notes = notes
        self._rowwise = rowwise
        self._before = before
        self.option, self.features = rowwise.option, rowwise.features
        self.sources: Mapping[str, str] | None = None

    def run(self, batch: pa.RecordBatch, *, is_tolerant: bool) -> StepResult:
        """Returns the result of a batch."""
        try:
            return StepResult(self._rowwise.call(batch))
        except RowError:
            if not is_tolerant:
                return self._rowwise.run(batch, is_tolerant=False)
        failures: dict[int, RowError] = {}
        for column, before, feature in zip(batch.columns, self._before, self.features, strict=True):
            for row, bad_values in _find_bad_values(column, before, feature).items():
                failures.setdefault(row, _cast_error(bad_values))
        is_kept = np.ones(batch.num_rows, dtype=np.bool_)
        is_kept[list(failures)] = False
        rest = pa.RecordBatch.from_arrays([without_rows(c, is_kept) for c in batch.columns], schema=batch.schema)
        taken = self._rowwise.call(rest)._replace(kept=np.flatnonzero(is_kept))
        return StepResult(taken, tuple(RowFailure(row, failures[row]) for row in sorted(failures)))


def rename_step(features: Features, renames: tuple[tuple[str, str], ...]) -> RowwiseStep:
    """Returns the step that gives columns other names, all at once, so that two may swap theirs.

    Raises:
        UsageError: If a column is not there, or two columns would have one name.
    """
    check_distinct([old for old, _ in renames], "--rename")
    for old, _ in renames:
        find_feature(features, old, "--rename")
    new_names = dict(renames)
    after = tuple(_renamed(f, new_names.get(f.name, f.name)) for f in features)
    names = [f.name for f in after]
    for old, new in renames:
        if names.count(new) > 1:
            raise UsageError(
                f"--rename {old}={new} would give two columns one name", next_step=f"Rename the other {shown(new)} too"
            )
    sources = {new_names.get(f.name, f.name): f.name for f in features}
    return RowwiseStep("--rename", after, lambda batch: Taken(batch_of(after, batch.columns)), sources)


def drop_null_step(features: Features, names: tuple[str, ...]) -> RowwiseStep:
    """Returns the step that leaves out rows without a value in any of some columns. NaN is a value.

    Raises:
        UsageError: If a column is not there.
    """
    chosen = [f.name for f in features] if names == (ALL_COLUMNS,) else list(names)
    for name in chosen:
        find_feature(features, name, "--drop-null")
    after = tuple(msgspec.structs.replace(f, nullable=False) if f.name in chosen else f for f in features)
    indices = [i for i, f in enumerate(features) if f.name in chosen]

    def call(batch: pa.RecordBatch) -> Taken:
        lacking = [batch.column(i) for i in indices if batch.column(i).null_count]
        if not lacking:
            return Taken(batch_of(after, batch.columns))
        is_whole = reduce(pc.and_, [pc.is_valid(column) for column in lacking])
        kept = np.flatnonzero(is_whole.to_numpy(zero_copy_only=False)).astype(np.int64)
        return Taken(batch_of(after, batch.filter(is_whole).columns), kept)

    return RowwiseStep("--drop-null", after, call)


def _find_columns(features: Features, key: str, dtype: str) -> Features:
    """Returns the columns that a name, a dtype such as `float64`, or a pattern such as `price_*` stands for.

    None may be of a dtype: which one a column has may depend on a single value. Classes have no dtype here. The pattern
    `*` stands for all columns of numbers if the new dtype is one of numbers.
    """
    if any(f.name == key for f in features) or not (_is_dtype(key) or any(sign in key for sign in "*?[")):
        return (find_feature(features, key, "--cast"),)
    numbers_only = key == ALL_COLUMNS and _NUMBER.fullmatch(dtype) is not None
    if _is_dtype(key) or numbers_only:
        plain = [f for f in features if f.vocabulary is None]
        found = [f for f in plain if (_NUMBER.fullmatch(f.dtype) if numbers_only else _dtype_of(f) == key)]
    else:
        found = [f for f in features if fnmatch.fnmatchcase(f.name, key)]
    if not found and not _is_dtype(key):
        raise UsageError(
            f"--cast {key}={dtype} takes no column",
            why=_listed(features),
            next_step="Name a column, a type such as float64, or a pattern such as 'price_*'",
        )
    return tuple(found)


def _listed(features: Features) -> str:
    return f"there are {', '.join(f'{shown(f.name)} of {_dtype_of(f)}' for f in features[:_LISTED_COLUMNS])}"


def _is_dtype(name: str) -> bool:
    try:
        return make_feature("a", name) is not None
    except UsageError:
        return False


def _dtype_of(feature: Feature) -> str:
    return "json" if feature.is_json else feature.dtype


def _cast_feature(feature: Feature, dtype: str) -> Feature:
    if dtype == feature.dtype and not feature.is_json:
        # Bytes that were taken for images are bytes again.
        return msgspec.structs.replace(feature, media_type=None) if feature.is_image else feature
    both_times = dtype.startswith("timestamp") and feature.dtype.startswith("timestamp")
    return make_feature(
        feature.name,
        dtype,
        # A list is one JSON value.
        () if dtype == "json" else feature.shape,
        nullable=feature.nullable,
        vocabulary=feature.vocabulary if _INTEGER.fullmatch(dtype) else None,
        timezone=feature.timezone if both_times else None,
    )


def _cast_column(column: pa.Array, before: Feature, feature: Feature) -> CastColumn:
    if before.vocabulary is not None and feature.dtype == "string" and feature.is_scalar:
        return CastColumn(pa.array(before.vocabulary, pa.string()).take(column))
    try:
        return cast_exactly(_as_source(column, before, feature), feature)
    except BadValueError as error:
        raise _cast_error(error) from error


def _as_source(column: pa.Array, before: Feature, feature: Feature) -> pa.Array:
    """Returns a column as the cast wants it: arrays as nested lists for JSON, JSON strings as what they say."""
    if feature.is_json and len(before.shape) > 1:
        shape = tuple(-1 if size is None else size for size in before.shape)
        return pa.array([None if v is None else np.reshape(v, shape).tolist() for v in column.to_pylist()])
    if before.is_json and before.is_scalar and not feature.is_json:
        texts = column.to_pylist()
        return pa.array([msgspec.json.decode(t, type=str) if t and t[0] == '"' else t for t in texts], pa.string())
    return column


def _find_bad_values(column: pa.Array, before: Feature, feature: Feature) -> dict[int, BadValueError]:
    becomes_names = before.vocabulary is not None and feature.dtype == "string" and feature.is_scalar
    return {} if before is feature or becomes_names else find_bad_values(_as_source(column, before, feature), feature)


def _cast_error(error: BadValueError) -> RowError:
    what = f"column {shown(error.column)} cannot be cast"
    return RowError(what, f"expected {error.expected}, got {error.got}", row=error.row)


def _renamed(feature: Feature, name: str) -> Feature:
    return feature if name == feature.name else msgspec.structs.replace(feature, name=name)
