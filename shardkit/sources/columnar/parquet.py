"""Parquet: schemas and counts from the footers, rows from the row groups."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, ClassVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from shardkit.encoding.parquet_footer import READABLE_CODECS, RowGroup, codec_name, parse_row_groups
from shardkit.errors import DamagedFileError
from shardkit.features import Features
from shardkit.sources.base import InputSplit, RawFile, SourceOptions, choose_split_bytes, place
from shardkit.sources.columnar.arrow_columns import Column, count_leaves, flatten_schema
from shardkit.sources.columnar.parquet_expansion import check_pages, expanding_texts
from shardkit.sources.columnar.parquet_int96 import UNIT, exact_times, fine_columns, in_nanoseconds, int96_paths
from shardkit.sources.columnar.schemas import MAX_BATCH_ROWS, cut_pieces
from shardkit.sources.columnar.source import ColumnarSource, Container, CountedContainer, refuse_compressed
from shardkit.sources.columns.dropped_columns import is_dropped
from shardkit.sources.files.streams import open_raw
from shardkit.storage.seekable_file import SplicedFile
from shardkit.units import KiB, MiB

_REFUSAL = "Expected all lists to be of size"
_SCHEMA_KEY, _OTHER_KEY = b"ARROW:schema", b"ARROW:unused"
ReadBatches = Callable[[pq.ParquetFile, list[str] | None], Iterator[pa.RecordBatch]]

_PROBED_ROWS = 64
_PROBED_TIMES = 1024
_TAIL_BYTES = 8
_TEXT_BYTES = 64
_OPEN_BUFFERS_BYTES = 64 * MiB


@dataclass(frozen=True)
class ParquetSource(ColumnarSource):
    """Parquet. Splits are row groups, by their uncompressed size."""

    format: str = "parquet"
    kind: ClassVar[str] = "Parquet"

    @contextmanager
    def open_file(self, file: RawFile, options: SourceOptions) -> Iterator[Container]:
        """Opens a file by its footer."""
        refuse_compressed(file, "a Parquet file")
        with open_raw(file) as raw:
            # A column chunk is read in pieces, so that no row group is ever held whole.
            probe = pq.read_metadata(raw)
            footer = _read_footer_bytes(raw, probe, file)
            groups = parse_row_groups(footer)
            buffer_bytes = max(64 * KiB, min(MiB, _OPEN_BUFFERS_BYTES // max(1, probe.num_columns)))
            if max((sum(c.num_bytes for c in g.columns) for g in groups), default=0) <= _OPEN_BUFFERS_BYTES:
                # Read in one piece: a damaged length of a page then cannot make Arrow allocate a buffer of that size.
                buffer_bytes = 0

            def open_in(unit: str, dictionaries: Sequence[str] = ()) -> pq.ParquetFile:
                return pq.ParquetFile(
                    raw,
                    metadata=probe,
                    read_dictionary=list(dictionaries),
                    buffer_size=buffer_bytes,
                    pre_buffer=False,
                    page_checksum_verification=True,
                    coerce_int96_timestamp_unit=unit,
                )

            yield _ParquetFile(file, raw, groups, open_in, options, footer)

    def explain(self, error: Exception, file: RawFile) -> DamagedFileError | None:
        """Returns errors for encrypted files, wrong schemas, and nested lists that Arrow writes but cannot read."""
        if re.search("must be annotated|-annotated|child element", str(error)):
            what = "the schema of the Parquet file is not valid"
            return DamagedFileError(what, where=place(file), why=str(error).rstrip("."))
        if "encrypted metadata" in str(error):
            return _encrypted(file)
        if _REFUSAL in str(error):
            return DamagedFileError(
                "lists of fixed size within structs or lists hold nulls",
                where=place(file),
                why="Arrow writes such a column and cannot read it",
                next_step="Write them as lists of any length, and declare the shape in a --schema file",
            )
        return None


class _ParquetFile(CountedContainer):
    def __init__(
        self,
        file: RawFile,
        raw: BinaryIO,
        groups: tuple[RowGroup, ...],
        open_in: Callable[..., pq.ParquetFile],
        options: SourceOptions,
        footer: bytes,
    ) -> None:
        self._file = file
        self._footer = footer
        self._raw = raw
        self._parquet = open_in(UNIT)
        self._groups = groups
        self._int96 = int96_paths(self._parquet.metadata)
        self._open_in = open_in
        self._dropped = options.drop_columns
        self._max_record_bytes = options.max_record_bytes
        self._check_groups()

    def columns(self) -> tuple[Column, ...]:
        columns = flatten_schema(self._parquet.schema_arrow, place(self._file))
        fine = self._fine_columns()
        columns = tuple(
            msgspec.structs.replace(c, type_=in_nanoseconds(c.type_)) if c.name in fine else c for c in columns
        )
        leaves = self._leaves()
        return tuple(
            msgspec.structs.replace(column, nullable=column.nullable and not self._is_full(leaves.get(column.name)))
            for column in columns
        )

    def cuts(self, split_bytes: int | None) -> Iterator[InputSplit]:
        pieces = [(g.num_uncompressed_bytes, sum(c.num_bytes for c in g.columns)) for g in self._groups]
        return cut_pieces(pieces, split_bytes or choose_split_bytes(sum(size for size, _ in pieces)))

    def batches(self, split: InputSplit, features: Features, batch_bytes: int) -> Iterator[pa.RecordBatch]:
        groups = {g: self._groups[g] for g in range(split.start, split.stop)}
        wanted = self._wanted()
        schema, leaves = self._parquet.metadata.schema, self._wanted_leaves(wanted, groups)
        check_pages(self._raw, self._file, schema, list(groups.values()), list(leaves), self._max_record_bytes)
        num_rows = _batch_rows(self._parquet, groups, wanted, batch_bytes)
        texts = {leaf: path for leaf, path in leaves.items() if schema.column(leaf).physical_type == "BYTE_ARRAY"}
        expanding = expanding_texts(lambda paths: self._open_in(UNIT, paths), groups, texts, num_rows)
        int96 = self._int96 if wanted is None else [path for path in self._int96 if path in wanted]

        def read(parquet: pq.ParquetFile, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
            def read_some(file: pq.ParquetFile, names: list[str] | None) -> Iterator[pa.RecordBatch]:
                some: Iterator[pa.RecordBatch] = file.iter_batches(
                    batch_size=num_rows, row_groups=list(groups), columns=names, use_threads=False
                )
                return some

            return _with_nulls_of_lists(parquet, columns, read_some, lambda: _open_as_lists(self._raw, self._footer))

        if not int96:
            return read(self._open_in(UNIT, expanding) if expanding else self._parquet, wanted)
        return exact_times(read(self._open_in("ms", expanding), wanted), read(self._open_in("ns"), int96), features)

    def count_rows(self, start: int, stop: int) -> int:
        return sum(g.num_rows for g in self._groups[start:stop])

    def _wanted_leaves(self, wanted: list[str] | None, groups: dict[int, RowGroup]) -> dict[int, str]:
        # Paths by position; none where a row group lacks columns, which reading tells.
        schema, num_columns = self._parquet.metadata.schema, self._parquet.metadata.num_columns
        if any(len(g.columns) != num_columns for g in groups.values()):
            return {}
        paths = {leaf: schema.column(leaf).path for leaf in range(num_columns)}
        return paths if wanted is None else {leaf: path for leaf, path in paths.items() if path in wanted}

    def _fine_columns(self) -> frozenset[str]:
        groups = [number for number, group in enumerate(self._groups) if group.num_rows][:1]
        if not self._int96 or not groups:
            return frozenset()
        coarse, fine = (
            next(
                self._open_in(unit).iter_batches(
                    batch_size=_PROBED_TIMES, row_groups=groups, columns=self._int96, use_threads=False
                )
            )
            for unit in ("ms", "ns")
        )
        return fine_columns(coarse, fine)

    def _check_groups(self) -> None:
        if len(self._groups) != self._parquet.num_row_groups:
            raise ValueError("the footer counts its row groups in two ways")
        # Some writers leave the sum out.
        if self._parquet.metadata.num_rows not in (0, sum(g.num_rows for g in self._groups)):
            raise ValueError("the footer counts its rows in two ways")
        codec = next((c.codec for g in self._groups for c in g.columns if c.codec not in READABLE_CODECS), None)
        if codec is not None:
            raise DamagedFileError(
                "a column is compressed in a way that is not read", where=place(self._file), why=codec_name(codec)
            )

    def _is_full(self, leaves: range | None) -> bool:
        # The nulls of several leaves say nothing of the whole.
        if leaves is None or len(leaves) != 1:
            return False
        position = leaves.start
        return all(position < len(g.columns) and g.columns[position].num_nulls == 0 for g in self._groups)

    def _leaves(self) -> dict[str, range]:
        # The stored columns of each column; empty where that is not sure.
        leaves: dict[str, range] = {}
        start = 0
        for column in flatten_schema(self._parquet.schema_arrow, place(self._file)):
            leaves[column.name] = range(start, start + column.num_leaves)
            start = leaves[column.name].stop
        return leaves if start == self._parquet.metadata.num_columns else {}

    def _wanted(self) -> list[str] | None:
        # Paths of the leaves that are read, None for all there are.
        found = [
            position for n, leaf in self._leaves().items() if not is_dropped(n, self._dropped) for position in leaf
        ]
        if len(found) in (0, self._parquet.metadata.num_columns):
            return None
        return [self._parquet.metadata.schema.column(position).path for position in found]


def _read_footer_bytes(raw: BinaryIO, metadata: pq.FileMetaData, file: RawFile) -> bytes:
    raw.seek(-_TAIL_BYTES, io.SEEK_END)
    (num_bytes,) = struct.unpack("<I", raw.read(4))
    # A footer in plain text is signed when columns are encrypted.
    if num_bytes != metadata.serialized_size:
        raise _encrypted(file)
    raw.seek(-_TAIL_BYTES - num_bytes, io.SEEK_END)
    return raw.read(num_bytes)


def _encrypted(file: RawFile) -> DamagedFileError:
    return DamagedFileError("the Parquet file is encrypted", where=place(file), next_step="Decrypt it first")


def _batch_rows(
    parquet: pq.ParquetFile, groups: dict[int, RowGroup], wanted: list[str] | None, batch_bytes: int
) -> int:
    num_rows = sum(g.num_rows for g in groups.values())
    num_bytes = sum(g.num_uncompressed_bytes for g in groups.values())
    row_bytes = num_bytes / max(1, num_rows)
    if wanted is not None:
        row_bytes = _probe_row_bytes(parquet, list(groups)[:1], wanted)
    elif num_rows > _PROBED_ROWS:
        # Repeated values take up little room in the file and much in memory.
        types = {f.name: f.type for f in parquet.schema_arrow}
        fixed_bytes = sum(t.bit_width for t in types.values() if pa.types.is_primitive(t)) / 8
        others = [name for name, t in types.items() if not pa.types.is_primitive(t)]
        row_bytes = max(row_bytes, fixed_bytes + _probe_row_bytes(parquet, list(groups)[:1], others))
    return int(min(MAX_BATCH_ROWS, max(1, batch_bytes / max(1.0, row_bytes))))


def _probe_row_bytes(parquet: pq.ParquetFile, groups: list[int], columns: list[str]) -> float:
    # The size of lists of fixed size is known, and Arrow may refuse to read them.
    paths = _fixed_list_paths(parquet)
    names = {field.name: field.type for field in parquet.schema_arrow if _is_fixed_list(field.type)}
    known_bytes = float(sum(_num_bytes(type_) for type_ in (paths.get(c) or names.get(c) for c in columns) if type_))
    others = [column for column in columns if column not in paths and column not in names]
    if not others:
        return known_bytes
    rows = parquet.iter_batches(batch_size=_PROBED_ROWS, row_groups=groups, columns=others, use_threads=False)
    first = next(rows, None)
    return known_bytes + (first.nbytes / first.num_rows if first is not None and first.num_rows else 0.0)


def _num_bytes(type_: pa.DataType) -> int:
    # Of a value; texts may have any size.
    if isinstance(type_, pa.BaseExtensionType):
        return _num_bytes(type_.storage_type)
    if pa.types.is_fixed_size_list(type_):
        return int(type_.list_size) * _num_bytes(type_.value_type)
    return max(1, type_.bit_width // 8) if pa.types.is_primitive(type_) else _TEXT_BYTES


def _with_nulls_of_lists(
    parquet: pq.ParquetFile, columns: list[str] | None, read: ReadBatches, reopen: Callable[[], pq.ParquetFile]
) -> Iterator[pa.RecordBatch]:
    """Yields batches of a file; where Arrow refuses lists of fixed size, they are made of lists of any length.

    Args:
        columns: Paths of the columns; None for all.
        read: Reads columns of a file in batches, of the same rows for any columns.
        reopen: Opens the file as `_open_as_lists` does.
    """
    num_read, refusal = 0, None
    try:
        for batch in read(parquet, columns):
            yield batch
            num_read += 1
        return
    except (pa.ArrowException, OSError) as error:
        if _REFUSAL not in str(error):
            raise
        refusal = error
    lists = _fixed_list_paths(parquet)
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


def _open_as_lists(raw: BinaryIO, footer: bytes) -> pq.ParquetFile:
    """Opens a file without regard to the Arrow schema in its footer."""
    # Arrow writes nulls among lists of fixed size, and its reader refuses them. Without that schema, which Arrow leaves
    # in the footer, its reader takes the same column for lists of any length.
    start = raw.seek(-len(footer) - _TAIL_BYTES, io.SEEK_END)
    tail = raw.read()[len(footer) :]
    patched = SplicedFile(raw, start, footer.replace(_SCHEMA_KEY, _OTHER_KEY) + tail)
    return pq.ParquetFile(patched, pre_buffer=False, page_checksum_verification=True)


def _fixed_list_paths(parquet: pq.ParquetFile) -> dict[str, pa.DataType]:
    """Returns the stored columns of all columns of such lists by path, with the type of the column."""
    found: dict[str, pa.DataType] = {}
    leaf = 0
    for field in parquet.schema_arrow:
        num_leaves = count_leaves(field.type)
        if _is_fixed_list(field.type) and num_leaves == 1 and leaf < parquet.metadata.num_columns:
            found[parquet.metadata.schema.column(leaf).path] = field.type
        leaf += num_leaves
    return found


def _is_fixed_list(type_: pa.DataType) -> bool:
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
