"""Rows that a Python program holds as Arrow batches: tables, arrays, data sets of other libraries, and dicts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from shardkit.conversion.memory.values import column_of, plain, size_of
from shardkit.errors import UsageError
from shardkit.messages import shown

BATCH_ROWS = 4096
BATCH_BYTES = 64 * 2**20

_FORMS = (
    "a table or stream of Arrow, a data frame, a dict of columns, an array, or an iterable of dicts (a row each) or of "
    "batches"
)
# What pandas calls an index without a name. One of whole numbers tells where rows were, and is no column.
_NO_NAME = re.compile(r"__(index_level_\d+)__")
# Of tables, and of none of their columns.
_OF_TABLES = ("column_names", "columns", "features")
_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def batches_of(data: Any) -> Iterator[pa.RecordBatch]:
    """Yields the rows of anything that holds rows.

    Args:
        data: What has `__arrow_c_stream__` or `__arrow_c_array__` (pyarrow, pandas, polars, DuckDB, Hugging Face
            `datasets`), a mapping of columns to arrays or lists, a NumPy array of rows, a data set of TensorFlow or
            PyTorch whose rows are dicts, or an iterable of dicts or of batches.

    Raises:
        UsageError: If it is none of these, or its values have no type of Arrow.
    """
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        yield from map(_usual, _exported(data))
    elif hasattr(data, "with_format") and hasattr(data, "iter"):
        # Hugging Face: as tables of Arrow, which name their classes.
        yield from _batches_of_items(data.with_format("arrow").iter(BATCH_ROWS))
    elif isinstance(data, Mapping):
        if tables := [name for name, column in data.items() if any(hasattr(column, a) for a in _OF_TABLES)]:
            raise UsageError(
                f"{shown(tables[0])} is a table, and not a column",
                next_step="Give one table with all rows; split_column names a column that tells the split of each",
            )
        yield from _batches_of_columns({str(name): plain(column) for name, column in data.items()})
    elif hasattr(data, "collate_fn") and getattr(data, "batch_sampler", None) is not None:
        # A loader of PyTorch gives batches.
        for item in data:
            yield from batches_of(item if isinstance(item, Mapping) else [item])
    elif isinstance(data, np.ndarray) and data.ndim:
        yield from _batches_of_columns({"value": data})
    elif hasattr(data, "as_numpy_iterator"):
        yield from _batches_of_items(data.as_numpy_iterator())
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes | np.ndarray):
        yield from _batches_of_items(iter(data))
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, np.ndarray):
        yield from _batches_of_items(data[i] for i in range(len(data)))
    else:
        raise UsageError(f"data of type {type(data).__name__} holds no rows", next_step=f"Give paths, {_FORMS}")


def batch_of_rows(rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> pa.RecordBatch:
    """Returns rows as a batch; a key that a row lacks is null there.

    Args:
        rows: From `checked_row`.
        schema: The columns and their types; None takes those of the values.

    Raises:
        UsageError: If the values of a column go together in no type of Arrow, or not in that of the schema.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    types = dict.fromkeys(names) if schema is None else {field.name: field.type for field in schema}
    _check_names(names, types)
    found = {name: column_of(name, [row.get(name) for row in rows], type_) for name, type_ in types.items()}
    return pa.RecordBatch.from_pydict(found)


def checked_row(row: Any) -> dict[str, Any]:
    """Returns a row with its values as they are now, whatever becomes of the caller's arrays.

    Raises:
        UsageError: If it is no dict.
    """
    if not isinstance(row, Mapping):
        raise UsageError(
            f"a row is of type {type(row).__name__}, and not a dict",
            next_step="Give rows as dicts of columns, such as {'text': 'a', 'label': 1}",
        )
    values = {str(name): plain(value) for name, value in row.items()}
    return {n: v.copy() if isinstance(v, np.ndarray | list | dict) else v for n, v in values.items()}


def size_of_row(row: Mapping[str, Any]) -> int:
    """Returns about how many bytes the values of a row have."""
    return sum(map(size_of, row.values()))


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
        column = batch.column(field.name)
        try:
            has_levels = pa.types.is_fixed_size_list(column.type) and pa.types.is_nested(column.type.value_type)
            if has_levels and pa.types.is_fixed_size_list(field.type):
                columns.append(column_of(field.name, column.to_pylist(), field.type))
                continue
            columns.append(column.cast(field.type))
        except pa.ArrowException as error:
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


def _exported(data: Any) -> Iterator[pa.RecordBatch]:
    try:
        if hasattr(data, "__arrow_c_stream__"):
            yield from pa.RecordBatchReader.from_stream(data)
        else:
            yield pa.record_batch(data)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise UsageError(
            f"rows of type {type(data).__name__} cannot be read",
            why=str(error).partition("\n")[0],
            next_step="Give every column another name, values of one type, and rows with columns",
        ) from error


def _usual(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns a batch without the types that Arrow files cannot hold from batch to batch."""
    columns: dict[str, pa.Array] = {}
    for title, column in zip(batch.schema.names, batch.columns, strict=True):
        nameless = _NO_NAME.fullmatch(title)
        name = nameless[1] if nameless else title
        if name in columns:
            raise UsageError(f"two columns are called {shown(name)}", next_step="Give every column another name")
        if not nameless or not pa.types.is_integer(column.type):
            if pa.types.is_dictionary(column.type):
                column = pa.DictionaryArray.from_arrays(column.indices, _without_view(column.dictionary))
                column = column.dictionary_decode()
            columns[name] = _without_view(column)
    return pa.RecordBatch.from_pydict(columns, metadata=batch.schema.metadata)


def _without_view(column: pa.Array) -> pa.Array:
    return column.cast(_VIEWS.get(column.type, column.type))


def _batches_of_items(items: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    for is_batch, group in itertools.groupby(items, _is_batch):
        if not is_batch:
            yield from map(batch_of_rows, _in_groups(map(checked_row, group)))
            continue
        for item in group:
            yield from batches_of(item)


def _is_batch(item: Any) -> bool:
    return hasattr(item, "__arrow_c_array__") or hasattr(item, "__arrow_c_stream__")


def _in_groups(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yields rows by the thousands, fewer where they hold many bytes."""
    group: list[Any] = []
    num_bytes = 0
    for row in rows:
        group.append(row)
        num_bytes += size_of_row(row)
        if len(group) == BATCH_ROWS or num_bytes >= BATCH_BYTES:
            yield group
            group, num_bytes = [], 0
    if group:
        yield group


def _batches_of_columns(columns: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    for name, column in columns.items():
        if not hasattr(column, "__len__") or isinstance(column, str | bytes):
            raise UsageError(f"column {shown(name)} is one value", next_step="Give a list or an array for each column")
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        described = ", ".join(f"{shown(name)} {length:,}" for name, length in lengths.items())
        raise UsageError("the columns have different numbers of rows", why=described, next_step="Give as many of each")
    num_rows = next(iter(lengths.values()), 0)
    for start in range(0, num_rows, BATCH_ROWS):
        parts = {name: column[start : start + BATCH_ROWS] for name, column in columns.items()}
        yield pa.RecordBatch.from_pydict({name: column_of(name, part) for name, part in parts.items()})
