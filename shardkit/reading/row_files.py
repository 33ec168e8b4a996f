"""Batches of the reader as Arrow rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from shardkit.features import Feature, Features, arrow_schema
from shardkit.reading.batch import Batch, Bools, Column, Ragged

Batches = Iterable[pa.RecordBatch]


def record_batch(batch: Batch, features: Features) -> pa.RecordBatch:
    """Returns the examples of a batch whose text was not decoded; rows that only fill it up are left out.

    Args:
        batch: Of `decodes_text=False`.
        features: Of its columns, in the wanted order.
    """
    arrays = []
    for feature in features:
        column, present = batch[feature.name], batch.present.get(feature.name)
        if batch.mask is not None:
            column, present = _head(column, int(batch.mask.sum())), None if present is None else present[batch.mask]
        arrays.append(_array(column, present, feature))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(features))


def arrow_reader(batches: Iterable[Batch], features: Features) -> pa.RecordBatchReader:
    """Returns the examples of batches as a stream of Arrow, which is read as it is asked for.

    Args:
        batches: Of `decodes_text=False`.
        features: Of their columns, in the wanted order.
    """
    schema = shaped_schema(features)
    return pa.RecordBatchReader.from_batches(schema, (shaped(record_batch(b, features), features) for b in batches))


def shaped_schema(features: Features) -> pa.Schema:
    """Returns the Arrow schema of columns whose lists are nested as the shapes of the features."""
    fields = zip(arrow_schema(features), features, strict=True)
    return pa.schema([field.with_type(_with_shape(field.type, feature)) for field, feature in fields])


def shaped(batch: pa.RecordBatch, features: Features) -> pa.RecordBatch:
    """Returns the rows of `record_batch` with the schema of `shaped_schema`."""
    columns = [_nested(column, f) for column, f in zip(batch.columns, features, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=shaped_schema(features))


def _with_shape(type_: pa.DataType, feature: Feature) -> pa.DataType:
    """Returns the type of a column of Arrow whose lists are as the shape of the feature."""
    if len(feature.shape) < 2:
        return type_
    nested = feature.value_type
    for size in reversed(feature.shape):
        nested = pa.list_(nested, size)
    return nested


def _nested(column: pa.Array, feature: Feature) -> pa.Array:
    if len(feature.shape) < 2:
        return column
    values = column.values
    for size in reversed(feature.shape[1:]):
        values = pa.FixedSizeListArray.from_arrays(values, size)
    return pa.FixedSizeListArray.from_arrays(values, feature.shape[0], mask=column.is_null())


def _head(column: Column, num_rows: int) -> Column:
    if isinstance(column, Ragged):
        return Ragged(column.values, column.row_splits[: num_rows + 1])
    return column[:num_rows]


def _array(column: Any, present: Bools | None, feature: Feature) -> pa.Array:
    absent = None if present is None or present.all() else ~present
    if isinstance(column, Ragged):
        mask = None if absent is None else pa.array(absent)
        return pa.ListArray.from_arrays(pa.array(column.row_splits), _values(column.values, None, feature), mask=mask)
    if feature.shape:
        mask = None if absent is None else pa.array(absent)
        of_each = None if absent is None else np.repeat(absent, feature.num_values or 1)
        values = _values(column.reshape(-1), of_each, feature)
        return pa.FixedSizeListArray.from_arrays(values, feature.num_values, mask=mask)
    return _values(column, absent, feature)


def _values(values: Any, absent: Bools | None, feature: Feature) -> pa.Array:
    type_ = feature.value_type
    if feature.stored_as == "bytes_list":
        found = pa.array(values, pa.binary(), mask=absent)
        if pa.types.is_decimal(type_):
            return found.cast(pa.string()).cast(type_)
        return found.cast(type_)
    if values.dtype.kind in "mM":
        counts = values.view(np.int64)
        # Arrow checks the value behind a null, too, before it casts: the least int64.
        counts = pa.array(counts if absent is None else np.where(absent, 0, counts), mask=absent)
        return (counts.cast(pa.int32()) if type_.bit_width == 32 else counts).cast(type_)
    return pa.array(values, type_, mask=absent)
