"""Joins the result of one conversion with the version that it is appended to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from shardkit.conversion.commit.rebase import RUN_AGAIN
from shardkit.conversion.commit.statistics_parts import read_statistics
from shardkit.conversion.plan import BaseVersion, Plan
from shardkit.dataset.append_info import AppendedTo
from shardkit.dataset.documents import Accounting
from shardkit.dataset.manifest import Created, InputRoot, Json, ShardInfo, SplitInfo
from shardkit.dataset.open import Dataset, open_dataset
from shardkit.errors import ConflictError, DamageError, UsageError
from shardkit.statistics.collector import merge_parts, merge_statistics


class ManifestParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a manifest that grow.

    Attributes:
        splits: Those that have examples, in the order of the recipe.
        shards: By split, then by index.
        packed_statistics: By split, what its statistics are made of.
    """

    splits: tuple[SplitInfo, ...]
    shards: Sequence[ShardInfo]
    accounting: Accounting
    created: Created
    recipe: dict[str, Json]
    packed_statistics: Mapping[str, bytes]
    base: AppendedTo | None = None


def after_base(plan: Plan, base: BaseVersion, made: ManifestParts) -> ManifestParts:
    """Returns the old version and the new result, one behind the other.

    Raises:
        ConflictError: If the version is not there as it was.
        DamageError: If it cannot be read.
    """
    dataset = _open(plan, base)
    manifest = dataset.manifest
    packed_statistics = read_statistics(dataset)
    splits: list[SplitInfo] = []
    shards: list[ShardInfo] = []
    old = {s.name: s for s in manifest.splits}
    new = {s.name: s for s in made.splits}
    merged: dict[str, bytes] = {}
    for name in (s.name for s in plan.recipe.splits):
        parts = [part for part in (old.get(name), new.get(name)) if part is not None]
        if not parts:
            continue
        own = [*(dataset.split_shards(name) if name in old else ()), *(s for s in made.shards if s.split == name)]
        shards += [msgspec.structs.replace(s, shard_index=i) for i, s in enumerate(own)]
        states = [states[name] for states in (packed_statistics, made.packed_statistics) if name in states]
        merged[name] = merge_parts(states, plan.features)
        splits.append(
            SplitInfo(
                name=name,
                num_shards=len(own),
                num_examples=sum(p.num_examples for p in parts),
                num_bytes=sum(p.num_bytes for p in parts),
                num_uncompressed_bytes=sum(p.num_uncompressed_bytes for p in parts),
                statistics=merge_statistics([merged[name]], plan.features),
            )
        )
    before = manifest.accounting
    link = AppendedTo(version=base.version, fingerprint=base.fingerprint, num_inputs=len(before.inputs))
    return ManifestParts(
        splits=tuple(splits),
        shards=shards,
        accounting=_sum(before, made.accounting),
        created=_joined(manifest.created, len(before.inputs), made.created),
        recipe=manifest.recipe,
        packed_statistics=merged,
        base=link,
    )


def _open(plan: Plan, base: BaseVersion) -> Dataset:
    try:
        dataset = open_dataset(plan.destination, base.version)
    except (UsageError, DamageError) as error:
        raise error.with_state("Nothing was appended", RUN_AGAIN) from error
    if dataset.manifest.fingerprint != base.fingerprint:
        raise ConflictError(
            f"version {base.version} is another one by now",
            where=plan.destination,
            state="Nothing was appended",
            next_step=RUN_AGAIN,
        )
    return dataset


def _sum(old: Accounting, new: Accounting) -> Accounting:
    return Accounting(
        num_rows=old.num_rows + new.num_rows,
        num_examples=old.num_examples + new.num_examples,
        num_filtered=old.num_filtered + new.num_filtered,
        num_duplicates=old.num_duplicates + new.num_duplicates,
        num_rejected=old.num_rejected + new.num_rejected,
        num_sequences=None if new.num_sequences is None else (old.num_sequences or 0) + new.num_sequences,
        num_damaged_files=old.num_damaged_files + new.num_damaged_files,
        inputs=(*old.inputs, *new.inputs),
        rejected_files=(*old.rejected_files, *new.rejected_files),
    )


def _joined(old: Created, num_old_inputs: int, new: Created) -> Created:
    """Returns the block of the new conversion, with the inputs of both."""
    # Older versions note no roots of inputs. A later append must not take the new roots for theirs.
    roots = old.roots or (InputRoot(path="", num_inputs=num_old_inputs),)
    return msgspec.structs.replace(
        new, inputs=tuple(dict.fromkeys((*old.inputs, *new.inputs))), roots=(*roots, *new.roots)
    )
