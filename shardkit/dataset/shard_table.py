"""The shard table: one row a shard, as Parquet that is read by column and by row group.

A table of a million shards is opened without making a million objects: checks of whole columns are made on the columns,
and rows are made when they are asked for. The blocks of a shard are checked when they are first read.
"""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shardkit.dataset.documents import check_relative_path
from shardkit.dataset.manifest import Manifest, ShardInfo, SplitInfo
from shardkit.dataset.table_limits import check_block_sizes, check_size
from shardkit.encoding.parquet_footer import RowGroup, parse_row_groups
from shardkit.errors import DamageError
from shardkit.units import MiB

Int64s = npt.NDArray[np.int64]

SHARD_TABLE_SCHEMA = pa.schema(
    [
        pa.field("split", pa.string(), nullable=False),
        pa.field("shard_index", pa.int64(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("num_examples", pa.int64(), nullable=False),
        pa.field("num_bytes", pa.int64(), nullable=False),
        pa.field("num_uncompressed_bytes", pa.int64(), nullable=False),
        pa.field("crc32c", pa.uint32(), nullable=False),
        pa.field("sha256", pa.string(), nullable=False),
        pa.field("block_num_bytes", pa.list_(pa.int64()), nullable=False),
        pa.field("block_num_uncompressed_bytes", pa.list_(pa.int64()), nullable=False),
        pa.field("block_num_examples", pa.list_(pa.int64()), nullable=False),
        pa.field("block_crc32c", pa.list_(pa.uint32()), nullable=False),
    ]
)

# To get at one row, its row group is read. A row group of shards with many blocks holds fewer shards.
_GROUP_SHARDS = 65_536
_GROUP_BLOCKS = 2**18
_KEPT_BYTES = 256 * MiB
_MIN_KEPT_GROUPS = 2
_ROWS_AT_ONCE = 1024
# Path, SHA-256 and split of a row in memory.
_SHARD_BYTES = 200
# The length of a Parquet footer, and a magic number.
_TAIL_BYTES = 8
# Names that are certainly safe, as far as RE2 can tell; the others are looked at one by one.
_PLAIN_PATH = r"^[A-Za-z0-9_=-][A-Za-z0-9._=-]*(/[A-Za-z0-9_=-][A-Za-z0-9._=-]*)*$"
_MAX_PLAIN_BYTES = 255
_BLOCK_TOTALS = (
    ("block_num_examples", "num_examples"),
    ("block_num_uncompressed_bytes", "num_uncompressed_bytes"),
    ("block_num_bytes", "num_bytes"),
)
_UNREADABLE = (pa.ArrowException, OSError, ValueError)


class ShardTable(Sequence[ShardInfo]):
    """The shards of a table, or some neighbours of them. Rows are made when they are asked for.

    Any number of threads may read it. It holds the file, and row groups of up to 256 MiB, or two where they are larger.
    """

    def __init__(self, groups: _RowGroups, start: int, stop: int) -> None:
        self._groups = groups
        self._start = start
        self._stop = stop

    def __len__(self) -> int:
        return self._stop - self._start

    @overload
    def __getitem__(self, position: int) -> ShardInfo: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[ShardInfo]: ...
    def __getitem__(self, position: int | slice) -> ShardInfo | Sequence[ShardInfo]:
        if isinstance(position, slice):
            found = range(self._start, self._stop)[position]
            if found.step == 1:
                return ShardTable(self._groups, found.start, max(found.start, found.stop))
            return tuple(self._groups.row(i) for i in found)
        return self._groups.row(range(self._start, self._stop)[position])

    def __iter__(self) -> Iterator[ShardInfo]:
        return self._groups.rows(self._start, self._stop)

    def part(self, start: int, stop: int) -> ShardTable:
        """Returns the shards `[start, stop)`."""
        return ShardTable(self._groups, self._start + start, self._start + stop)

    def column(self, name: str) -> Int64s:
        """Returns a column of numbers, such as `num_bytes`, without making rows."""
        return self._groups.numbers(name)[self._start : self._stop]

    def size_range(self) -> tuple[int, int]:
        """Returns the framed bytes of the smallest and of the largest shard; 0 and 0 if there is none."""
        sizes = self.column("num_uncompressed_bytes")
        return (int(sizes.min()), int(sizes.max())) if len(sizes) else (0, 0)

    def block_examples(self) -> tuple[Int64s, Int64s]:
        """Returns how many blocks each shard has, and how many examples each block, without making rows.

        Raises:
            DamageError: If blocks do not add up to their shards.
        """
        return self._groups.block_examples(self._start, self._stop)

    def __reduce__(self) -> tuple[Callable[..., ShardTable], tuple[Any, ...]]:
        return _again, (self._groups.raw, self._groups.where, self._start, self._stop)


class _RowGroups:
    """The row groups of a table, of which the last few that were read are kept."""

    def __init__(self, raw: bytes, where: str) -> None:
        self.raw = raw
        self.where = where
        self._buffer = pa.py_buffer(raw)
        # Arrow's threads are not joined when the process ends: now and then they abort it (apache/arrow#34314).
        file = pq.ParquetFile(pa.BufferReader(self._buffer), pre_buffer=False)
        self.schema = file.schema_arrow
        self._metadata = file.metadata
        # Arrow's accessors of columns end the process where a footer is damaged.
        groups = parse_row_groups(raw[-_TAIL_BYTES - int.from_bytes(raw[-_TAIL_BYTES:][:4], "little") : -_TAIL_BYTES])
        check_size(groups, where)
        self._ends = list(itertools.accumulate(g.num_rows for g in groups))
        largest = max((_num_bytes(g) for g in groups), default=0)
        num_kept = max(_MIN_KEPT_GROUPS, _KEPT_BYTES // max(1, largest))
        self._group = functools.lru_cache(num_kept)(self._read_group)

    @property
    def num_rows(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, names: Sequence[str]) -> pa.Table:
        """Returns whole columns."""
        return self._file().read(columns=list(names), use_threads=False)

    def numbers(self, name: str) -> Int64s:
        return _numbers(self.read([name])[name])

    def row(self, position: int) -> ShardInfo:
        index, first = self._place(position)
        return next(_rows_of(self._group(index), position - first, position - first + 1))

    def rows(self, start: int, stop: int) -> Iterator[ShardInfo]:
        for index, first, last in self._spans(start, stop):
            group = self._group(index)
            for at in range(first, last, _ROWS_AT_ONCE):
                yield from _rows_of(group, at, min(at + _ROWS_AT_ONCE, last))

    def block_examples(self, start: int, stop: int) -> tuple[Int64s, Int64s]:
        each, counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        # The other columns are not read, because a shard may have thousands of blocks.
        names = ["num_examples", "block_num_examples"]
        for index, first, last in self._spans(start, stop):
            column = self._read_group(index, names)["block_num_examples"].chunk(0).slice(first, last - first)
            each.append(np.diff(column.offsets.to_numpy()).astype(np.int64))
            counts.append(column.flatten().to_numpy())
        return np.concatenate(each), np.concatenate(counts)

    def _place(self, position: int) -> tuple[int, int]:
        index = int(np.searchsorted(self._ends, position, side="right"))
        return index, self._ends[index - 1] if index else 0

    def _spans(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        while start < stop:
            index, first = self._place(start)
            last = min(stop, self._ends[index])
            yield index, start - first, last - first
            start = last

    def _read_group(self, index: int, names: Sequence[str] | None = None) -> pa.Table:
        try:
            table = self._file().read_row_group(index, columns=names, use_threads=False).combine_chunks()
            table.validate(full=True)
            wrong = _first_wrong(table)
        except _UNREADABLE as error:
            raise _unreadable(self.where, error) from error
        if wrong is not None:
            path = self._file().read_row_group(index, columns=["path"], use_threads=False)["path"][wrong].as_py()
            raise DamageError(f"the blocks of {path} do not add up to the shard", where=self.where)
        check_block_sizes(table, self.where)
        return table

    def _file(self) -> pq.ParquetFile:
        # A new one for every read: threads cannot share one, and opening is cheap with the metadata known.
        return pq.ParquetFile(pa.BufferReader(self._buffer), metadata=self._metadata, pre_buffer=False)


def unstored_table(shards: Sequence[ShardInfo], where: str) -> ShardTable:
    """Returns the table of shards that no manifest lists; their names may be any."""
    return _again(encode_shard_table(shards), where, 0, len(shards))


def encode_shard_table(shards: Sequence[ShardInfo]) -> bytes:
    """Returns the shard table as Parquet, the same bytes for the same rows."""
    num_blocks = sum(len(s.block_num_bytes) for s in shards)
    group_shards = max(1, min(_GROUP_SHARDS, _GROUP_BLOCKS * len(shards) // max(1, num_blocks)))
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, SHARD_TABLE_SCHEMA, compression="zstd", store_schema=False) as writer:
        for first in range(0, max(1, len(shards)), group_shards):
            writer.write_table(_table_of(shards[first : first + group_shards]), row_group_size=group_shards)
    return sink.getvalue()


def decode_shard_table(raw: bytes, manifest: Manifest, where: str) -> ShardTable:
    """Returns the shards of a manifest, by split in its order, then by index.

    The table's hash and columns are checked against the manifest's totals; the blocks of a shard when they are read.

    Raises:
        DamageError: If anything does not agree.
        UnsafeError: If a path leads out of the dataset.
    """
    if hashlib.sha256(raw).hexdigest() != manifest.shard_table.sha256:
        raise DamageError("the shard table is not the one that the manifest names", where=where)
    try:
        groups = _RowGroups(raw, where)
        if not groups.schema.equals(SHARD_TABLE_SCHEMA):
            raise DamageError("the shard table cannot be read", where=where, why="it has other columns")
        _check_listing(manifest, groups, where)
        _check_totals(manifest.splits, groups, where)
    except _UNREADABLE as error:
        raise _unreadable(where, error) from error
    return ShardTable(groups, 0, groups.num_rows)


def _again(raw: bytes, where: str, start: int, stop: int) -> ShardTable:
    return ShardTable(_RowGroups(raw, where), start, stop)


def _unreadable(where: str, error: Exception) -> DamageError:
    return DamageError("the shard table cannot be read", where=where, why=str(error))


def _num_bytes(group: RowGroup) -> int:
    # Size in memory; the stored size may be a hundredth of it.
    return 8 * sum(column.num_values for column in group.columns) + _SHARD_BYTES * group.num_rows


def _table_of(shards: Sequence[ShardInfo]) -> pa.Table:
    arrays = [_array_of(field.type, [getattr(s, field.name) for s in shards]) for field in SHARD_TABLE_SCHEMA]
    return pa.Table.from_arrays(arrays, schema=SHARD_TABLE_SCHEMA)


def _array_of(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if not pa.types.is_list(kind):
        return pa.array(values, kind)
    offsets = np.array([0, *itertools.accumulate(map(len, values))], np.int32)
    dtype = np.uint32 if kind.value_type == pa.uint32() else np.int64
    flat = np.fromiter(itertools.chain.from_iterable(values), dtype, count=int(offsets[-1]))
    return pa.ListArray.from_arrays(offsets, pa.array(flat, kind.value_type))


def _rows_of(group: pa.Table, first: int, stop: int) -> Iterator[ShardInfo]:
    columns = [_values(column.chunk(0).slice(first, stop - first)) for column in group.columns]
    for values in zip(*columns, strict=True):
        yield ShardInfo(**dict(zip(group.column_names, values, strict=True)))


def _values(array: pa.Array) -> list[Any]:
    if not pa.types.is_list(array.type):
        values: list[Any] = array.to_pylist()
        return values
    flat = array.flatten().to_pylist()
    offsets = (array.offsets.to_numpy() - array.offsets[0].as_py()).tolist()
    return [tuple(flat[a:b]) for a, b in itertools.pairwise(offsets)]


def _check_listing(manifest: Manifest, groups: _RowGroups, where: str) -> None:
    stated = {manifest.shard_table.num_rows, sum(split.num_shards for split in manifest.splits)}
    # Only equal counts make it safe to spell out what is expected: a hostile count may be 2**63.
    if stated != {groups.num_rows} or not _is_in_order(manifest.splits, groups):
        raise DamageError("the shard table does not list the shards that the manifest counts", where=where)
    paths = groups.read(["path"])["path"]
    if not _are_in_order(manifest.splits, paths) and pc.count_distinct(paths).as_py() != len(paths):
        raise DamageError("the shard table lists a file twice", where=where)
    is_plain = pc.and_(
        pc.match_substring_regex(paths, _PLAIN_PATH), pc.less_equal(pc.binary_length(paths), _MAX_PLAIN_BYTES)
    )
    for path in paths.filter(pc.invert(is_plain)).to_pylist():
        check_relative_path(path, where)


def _are_in_order(splits: Sequence[SplitInfo], paths: pa.ChunkedArray) -> bool:
    """Whether paths are as a conversion numbers them: then no two are the same, and a million need not be hashed."""
    prefixes: list[str] = []
    start = 0
    for split in splits:
        own = paths[start : start + split.num_shards]
        start += split.num_shards
        if not len(own):
            continue
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(own[0].as_py(), own[-1].as_py(), strict=False))
        prefix = "".join(letter for letter, _ in same)
        lengths = pc.binary_length(own).to_numpy()
        # A number of one digit more comes later.
        is_longer, is_as_long = np.diff(lengths) > 0, np.diff(lengths) == 0
        is_later = np.asarray(pc.less(own[:-1], own[1:])) if len(own) > 1 else np.zeros(0, bool)
        if not (is_longer | (is_as_long & is_later)).all() or not pc.all(pc.starts_with(own, prefix)).as_py():
            return False
        if any(prefix.startswith(other) or other.startswith(prefix) for other in prefixes):
            return False
        prefixes.append(prefix)
    return True


def _is_in_order(splits: Sequence[SplitInfo], groups: _RowGroups) -> bool:
    names, indices = groups.read(["split"])["split"], groups.numbers("shard_index")
    start = 0
    for split in splits:
        own = slice(start, start + split.num_shards)
        if not np.array_equal(indices[own], np.arange(split.num_shards)):
            return False
        if split.num_shards and not pc.all(pc.equal(names[own], split.name)).as_py():
            return False
        start += split.num_shards
    return True


def _check_totals(splits: Sequence[SplitInfo], groups: _RowGroups, where: str) -> None:
    columns = [groups.numbers(name) for name in ("num_examples", "num_bytes", "num_uncompressed_bytes")]
    if any(len(column) and int(column.min()) < 0 for column in columns):
        raise DamageError("the shard table cannot be read", where=where, why="it has negative counts")
    start = 0
    for split in splits:
        own = slice(start, start + split.num_shards)
        start += split.num_shards
        found = (split.num_shards, *(_total(column[own]) for column in columns))
        stated = (split.num_shards, split.num_examples, split.num_bytes, split.num_uncompressed_bytes)
        if found != stated:
            raise DamageError(
                f"the totals of split {split.name!r} do not agree",
                where=where,
                why=f"{stated} against {found}",
            )


def _first_wrong(group: pa.Table) -> int | None:
    """Returns the first row whose blocks do not add up to the shard, as far as the columns are there."""
    lists = {name: group[name].chunk(0) for name in group.column_names if name.startswith("block_")}
    offsets = {name: column.offsets.to_numpy() - column.offsets[0].as_py() for name, column in lists.items()}
    bounds = offsets["block_num_examples"]
    is_wrong = np.zeros(group.num_rows, bool)
    for found in offsets.values():
        is_wrong |= np.diff(found) != np.diff(bounds)
    for name, total in () if is_wrong.any() else _BLOCK_TOTALS:
        if name not in lists:
            continue
        flat = _numbers(lists[name].flatten())
        is_negative = np.concatenate([[0], np.cumsum(flat < 0)])
        sums = np.concatenate([[0.0], np.cumsum(flat, dtype=np.float64)])
        exact = np.concatenate([[0], np.cumsum(flat)])
        held, own = np.diff(exact[bounds]), _numbers(group[total])
        is_wrong |= (held > own) if name == "block_num_bytes" else (held != own)
        # Numbers that together pass 2**63 could come around to the right sum.
        is_wrong |= (np.diff(is_negative[bounds]) > 0) | (np.diff(sums[bounds]) > 2.0**62)
    return int(np.flatnonzero(is_wrong)[0]) if is_wrong.any() else None


def _total(numbers: Int64s) -> int:
    # The sum of numbers below 2**63 need not be below it.
    return (int((numbers >> 32).sum()) << 32) + int((numbers & 0xFFFFFFFF).sum())


def _numbers(column: pa.Array | pa.ChunkedArray) -> Int64s:
    if column.null_count:
        raise ValueError("a number is missing")
    return np.asarray(column.to_numpy(), np.int64)
