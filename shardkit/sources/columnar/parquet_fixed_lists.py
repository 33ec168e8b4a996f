"""Nulls among lists of fixed size in Parquet: Arrow writes such columns, and its reader refuses them.

Without the Arrow schema that Arrow leaves in the footer, its reader takes the same column for lists of any length.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from shardkit.sources.columnar.arrow_columns import count_leaves
from shardkit.storage.seekable_file import SplicedFile

REFUSAL = "Expected all lists to be of size"
_KEY, _OTHER_KEY = b"ARROW:schema", b"ARROW:unused"
_TAIL_BYTES = 8

ReadBatches = Callable[[pq.ParquetFile, list[str] | None], Iterator[pa.RecordBatch]]


def with_nulls_of_lists(
    parquet: pq.ParquetFile, columns: list[str] | None, read: ReadBatches, reopen: Callable[[], pq.ParquetFile]
) -> Iterator[pa.RecordBatch]:
    """Yields batches of a file; where Arrow refuses lists of fixed size, they are made of lists of any length.

    Args:
        columns: Paths of the columns; None for all.
        read: Reads columns of a file in batches, of the same rows for any columns.
        reopen: Opens the file as `open_as_lists` does.
    """
    num_read, refusal = 0, None
    try:
        for batch in read(parquet, columns):
            yield batch
            num_read += 1
        return
    except (pa.ArrowException, OSError) as error:
        if REFUSAL not in str(error):
            raise
        refusal = error
    lists = fixed_list_paths(parquet)
    paths = [parquet.metadata.schema.column(leaf).path for leaf in range(parquet.metadata.num_columns)]
    wanted = paths if columns is None else columns
    others = [path for path in wanted if path not in lists]
    if len(others) == len(wanted):
        raise refusal
    as_lists = read(reopen(), [path for path in wanted if path in lists])
    rest = read(parquet, others) if others else None
    for number, found in enumerate(as_lists):
        batch = next(rest) if rest is not None else None
        if number >= num_read:
            yield _joined(found, batch, parquet.schema_arrow)


def open_as_lists(raw: BinaryIO, footer: bytes) -> pq.ParquetFile:
    """Opens a file without regard to the Arrow schema in its footer."""
    start = raw.seek(-len(footer) - _TAIL_BYTES, io.SEEK_END)
    tail = raw.read()[len(footer) :]
    patched = SplicedFile(raw, start, footer.replace(_KEY, _OTHER_KEY) + tail)
    return pq.ParquetFile(patched, pre_buffer=False, page_checksum_verification=True)


def fixed_list_paths(parquet: pq.ParquetFile) -> dict[str, pa.DataType]:
    """Returns the stored columns of all columns of such lists by path, with the type of the column."""
    found: dict[str, pa.DataType] = {}
    leaf = 0
    for field in parquet.schema_arrow:
        num_leaves = count_leaves(field.type)
        if is_fixed_list(field.type) and num_leaves == 1 and leaf < parquet.metadata.num_columns:
            found[parquet.metadata.schema.column(leaf).path] = field.type
        leaf += num_leaves
    return found


def is_fixed_list(type_: pa.DataType) -> bool:
    """Whether values are lists of fixed size, plain ones or those of an extension type such as tensors."""
    return bool(pa.types.is_fixed_size_list(_storage_of(type_)))


def _storage_of(type_: pa.DataType) -> pa.DataType:
    return type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_


def _joined(lists: pa.RecordBatch, others: pa.RecordBatch | None, schema: pa.Schema) -> pa.RecordBatch:
    columns = dict(zip(others.schema.names, others.columns, strict=True)) if others is not None else {}
    for name, column in zip(lists.schema.names, lists.columns, strict=True):
        type_ = schema.field(name).type
        fixed = column.cast(_storage_of(type_))
        columns[name] = pa.ExtensionArray.from_storage(type_, fixed) if _storage_of(type_) != type_ else fixed
    fields = [field for field in schema if field.name in columns]
    return pa.RecordBatch.from_arrays([columns[f.name] for f in fields], schema=pa.schema(fields, schema.metadata))
