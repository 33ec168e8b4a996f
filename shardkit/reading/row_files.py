"""Batches of the reader as Arrow rows, and rows into one local file: Parquet, CSV or JSON Lines.

A file is there whole or not at all, never in place of another."""

from __future__ import annotations

import base64
import datetime
import decimal
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import pyarrow as pa

from shardkit.errors import ConflictError, UsageError, place_is_taken
from shardkit.features import Feature, Features, arrow_schema
from shardkit.reading.batch import Batch, Bools, Column, Ragged
from shardkit.storage import files as storage
from shardkit.storage.temporary_files import fsync_folder, temporary_beside

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


def check_rows_file(path: Path, features: Features) -> None:
    """Checks that rows of these features can become a file of that name.

    Raises:
        ConflictError: If it is there already.
        UsageError: If no format has that ending, or it has no place for one of the features.
    """
    if path.exists() or path.is_symlink():
        raise place_is_taken(str(path))
    if path.suffix not in _WRITERS:
        raise UsageError(
            f"no format has the ending {path.suffix!r}",
            where=str(path),
            next_step=f"End the name with {', '.join(_WRITERS)}",
        )
    bad_features = [f for f in features if not f.is_scalar or f.dtype == "bytes"] if path.suffix == ".csv" else []
    if bad_features:
        raise UsageError(
            f"CSV has no place for {bad_features[0].name!r}, which is {bad_features[0].describe_type()}",
            next_step="Leave it out, or write .parquet or .jsonl",
        )


def write_rows(path: Path, features: Features, batches: Batches) -> int:
    """Writes rows and returns how many.

    Args:
        path: Its ending, one of `.parquet`, `.csv` and `.jsonl`, says how.
        batches: With the schema of the features.

    Raises:
        ConflictError: If there is such a file, which is not touched.
        UsageError: If it cannot be written.
    """
    check_rows_file(path, features)
    storage.make_folder(str(path.parent))
    with storage.translate_os_errors(path), temporary_beside(path) as (temporary, file):
        num_rows = _WRITERS[path.suffix](file, features, batches)
        file.flush()
        os.fsync(file.fileno())
        try:
            os.link(temporary, path)  # Exclusive, unlike a rename.
        except FileExistsError as error:
            raise ConflictError("there is something already", where=str(path), state="It is untouched") from error
        fsync_folder(path.parent)
    return num_rows


def _write_parquet(file: BinaryIO, features: Features, batches: Batches) -> int:
    import pyarrow.parquet as pq

    # Arrow cannot read lists of a fixed size back from Parquet where one is null; it can if they are of any size.
    schema = pa.schema(
        [pa.field(f.name, pa.list_(f.value_type) if f.nullable and not f.is_scalar else f.arrow_type) for f in features]
    )
    with pq.ParquetWriter(file, schema) as writer:
        return _write_each(batches, lambda batch: writer.write_batch(batch.cast(schema)))


def _write_csv(file: BinaryIO, features: Features, batches: Batches) -> int:
    from pyarrow import csv

    with csv.CSVWriter(file, arrow_schema(features)) as writer:
        return _write_each(batches, writer.write_batch)


def _write_json_lines(file: BinaryIO, features: Features, batches: Batches) -> int:
    encoder = msgspec.json.Encoder()

    def write(batch: pa.RecordBatch) -> None:
        rows = batch.to_pylist()
        file.write(encoder.encode_lines([{name: _json_value(v) for name, v in row.items()} for row in rows]))

    return _write_each(batches, write)


def _write_each(batches: Batches, write: Callable[[pa.RecordBatch], Any]) -> int:
    num_rows = 0
    for batch in batches:
        write(batch)
        num_rows += batch.num_rows
    return num_rows


def _json_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_json_value(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal | datetime.timedelta):
        return str(value)
    return value.isoformat() if hasattr(value, "isoformat") else value


_WRITERS: dict[str, Callable[[BinaryIO, Features, Batches], int]] = {
    ".parquet": _write_parquet,
    ".csv": _write_csv,
    ".jsonl": _write_json_lines,
}
