"""From what a user asked for to a plan: inputs listed, features fixed, inputs cut, an earlier attempt found."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from shardkit import storage
from shardkit.codec import Compression, CompressionLevel
from shardkit.codec_kernel import HAS_KERNEL
from shardkit.conversion.bad_rows import BadRowPolicy, check_countable
from shardkit.conversion.checks import check_options, choose_level
from shardkit.conversion.commit import find_commit, refuse_existing
from shardkit.conversion.disk_space import check_space
from shardkit.conversion.extract import Extracted
from shardkit.conversion.membership import DEFAULT_NAMES, check_columns
from shardkit.conversion.own_output import refuse_own_output
from shardkit.conversion.plan import (
    Plan,
    Recipe,
    check_destination,
    default_work_root,
    fingerprint,
    make_created,
)
from shardkit.conversion.server_rows import forget_server_rows, holds_server_rows, server_rows
from shardkit.conversion.small_files import group_small_files
from shardkit.conversion.understanding import Understood, understand
from shardkit.conversion.write import forget_written
from shardkit.dataset import list_versions, open_dataset
from shardkit.errors import ConflictError, DamageError, NoRowsError
from shardkit.features import Features
from shardkit.manifest import MANIFESTS_DIR
from shardkit.planning import parse_shares
from shardkit.schema import Schema, apply_schema, declared_features, load_schema, with_leading_zeros
from shardkit.sources.base import SourceOptions
from shardkit.sources.listing import expand_inputs
from shardkit.sources.streams import shown
from shardkit.transforms.options import TransformOptions
from shardkit.transforms.pipeline import plan_transforms, transform_notes
from shardkit.units import KiB, MiB

FAILURE_FILE, FAILURE_RESERVE_FILE = "failure.json", "failure.reserve"
FAILURE_RESERVE_BYTES = 64 * KiB
_REMOVING_THREADS = 4
_LOCK_SECONDS = 2.0


class ConvertOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user asks for.

    Attributes:
        inputs: Files, folders and globs.
        destination: Where the dataset goes.
        source: How raw files are read.
        schema_path: File that declares or overrides features.
        recipe_path: Recipe file whose features count where there is no schema file.
        splits: Names and fractions; none makes one split `train`.
        shuffle: Whether to bring the examples into a random order.
        seed: Of that order and of the membership in splits.
        shard_bytes: Wanted size of a shard on disk, unless `num_shards` is given.
        num_shards: Shards of each split.
        compression: `gzip` or `none`.
        compression_level: `fast`, `balanced` or `small`; None takes the default of gzip.
        tfds: Whether to write what `tfds.builder_from_directory` needs; without compression only.
        on_bad_record: What becomes of rows that do not fit: `fail`, `skip` or `quarantine`.
        max_bad: How many of them there may be at most, such as `100` or `0.1%`; None sets no limit.
        allow_empty: Whether a dataset may have no examples at all.
        dedup: Columns in which duplicates are equal, none for all; None keeps duplicates.
        group_by: Columns whose equal values keep rows in one split.
        split_column: Column that names each row's split.
        stratify: Column of which every value is divided over the splits by their fractions.
        transforms: What is done to the rows.
        overwrite: Whether to make the next version where a dataset is already.
        work_dir: Where the spool goes; None puts it beside the data.
        max_row_seconds: How long reading or transforming one row may take.
    """

    inputs: tuple[str, ...]
    destination: str
    source: SourceOptions = SourceOptions()
    schema_path: str | None = None
    recipe_path: str | None = None
    splits: tuple[tuple[str, float | None], ...] = ()
    shuffle: bool = True
    seed: int = 0
    shard_bytes: int = 128 * MiB
    num_shards: int | None = None
    compression: Compression = "gzip"
    compression_level: CompressionLevel | None = None
    tfds: bool = False
    on_bad_record: BadRowPolicy = "fail"
    max_bad: str | None = None
    allow_empty: bool = False
    dedup: tuple[str, ...] | None = None
    group_by: tuple[str, ...] = ()
    split_column: str | None = None
    stratify: str | None = None
    transforms: TransformOptions = TransformOptions()
    overwrite: bool = False
    work_dir: str | None = None
    max_row_seconds: float = 60.0


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that has not started.

    Attributes:
        plan: What will be done.
        understood: What the inputs are; see `remember`.
        notes: What the user should know.
        num_finished_splits: Input splits that an earlier attempt left in the spool.
        committed_version: What an earlier attempt made, which was cut off before it had tidied up.
    """

    plan: Plan
    understood: Understood
    notes: tuple[str, ...]
    num_finished_splits: int
    committed_version: int | None = None


def prepare(options: ConvertOptions) -> Prepared:
    """Plans a conversion; reads heads and footers of the inputs, and writes nothing but empty folders.

    Raises:
        UsageError, BadInputError: If the request or an input is wrong.
        ConflictError: If the destination holds a dataset and may not be overwritten.
    """
    destination = storage.normalize(options.destination)
    if not storage.is_local(destination):
        storage.protocol_of(destination)  # Nothing is written to web servers, which are read.
    work_root = storage.normalize(options.work_dir) if options.work_dir else default_work_root(destination)
    with server_rows(options, work_root) as rows:
        if rows is None:
            return _prepare(options, destination, work_root)
        prepared = _prepare(rows.options, destination, work_root)
    recipe = prepared.plan.recipe
    source = msgspec.structs.replace(recipe.source, table=options.source.table, query=options.source.query)
    plan = msgspec.structs.replace(
        prepared.plan,
        created=make_created(options.inputs),
        recipe=msgspec.structs.replace(recipe, source=source),
    )
    return msgspec.structs.replace(prepared, plan=plan, notes=(*rows.notes, *prepared.notes))


def _prepare(options: ConvertOptions, destination: str, work_root: str) -> Prepared:
    shares = parse_shares(options.splits, () if options.split_column is None else DEFAULT_NAMES)
    check_options(options)
    compression_level = choose_level(options)
    labels = options.source.labels
    tolerant = msgspec.structs.replace(
        options.source,
        tolerates_bad_rows=options.on_bad_record != "fail",
        labels=None if labels is None else storage.normalize(labels),
    )
    expanded = expand_inputs(options.inputs)
    near = (f.path for f in expanded.files if f.path.startswith(destination))
    own = [path for path in near if not holds_server_rows(path, work_root)]
    refuse_own_output(options.inputs, own, expanded.root, destination, options.source)
    understood = understand(expanded, tolerant, work_root, allow_empty=options.allow_empty)
    source_options, files, damaged_files = understood.source, understood.files, understood.damaged_files
    schema = _schema_of(options)
    features = _with_schema(understood, schema)
    if schema is not None and source_options.format in ("csv", "tsv"):
        zeros = with_leading_zeros(schema, is_recipe=options.schema_path is None)
        source_options = msgspec.structs.replace(source_options, leading_zeros=zeros)
    transforms = plan_transforms(features, options.transforms, source_options)
    features = transforms.output_features
    recipe = Recipe(
        source=source_options,
        splits=shares,
        shuffle=options.shuffle,
        seed=options.seed,
        shard_bytes=None if options.num_shards is not None else options.shard_bytes,
        num_shards=options.num_shards,
        compression=options.compression,
        compression_level=compression_level,
        tfds=options.tfds,
        on_bad_record=options.on_bad_record,
        max_bad=options.max_bad,
        max_row_seconds=options.max_row_seconds,
        allow_empty=options.allow_empty,
        dedup=options.dedup,
        group_by=options.group_by,
        split_column=options.split_column,
        stratify=options.stratify,
        labels_sha256=understood.labels_sha256,
        transforms=transforms.options,
        source_features=() if transforms.options.changes_nothing else transforms.input_features,
    )
    check_columns(features, recipe)
    if not understood.input_splits and not options.allow_empty:
        raise NoRowsError()
    name = fingerprint((*files, *(d.file for d in damaged_files)), features, recipe)
    plan = Plan(
        destination=destination,
        work_dir=storage.join(work_root, name),
        fingerprint=name,
        created=make_created(options.inputs),
        recipe=recipe,
        features=features,
        files=files,
        input_splits=group_small_files(understood.input_splits, understood.files),
        overwrite=options.overwrite,
        transforms=transforms,
        damaged_files=damaged_files,
    )
    if (version := _version_cut_off(plan)) is not None:
        return Prepared(plan=plan, understood=understood, notes=(), num_finished_splits=0, committed_version=version)
    refuse_existing(plan)
    check_countable(plan)
    with _no_new_folders(destination):
        check_destination(destination)
        space_notes = check_space(plan)
    notes = (*understood.notes, *transform_notes(transforms), *_unsigned_notes(plan), *_kernel_notes(), *space_notes)
    return Prepared(plan=plan, understood=understood, notes=notes, num_finished_splits=_count_finished(plan))


@contextlib.contextmanager
def _no_new_folders(destination: str) -> Iterator[None]:
    """Removes the folders that were made for a destination if an error is raised."""
    path = storage.local_path(destination) if storage.is_local(destination) else None
    missing = [] if path is None else [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for folder in missing:
                folder.rmdir()
        raise


def _schema_of(options: ConvertOptions) -> Schema | None:
    if options.schema_path is not None:
        return load_schema(options.schema_path)
    return load_schema(options.recipe_path, is_recipe=True) if options.recipe_path is not None else None


def _with_schema(understood: Understood, schema: Schema | None) -> Features:
    if schema is None:
        return understood.features
    return apply_schema(understood.features, schema) if understood.has_features else declared_features(schema)


def _unsigned_notes(plan: Plan) -> tuple[str, ...]:
    names = [shown(f.name) for f in plan.features if f.dtype == "uint64"]
    if not names:
        return ()
    return (
        f"uint64 in {', '.join(names)}: a tf.train.Example holds int64, so values from 2**63 on are stored as negative "
        "ones of the same 64 bits, as TFDS does; shardkit reads them back as they were, other readers do not",
    )


def _kernel_notes() -> tuple[str, ...]:
    if HAS_KERNEL:
        return ()
    return ("the compiled kernel was not built: encoding takes many times longer (install with a C++ compiler)",)


@contextlib.contextmanager
def work_folder(plan: Plan) -> Iterator[None]:
    """Holds the work folder of a plan for this process and removes what an earlier attempt left and no longer holds.

    Raises:
        ConflictError: If another process works on the same conversion.
        OutOfSpaceError, UsageError, StorageError: If the folder cannot be made.
    """
    folder = plan.work_path()
    with storage.translate_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _lock(handle, folder)
        with storage.translate_os_errors(folder):
            _tidy(plan)
        yield
    finally:
        os.close(handle)


def _version_cut_off(plan: Plan) -> int | None:
    if find_commit(plan) is None:
        return None
    try:
        handle = os.open(plan.work_path("lock"), os.O_RDWR | os.O_CREAT, 0o666)
    except FileNotFoundError:
        return None
    try:
        _lock(handle, plan.work_path())
        # Whoever held it may have ended in the meantime, as it should.
        return find_commit(plan)
    finally:
        os.close(handle)


def _lock(handle: int, folder: Path) -> None:
    # Processes below a command that was killed need a moment to follow it.
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            raise ConflictError(
                "the same conversion is running already",
                where=str(folder),
                state="It was not disturbed",
                next_step="Wait for it to end",
            ) from error
        return


def remove_work_folder(plan: Plan) -> None:
    """Removes the spool and all records of a conversion that was committed, or that can never be as it stands."""
    with contextlib.suppress(OSError), ThreadPoolExecutor(_REMOVING_THREADS) as threads:
        # Giving back the memory of a large file takes 0.3 s a GB, and nothing else is left to do.
        for _ in threads.map(Path.unlink, plan.work_path("spool").glob("*.run")):
            pass
    # What tells a commit that was cut off here goes last.
    with contextlib.suppress(OSError):
        for path in plan.work_path().iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(plan.work_path(), ignore_errors=True)
    forget_server_rows(plan)
    _remove_dead_temporaries(plan)
    with contextlib.suppress(OSError):
        plan.work_path().parent.rmdir()
    with contextlib.suppress(OSError):
        if storage.is_local(plan.destination):
            storage.local_path(plan.destination).rmdir()


def _remove_dead_temporaries(plan: Plan) -> None:
    for folder in (MANIFESTS_DIR, plan.data_path):
        storage.remove_dead_temporaries(storage.join(plan.destination, folder))


def _tidy(plan: Plan) -> None:
    for folder in ("progress", "tmp", "attempts"):
        shutil.rmtree(plan.work_path(folder), ignore_errors=True)
    for name in (FAILURE_FILE, "layout.json"):
        plan.work_path(name).unlink(missing_ok=True)
    plan.work_path(FAILURE_RESERVE_FILE).write_bytes(bytes(FAILURE_RESERVE_BYTES))
    for leftover in (*plan.work_path().glob("plan-*.json"), *plan.work_path().glob("*/*.tmp")):
        leftover.unlink(missing_ok=True)
    if _count_finished(plan) < len(list(plan.work_path("extract").glob("*.msgpack"))):
        # An input changed since it was read: what was written from it is no longer right.
        forget_written(plan)
    _remove_dead_temporaries(plan)
    committed = _committed_shards(plan)
    if committed:
        plan.work_path("committed.json").write_bytes(msgspec.json.encode(committed))


def _committed_shards(plan: Plan) -> dict[str, str]:
    found: dict[str, str] = {}
    for version in list_versions(plan.destination):
        try:
            dataset = open_dataset(plan.destination, version)
            if dataset.manifest.fingerprint == plan.fingerprint:
                found.update({s.path: s.sha256 for s in dataset.shards})
        except DamageError:
            continue
    return found


def _count_finished(plan: Plan) -> int:
    folder = plan.work_path("extract")
    if not folder.is_dir():
        return 0
    return sum(_is_current(plan, path) for path in folder.glob("*.msgpack"))


def _is_current(plan: Plan, path: Path) -> bool:
    try:
        extracted = msgspec.msgpack.decode(path.read_bytes(), type=Extracted)
        split = plan.input_splits[extracted.input_split_index]
    except (OSError, msgspec.DecodeError, IndexError):
        return False
    return extracted.versions == tuple(f.version for f in plan.files[split.file_start : split.file_stop])
