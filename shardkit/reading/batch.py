"""Batches: stored values as NumPy columns, and rows that are in several blocks, decoded where they are."""

from __future__ import annotations

import decimal
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.dataset.block_loader import Block
from shardkit.decode_errors import DECODE_ERRORS
from shardkit.encoding.decoder import RecordDecoder
from shardkit.encoding.kernel import objects_of
from shardkit.errors import DamageError, UsageError
from shardkit.features import Feature, Features

Bools = npt.NDArray[np.bool_]
Piece = tuple[Block, int, int]
"""Neighbouring rows of a block: it, the first, and the one after the last. A batch has dozens; a class takes longer."""

_STORED: dict[str, np.dtype[Any]] = {"int64_list": np.dtype(np.int64), "float_list": np.dtype(np.float32)}


class Ragged(NamedTuple):
    """Lists of any length, row after row.

    Attributes:
        values: All values, `[row_splits[-1]]`.
        row_splits: int32 `[n + 1]`: row i is `values[row_splits[i] : row_splits[i + 1]]`.
    """

    values: npt.NDArray[Any]
    row_splits: npt.NDArray[np.int32]

    @property
    def num_rows(self) -> int:
        """How many lists there are."""
        return len(self.row_splits) - 1

    def row(self, index: int) -> npt.NDArray[Any]:
        """Returns one list, without a copy."""
        return self.values[self.row_splits[index] : self.row_splits[index + 1]]

    def row_lengths(self) -> npt.NDArray[np.int32]:
        """Returns the length of each list."""
        return np.diff(self.row_splits)

    def to_dense(self, length: int, fill: Any = 0) -> npt.NDArray[Any]:
        """Returns the lists as an array `[n, length]`, filled up with `fill`. Raises UsageError if a list is longer."""
        lengths = self.row_lengths()
        if len(lengths) and lengths.max() > length:
            raise UsageError(
                f"a list has no room in an array [n, {length}]",
                why=f"the longest of {len(lengths):,} has {lengths.max():,} values",
                next_step="Give at least its length",
            )
        dense = np.full((len(lengths), length), fill, self.values.dtype)
        dense[np.arange(length) < lengths[:, None]] = self.values[self.row_splits[0] : self.row_splits[-1]]
        return dense


Column = npt.NDArray[Any] | Ragged


class Batch(Mapping[str, Column]):
    """Some examples as columns by feature name.

    A column is `[n, *shape]` of the feature's dtype: `datetime64` for dates and timestamps, `timedelta64` for durations
    and times of day, objects for text (`str`), bytes and decimals; lists of any length are `Ragged`. A null is 0, NaN,
    NaT or empty.

    Attributes:
        present: By name of every nullable feature: bool `[n]`, False where the example lacks it.
        mask: bool `[n]`: False for rows that only fill up the last batch; None where every row is an example.
        pad_to: Boundary of the batch's length bucket, the same for all workers; None without buckets. What
            `batch["tokens"].to_dense(batch.pad_to)` gives has one shape a bucket.
    """

    def __init__(
        self,
        columns: dict[str, Column],
        present: dict[str, Bools],
        mask: Bools | None = None,
        pad_to: int | None = None,
    ) -> None:
        self._columns = columns
        self.present = present
        self.mask = mask
        self.pad_to = pad_to

    def __getitem__(self, name: str) -> Column:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return f"Batch({self._columns!r})"


class BatchMaker:
    """Makes batches of decoded records; numbers that are stored as they are in memory are not copied.

    Attributes:
        takes_objects: For each feature, whether a list of bytes objects will do.

    Args:
        decodes_text: Whether text becomes `str` and decimals `Decimal`, instead of the bytes that are stored.
    """

    def __init__(self, features: Features, *, decodes_text: bool = True) -> None:
        self._columns = [_ColumnMaker(f, decodes_text) for f in features]
        self.takes_objects = [column.takes_objects for column in self._columns]

    def make(self, columns: list[tuple[Any, ...]], num_rows: int) -> Batch:
        """Returns the result of `shardkit.encoding.decoder.RecordDecoder.decode_pieces` as a batch."""
        found: dict[str, Column] = {}
        present: dict[str, Bools] = {}
        for maker, (validity, *buffers) in zip(self._columns, columns, strict=True):
            bools = None if validity is None else np.frombuffer(validity, np.bool_)
            if bools is None and maker.plain_dtype is not None:
                found[maker.name] = np.frombuffer(buffers[0], maker.plain_dtype)
            else:
                found[maker.name] = maker.make(buffers, num_rows, bools)
            if maker.is_nullable:
                present[maker.name] = _all_true(num_rows) if bools is None else bools
        return Batch(found, present)


def _all_true(num_rows: int) -> Bools:
    # NumPy's own `ones` is a function in Python.
    bools = np.empty(num_rows, np.bool_)
    bools.fill(True)
    return bools


class _ColumnMaker:
    """Makes the column of one feature from its stored values.

    Attributes:
        takes_objects: Whether a list of bytes objects will do.
        plain_dtype: Of a column that, if no row is null, is the stored values as they are; None if there is more to do.
    """

    def __init__(self, feature: Feature, decodes_text: bool) -> None:
        self.name = feature.name
        self.is_nullable = feature.nullable
        self._feature = feature
        self._shape = feature.shape
        self._size = feature.num_values
        self._is_json = decodes_text and feature.is_json
        self._is_text = decodes_text and feature.dtype == "string" and not feature.is_json
        self._is_decimal = decodes_text and feature.dtype.startswith("decimal")
        self._dtype = _numpy_dtype(feature)
        is_raw = feature.stored_as == "little_endian_bytes"
        self._stored = self._dtype if is_raw else _STORED.get(feature.stored_as)
        self._empty = empty_value(feature, decodes_text=decodes_text)
        self.takes_objects = (
            feature.is_scalar and self._stored is None and not (self._is_text or self._is_json or self._is_decimal)
        )
        self.plain_dtype = self._dtype if not self._shape and self._dtype == self._stored else None

    def make(self, buffers: list[Any], num_rows: int, present: Bools | None) -> Column:
        """Returns the column; `present` is None if no row is null."""
        if isinstance(buffers[0], list):
            objects = np.empty(num_rows, np.object_)
            objects[:] = buffers[0]
            return objects
        if self._size is None:
            splits = np.frombuffer(buffers[0], np.int32)
            return Ragged(self._values(buffers[1:], None), splits)
        if self._stored is None and self._size != 1:
            return self._fixed_objects(buffers, num_rows)
        values = self._values(buffers, present if self._is_decimal else None)
        if self._shape:
            values = values.reshape(num_rows, *(size or 0 for size in self._shape))
        if present is not None and self._dtype.kind in "fMm":
            # In place: the values are the batch's own.
            values[~present] = self._empty
        return values

    def _values(self, buffers: list[Any], present: Bools | None) -> npt.NDArray[Any]:
        if self._stored is None:
            return self._objects(buffers, present)
        numbers: npt.NDArray[Any] = np.frombuffer(buffers[0], self._stored)
        if self._dtype == self._stored:
            return numbers
        if self._dtype.kind == "b":
            bools: Bools = numbers != 0
            return bools
        if self._dtype.itemsize != self._stored.itemsize:
            narrow: npt.NDArray[Any] = numbers.astype(self._dtype)
            return narrow
        other: npt.NDArray[Any] = numbers.view(self._dtype)
        return other

    def _objects(self, buffers: list[Any], present: Bools | None) -> npt.NDArray[Any]:
        if self._is_json:
            texts = objects_of(buffers[0], buffers[1], is_text=False)
            return np.fromiter((msgspec.json.decode(t) if t else None for t in texts), np.object_, len(texts))
        if not self._is_decimal:
            return objects_of(buffers[0], buffers[1], is_text=self._is_text)
        offsets, content = (pa.py_buffer(buffer) for buffer in buffers)
        array = pa.Array.from_buffers(pa.binary(), offsets.size // 4 - 1, [None, offsets, content])
        if present is not None:
            array = pc.if_else(pa.array(present), array, b"0")
        decimals: npt.NDArray[Any] = (
            array.cast(pa.string()).cast(self._feature.value_type).to_numpy(zero_copy_only=False)
        )
        return decimals

    def _fixed_objects(self, buffers: list[Any], num_rows: int) -> npt.NDArray[Any]:
        # Null rows have no values at all.
        splits = np.frombuffer(buffers[0], np.int32)
        rows = np.full((num_rows, self._size or 0), self._empty, object)
        rows[np.diff(splits) > 0] = self._objects(buffers[1:], None).reshape(-1, self._size or 0)
        return rows.reshape(num_rows, *(size or 0 for size in self._shape))


class Assembler:
    """Makes batches of rows that are in several blocks; for any number of threads."""

    def __init__(self, features: Features, *, decodes_text: bool = True) -> None:
        self._decoder = RecordDecoder(features)
        self._maker = BatchMaker(features, decodes_text=decodes_text)

    def assemble(self, pieces: list[Piece]) -> Batch:
        """Returns the rows of the pieces as one batch, in their order.

        Raises:
            DamageError: If a record is no example with these features; names shard, block and record.
        """

        def locate(row: int) -> str:
            for block, start, stop in pieces:
                if row < stop - start:
                    return f"{block.where}, record {block.stored_rows[start + row]}"
                row -= stop - start
            raise IndexError(row)

        columns = self._decoder.decode_pieces(pieces, locate, self._maker.takes_objects)
        try:
            return self._maker.make(columns, sum([stop - start for _, start, stop in pieces]))
        except (pa.ArrowException, *DECODE_ERRORS) as error:
            blocks = ", ".join(sorted({block.where for block, _, _ in pieces}))
            raise DamageError("text cannot be read", where=blocks, why=str(error)) from error


def pad(batch: Batch, features: Features, num_real: int, num_rows: int, *, decodes_text: bool = True) -> Batch:
    """Returns a batch of `num_real` rows filled up to `num_rows` with nulls, and its mask.

    Of floats it is 0 that fills up: a weight of 0 makes no number of NaN.
    """
    columns = {}
    for feature in features:
        column = batch[feature.name]
        is_float = not isinstance(column, Ragged) and column.dtype.kind == "f"
        empty = 0 if is_float else empty_value(feature, decodes_text=decodes_text)
        columns[feature.name] = _padded(column, empty, num_rows - num_real)
    present = {name: np.pad(bools, (0, num_rows - num_real)) for name, bools in batch.present.items()}
    return Batch(columns, present, np.arange(num_rows) < num_real)


def _padded(column: Column, empty: Any, num_more: int) -> Column:
    if isinstance(column, Ragged):
        return Ragged(column.values, np.pad(column.row_splits, (0, num_more), mode="edge"))
    return np.concatenate([column, np.full((num_more, *column.shape[1:]), empty, column.dtype)])


def _numpy_dtype(feature: Feature) -> np.dtype[Any]:
    type_ = feature.value_type
    if feature.stored_as == "bytes_list":
        return np.dtype(object)
    if pa.types.is_date32(type_):
        return np.dtype("M8[D]")
    if pa.types.is_timestamp(type_):
        return np.dtype(f"M8[{type_.unit}]")
    if pa.types.is_temporal(type_):
        return np.dtype(f"m8[{type_.unit}]")
    return np.dtype(feature.dtype)


def empty_value(feature: Feature, *, decodes_text: bool = True) -> Any:
    """Returns the value that stands for a null."""
    if feature.stored_as == "bytes_list":
        if not decodes_text:
            return b""
        if feature.is_json:
            return None
        return {"string": "", "bytes": b""}.get(feature.dtype, decimal.Decimal(0))
    kind = _numpy_dtype(feature).kind
    return {"f": np.nan, "M": np.datetime64("NaT"), "m": np.timedelta64("NaT"), "b": False}.get(kind, 0)
