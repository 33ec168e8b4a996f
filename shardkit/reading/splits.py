"""What `shardkit.open` gives: a dataset whose splits are read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from shardkit.dataset.block_cache import DEFAULT_CACHE_BYTES, open_cache
from shardkit.dataset.manifest import Manifest
from shardkit.dataset.open import Dataset, open_dataset
from shardkit.features import Features
from shardkit.reading.split import Split
from shardkit.storage import files as storage


class Splits(Mapping[str, Split]):
    """The splits of a dataset by name."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self._splits = {s.name: Split(dataset, s.name) for s in dataset.manifest.splits}

    def __getitem__(self, name: str) -> Split:
        self.dataset.manifest.split(name)
        return self._splits[name]

    def __contains__(self, name: object) -> bool:
        return name in self._splits

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the split of that name, or the default."""
        return self._splits.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._splits)

    def __len__(self) -> int:
        return len(self._splits)

    @property
    def manifest(self) -> Manifest:
        """What the dataset holds."""
        return self.dataset.manifest

    @property
    def features(self) -> Features:
        """What each example has."""
        return self.dataset.manifest.features


def open_splits(
    url: str | os.PathLike[str],
    version: int | None = None,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | str = DEFAULT_CACHE_BYTES,
) -> Splits:
    """Opens a dataset for reading; see `shardkit.open`."""
    cache = None
    if cache_dir is not None and not storage.is_local(storage.normalize(url)):
        cache = open_cache(cache_dir, cache_bytes)
    dataset = open_dataset(url, version)
    dataset.block_cache = cache
    return Splits(dataset)
