"""The manifest of indexed files: its content, whether it differs from the newest one, and its commit."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec
import xxhash

from shardkit.conversion.plan import make_created
from shardkit.dataset.commit import commit_version
from shardkit.dataset.documents import Accounting, InputInfo
from shardkit.dataset.manifest import (
    DATA_DIR,
    FORMAT_VERSION,
    INDEX,
    MANIFESTS_DIR,
    Created,
    Json,
    Manifest,
    ShardInfo,
    SplitInfo,
    describe_table,
    is_indexed,
)
from shardkit.dataset.open import Dataset, list_versions, open_dataset
from shardkit.dataset.shard_table import encode_shard_table
from shardkit.errors import ConflictError, DamageError, UnsafeError, UsageError
from shardkit.indexing.listing import IndexOptions, Listed
from shardkit.indexing.scan import ScannedFile
from shardkit.indexing.scan_all import ScanResult
from shardkit.runtime.threads import worker_threads
from shardkit.storage import files as storage

_OF_A_CONVERSION = re.compile(rf"{DATA_DIR}/[0-9a-f]{{32}}/")


def make_recipe(options: IndexOptions) -> dict[str, Json]:
    """Returns the options that the manifest keeps."""
    return {
        "source": INDEX,
        "splits": [[split, glob] for split, glob in options.splits],
        "max_record_bytes": options.max_record_bytes,
        "max_expansion": options.max_expansion,
    }


def make_shards(scan: ScanResult, splits: Mapping[str, str], order: Sequence[str]) -> tuple[ShardInfo, ...]:
    """Returns a shard for every file, by split in the given order, then by name."""
    return tuple(
        _shard(scanned, split, index)
        for split in order
        for index, scanned in enumerate(s for s in scan.files if splits[s.file.name] == split)
    )


def make_manifest(
    scan: ScanResult,
    listed: Listed,
    shards: Sequence[ShardInfo],
    recipe: dict[str, Json],
    created: Created,
    version: int,
) -> tuple[Manifest, bytes]:
    """Returns a manifest and its shard table."""
    table = encode_shard_table(list(shards))
    num_examples = sum(s.num_examples for s in shards)
    order = list(dict.fromkeys(s.split for s in shards))
    inputs = [_input(s.file.name, s.file.num_bytes, s.num_examples) for s in scan.files]
    inputs += [_input(f.name, f.num_bytes, 0) for f in scan.empty]
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name=listed.root.rstrip("/").rsplit("/", 1)[-1],
        fingerprint=_fingerprint(scan, shards, recipe),
        created=created,
        recipe=recipe,
        compression=listed.compression,
        features=scan.features,
        splits=tuple(_split_info(split, scan, shards) for split in order),
        accounting=Accounting(
            num_rows=num_examples,
            num_examples=num_examples,
            inputs=tuple(sorted(inputs, key=lambda i: i.name)),
        ),
        shard_table=describe_table(version, created.commit_id, table, len(shards)),
        extensions={"empty_features": list(scan.empty_features)} if scan.empty_features else {},
    )
    return manifest, table


def find_indexed(root: str, listed: Listed) -> tuple[Dataset | None, tuple[str, ...]]:
    """Returns the newest version of a dataset of indexed files, None if there is none or it is damaged, and notes.

    Raises:
        ConflictError: If a conversion made the newest version that is whole.
        DamageError: If no version is whole, and the files are those of a conversion.
    """
    damages: list[DamageError | UnsafeError] = []
    versions = list_versions(root)
    for version in reversed(versions):
        try:
            dataset = open_dataset(root, version)
            # A version without its table is of no use here.
            _ = dataset.shards
        except (DamageError, UnsafeError) as error:
            damages.append(error)
            continue
        if not is_indexed(dataset.manifest):
            raise ConflictError(
                "there is a dataset already",
                where=storage.redact(root),
                why=f"version {dataset.version}, made by a conversion, has its index",
                state="It is untouched",
                next_step=f"Run: shardkit inspect {storage.redact(root)}",
            )
        if not damages:
            return dataset, ()
        break
    else:
        if damages and any(_OF_A_CONVERSION.match(f.name) for f in listed.files):
            raise damages[0]
    return None, tuple(f"version {versions[-1]} is damaged and replaced by the next: {d.what}" for d in damages[:1])


def is_unchanged(
    dataset: Dataset,
    listed: Listed,
    options: IndexOptions,
    *,
    num_threads: int = 1,
    progress: Callable[[int], None] | None = None,
) -> bool:
    """Whether a dataset is of these very files, by their names, sizes and SHA-256, and of these options."""
    if dataset.manifest.recipe != make_recipe(options):
        return False
    files = {f.name: f for f in (*listed.files, *listed.empty)}
    known = {i.name: i.num_bytes for i in dataset.manifest.accounting.inputs}
    if known != {name: f.num_bytes for name, f in files.items()}:
        return False
    with suppress(DamageError):
        shards = {s.path: s.sha256 for s in dataset.shards}
        if any(f.num_bytes and name not in shards for name, f in files.items()):
            return False

        def is_same(name: str) -> bool:
            same = storage.hash_file(files[name].path) == shards[name]
            if progress is not None:
                progress(files[name].num_bytes)
            return same

        with worker_threads(num_threads, "shardkit-index") as threads:
            return all(threads.map(is_same, shards))
    return False


def refuse_unwritable(root: str) -> None:
    """Checks that manifests may be written, before the files are read.

    Raises:
        UsageError: If not; says what works without.
    """
    folder = storage.join(root, MANIFESTS_DIR)
    place = folder if storage.exists(folder) else root
    if storage.is_local(root) and not os.access(storage.local_path(place), os.W_OK):
        raise UsageError(
            "a manifest cannot be written there",
            where=storage.redact(root),
            why="the folder may not be written to",
            next_step="Read the files without a manifest: shardkit.open_tfrecords(...)",
        )


def commit(
    scan: ScanResult,
    listed: Listed,
    shards: Sequence[ShardInfo],
    options: IndexOptions,
    inputs: Sequence[str],
    previous: Dataset | None,
) -> tuple[Dataset, bool]:
    """Makes the files a dataset.

    Returns:
        The dataset, and whether it is a new version.

    Raises:
        ConflictError: If another process was faster.
        UsageError, OutOfSpaceError, StorageError: If it cannot be written.
    """
    created = make_created(inputs)
    version = max(list_versions(listed.root), default=0) + 1
    manifest, table = make_manifest(scan, listed, shards, make_recipe(options), created, version)
    if previous is not None and _says_the_same(previous.manifest, manifest):
        return previous, False
    try:
        commit_version(listed.root, version, manifest, table, {})
    except ConflictError as error:
        error.what, error.next_step = "another command committed first", "Run the same command again"
        raise
    return Dataset(listed.root, version, manifest), True


def _says_the_same(before: Manifest, now: Manifest) -> bool:
    table = msgspec.structs.replace(now.shard_table, path=before.shard_table.path)
    return before == msgspec.structs.replace(now, created=before.created, name=before.name, shard_table=table)


def _fingerprint(scan: ScanResult, shards: Sequence[ShardInfo], recipe: dict[str, Json]) -> str:
    document = {
        "format_version": FORMAT_VERSION,
        "files": [(s.path, s.sha256) for s in shards],
        "features": scan.features,
        "recipe": recipe,
    }
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(document, order="sorted"))


def _shard(scanned: ScannedFile, split: str, index: int) -> ShardInfo:
    return ShardInfo(
        split=split,
        shard_index=index,
        path=scanned.file.name,
        num_examples=scanned.num_examples,
        num_bytes=scanned.file.num_bytes,
        num_uncompressed_bytes=scanned.num_uncompressed_bytes,
        crc32c=scanned.crc32c,
        sha256=scanned.sha256,
        block_num_bytes=scanned.block_num_bytes,
        block_num_uncompressed_bytes=scanned.block_num_uncompressed_bytes,
        block_num_examples=scanned.block_num_examples,
        block_crc32c=scanned.block_crc32c,
    )


def _split_info(name: str, scan: ScanResult, shards: Sequence[ShardInfo]) -> SplitInfo:
    own = [s for s in shards if s.split == name]
    return SplitInfo(
        name=name,
        num_shards=len(own),
        num_examples=sum(s.num_examples for s in own),
        num_bytes=sum(s.num_bytes for s in own),
        num_uncompressed_bytes=sum(s.num_uncompressed_bytes for s in own),
        statistics=scan.statistics.get(name, {}),
    )


def _input(name: str, num_bytes: int, num_examples: int) -> InputInfo:
    return InputInfo(name=name, num_bytes=num_bytes, num_rows=num_examples, num_examples=num_examples)
