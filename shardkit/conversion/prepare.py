"""From what a user asked for to a plan: inputs listed, features fixed, inputs cut, an earlier attempt found."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from shardkit import storage
from shardkit.codec import DEFAULT_LEVEL, Compression, CompressionLevel
from shardkit.codec_kernel import HAS_KERNEL
from shardkit.conversion.bad_rows import BadLimit, BadRowPolicy
from shardkit.conversion.commit import refuse_existing
from shardkit.conversion.extract import Extracted
from shardkit.conversion.membership import DEFAULT_NAMES, check_columns
from shardkit.conversion.plan import (
    DamagedFile,
    Plan,
    Recipe,
    check_destination,
    default_work_root,
    fingerprint,
    make_created,
)
from shardkit.conversion.write import forget_written
from shardkit.dataset import list_versions, open_dataset
from shardkit.errors import BadInputError, ConflictError, DamageError, OutOfSpaceError, UsageError
from shardkit.planning import parse_shares
from shardkit.schema import apply_schema, load_schema
from shardkit.sources import choose_source, list_inputs
from shardkit.sources.base import RawFile, Source, SourceOptions
from shardkit.sources.transcoding import with_encoding
from shardkit.transforms.options import TransformOptions
from shardkit.transforms.pipeline import plan_transforms, transform_notes
from shardkit.units import KiB, MiB, format_size

_REMOVING_THREADS = 4


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
        dedup: Columns in which duplicates are equal, none for all; None keeps duplicates.
        group_by: Columns whose equal values keep rows in one split.
        split_column: Column that names each row's split.
        transforms: What is done to the rows.
        overwrite: Whether to make the next version where a dataset is already.
        work_dir: Where the spool goes; None puts it beside the data.
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
    dedup: tuple[str, ...] | None = None
    group_by: tuple[str, ...] = ()
    split_column: str | None = None
    transforms: TransformOptions = TransformOptions()
    overwrite: bool = False
    work_dir: str | None = None


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that has not started.

    Attributes:
        plan: What will be done.
        notes: What the user should know.
        num_finished_splits: Input splits that an earlier attempt left in the spool.
    """

    plan: Plan
    notes: tuple[str, ...]
    num_finished_splits: int


def prepare(options: ConvertOptions) -> Prepared:
    """Plans a conversion; reads heads and footers of the inputs, and writes nothing but empty folders.

    Raises:
        UsageError, BadInputError: If the request or an input is wrong.
        ConflictError: If the destination holds a dataset and may not be overwritten.
    """
    destination = storage.normalize(options.destination)
    shares = parse_shares(options.splits, () if options.split_column is None else DEFAULT_NAMES)
    if options.group_by and options.split_column is not None:
        raise UsageError("--group-by and --split-column exclude each other", next_step="Drop one of them")
    if options.num_shards is not None and options.num_shards < 1:
        raise UsageError(f"--num-shards is {options.num_shards}", why="it must be at least 1")
    if options.num_shards is None and options.shard_bytes < KiB:
        raise UsageError(f"a shard size of {options.shard_bytes} bytes is too small", why="it must be at least 1 KiB")
    if options.tfds and options.compression != "none":
        raise UsageError(
            "TensorFlow Datasets reads uncompressed shards only", next_step="Add --compression none, or drop --tfds"
        )
    compression_level = _choose_level(options)
    _check_bad_row_options(options)
    labels = options.source.labels
    tolerant = msgspec.structs.replace(
        options.source,
        tolerates_bad_rows=options.on_bad_record != "fail",
        labels=None if labels is None else storage.normalize(labels),
    )
    listing = list_inputs(options.inputs, tolerant)
    listed, labels_sha256 = _apart_from_labels(with_encoding(listing.files, options.source.encoding), tolerant)
    _refuse_own_output(listed, destination)
    source = choose_source(listed, tolerant)
    source_options = msgspec.structs.replace(tolerant, format=source.format)
    _check_source_options(source_options)
    files, damaged_files = _without_damaged(source, listed, source_options)
    damaged_files += tuple(DamagedFile(file=file, reason=reason) for file, reason in listing.damaged)
    features = source.infer(files, source_options)
    if options.schema_path is not None:
        features = apply_schema(features, load_schema(options.schema_path))
    elif options.recipe_path is not None:
        features = apply_schema(features, load_schema(options.recipe_path, is_recipe=True))
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
        dedup=options.dedup,
        group_by=options.group_by,
        split_column=options.split_column,
        labels_sha256=labels_sha256,
        transforms=transforms.options,
        source_features=() if transforms.options.changes_nothing else transforms.input_features,
    )
    check_columns(features, recipe)
    name = fingerprint((*files, *(d.file for d in damaged_files)), features, recipe)
    work_root = storage.normalize(options.work_dir) if options.work_dir else default_work_root(destination)
    plan = Plan(
        destination=destination,
        work_dir=storage.join(work_root, name),
        fingerprint=name,
        created=make_created(options.inputs),
        recipe=recipe,
        features=features,
        files=files,
        input_splits=tuple(source.split(files, source_options)),
        overwrite=options.overwrite,
        transforms=transforms,
        damaged_files=damaged_files,
    )
    refuse_existing(plan)
    check_destination(destination)
    _check_space(plan)
    notes = (*listing.notes, *source.notes(files, source_options), *transform_notes(transforms), *_kernel_notes())
    return Prepared(plan=plan, notes=notes, num_finished_splits=_count_finished(plan))


def _check_bad_row_options(options: ConvertOptions) -> None:
    if options.max_bad is None:
        return
    BadLimit(options.max_bad)
    if options.on_bad_record == "fail":
        raise UsageError(
            "--max-bad has no meaning where the first bad row ends the conversion",
            next_step="Add --on-bad-record skip or --on-bad-record quarantine",
        )


def _apart_from_labels(files: tuple[RawFile, ...], options: SourceOptions) -> tuple[tuple[RawFile, ...], str | None]:
    """Returns the files without those that hold labels, and the hash of those."""
    if options.labels is None:
        return files, None
    # It takes 70 ms to import, and few have label files.
    from shardkit.sources.image_labels import label_files, without_label_files

    digest = hashlib.sha256()
    for file in label_files(options.labels):
        digest.update(f"{file.name}\0{storage.hash_file(file.path)}\0".encode())
    return without_label_files(files, options), digest.hexdigest()


def _check_source_options(options: SourceOptions) -> None:
    tables, text, files = ("csv", "tsv"), ("csv", "tsv", "jsonl", "json", "text"), ("images", "audio")
    for option, is_given, formats in (
        ("--columns", options.columns is not None, tables),
        ("--delimiter", options.delimiter is not None, tables),
        ("--null-value", bool(options.null_values), tables),
        ("--encoding", options.encoding is not None, text),
        ("--text-record", options.text_record != "line", ("text",)),
        ("--labels", options.labels is not None, files),
        ("--audio", options.audio != "bytes", ("audio",)),
        ("--audio-rate", options.audio_rate is not None, ("audio",)),
    ):
        if is_given and options.format not in formats:
            raise UsageError(
                f"{option} has no meaning for {options.format} files",
                next_step=f"It is for {', '.join(formats)}; drop it, or say with --format what the files are",
            )


def _without_damaged(
    source: Source, files: tuple[RawFile, ...], options: SourceOptions
) -> tuple[tuple[RawFile, ...], tuple[DamagedFile, ...]]:
    """Returns the files that can be planned for, and those that cannot where bad rows are tolerated."""
    if not options.tolerates_bad_rows or _problem(source, files, options) is None:
        return files, ()
    # Whatever one of them did, each alone tells which it was; only damage is worth that, so speed is not.
    problems = [None if file.num_bytes == 0 else _problem(source, (file,), options) for file in files]
    sound = tuple(f for f, problem in zip(files, problems, strict=True) if problem is None)
    damaged = tuple(
        DamagedFile(file=f, reason=problem) for f, problem in zip(files, problems, strict=True) if problem is not None
    )
    return (sound, damaged) if any(f.num_bytes for f in sound) else (files, ())


def _problem(source: Source, files: tuple[RawFile, ...], options: SourceOptions) -> str | None:
    try:
        source.infer(files, options)
        source.split(files, options)
    except BadInputError as error:
        return error.what if error.why is None else f"{error.what}: {error.why}"
    return None


def _choose_level(options: ConvertOptions) -> CompressionLevel | None:
    if options.compression == "gzip":
        return options.compression_level or DEFAULT_LEVEL
    if options.compression_level is not None:
        raise UsageError(
            f"--compression-level {options.compression_level} has no meaning with --compression {options.compression}",
            next_step="Drop one of them",
        )
    return None


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
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConflictError(
                "the same conversion is running already",
                where=str(folder),
                state="It was not disturbed",
                next_step="Wait for it to end",
            ) from error
        with storage.translate_os_errors(folder):
            _tidy(plan)
        yield
    finally:
        os.close(handle)


def remove_work_folder(plan: Plan) -> None:
    """Removes the spool and all records of a conversion that was committed, or that can never be as it stands."""
    with contextlib.suppress(OSError), ThreadPoolExecutor(_REMOVING_THREADS) as threads:
        # Giving back the memory of a large file takes 0.3 s a GB, and nothing else is left to do.
        for _ in threads.map(Path.unlink, plan.work_path("spool").glob("*.run")):
            pass
    shutil.rmtree(plan.work_path(), ignore_errors=True)
    with contextlib.suppress(OSError):
        plan.work_path().parent.rmdir()
        if storage.is_local(plan.destination):
            storage.local_path(plan.destination).rmdir()


def _tidy(plan: Plan) -> None:
    for folder in ("progress", "tmp"):
        shutil.rmtree(plan.work_path(folder), ignore_errors=True)
    plan.work_path("failure.json").unlink(missing_ok=True)
    for leftover in (*plan.work_path().glob("plan-*.json"), *plan.work_path().glob("*/*.tmp")):
        leftover.unlink(missing_ok=True)
    if _count_finished(plan) < len(list(plan.work_path("extract").glob("*.msgpack"))):
        # An input changed since it was read: what was written from it is no longer right.
        forget_written(plan)
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


def _refuse_own_output(files: Sequence[RawFile], destination: str) -> None:
    inside = [f for f in files if f.path.startswith(f"{destination}/")]
    if inside:
        raise UsageError(
            "the destination lies among the inputs",
            where=storage.redact(inside[0].path),
            why="the shards would be read as input",
            next_step="Choose a destination outside of the input folders",
        )


def _check_space(plan: Plan) -> None:
    # Spool and shards together are never smaller than the inputs; what compression adds shows only while writing.
    needed = sum(f.num_bytes for f in plan.files)
    free = storage.free_bytes(plan.work_dir)
    if free is not None and free < needed:
        raise OutOfSpaceError(
            "no space left",
            where=plan.work_dir,
            why=f"at least {format_size(needed)} are needed for spool and shards, {format_size(free)} are free",
            state="Nothing was written",
            next_step="Free some space, or name another place with --work-dir",
        )
