"""Rebase: an append follows the versions that other appends made meanwhile, as in Lance and Iceberg."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import xxhash

from shardkit.conversion.inputs.append_check import first_known
from shardkit.conversion.plan import BaseVersion, Plan
from shardkit.dataset.append_info import appended_to
from shardkit.dataset.manifest import Manifest
from shardkit.dataset.open import list_versions, open_dataset
from shardkit.errors import ConflictError, DamageError
from shardkit.features import Features
from shardkit.messages import printable
from shardkit.sources.base import RawFile
from shardkit.storage import files as storage

RUN_AGAIN = "Run the same command again: it appends to the newest version"
MAX_REBASES = 10


class Append(NamedTuple):
    """What an append brings: the version that it was planned behind, its features, its files, and their root."""

    base: BaseVersion
    features: Features
    files: tuple[RawFile, ...]
    root: str


def newest_base(plan: Plan, base: BaseVersion) -> BaseVersion:
    """Returns the version that an append goes behind: its base, or the newest one if appends alone made those between.

    Raises:
        ConflictError: If another command did something else, added one of the same files, or `--no-rebase` is given.
    """
    versions = list_versions(plan.destination, base.version)
    root = plan.created.roots[0].path if plan.created.roots else ""
    files = (*plan.files, *(damaged.file for damaged in plan.damaged_files))

    def load(version: int) -> Manifest:
        return open_dataset(plan.destination, version).manifest

    why = why_not_behind(Append(base, plan.features, files, root), versions, load, rebases=plan.rebases)
    if why is None:
        is_base = versions[-1] == base.version
        return base if is_base else BaseVersion(version=versions[-1], fingerprint=load(versions[-1]).fingerprint)
    raise ConflictError(
        "the dataset changed meanwhile",
        where=storage.redact(plan.destination),
        why=why,
        state="Nothing was appended",
        next_step=RUN_AGAIN,
    )


def fingerprint_behind(plan: Plan, base: BaseVersion) -> str:
    """Returns the name of a version and an append that was planned behind an earlier one."""
    if base == plan.base:
        return plan.fingerprint
    return xxhash.xxh3_128_hexdigest(f"{base.fingerprint}\0{plan.fingerprint}".encode())


def why_not_behind(
    append: Append, versions: Sequence[int], load: Callable[[int], Manifest], *, rebases: bool
) -> str | None:
    """Returns why an append cannot go behind the newest version, None if it can. Pure but for `load`.

    Args:
        versions: That are there, ascending.
        load: Returns the manifest of a version; raises DamageError.
        rebases: Whether it may go behind another version than its base.
    """
    base = append.base.version
    if versions[-1:] == [base]:
        return None
    if not versions or not rebases:
        return f"version {base} is no longer the newest"
    newest = versions[-1]
    if (why := _why_no_rebase(append, newest, load)) is not None:
        return why
    same = first_known(load(newest), append.files, append.root)
    return None if same is None else f"version {newest} has {printable(same)} already, or a file that may be the same"


def _why_no_rebase(append: Append, newest: int, load: Callable[[int], Manifest]) -> str | None:
    """Returns None if only appends made the versions behind the base of an append."""
    base, version, fingerprint = append.base, newest, None
    while version > base.version:
        try:
            manifest = load(version)
            before = appended_to(manifest)
        except DamageError as error:
            return f"version {version} cannot be read: {error.what}"
        if fingerprint not in (None, manifest.fingerprint) or before is None or before.version >= version:
            return f"version {version} was not made by an append"
        if manifest.features != append.features:
            return f"version {version} has other features"
        version, fingerprint = before.version, before.fingerprint
    is_same = (version, fingerprint) == (base.version, base.fingerprint)
    return None if is_same else f"the newest version does not go back to version {base.version}"
