"""Datasets of shardkit among the inputs. Their newest versions say which files are read, and of which split each is."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from shardkit.dataset.manifest import manifest_path
from shardkit.dataset.open import Dataset, open_dataset
from shardkit.errors import BadInputError, DamagedFileError, DamageError
from shardkit.sources.base import StoredShard
from shardkit.storage import files as storage

_MANIFEST = re.compile(r"(.+)/manifests/(\d{8})\.json")
_SHARD_TABLE = re.compile(r"(.+)/manifests/\d{8}(-[0-9a-f]{16})?\.shards\.parquet")


class Version(NamedTuple):
    """The folder of a dataset, and one of its versions."""

    folder: str
    number: int


def version_named(path: str) -> Version | None:
    """Returns the version of a dataset that the path of a manifest stands for, None for other paths."""
    found = _MANIFEST.fullmatch(path)
    if found is None or not any(map(_SHARD_TABLE.fullmatch, _beside(path))):
        return None
    return Version(found[1], int(found[2]))


def _beside(path: str) -> list[str]:
    folder = path.rpartition("/")[0]
    return [storage.join(folder, name) for name in storage.list_names(folder)]


def dataset_folders(paths: Collection[str]) -> list[str]:
    """Returns the folders of the datasets whose shard tables are among some files."""
    return sorted({found[1] for path in paths if (found := _SHARD_TABLE.fullmatch(path))})


def list_shards(
    folder: str, files: Mapping[str, storage.FileInfo], version: int | None = None
) -> dict[str, StoredShard]:
    """Returns the shards of a dataset by path; those without examples are left out.

    Args:
        folder: Of the dataset.
        files: All files in it, by path.
        version: Of the dataset; None means the newest.

    Raises:
        DamagedFileError: If a shard is not among the files, or has another size, or the dataset is damaged.
    """
    try:
        dataset = open_dataset(folder, version)
        table = dataset.shards
    except DamageError as error:
        raise as_input_error(error) from error
    manifest = storage.join(folder, manifest_path(dataset.version))
    found: dict[str, StoredShard] = {}
    for position, shard in enumerate(table):
        path = dataset.shard_url(shard)
        info = files.get(path)
        if info is None or info.num_bytes != shard.num_bytes:
            raise DamagedFileError(
                "a shard is missing" if info is None else "a shard has another size than its dataset says",
                where=storage.redact(path),
                next_step=dataset.check_step,
            )
        if shard.num_examples:
            found[path] = StoredShard(manifest=manifest, position=position, split=shard.split)
    return found


@functools.lru_cache(maxsize=64)
def dataset_of(manifest: str) -> Dataset:
    """Returns the version of a dataset that a manifest defines.

    Args:
        manifest: Path or URL of the manifest.

    Raises:
        DamagedFileError: If it cannot be read.
    """
    found = _MANIFEST.fullmatch(manifest)
    if found is None:
        raise BadInputError("this is no manifest", where=storage.redact(manifest))
    try:
        return open_dataset(found[1], int(found[2]))
    except DamageError as error:
        raise as_input_error(error) from error


def as_input_error(error: DamageError) -> DamagedFileError:
    """Returns the error for a dataset that is damaged and is an input."""
    return DamagedFileError(error.what, where=error.where, why=error.why, next_step=error.next_step)
