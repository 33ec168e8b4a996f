"""Rebase: an append follows the versions that other appends made meanwhile, as in Lance and Iceberg."""

from __future__ import annotations

from collections.abc import Callable

import xxhash

from shardkit.conversion.inputs.append_check import first_known
from shardkit.conversion.plan import BaseVersion, Plan
from shardkit.dataset.append_info import appended_to
from shardkit.dataset.manifest import Manifest
from shardkit.dataset.open import list_versions, open_dataset
from shardkit.errors import ConflictError, DamageError
from shardkit.features import Features
from shardkit.messages import printable
from shardkit.storage import files as storage

RUN_AGAIN = "Run the same command again: it appends to the newest version"
MAX_REBASES = 10


def newest_base(plan: Plan, base: BaseVersion) -> BaseVersion:
    """Returns the version that an append goes behind: its base, or the newest one if appends alone made those between.

    Raises:
        ConflictError: If another command did something else, added one of the same files, or `--no-rebase` is given.
    """
    versions = list_versions(plan.destination, base.version)
    if versions[-1:] == [base.version]:
        return base
    why = f"version {base.version} is no longer the newest"
    if versions and plan.rebases:
        refusal = _why_not(plan, base, versions[-1])
        if refusal is None:
            newest = open_dataset(plan.destination, versions[-1]).manifest
            return BaseVersion(version=versions[-1], fingerprint=newest.fingerprint)
        why = refusal
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


def why_no_rebase(base: BaseVersion, newest: int, features: Features, load: Callable[[int], Manifest]) -> str | None:
    """Returns why an append cannot go behind the newest version, None if only appends made those behind its base.

    Args:
        base: That it was planned behind.
        newest: The newest version.
        features: Of the append.
        load: Returns the manifest of a version; raises DamageError.
    """
    version, fingerprint = newest, None
    while version > base.version:
        try:
            manifest = load(version)
            before = appended_to(manifest)
        except DamageError as error:
            return f"version {version} cannot be read: {error.what}"
        if fingerprint not in (None, manifest.fingerprint) or before is None or before.version >= version:
            return f"version {version} was not made by an append"
        if manifest.features != features:
            return f"version {version} has other features"
        version, fingerprint = before.version, before.fingerprint
    is_same = (version, fingerprint) == (base.version, base.fingerprint)
    return None if is_same else f"the newest version does not go back to version {base.version}"


def _why_not(plan: Plan, base: BaseVersion, newest: int) -> str | None:
    def load(version: int) -> Manifest:
        return open_dataset(plan.destination, version).manifest

    refusal = why_no_rebase(base, newest, plan.features, load)
    if refusal is not None:
        return refusal
    root = plan.created.roots[0].path if plan.created.roots else ""
    files = (*plan.files, *(damaged.file for damaged in plan.damaged_files))
    same = first_known(load(newest), files, root)
    return None if same is None else f"version {newest} has {printable(same)} already, or a file that may be the same"
