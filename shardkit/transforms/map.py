"""The map step: a user's function from batch to batch.

The function is called as `function(batch)` with a `pyarrow.RecordBatch` of the columns at this step, and gives
back a RecordBatch or a Table with as many rows or fewer, or None for no row at all. It must give a row the same
result whatever other rows are in the batch; a few rows of every batch are passed twice to check that.

Behind the user's columns stands one more, `__row__`, a tag of each row. A function that leaves rows out or changes
their order must let it pass (`filter`, `take`, pandas and Polars do so by themselves); the rows are then put back
into their order. Where it is missing, there must be as many rows as before, in the same order.

Fields carry what Arrow types do not say: a field that is not nullable, and metadata `media_type`, `vocabulary` and
`shape` (the last two as JSON lists). A column that comes back under its own field keeps what is known of it; a column
under a new field says it anew or goes without.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.errors import UsageError
from shardkit.features import Feature, Features, arrow_schema, feature_from_arrow
from shardkit.messages import printable, shown
from shardkit.transforms.options import TransformOptions, split_reference
from shardkit.transforms.steps import (
    Positions,
    RowError,
    StepResult,
    Taken,
    batch_of,
    cast_result,
    empty_batch,
    run_halving,
)
from shardkit.transforms.user_files import OPTION, UserCodeError, UserMemoryError, load_function

ROW_COLUMN = "__row__"

_TAG = pa.binary(8)
_CHECKED_ROWS = 8
_PANDAS_INDEX = re.compile(r"__index_level_[0-9]+__")
_MEDIA_TYPE, _VOCABULARY, _SHAPE = b"media_type", b"vocabulary", b"shape"


class MapStep:
    """A user's function. Raises UsageError if it cannot be loaded, or what columns it gives cannot be found out."""

    option = OPTION
    sources: Mapping[str, str] | None = None

    def __init__(self, before: Features, options: TransformOptions) -> None:
        reference = options.map_path or ""
        self._function = load_function(reference, options.map_sha256)
        self._name = printable(split_reference(reference)[1])
        self._schema = _tagged_schema(before)
        self.features = self._plan(before)
        self.notes = tuple(_losses(before, self.features))

    def run(self, batch: pa.RecordBatch, *, is_tolerant: bool) -> StepResult:
        """Returns the result of a batch."""
        result = run_halving(self._call, self.features, batch, is_tolerant=is_tolerant)
        if not result.failures and batch.num_rows > 1:
            self._check_rowwise(batch, result.taken)
        return result

    def _call(self, batch: pa.RecordBatch) -> Taken:
        found = self._ask(batch)
        if found is None:
            return Taken(empty_batch(self.features), _NO_ROWS)
        order, kept = self._match(found, batch.num_rows)
        names = _names_of(found)
        wanted = [f.name for f in self.features]
        if sorted(names) != sorted(wanted):
            raise self._differs("other columns", f"expected {_list(wanted)}, got {_list(names)}")
        columns = []
        for feature in self.features:
            what = f"column {shown(feature.name)} from {OPTION} does not fit"
            try:
                column = cast_result(found.column(feature.name), feature, what).column
            except UsageError as error:
                raise self._differs(
                    "another type",
                    f"column {shown(feature.name)} is {found.column(feature.name).type}, "
                    f"expected {feature.describe_type()}",
                ) from error
            columns.append(column if order is None else column.take(order))
        return Taken(batch_of(self.features, columns), kept)

    def _ask(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        tags = np.arange(batch.num_rows, dtype=">u8")
        column = pa.Array.from_buffers(_TAG, batch.num_rows, [None, pa.py_buffer(tags)])
        given = pa.RecordBatch.from_arrays([*batch.columns, column], schema=self._schema)
        try:
            found = self._function(given)
        except UserCodeError as error:
            raise RowError(f"{OPTION} fails", f"{self._name} raised {error}") from error
        if isinstance(found, pa.Table):
            columns = [column.combine_chunks() for column in found.columns]
            found = pa.RecordBatch.from_arrays(columns, schema=found.schema)
        if found is not None and not isinstance(found, pa.RecordBatch):
            raise self._wrong(f"gives {type(found).__name__}", "expected a pyarrow RecordBatch, a Table or None")
        return found

    def _match(self, found: pa.RecordBatch, num_rows: int) -> tuple[pa.Array | None, Positions | None]:
        """Returns the order that puts the rows back into theirs, and the positions that they had."""
        if found.num_rows > num_rows:
            raise self._wrong("gives more rows than it gets", f"{found.num_rows} for {num_rows}")
        if ROW_COLUMN not in found.schema.names:
            if found.num_rows == num_rows:
                return None, None
            raise self._wrong(
                "leaves out rows without saying which",
                f"{found.num_rows} came back of {num_rows}, without the column {ROW_COLUMN}",
                f"Let the column {ROW_COLUMN} pass",
            )
        tags = self._read_tags(found.column(ROW_COLUMN))
        order = np.argsort(tags, kind="stable")
        kept = tags[order]
        if len(kept) and (kept[0] < 0 or kept[-1] >= num_rows or (np.diff(kept) == 0).any()):
            raise self._wrong(
                f"changes the column {ROW_COLUMN}", "a tag is new or there twice", f"Let the column {ROW_COLUMN} pass"
            )
        is_ordered = bool((order[1:] > order[:-1]).all())
        return None if is_ordered else pa.array(order), None if len(kept) == num_rows else kept

    def _read_tags(self, column: pa.Array) -> Positions:
        try:
            tags = column.cast(_TAG)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise self._wrong(f"changes the column {ROW_COLUMN}", f"it is {column.type} now") from error
        if tags.null_count:
            raise self._wrong(f"changes the column {ROW_COLUMN}", "it has nulls now")
        data = tags.buffers()[1]
        if data is None or len(tags) == 0:
            return _NO_ROWS
        found = np.frombuffer(data, ">u8", len(tags), tags.offset * 8)
        in_range: Positions = np.minimum(found, 2**62).astype(np.int64)
        return in_range

    def _check_rowwise(self, batch: pa.RecordBatch, taken: Taken) -> None:
        num_checked = min(_CHECKED_ROWS, batch.num_rows - 1)
        try:
            alone = self._call(batch.slice(0, num_checked))
        except RowError as error:
            raise self._depends(f"the first {num_checked} rows fail alone: {error.why}") from error
        kept = np.arange(batch.num_rows) if taken.kept is None else taken.kept
        together = taken.batch.slice(0, int(np.searchsorted(kept, num_checked)))
        kept_alone = np.arange(num_checked) if alone.kept is None else alone.kept
        if not np.array_equal(kept[: together.num_rows], kept_alone):
            raise self._depends(f"of the first {num_checked} rows, others stay when they come alone")
        for feature, one, other in zip(self.features, together.columns, alone.batch.columns, strict=True):
            if not _are_alike(one, other):
                raise self._depends(f"column {shown(feature.name)} of the first {num_checked} rows is another alone")

    def _plan(self, before: Features) -> Features:
        try:
            found = self._ask(empty_batch(before))
            first_error = None
        except RowError as error:
            found, first_error = None, error
        if found is None or any(pa.types.is_null(field.type) for field in found.schema):
            of_sample = self._ask_sample(before, first_error)
            found = found if of_sample is None else of_sample
        self._has_features = found is not None
        if found is None:
            # A function that names no columns keeps them; every batch is checked for that.
            return before
        _names_of(found)
        return tuple(self._feature(field, before) for field in found.schema if not _is_ours(field.name))

    def _ask_sample(self, before: Features, first_error: RowError | None) -> pa.RecordBatch | None:
        try:
            return self._ask(sample_batch(before))
        except RowError as error:
            first = first_error or error
            if isinstance(first.__cause__, UserMemoryError):
                raise MemoryError(first.why) from first
            why = first.why
            raise self._wrong(
                "cannot be planned", f"for a batch without rows, {why}", "Let it take a batch without rows"
            ) from error

    def _feature(self, field: pa.Field, before: Features) -> Feature:
        if pa.types.is_null(field.type):
            for feature in before:
                if feature.name == field.name:
                    return msgspec.structs.replace(feature, nullable=True)
            raise self._wrong(
                "gives a column without a type",
                f"column {shown(field.name)}",
                "Say its type, as in pyarrow.array(values, pyarrow.string())",
            )
        try:
            feature = feature_from_arrow(field.name, field.type, nullable=field.nullable, where=OPTION)
            return msgspec.structs.replace(feature, **_known_of(field))
        except (UsageError, msgspec.ValidationError, msgspec.DecodeError) as error:
            raise self._wrong(f"gives a column {shown(field.name)} that cannot be stored", str(error)) from error

    def _wrong(self, what: str, why: str, next_step: str | None = None) -> UsageError:
        return UsageError(f"the function {self._name} of {OPTION} {what}", why=why, next_step=next_step)

    def _differs(self, what: str, why: str) -> UsageError:
        if self._has_features:
            return self._wrong(f"gives {what} than for a batch without rows", why)
        next_step = "Let it return an empty batch with its columns, rather than None, where no row is left"
        return self._wrong(f"gives {what} than it gets, though None where no row is left", why, next_step)

    def _depends(self, why: str) -> UsageError:
        return self._wrong(
            "does not treat each row by itself", why, "Let a row's result depend on nothing but that row"
        )


_NO_ROWS: Positions = np.array([], dtype=np.int64)


def _tagged_schema(features: Features) -> pa.Schema:
    for feature in features:
        if feature.name == ROW_COLUMN:
            why = f"{OPTION} needs that name for itself"
            raise UsageError(f"a column is called {ROW_COLUMN}", why=why, next_step="Use --rename for it")
    fields = [pa.field(f.name, f.arrow_type, nullable=f.nullable, metadata=_metadata_of(f)) for f in features]
    return pa.schema([*fields, pa.field(ROW_COLUMN, _TAG, nullable=False)])


def _metadata_of(feature: Feature) -> dict[bytes, bytes] | None:
    metadata = {}
    if feature.media_type is not None:
        metadata[_MEDIA_TYPE] = feature.media_type.encode()
    if feature.vocabulary is not None:
        metadata[_VOCABULARY] = msgspec.json.encode(feature.vocabulary)
    if len(feature.shape) > 1:
        metadata[_SHAPE] = msgspec.json.encode(feature.shape)
    return metadata or None


def _known_of(field: pa.Field) -> dict[str, Any]:
    metadata = field.metadata or {}
    known: dict[str, Any] = {}
    if _MEDIA_TYPE in metadata:
        known["media_type"] = metadata[_MEDIA_TYPE].decode()
    if _VOCABULARY in metadata:
        known["vocabulary"] = msgspec.json.decode(metadata[_VOCABULARY], type=tuple[str, ...])
    if _SHAPE in metadata:
        shape = msgspec.json.decode(metadata[_SHAPE], type=tuple[int, ...])
        if not pa.types.is_fixed_size_list(field.type) or math.prod(shape) != field.type.list_size:
            raise UsageError(
                f"its shape {list(shape)} does not go with {field.type}",
                next_step="Give the field a shape whose product is the size of its lists",
            )
        known["shape"] = shape
    return known


def _losses(before: Features, after: Features) -> Iterator[str]:
    by_name = {f.name: f for f in before}
    for feature in after:
        old = by_name.get(feature.name)
        if old is None or old.dtype != feature.dtype:
            continue
        if old.vocabulary is not None and feature.vocabulary is None:
            yield f"column {shown(old.name)} lost its class names in {OPTION}, which gave it back under a new field"
        if old.media_type is not None and feature.media_type is None:
            yield f"column {shown(old.name)} lost its media type in {OPTION}, which gave it back under a new field"


def _names_of(batch: pa.RecordBatch) -> list[str]:
    names = [name for name in batch.schema.names if not _is_ours(name)]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{OPTION} gives two columns {shown(name)}", next_step="Give each column another name")
    return names


def _is_ours(name: str) -> bool:
    # pandas makes a column of its index once rows were left out.
    return name == ROW_COLUMN or _PANDAS_INDEX.fullmatch(name) is not None


def _list(names: list[str]) -> str:
    return ", ".join(map(shown, names)) or "none"


def _are_alike(one: pa.Array, other: pa.Array) -> bool:
    if one.equals(other):
        return True
    type_ = one.type
    if pa.types.is_list(type_) or pa.types.is_fixed_size_list(type_):
        lengths = pc.list_value_length(one).equals(pc.list_value_length(other))
        return lengths and _are_alike(one.flatten(), other.flatten())
    if not pa.types.is_floating(type_) or not one.is_valid().equals(other.is_valid()):
        return False
    # Sums over a batch may round otherwise in the last digits.
    values = [part.drop_null().to_numpy(zero_copy_only=False) for part in (one, other)]
    return bool(np.isclose(values[0], values[1], rtol=1e-3, atol=1e-6, equal_nan=True).all())


# A white PNG of one pixel: code that opens images by their content takes it as any other image.
_IMAGE = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a49444154789c63f8"
    "0f0001010100b138f6140000000049454e44ae426082"
)


def sample_batch(features: Features) -> pa.RecordBatch:
    """Returns one row of zeros, empty texts, and images of one pixel."""
    columns = [_sample_column(feature) for feature in features]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(features))


def _sample_column(feature: Feature) -> pa.Array:
    value = pa.array([_sample_value(feature)], feature.value_type)
    if feature.is_scalar:
        return value
    size = feature.num_values
    if size is None:
        return pa.array([[]], feature.arrow_type)
    return pa.FixedSizeListArray.from_arrays(pa.concat_arrays([value] * size), type=feature.arrow_type)


def _sample_value(feature: Feature) -> Any:
    if feature.dtype == "bytes":
        return _IMAGE if (feature.media_type or "").startswith("image/") else b""
    if feature.dtype == "bool":
        return False
    if feature.dtype.startswith("decimal"):
        return Decimal(0)
    return "" if feature.dtype == "string" else 0
