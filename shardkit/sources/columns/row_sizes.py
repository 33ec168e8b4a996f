"""How many bytes rows of a batch take up once their dictionaries are spelled out, and where to cut a batch by that."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Sizes = npt.NDArray[np.int64]


def row_sizes(batch: pa.RecordBatch) -> Sizes:
    """Returns the bytes of each row."""
    total = np.zeros(batch.num_rows, dtype=np.int64)
    for column in batch.columns:
        total += _sizes(column)
    return total


def largest_size(batch: pa.RecordBatch) -> int | None:
    """Returns a number of bytes that the rows together do not exceed, where that is known without a look at them."""
    return None if any(_may_grow(t) for t in batch.schema.types) else int(batch.nbytes)


def cuts(sizes: Sizes, wanted_bytes: int, max_rows: int) -> Iterator[tuple[int, int]]:
    """Yields half-open ranges of rows that take up about `wanted_bytes`, and at least one row each."""
    ends = np.cumsum(sizes)
    start = done = 0
    while start < len(sizes):
        stop = int(np.searchsorted(ends, done + wanted_bytes, side="right"))
        stop = min(max(stop, start + 1), start + max_rows, len(sizes))
        yield start, stop
        start, done = stop, int(ends[stop - 1])


def _may_grow(type_: pa.DataType) -> bool:
    if isinstance(type_, pa.BaseExtensionType):
        return _may_grow(type_.storage_type)
    if pa.types.is_dictionary(type_):
        return True
    return any(_may_grow(type_.field(i).type) for i in range(type_.num_fields))


def _sizes(column: pa.Array) -> Sizes:
    type_ = column.type
    if isinstance(type_, pa.BaseExtensionType):
        return _sizes(column.storage)
    if pa.types.is_dictionary(type_):
        return _dictionary_sizes(column)
    if _is_bytes(type_):
        return _known(pc.binary_length(column))
    if pa.types.is_struct(type_):
        return sum((_sizes(child) for child in column.flatten()), np.zeros(len(column), dtype=np.int64))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return _list_sizes(column)
    return np.full(len(column), -(-column.nbytes // max(1, len(column))), dtype=np.int64)


def _dictionary_sizes(column: pa.DictionaryArray) -> Sizes:
    sizes = _sizes(column.dictionary)
    if not len(sizes):
        return np.zeros(len(column), dtype=np.int64)
    taken: Sizes = sizes[_known(column.indices)]
    if column.null_count:
        taken[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return taken


def _list_sizes(column: pa.Array) -> Sizes:
    lengths = _known(pc.list_value_length(column))
    ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(_sizes(column.flatten()))])
    stops = np.cumsum(lengths)
    taken: Sizes = ends[stops] - ends[stops - lengths]
    return taken


def _known(numbers: pa.Array) -> Sizes:
    found: Sizes = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _is_bytes(type_: pa.DataType) -> bool:
    tests = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_binary,
        pa.types.is_large_binary,
    )
    return any(test(type_) for test in tests)
