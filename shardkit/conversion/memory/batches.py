"""Rows that a Python program holds as Arrow batches: tables, arrays, data sets of other libraries, and dicts."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from shardkit.errors import UsageError
from shardkit.messages import shown

BATCH_ROWS = 4096
_BATCH_BYTES = 64 * 2**20
_FORMS = (
    "a table or stream of Arrow, a data frame, a dict of columns, an array, or an iterable of dicts (a row each) or of "
    "batches"
)


def batches_of(data: Any) -> Iterator[pa.RecordBatch]:
    """Yields the rows of anything that holds rows.

    Args:
        data: What has `__arrow_c_stream__` or `__arrow_c_array__` (pyarrow, pandas, polars, DuckDB, Hugging Face
            `datasets`), a mapping of columns to arrays or lists, a NumPy array of rows, a data set of TensorFlow or
            PyTorch whose rows are dicts, or an iterable of dicts or of batches.

    Raises:
        UsageError: If it is none of these, or its values have no type of Arrow.
    """
    if hasattr(data, "__arrow_c_stream__"):
        yield from pa.RecordBatchReader.from_stream(data)
    elif hasattr(data, "__arrow_c_array__"):
        yield pa.record_batch(data)
    elif isinstance(data, Mapping):
        yield from _batches_of_columns({str(name): _plain(column) for name, column in data.items()})
    elif isinstance(data, np.ndarray):
        yield from _batches_of_columns({"value": data})
    elif hasattr(data, "as_numpy_iterator"):
        yield from _batches_of_items(data.as_numpy_iterator())
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes):
        yield from _batches_of_items(iter(data))
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        yield from _batches_of_items(data[i] for i in range(len(data)))
    else:
        raise UsageError(f"data of type {type(data).__name__} holds no rows", next_step=f"Give paths, {_FORMS}")


def batch_of_rows(rows: list[Mapping[str, Any]], schema: pa.Schema | None = None) -> pa.RecordBatch:
    """Returns rows as a batch; a key that a row lacks is null there.

    Args:
        rows: Values by column.
        schema: The columns and their types; None takes those of the values.

    Raises:
        UsageError: If the values of a column go together in no type of Arrow, or not in that of the schema.
    """
    names = dict.fromkeys(str(name) for row in rows for name in row)
    types = dict.fromkeys(names) if schema is None else {field.name: field.type for field in schema}
    _check_names(names, types)
    found = {name: _column(name, [row.get(name) for row in rows], type_) for name, type_ in types.items()}
    return pa.RecordBatch.from_pydict(found)


def with_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns a batch with the columns of a schema; one that it lacks is null.

    Raises:
        UsageError: If it has other columns, or values that a column cannot hold.
    """
    _check_names(batch.schema.names, schema.names)
    columns = []
    for field in schema:
        if field.name not in batch.schema.names:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        try:
            columns.append(batch.column(field.name).cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UsageError(
                f"a value of column {shown(field.name)} does not fit {field.type}",
                why=str(error).partition("\n")[0],
                next_step="Give values of one type, or name the types by features",
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _check_names(names: Iterable[str], known: Iterable[str]) -> None:
    expected = list(known)
    if unknown := [name for name in names if name not in expected]:
        raise UsageError(
            f"there is a column {shown(unknown[0])} that no feature names",
            next_step=f"Leave it out, or name it among the features: {', '.join(expected)}",
        )


def _batches_of_items(items: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    for is_rows, group in itertools.groupby(items, lambda item: isinstance(item, Mapping)):
        if is_rows:
            yield from map(batch_of_rows, _in_groups(group))
            continue
        for item in group:
            if not hasattr(item, "__arrow_c_array__") and not hasattr(item, "__arrow_c_stream__"):
                raise UsageError(
                    f"a row is of type {type(item).__name__}, and not a dict",
                    next_step="Give rows as dicts of columns, such as {'text': 'a', 'label': 1}",
                )
            yield from batches_of(item)


def _in_groups(rows: Iterable[Any]) -> Iterator[list[Any]]:
    """Yields rows by the thousands, fewer where they hold many bytes."""
    group: list[Any] = []
    num_bytes = 0
    for row in rows:
        group.append(row)
        num_bytes += sum(_size_of(value) for value in row.values())
        if len(group) == BATCH_ROWS or num_bytes >= _BATCH_BYTES:
            yield group
            group, num_bytes = [], 0
    if group:
        yield group


def _size_of(value: Any) -> int:
    return len(value) if isinstance(value, bytes | str) else int(getattr(value, "nbytes", 8))


def _batches_of_columns(columns: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        described = ", ".join(f"{shown(name)} {length:,}" for name, length in lengths.items())
        raise UsageError("the columns have different numbers of rows", why=described, next_step="Give as many of each")
    num_rows = next(iter(lengths.values()), 0)
    for start in range(0, num_rows, BATCH_ROWS):
        parts = {name: column[start : start + BATCH_ROWS] for name, column in columns.items()}
        yield pa.RecordBatch.from_pydict({name: _column(name, part) for name, part in parts.items()})


def _column(name: str, values: Any, type_: pa.DataType | None = None) -> pa.Array:
    try:
        if isinstance(values, list):
            values = _stacked(list(map(_plain, values)))
        if not isinstance(values, np.ndarray) or values.ndim < 2 or type_ is not None:
            return pa.array(list(values) if isinstance(values, np.ndarray) and values.ndim > 1 else values, type_)
        array = pa.array(np.ascontiguousarray(values).reshape(-1))
        for size in reversed(values.shape[1:]):
            array = pa.FixedSizeListArray.from_arrays(array, size)
        return array
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        raise UsageError(
            f"the values of column {shown(name)} have no common type",
            why=str(error).partition("\n")[0],
            next_step="Give values of one kind, or leave the column out",
        ) from error


def _stacked(values: list[Any]) -> Any:
    """Returns arrays of one shape as one array, and other values as they are."""
    are_arrays = all(isinstance(value, np.ndarray) for value in values)
    if are_arrays and len({(value.shape, value.dtype) for value in values}) == 1:
        return np.stack(values)
    return [value.tolist() if isinstance(value, np.ndarray) and value.ndim > 1 else value for value in values]


def _plain(value: Any) -> Any:
    """Returns a value as Arrow takes it: tensors and images are arrays and bytes."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    if hasattr(value, "numpy") and not isinstance(value, np.ndarray):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return value.item() if value.ndim == 0 else value
    if hasattr(value, "save") and hasattr(value, "getbands"):
        encoded = io.BytesIO()
        value.save(encoded, "PNG")
        return encoded.getvalue()
    return value
