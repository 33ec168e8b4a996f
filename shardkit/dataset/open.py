"""Opening a committed dataset: the highest valid manifest, and its shard table. Nothing is found by globbing."""

from __future__ import annotations

import itertools
import os
import shlex
from functools import cached_property
from typing import NoReturn

from shardkit.dataset.block_cache import BlockCache
from shardkit.dataset.manifest import (
    MANIFESTS_DIR,
    Manifest,
    ShardInfo,
    decode_manifest,
    manifest_path,
    parse_manifest_name,
)
from shardkit.dataset.shard_table import ShardTable, decode_shard_table
from shardkit.errors import DamageError, StorageError, UnsafeError, UsageError
from shardkit.storage import files as storage
from shardkit.storage.regular_files import NotRegularError

_RENEW = (
    "To make it anew, run the same `shardkit convert` again with --overwrite, or `shardkit index` where files of "
    "others were indexed"
)


class Dataset:
    """One version of a dataset.

    Attributes:
        url: Absolute local path or URL of the dataset.
        version: Number of the manifest, from 1; 0 if it is not stored.
        block_cache: Where blocks that were read from a store are kept; None keeps none.

    Args:
        shards: The shard table, where it is not stored; None reads it when it is needed.
    """

    def __init__(self, url: str, version: int, manifest: Manifest, shards: ShardTable | None = None) -> None:
        self.url = url
        self.version = version
        self.manifest = manifest
        self.block_cache: BlockCache | None = None
        if shards is not None:
            self.shards = shards

    @cached_property
    def shards(self) -> ShardTable:
        """All shards, by split in the manifest's order, then by index. Loads the shard table.

        Raises:
            DamageError: If the table is missing or does not agree with the manifest. Blocks that do not add up to their
                shard are noticed when they are read.
        """
        path = storage.join(self.url, self.manifest.shard_table.path)
        where = storage.redact(path)
        try:
            return storage.read_decoded(path, lambda raw: decode_shard_table(raw, self.manifest, where))
        except FileNotFoundError as error:
            step = f"{self.check_step}. Or give the version up: {give_up_command(self.url)}"
            raise DamageError("the shard table is missing", where=where, next_step=step) from error
        except DamageError as error:
            error.next_step = error.next_step or self.check_step
            raise
        except OSError as error:
            _raise_unreadable("the shard table", error, where, self.check_step)

    @property
    def check_step(self) -> str:
        """What to do where a shard or the shard table is damaged, for messages."""
        location = shlex.quote(storage.redact(self.url))
        if not self.version:
            return f"If files changed, open them anew; to check them and keep what is found: shardkit index {location}"
        return f"Run: shardkit verify {location}"

    def split_shards(self, split: str) -> ShardTable:
        """Returns the shards of one split, in order. Raises UsageError if there is no such split."""
        own = self.manifest.split(split)
        start = sum(s.num_shards for s in itertools.takewhile(lambda s: s.name != own.name, self.manifest.splits))
        return self.shards.part(start, start + own.num_shards)

    def shard_url(self, shard: ShardInfo) -> str:
        """Returns the place of a shard."""
        return storage.join(self.url, shard.path)


def list_versions(url: str | os.PathLike[str], known: int | None = None) -> list[int]:
    """Returns the versions that have a manifest, ascending; empty if there is no dataset.

    Args:
        known: A version that was there, 0 for none. A store may list a new file late: it is asked for this version, and
            for those behind the newest one, by name. None believes the list.

    Raises:
        StorageError: If the store says of any name that it is there.
    """
    root = storage.normalize(url)
    names = storage.list_names(storage.join(root, MANIFESTS_DIR))
    versions = {v for v in map(parse_manifest_name, names) if v is not None}
    if known is not None and not storage.is_local(root):
        if known and known not in versions and _has_version(root, known):
            versions.add(known)
        while _has_version(root, following := max(versions, default=0) + 1):
            # No dataset has it; some web servers answer every name with one and the same page.
            if _has_version(root, 0):
                raise StorageError(
                    "there is no dataset to be found",
                    where=storage.redact(root),
                    why="the store says of every name that it is there",
                    next_step="Check the URL",
                )
            versions.add(following)
    return sorted(versions)


def _has_version(root: str, version: int) -> bool:
    return storage.exists(storage.join(root, manifest_path(version)))


def newest_version(url: str | os.PathLike[str]) -> int:
    """Returns the number of the newest version of a dataset, 0 if there is none."""
    return max(list_versions(url), default=0)


def open_dataset(url: str | os.PathLike[str], version: int | None = None) -> Dataset:
    """Opens a dataset, the newest version unless one is named.

    Raises:
        UsageError: If there is no dataset, or no such version, or a newer shardkit wrote it.
        DamageError: If the manifest is damaged; names the version before it, if there is one.
        StorageError: If it cannot be read.
    """
    root = storage.normalize(url)
    versions = list_versions(root, version) or list_versions(root, 0)
    if not versions:
        raise UsageError(
            "there is no dataset",
            where=storage.redact(root),
            why="it holds no manifest",
            next_step="If a conversion was cut off, run the same `shardkit convert` again: it goes on where it stopped",
        )
    chosen = versions[-1] if version is None else version
    if chosen not in versions:
        raise UsageError(
            f"there is no version {chosen}",
            where=storage.redact(root),
            next_step=f"It has: {', '.join(map(str, versions))}",
        )
    path = storage.join(root, manifest_path(chosen))
    where = storage.redact(path)
    older = [v for v in versions if v < chosen]
    hint = _RENEW
    if older:
        hint = f"Version {older[-1]} may still be whole: use --version {older[-1]}. {give_up_step(root, chosen)}"
    try:
        manifest = storage.read_decoded(path, lambda raw: decode_manifest(raw, where))
    except (DamageError, UnsafeError) as error:
        raise error.with_state("Nothing was changed", hint) from error
    except OSError as error:
        _raise_unreadable("the manifest", error, where, hint)
    return Dataset(root, chosen, manifest)


def give_up_command(url: str) -> str:
    """Returns the command that removes the manifests of versions that cannot be read, for messages."""
    return f"shardkit clean {shlex.quote(storage.redact(url))} --drop-broken-version --delete"


def give_up_step(url: str, version: int) -> str:
    """Returns how to come by a version again that cannot be read, however it was made, for messages.

    To overwrite it with the inputs of an append would lose the rows that it was appended to.
    """
    return f"Give version {version} up: {give_up_command(url)}. Then run again the command that made it"


def _raise_unreadable(what: str, error: OSError, where: str, next_step: str) -> NoReturn:
    why = error.strerror or str(error)
    if isinstance(error, (NotRegularError, FileNotFoundError)):
        raise DamageError(f"{what} cannot be read", where=where, why=why, next_step=next_step) from error
    next_step = "Check that it may be read, then run the same again"
    raise StorageError(f"{what} cannot be read", where=where, why=why.lower(), next_step=next_step) from error
