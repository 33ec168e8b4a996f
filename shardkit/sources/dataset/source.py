"""Datasets of shardkit as inputs: a shard is a file that knows its columns, and its blocks are the pieces of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import ClassVar

import msgspec
import pyarrow as pa

from shardkit.dataset.block_index import list_blocks
from shardkit.dataset.block_reader import BlockReader, list_runs
from shardkit.dataset.manifest import manifest_path
from shardkit.dataset.open import Dataset
from shardkit.encoding.decoder import RecordDecoder
from shardkit.errors import BadInputError, DamageError
from shardkit.features import Feature, Features
from shardkit.messages import shown
from shardkit.sources.base import InputSplit, RawFile, SourceOptions, StoredShard, choose_split_bytes, place
from shardkit.sources.columnar.arrow_columns import Column
from shardkit.sources.columnar.schemas import cut_pieces, infer_features
from shardkit.sources.columnar.source import ColumnarSource, Container, CountedContainer
from shardkit.sources.dataset.inputs import as_input_error, dataset_of


@dataclass(frozen=True)
class DatasetSource(ColumnarSource):
    """Datasets of shardkit, with the types, the classes and the shapes that their manifests state.

    Classes of several datasets that differ become one list: those of the first, and behind them those of the others.
    """

    format: str = "dataset"
    kind: ClassVar[str] = "dataset"

    @contextmanager
    def open_file(self, file: RawFile, options: SourceOptions) -> Iterator[Container]:
        yield _Shard(file)

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns the features of the datasets.

        Raises:
            UsageError: If features of several datasets do not go together.
        """
        columns = {url: _columns_of(dataset) for url, dataset in _datasets(files).items()}
        classes = _united_classes(list(columns.values()))
        united = {
            url: tuple(msgspec.structs.replace(c, classes=c.classes and classes[c.name]) for c in found)
            for url, found in columns.items()
        }
        # The schema is that of the manifest, which messages name.
        first = {_stored(file).dataset: file for file in reversed(files)}
        manifests = [msgspec.structs.replace(file, name=_manifest_name(file)) for file in first.values()]
        return infer_features(manifests[::-1], lambda file: united[_stored(file).dataset], options)

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns notes on the versions that are read, and on classes that were put together."""
        datasets = _datasets(files).values()
        notes = [
            f"version {dataset.version} of the dataset {shown(dataset.manifest.name)} is read, whose fingerprint is "
            f"{dataset.manifest.fingerprint}"
            for dataset in datasets
        ]
        columns = [_columns_of(dataset) for dataset in datasets]
        for name, classes in _united_classes(columns).items():
            if any(c.name == name and c.classes not in (None, classes) for found in columns for c in found):
                notes.append(f"the datasets have different classes in {shown(name)}, together {len(classes)}")
        return (*notes, *super().notes(files, options))


class _Shard(CountedContainer):
    def __init__(self, file: RawFile) -> None:
        stored = _stored(file)
        self._file = file
        self._dataset = dataset_of(stored.dataset, stored.version, stored.commit_id)
        try:
            self._blocks = list_blocks(self._dataset.shards[stored.position])
        except DamageError as error:
            raise as_input_error(error) from error

    def columns(self) -> tuple[Column, ...]:
        return _columns_of(self._dataset)

    def cuts(self, split_bytes: int | None) -> Iterator[InputSplit]:
        pieces = [(block.num_bytes, block.num_bytes) for block in self._blocks]
        return cut_pieces(pieces, split_bytes or choose_split_bytes(self._file.num_bytes))

    def batches(self, split: InputSplit, features: Features, batch_bytes: int) -> Iterator[pa.RecordBatch]:
        wanted = {feature.name: feature for feature in features}
        own = tuple(feature for feature in self._dataset.manifest.features if feature.name in wanted)
        decoder = RecordDecoder(own)
        blocks = self._blocks[split.start : split.stop]
        try:
            with closing(BlockReader(self._dataset)) as readers, readers.borrow() as reader:
                for run in list_runs(self._dataset, blocks):
                    for block, frames in zip(run, reader.read(run), strict=True):
                        batch = decoder.decode(frames, readers.where(block))
                        columns = [_in_words(c, f, wanted[f.name]) for c, f in zip(batch.columns, own, strict=True)]
                        yield pa.RecordBatch.from_arrays(columns, names=[feature.name for feature in own])
        except DamageError as error:
            raise as_input_error(error) from error

    def count_rows(self, start: int, stop: int) -> int:
        return sum(block.num_examples for block in self._blocks[start:stop])


def _stored(file: RawFile) -> StoredShard:
    if file.shard is None:
        raise BadInputError("the file is no shard of a dataset", where=place(file), next_step="Name a dataset's folder")
    return file.shard


def _manifest_name(file: RawFile) -> str:
    stored = _stored(file)
    return file.name.removesuffix(file.path.removeprefix(f"{stored.dataset}/")) + manifest_path(stored.version)


def _datasets(files: tuple[RawFile, ...]) -> dict[str, Dataset]:
    """Returns the datasets of some shards by their location."""
    found = dict.fromkeys((stored.dataset, stored.version, stored.commit_id) for stored in map(_stored, files))
    return {url: dataset_of(url, version, commit_id) for url, version, commit_id in found}


def _columns_of(dataset: Dataset) -> tuple[Column, ...]:
    return tuple(
        Column(
            name=feature.name,
            type_=feature.arrow_type,
            nullable=feature.nullable,
            media_type=feature.media_type,
            classes=feature.vocabulary,
            shape=tuple(size or 0 for size in feature.shape) if len(feature.shape) > 1 else None,
        )
        for feature in dataset.manifest.features
    )


def _united_classes(datasets: list[tuple[Column, ...]]) -> dict[str, tuple[str, ...]]:
    """Returns the classes that each column has in any dataset, in the order in which they are met."""
    found: dict[str, dict[str, None]] = {}
    for column in (column for columns in datasets for column in columns if column.classes is not None):
        found.setdefault(column.name, {}).update(dict.fromkeys(column.classes or ()))
    return {name: tuple(classes) for name, classes in found.items()}


def _in_words(column: pa.Array, own: Feature, wanted: Feature) -> pa.Array:
    # Indices of other classes: the names are looked up in those of the result.
    if own.vocabulary is None or own.vocabulary == wanted.vocabulary:
        return column
    if wanted.vocabulary is None and wanted.dtype != "string":
        return column
    names = pa.array(own.vocabulary, pa.string())
    if own.is_scalar:
        return names.take(column)
    values, mask = names.take(column.values), column.is_null()
    if own.num_values is None:
        return pa.ListArray.from_arrays(column.offsets, values, mask=mask)
    return pa.FixedSizeListArray.from_arrays(values, own.num_values, mask=mask)
