"""Datasets of shardkit among the inputs. Their newest versions say which files are read, and of which split each is."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shardkit.dataset.manifest import MANIFESTS_DIR, manifest_path, parse_manifest_name
from shardkit.dataset.open import Dataset, list_versions, open_dataset
from shardkit.errors import DamagedFileError, DamageError, UsageError
from shardkit.sources.base import StoredShard
from shardkit.sources.inventory import is_companion_file
from shardkit.storage import files as storage

_OWN = re.compile(r"/(manifests/[^/]+|data/[0-9a-f]{32}/.+|work/.+|[^/]+\.idx)$")
_SHARD_TABLE = re.compile(r"(.+)/manifests/\d{8}(-[0-9a-f]{16})?\.shards\.parquet")


class Version(NamedTuple):
    """The folder of a dataset, and one of its versions."""

    folder: str
    number: int


def version_named(path: str) -> Version | None:
    """Returns the version of a dataset that the path of a manifest stands for, None for other paths."""
    manifests, _, name = path.rpartition("/")
    folder, _, last = manifests.rpartition("/")
    number = parse_manifest_name(name) if last == MANIFESTS_DIR else None
    if number is None:
        return None
    beside = (storage.join(manifests, other) for other in storage.list_names(manifests))
    return Version(folder, number) if any(map(_SHARD_TABLE.fullmatch, beside)) else None


class Datasets(NamedTuple):
    """The datasets among some files.

    Attributes:
        shards: By path.
        others: Files in their folders that are not read.
        unlisted: Of these the ones that are none of shardkit's.
    """

    shards: dict[str, StoredShard]
    others: frozenset[str]
    unlisted: tuple[str, ...]


def find_datasets(files: Mapping[str, storage.FileInfo], named: Sequence[str], versions: Sequence[Version]) -> Datasets:
    """Returns the datasets whose shard tables are among some files.

    Args:
        files: All files, by path.
        versions: Versions that are asked for; of other datasets the newest is read.

    Raises:
        UsageError: If two versions of a dataset are asked for.
        DamagedFileError: If a dataset is damaged.
    """
    folders = {found[1] for path in files if (found := _SHARD_TABLE.fullmatch(path))}
    shards: dict[str, StoredShard] = {}
    others: set[str] = set()
    # A dataset may be in the folder of another one.
    for folder in sorted(folders, key=len, reverse=True):
        inside = {
            path: info
            for path, info in files.items()
            if path.startswith(f"{folder}/") and path not in shards and path not in others
        }
        is_named = any(folder == place or folder.startswith(f"{place}/") for place in named)
        asked = {version.number for version in versions if version.folder == folder}
        if len(asked) + is_named > 1:
            raise UsageError(
                "two versions of one dataset are named", where=storage.redact(folder), next_step="Name one of them"
            )
        if not asked and not is_named and all(path.startswith(f"{folder}/manifests/") for path in inside):
            # A glob over manifests.
            continue
        stored = list_shards(folder, inside, *asked)
        shards |= stored
        others |= inside.keys() - stored.keys()
    unlisted = [path for path in sorted(others) if not _OWN.search(path) and not is_companion_file(path)]
    return Datasets(shards, frozenset(others), tuple(unlisted))


def list_shards(
    folder: str, files: Mapping[str, storage.FileInfo], version: int | None = None
) -> dict[str, StoredShard]:
    """Returns the shards of a dataset by path; those without examples are left out.

    Args:
        files: All files in it, by path.
        version: Of the dataset; None means the newest.

    Raises:
        DamagedFileError: If a shard is not among the files, or has another size, or the dataset is damaged.
    """
    try:
        dataset = open_dataset(folder, version)
        table = dataset.shards
    except DamageError as error:
        older = [number for number in list_versions(folder) if version is None][:-1]
        if older:
            path = storage.redact(storage.join(folder, manifest_path(older[-1])))
            error.next_step = f"To read the version before, name its manifest: {path}"
        raise as_input_error(error) from error
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
            found[path] = StoredShard(
                dataset=folder,
                version=dataset.version,
                commit_id=dataset.manifest.created.commit_id,
                position=position,
                split=shard.split,
            )
    return found


@functools.lru_cache(maxsize=64)
def dataset_of(url: str, version: int, commit_id: str) -> Dataset:
    """Returns a version of a dataset.

    Args:
        commit_id: Of its manifest when it was listed.

    Raises:
        DamagedFileError: If it cannot be read, or is another one by now.
    """
    try:
        dataset = open_dataset(url, version)
    except DamageError as error:
        raise as_input_error(error) from error
    if dataset.manifest.created.commit_id != commit_id:
        raise DamagedFileError(
            "the dataset was changed during conversion",
            where=storage.redact(url),
            next_step="Run the same command again",
        )
    return dataset


def as_input_error(error: DamageError) -> DamagedFileError:
    """Returns the error for a dataset that is damaged and is an input."""
    return DamagedFileError(error.what, where=error.where, why=error.why, next_step=error.next_step)
