"""A source that makes a row of each item of a column of lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.errors import UsageError
from shardkit.features import Feature, Features, arrow_schema, make_feature
from shardkit.messages import shown
from shardkit.sources.base import MAX_ROWS_OF_A_SPLIT, InputSplit, RawFile, RowBatch, Source, SourceOptions, settle

# Rows made at once, so that long lists beside wide columns take little memory.
_ROWS_AT_ONCE = 65_536


@dataclass(frozen=True)
class ExplodedSource:
    """Gives each row of another source once for each item of a list, and once with null where there is no item.

    Args:
        column: Its column of lists, or of JSON. A JSON value that is no list is one item.
    """

    source: Source
    column: str

    @property
    def format(self) -> str:
        """Name of the format."""
        return self.source.format

    def settle(self, files: tuple[RawFile, ...], options: SourceOptions) -> SourceOptions:
        """Returns the options with what the files decide."""
        return settle(self.source, files, options)

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns the features, in which an item takes the place of the list.

        Raises:
            UsageError: If the column is not there, or holds no lists.
        """
        features = self.source.infer(files, options)
        if all(f.name != self.column for f in features):
            raise UsageError(
                f"--explode names a column {shown(self.column)} that is not there",
                next_step=f"The columns are: {', '.join(f.name for f in features)}",
            )
        return tuple(_item_of(f) if f.name == self.column else f for f in features)

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns the notes of the other source."""
        return self.source.notes(files, options)

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Returns the splits of the other source."""
        return self.source.split(files, options)

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields a row for each item."""
        for rows in self.source.read(split, files, self._lists(features), options):
            yield from self._exploded(rows, features)

    def read_together(
        self, indices: Sequence[int], files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> RowBatch | None:
        """Returns None: each file is read alone."""
        return None

    def _lists(self, features: Features) -> Features:
        return tuple(_list_of(f) if f.name == self.column else f for f in features)

    def _exploded(self, rows: RowBatch, features: Features) -> Iterator[RowBatch]:
        position = [f.name for f in features].index(self.column)
        lists, counts = _split_lists(rows.batch.column(position), features[position])
        parents = np.repeat(np.arange(len(counts)), np.maximum(counts, 1))
        firsts = np.cumsum(np.maximum(counts, 1)) - np.maximum(counts, 1)
        numbers = np.arange(len(parents)) - firsts[parents]
        items = (np.cumsum(counts) - counts)[parents] + numbers
        is_absent = counts[parents] == 0
        for start in range(0, max(len(parents), 1), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            taken = rows.batch.take(pa.array(parents[part]))
            values = lists.take(pa.array(items[part], mask=is_absent[part]))
            columns = [values if i == position else column for i, column in enumerate(taken.columns)]
            indices = rows.file_indices
            yield RowBatch(
                pa.RecordBatch.from_arrays(columns, schema=arrow_schema(features)),
                rows.identities[parents[part]] + numbers[part].astype(np.uint64) * np.uint64(MAX_ROWS_OF_A_SPLIT),
                indices if isinstance(indices, int) else indices[parents[part]],
                {} if start else rows.num_rounded,
                () if start else rows.rejected,
            )


def exploded(source: Source, options: SourceOptions) -> Source:
    """Returns the source that `--explode` asks for."""
    return source if options.explode is None else ExplodedSource(source, options.explode)


def _item_of(feature: Feature) -> Feature:
    if feature.is_json and feature.is_scalar:
        return msgspec.structs.replace(feature, nullable=True)
    if feature.is_scalar or None in feature.shape[1:]:
        raise UsageError(
            f"--explode {feature.name}: the column is {feature.describe_type()}, whose items are not known",
            next_step="Name a column of lists",
        )
    return msgspec.structs.replace(feature.with_shape(feature.shape[1:]), nullable=True)


def _list_of(item: Feature) -> Feature:
    if item.is_json and item.is_scalar:
        return item
    if item.shape:
        # How many arrays a row has is not known, so they are read as JSON.
        return make_feature(item.name, "json", nullable=True)
    return item.with_shape((None,))


def _split_lists(column: pa.Array, item: Feature) -> tuple[pa.Array, np.ndarray[Any, np.dtype[np.int64]]]:
    """Returns all items one behind the other, and how many each row has."""
    if item.is_json and item.is_scalar:
        texts = [[] if text is None else _json_items(text) for text in column.to_pylist()]
        flat = pa.array([text for items in texts for text in items], item.arrow_type)
        return flat, np.array([len(items) for items in texts], dtype=np.int64)
    if item.shape:
        arrays = [[] if text is None else msgspec.json.decode(text) for text in column.to_pylist()]
        flat = [None if array is None else np.ravel(array).tolist() for found in arrays for array in found]
        return pa.array(flat, item.arrow_type), np.array([len(found) for found in arrays], dtype=np.int64)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    return column.flatten(), lengths.astype(np.int64)


def _json_items(text: str) -> list[str | None]:
    if not text.startswith("["):
        return [None if text == "null" else text]
    found = msgspec.json.decode(text, type=list[msgspec.Raw])
    return [None if bytes(item) == b"null" else bytes(item).decode() for item in found]
