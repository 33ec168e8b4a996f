"""Commit: check that everything adds up, store the shard table, then create the manifest that makes it a dataset."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from shardkit.conversion.commit.append_merge import ManifestParts, after_base
from shardkit.conversion.commit.rebase import MAX_REBASES, RUN_AGAIN, fingerprint_behind, newest_base
from shardkit.conversion.commit.statistics_parts import write_statistics
from shardkit.conversion.exchange import has_mark, set_mark
from shardkit.conversion.extract.extract import statistics_parts
from shardkit.conversion.extracted import Extracted
from shardkit.conversion.layout_math import Layout, SplitLayout
from shardkit.conversion.plan import BaseVersion, Plan, redacted, stored_recipe, write_whole
from shardkit.conversion.rows.attempts import COMMITTING_FILE
from shardkit.conversion.rows.bad_rows import rejected_lines
from shardkit.conversion.shards.tfds import tfds_documents
from shardkit.dataset.append_info import extensions_of
from shardkit.dataset.card import put_card
from shardkit.dataset.commit import commit_version
from shardkit.dataset.documents import Accounting, InputInfo, RejectedFile
from shardkit.dataset.manifest import FORMAT_VERSION, Manifest, ShardInfo, SplitInfo, describe_table
from shardkit.dataset.open import list_versions, open_dataset
from shardkit.dataset.rejected_rows import pack_files
from shardkit.dataset.shard_table import encode_shard_table
from shardkit.errors import ConflictError, DamageError, ShardkitError, StorageError
from shardkit.statistics.collector import merge_parts, merge_statistics
from shardkit.storage import files as storage

# Files of the work folder. A commit writes the first and then looks for the second. A stop writes the second and then
# looks for the first. The later one sees the other, so no commit follows the message that nothing was committed.
STOPPED_FILE = "stopped"
COMMITTED_FILE = "committed.msgpack"


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    """The version that was made."""

    version: int
    num_examples: int
    num_bytes: int


def commit_dataset(
    plan: Plan, layout: Layout, extracted: Sequence[Extracted], shards: Sequence[ShardInfo]
) -> Committed:
    """Makes the shards a dataset, or raises and leaves the destination as it was.

    Raises:
        StorageError: If the shards do not hold what was extracted, or the conversion was stopped.
        ConflictError: If another conversion was faster, or a dataset is there and may not be overwritten.
    """
    if (committed := own_commit(plan)) is not None:
        return committed
    packed_statistics = {split.name: _packed_statistics(plan, split.name, extracted) for split in layout.splits}
    splits = [_split_info(plan, split, packed_statistics[split.name], shards) for split in layout.splits]
    rank = {split.name: i for i, split in enumerate(layout.splits)}
    ordered = sorted(shards, key=lambda s: (rank[s.split], s.shard_index))
    documents = _put_tfds_documents(plan, ordered) if plan.recipe.tfds else {}
    made = ManifestParts(
        splits=tuple(splits),
        shards=ordered,
        accounting=account(plan, extracted, sum(s.num_examples for s in splits)),
        created=plan.created,
        recipe=stored_recipe(redacted(plan.recipe)),
        packed_statistics=packed_statistics,
    )
    needed = documents | {f.path: f.num_bytes for f in made.accounting.rejected_files}
    needed |= {s.path: s.num_bytes for s in ordered}
    version = _commit(plan, made, needed) if plan.base is None else _append(plan, plan.base, made, needed)
    return Committed(
        version=version,
        num_examples=sum(s.num_examples for s in splits),
        num_bytes=sum(s.num_bytes for s in splits),
    )


def _append(plan: Plan, planned: BaseVersion, made: ManifestParts, needed: Mapping[str, int]) -> int:
    """Makes the version behind the newest one, again if another append is faster, and returns its number."""
    for _ in range(MAX_REBASES):
        base = newest_base(plan, planned)
        try:
            return _commit(plan, after_base(plan, base, made), needed, base)
        except ConflictError as error:
            error.state, error.next_step = "Nothing was appended; the other version is whole", RUN_AGAIN
            if not plan.rebases or newest_base(plan, planned) == base:
                raise
    raise ConflictError(
        "other appends were faster each time",
        where=storage.redact(plan.destination),
        why=f"{MAX_REBASES} versions were made meanwhile",
        state="Nothing was appended",
        next_step=RUN_AGAIN,
    )


def _commit(plan: Plan, made: ManifestParts, needed: Mapping[str, int], base: BaseVersion | None = None) -> int:
    """Makes the next version, and returns its number."""
    if base is None:
        refuse_existing(plan)
        fingerprint, version = plan.fingerprint, max(list_versions(plan.destination, 0), default=0) + 1
    else:
        fingerprint, version = fingerprint_behind(plan, base), base.version + 1
    counted, num_counted_bytes = write_statistics(plan, made.packed_statistics)
    table = encode_shard_table(made.shards)
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name=_dataset_name(plan),
        fingerprint=fingerprint,
        created=made.created,
        recipe=made.recipe,
        compression=plan.recipe.compression,
        features=plan.features,
        splits=made.splits,
        accounting=made.accounting,
        shard_table=describe_table(version, made.created.commit_id, table, len(made.shards)),
        extensions=extensions_of(made.base, counted),
    )
    needed = {**needed, counted.path: num_counted_bytes}
    put_card(plan.destination, {s.name: f"data/*/{s.name}-*" for s in made.splits}, is_table=False)
    commit_version(plan.destination, version, manifest, table, needed, before_manifest=lambda: _refuse_if_stopped(plan))
    return version


def own_commit(plan: Plan) -> Committed | None:
    """Returns the version that this attempt committed, as the destination says, None if it has not.

    An engine that lost a worker, or its answer, does the step again; and a job elsewhere tells nothing of it here.

    Raises:
        StorageError: If the store kept failing.
    """
    first = 0 if plan.base is None else plan.base.version
    for version in (v for v in reversed(list_versions(plan.destination, first)) if v > first):
        with contextlib.suppress(DamageError):
            manifest = open_dataset(plan.destination, version).manifest
            if manifest.created.commit_id == plan.created.commit_id:
                num_bytes = sum(s.num_bytes for s in manifest.splits)
                num_examples = sum(s.num_examples for s in manifest.splits)
                return Committed(version=version, num_examples=num_examples, num_bytes=num_bytes)
            # An older append may have gone behind this one.
            if manifest.created.at < plan.created.at and plan.base is None:
                return None
    return None


def may_be_committed(plan: Plan) -> bool:
    """Whether this attempt came so far that there may be a new version."""
    return has_mark(plan, COMMITTING_FILE)


def forbid_commit(plan: Plan) -> bool:
    """Returns whether this attempt has committed nothing; it never will then."""
    try:
        set_mark(plan, STOPPED_FILE)
        return not may_be_committed(plan)
    except (OSError, ShardkitError):
        return False


def find_commit(plan: Plan) -> int | None:
    """Returns the version that an attempt at this very conversion committed, if its work folder is still there."""
    attempts = {p.stem.removeprefix("plan-") for p in plan.work_path().glob("plan-*.json")}
    for version in reversed(list_versions(plan.destination) if attempts else []):
        with contextlib.suppress(DamageError):
            manifest = open_dataset(plan.destination, version).manifest
            if manifest.created.commit_id in attempts:
                return version
    return None


def refuse_existing(plan: Plan) -> None:
    """Checks that the destination may get a (next) version.

    Raises:
        ConflictError: If it holds a dataset and the plan does not say to overwrite, or not the one to append to.
    """
    versions = list_versions(plan.destination, 0)
    if plan.base is not None:
        newest_base(plan, plan.base)
        return
    if versions and not plan.overwrite:
        raise ConflictError(
            "there is a dataset already",
            where=storage.redact(plan.destination),
            why=f"version {versions[-1]}",
            state="It is untouched",
            next_step="Run again with --append to add new files to it, with --overwrite to make the next version of "
            "these files alone, or choose another destination",
        )


def _split_info(plan: Plan, layout: SplitLayout, packed_statistics: bytes, shards: Sequence[ShardInfo]) -> SplitInfo:
    own = [s for s in shards if s.split == layout.name]
    num_examples = sum(s.num_examples for s in own)
    num_framed_bytes = sum(s.num_uncompressed_bytes for s in own)
    indices = sorted(s.shard_index for s in own)
    if (
        indices != list(range(layout.num_shards))
        or num_examples != layout.num_examples
        or num_framed_bytes != layout.num_bytes
    ):
        raise StorageError(
            f"the shards of split {layout.name!r} do not hold what was read",
            why=f"{len(indices)} shards with {num_examples} examples, planned were {layout.num_shards} with "
            f"{layout.num_examples}",
            state="Nothing was committed",
            next_step="Remove the work folder and run the same command again",
        )
    return SplitInfo(
        name=layout.name,
        num_shards=len(own),
        num_examples=num_examples,
        num_bytes=sum(s.num_bytes for s in own),
        num_uncompressed_bytes=num_framed_bytes,
        statistics=merge_statistics([packed_statistics], plan.features),
    )


def _packed_statistics(plan: Plan, split: str, extracted: Sequence[Extracted]) -> bytes:
    position = [s.name for s in plan.recipe.splits].index(split)
    return merge_parts(statistics_parts(plan, extracted, position), plan.features)


def _put_tfds_documents(plan: Plan, shards: Sequence[ShardInfo]) -> dict[str, int]:
    """Stores the documents and returns their sizes by path relative to the dataset."""
    documents = tfds_documents(_dataset_name(plan), plan.features, shards)
    for name, content in documents.items():
        local = plan.work_path("tmp", name)
        write_whole(local, content)
        storage.put_file(local, storage.join(plan.destination, plan.data_path, name))
    return {f"{plan.data_path}/{name}": len(content) for name, content in documents.items()}


def _dataset_name(plan: Plan) -> str:
    return storage.redact(plan.destination).rstrip("/").rsplit("/", 1)[-1]


def _refuse_if_stopped(plan: Plan) -> None:
    set_mark(plan, COMMITTING_FILE)
    if has_mark(plan, STOPPED_FILE):
        raise StorageError("the conversion was stopped", state="Nothing was committed")


def account(plan: Plan, extracted: Sequence[Extracted], num_examples: int) -> Accounting:
    """Returns the account of all rows, and stores the rejected ones where they are wanted.

    Raises:
        StorageError: If the examples in the shards are not those that the inputs gave.
    """
    inputs = _input_infos(plan, extracted)
    accounting = Accounting(
        num_rows=sum(i.num_rows or 0 for i in inputs),
        num_examples=sum(i.num_examples for i in inputs),
        num_filtered=sum(i.num_filtered for i in inputs),
        num_duplicates=sum(i.num_duplicates for i in inputs),
        num_rejected=sum(i.num_rejected for i in inputs),
        num_sequences=None if plan.packing is None else sum(part.num_sequences for part in extracted),
        num_damaged_files=sum(i.damage is not None for i in inputs),
        inputs=inputs,
        rejected_files=_store_rejected(plan, extracted) if plan.recipe.on_bad_record == "quarantine" else (),
    )
    if accounting.num_stored != num_examples:
        raise StorageError(
            "the shards do not hold what was read",
            why=f"the inputs gave {accounting.num_stored} examples, the shards hold {num_examples}",
            state="Nothing was committed",
            next_step="Remove the work folder and run the same command again",
        )
    return accounting


def _input_infos(plan: Plan, extracted: Sequence[Extracted]) -> tuple[InputInfo, ...]:
    rows: Counter[int] = Counter()
    filtered: Counter[int] = Counter()
    duplicates: Counter[int] = Counter()
    rejected: Counter[int] = Counter()
    damage: dict[int, str] = {}
    for part in extracted:
        rows.update(part.rows_by_file)
        filtered.update(part.filtered_by_file)
        duplicates.update(part.duplicates_by_file)
        rejected.update(part.rejected_by_file)
        damage.update(part.damage)
    found = [
        InputInfo(
            name=file.name,
            num_bytes=file.num_bytes,
            num_rows=None if i in damage else rows[i],
            num_examples=rows.get(i, 0) - filtered.get(i, 0) - duplicates.get(i, 0) - rejected.get(i, 0),
            num_filtered=filtered.get(i, 0),
            num_duplicates=duplicates.get(i, 0),
            num_rejected=rejected.get(i, 0),
            damage=damage.get(i),
        )
        for i, file in enumerate(plan.files)
    ]
    found += [
        InputInfo(name=d.file.name, num_bytes=d.file.num_bytes, num_rows=None, num_examples=0, damage=d.reason)
        for d in plan.damaged_files
    ]
    return tuple(sorted(found, key=lambda info: info.name))


def _store_rejected(plan: Plan, extracted: Sequence[Extracted]) -> tuple[RejectedFile, ...]:
    stored = []
    for number, (content, num_rows) in enumerate(pack_files(rejected_lines(plan, extracted))):
        name = f"rejected-{number:05d}.jsonl.gz"
        local = plan.work_path("tmp", name)
        write_whole(local, content)
        path = f"{plan.data_path}/{name}"
        storage.put_file(local, storage.join(plan.destination, path))
        digest = hashlib.sha256(content).hexdigest()
        stored.append(RejectedFile(path=path, num_rows=num_rows, num_bytes=len(content), sha256=digest))
    return tuple(stored)
