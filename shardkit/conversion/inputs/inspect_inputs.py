"""The facts about the inputs: files, format, features, parts. They are found once, and kept for a resumed conversion.

Some formats must be read to be cut: quotes of a CSV file, records of a TFRecord file, members of a compressed tar. The
next attempt after an interruption takes them from the work folder, unless a file has another size or time since.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import xxhash

from shardkit._version import __version__
from shardkit.conversion.inputs.damaged_files import can_be_read, problem_of, without_damaged
from shardkit.conversion.inputs.option_checks import check_source_options
from shardkit.conversion.inputs.schema_file import Schema, declared_type
from shardkit.conversion.plan import DamagedFile, Plan, write_whole
from shardkit.decode_errors import DECODE_ERRORS
from shardkit.errors import BadInputError, DifferentSchemasError, NoRowsError, UsageError
from shardkit.features import Features, make_feature
from shardkit.file_types import format_of, has_image_suffix, suffix_of
from shardkit.messages import printable, shown
from shardkit.sources import source_for
from shardkit.sources.base import InputSplit, RawFile, Source, SourceOptions, cut_to, settle
from shardkit.sources.columns.sampling import READ_AGAIN_BYTES
from shardkit.sources.exploded import exploded
from shardkit.sources.files.streams import open_stored, read_exactly
from shardkit.sources.files.transcoding import with_text_options
from shardkit.sources.files.unpacked import check_no_packed
from shardkit.sources.folders.class_documents import are_class_documents
from shardkit.sources.folders.class_folders import check_class_folders
from shardkit.sources.formats import STREAM_SUFFIXES, format_named
from shardkit.sources.inventory import note_on_passed_over
from shardkit.sources.listing import Expanded, Listing, list_files
from shardkit.sources.naming_tables import check_not_numbered, naming_notes, tables_that_name
from shardkit.sources.registry import Choice, choose
from shardkit.sources.split_lists import list_notes
from shardkit.sources.split_names import (
    check_all_tell_splits,
    check_no_further_split,
    check_no_unusual_splits,
    check_one_dataset,
    splits_in_names,
    with_splits_of_siblings,
)
from shardkit.sources.text.parallel import check_not_parallel
from shardkit.storage import files as storage

if TYPE_CHECKING:
    from shardkit.sources.media.labels import Beside


class InspectedInputs(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs, as far as planning has to read them.

    Attributes:
        key: Hash of all that this was found from.
        source: How the files are read; its format is never None.
        root: The folder that the names of the files are relative to.
        damaged_files: Inputs that are rejected as a whole.
        features: What the source gives, before any schema.
        has_features: Whether there was anything to tell them from.
        labels_sha256: Of the files that `source.labels` names.
        notes: What the user should know, one sentence each.
    """

    key: str
    source: SourceOptions
    root: str
    files: tuple[RawFile, ...]
    damaged_files: tuple[DamagedFile, ...]
    features: Features
    has_features: bool
    input_splits: tuple[InputSplit, ...]
    labels_sha256: str | None
    notes: tuple[str, ...]


class InspectOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What else decides which inputs are read, and as what.

    Attributes:
        has_split_options: Whether options say what the splits are; otherwise the names of all files do, or of none.
        has_source_column: Whether rows tell the file that they are from.
        leave_out: Takes files out of the listing that a dataset has, which the others are appended to; None takes none.
        declared: Columns and types that a user declares, for files whose types do not go together.
        split_bytes: Wanted size of a part of the inputs; None chooses by the size of the file.
    """

    allow_empty: bool
    has_split_options: bool = False
    has_source_column: bool = False
    leave_out: Callable[[Listing], Listing] | None = None
    declared: tuple[tuple[str, str], ...] = ()
    split_bytes: int | None = None


class _Contents(NamedTuple):
    """What files hold, and the options by which they are read."""

    options: SourceOptions
    files: tuple[RawFile, ...]
    damaged: tuple[DamagedFile, ...]
    naming: tuple[RawFile, ...]
    features: Features
    notes: tuple[str, ...]
    input_splits: tuple[InputSplit, ...]
    has_features: bool = True


def inspect_inputs(
    expanded: Expanded, options: SourceOptions, work_root: str, asked: InspectOptions
) -> InspectedInputs:
    """Returns the facts about the inputs, from an earlier attempt if it left them.

    Raises:
        UsageError, BadInputError: If the request or an input is wrong.
        NoRowsError: If there are no rows, unless that is allowed.
    """
    known = dict(asked.declared)
    while True:
        try:
            return _without_advice(_inspect(expanded, options, work_root, asked), known)
        except DifferentSchemasError as error:
            # No more than what is needed: the recipe holds it, and its hash names the dataset.
            types = {name: declared_type(name, known) for name in error.columns}
            needed = {name: dtype for name, dtype in types.items() if dtype is not None} | dict(options.declared)
            if len(needed) == len(options.declared):
                raise
            options = msgspec.structs.replace(options, declared=tuple(sorted(needed.items())))


def _without_advice(inspected: InspectedInputs, declared: Mapping[str, str]) -> InspectedInputs:
    # The type that such a note advises to declare is declared.
    own = tuple(f"column {shown(name)} " for name in declared)
    notes = (note for note in inspected.notes if not (note.startswith(own) and "--cast" in note))
    return msgspec.structs.replace(inspected, notes=tuple(notes))


def _inspect(expanded: Expanded, options: SourceOptions, work_root: str, asked: InspectOptions) -> InspectedInputs:
    labels_sha256 = _hash_of_labels(options)
    key = _key_of(expanded, options, labels_sha256, asked)
    listing = None
    if asked.leave_out is not None:
        listing = asked.leave_out(_without_others(list_files(expanded, options), options))
        key = f"{key}-{xxhash.xxh3_64_hexdigest(msgspec.msgpack.encode(listing))}"
    if (found := _remembered(key, work_root)) is not None:
        return found
    return _inspect_listing(key, listing or list_files(expanded, options), options, labels_sha256, asked)


def _inspect_listing(
    key: str, listing: Listing, options: SourceOptions, labels_sha256: str | None, asked: InspectOptions
) -> InspectedInputs:
    # What is appended has the labels of the recipe, and goes by it.
    is_appended = asked.leave_out is not None
    listed = _without_labels(with_text_options(listing.files, options), options)
    beside = None if is_appended else _labels_beside(listed, listing.root, options)
    if beside is not None:
        check_no_packed(listed)
        listed, options = beside.files, msgspec.structs.replace(options, labels=beside.labels)
        labels_sha256 = _hash_of_labels(options)
    choice = _choose(listed, options, allow_empty=asked.allow_empty)
    source = exploded(cut_to(choice.source, asked.split_bytes), options)
    if choice.passed_over:
        passed = {file.name for file in choice.passed_over}
        listed = tuple(file for file in listed if file.name not in passed)
    listed = with_splits_of_siblings(listed)
    if not is_appended:
        _check_lines_are_alone(source, listed, options, asked)
        options = msgspec.structs.replace(options, has_split_names=_tell_splits(source, listed, options, asked))
    options = msgspec.structs.replace(options, format=source.format)
    check_source_options(options)
    out = {file.name for file, _ in choice.refused}
    listed = tuple(file for file in listed if file.name not in out) if out else listed
    read = _read(source, listed, options, choice.passed_over, asked)
    refused = (DamagedFile(file=file, reason=reason) for file, reason in (*choice.refused, *listing.damaged))
    return InspectedInputs(
        key=key,
        source=msgspec.structs.replace(read.options, types_of_all_rows=False),
        root=listing.root,
        files=read.files,
        damaged_files=(*read.damaged, *refused),
        features=read.features,
        has_features=read.has_features,
        input_splits=read.input_splits,
        labels_sha256=labels_sha256,
        notes=(
            *listing.notes,
            *(beside.notes if beside is not None else ()),
            *note_on_passed_over(choice.passed_over),
            *naming_notes(read.naming),
            *list_notes(read.files, choice.passed_over, is_asked=asked.has_split_options or options.has_split_names),
            *(() if _has_row_files(options) else listing.empty_notes),
            *read.notes,
        ),
    )


def _has_row_files(options: SourceOptions) -> bool:
    assert options.format is not None
    return format_named(options.format).has_row_files or options.text_record == "file"


def _read(
    source: Source,
    files: tuple[RawFile, ...],
    options: SourceOptions,
    passed_over: tuple[RawFile, ...],
    asked: InspectOptions,
) -> _Contents:
    """Returns what files hold, without the damaged ones where bad rows are tolerated."""
    has_row_files = _has_row_files(options)
    naming: tuple[RawFile, ...] = ()
    try:
        if asked.leave_out is None:
            options = settle(source, files, options)
            if format_named(source.format).has_row_files:
                naming = tables_that_name(files, passed_over, options)
                check_not_numbered(files, naming, passed_over)
                check_class_folders(files, options, naming)
        return _Contents(options, files, (), naming, *_read_plan(source, files, options))
    except NoRowsError:
        if not asked.allow_empty:
            raise
        features = tuple(make_feature(name, "string", nullable=True) for name in options.columns or ())
        splits = tuple(source.split(files, options))
        return _Contents(options, files, (), naming, features, (), splits, has_features=False)
    except (BadInputError, UsageError) as error:
        # Files that are a row each are looked at one by one anyway.
        if not options.tolerates_bad_rows or (isinstance(error, UsageError) and has_row_files):
            raise
        sound, damaged = without_damaged(source, files, options, error)
        if not damaged:
            raise
        return _Contents(options, sound, damaged, naming, *_read_plan(source, sound, options))


def inferred_columns(inspected: InspectedInputs, options: SourceOptions, schema: Schema | None) -> frozenset[str]:
    """Returns the columns whose types are those of the first rows alone; none where all rows are too many to read."""
    is_settled = options.types_of_all_rows or format_named(inspected.source.format).has_row_files
    is_large = sum(file.num_bytes for file in inspected.files) > READ_AGAIN_BYTES
    if is_settled or is_large or not inspected.has_features:
        return frozenset()
    declared = set[str]() if schema is None else schema.features.keys()
    return frozenset(f.name for f in inspected.features if f.name not in declared)


def remember(plan: Plan, inspected: InspectedInputs) -> None:
    """Keeps the inspected inputs in the work folder of a plan, for a conversion that goes on.

    Raises:
        OutOfSpaceError, UsageError, StorageError: If it cannot be written.
    """
    name = _name_of(inspected.key)
    for other in plan.work_path().glob(_name_of("*")):
        if other.name != name:
            other.unlink(missing_ok=True)
    if not plan.work_path(name).exists():
        write_whole(plan.work_path(name), msgspec.msgpack.encode(inspected))


def _remembered(key: str, work_root: str) -> InspectedInputs | None:
    for path in Path(work_root).glob(f"*/{_name_of(key)}"):
        try:
            return msgspec.msgpack.decode(path.read_bytes(), type=InspectedInputs)
        except (OSError, *DECODE_ERRORS):
            continue
    return None


def _name_of(key: str) -> str:
    return f"understood-{key}.msgpack"


def _key_of(expanded: Expanded, options: SourceOptions, labels_sha256: str | None, asked: InspectOptions) -> str:
    # Names may be no UTF-8; reading them reports it.
    files = [(os.fsencode(f.path), f.num_bytes, f.version) for f in expanded.files]
    document = (
        __version__,
        files,
        (os.fsencode(expanded.root), len(expanded.repeated)),
        sorted((os.fsencode(path), shard) for path, shard in expanded.shards.items()),
        [(os.fsencode(path), os.fsencode(kept)) for path, kept in expanded.linked],
        options,
        (labels_sha256, asked.allow_empty, asked.split_bytes),
    )
    return xxhash.xxh3_128_hexdigest(msgspec.msgpack.encode(document))


def _read_plan(
    source: Source, files: tuple[RawFile, ...], options: SourceOptions
) -> tuple[Features, tuple[str, ...], tuple[InputSplit, ...]]:
    return source.infer(files, options), source.notes(files, options), tuple(source.split(files, options))


def _tell_splits(source: Source, files: tuple[RawFile, ...], options: SourceOptions, asked: InspectOptions) -> bool:
    if not asked.has_split_options:
        is_text = source.format == "text" and not options.no_labels
        are_rows = format_named(source.format).has_row_files
        if not (asked.has_source_column or are_rows):
            check_one_dataset(files, are_documents=is_text)
        if is_text and options.format == "text":
            # It names all files that are in the way, of which those without a split are some.
            are_class_documents(files)
        check_all_tell_splits(files, lambda some: _needs_union(source, some, options))
        check_no_unusual_splits(files, are_rows=are_rows and options.labels is None)
        if not are_rows:
            check_no_further_split(files, lambda: can_be_read(source, files, options))
    return bool(splits_in_names(files))


def _check_lines_are_alone(
    source: Source, files: tuple[RawFile, ...], options: SourceOptions, asked: InspectOptions
) -> None:
    are_lines = source.format == "text" and options.text_record == "line" and not asked.has_source_column
    if are_lines and (options.no_labels or not are_class_documents(files)):
        check_not_parallel(files)


def _needs_union(source: Source, files: tuple[RawFile, ...], options: SourceOptions) -> bool:
    """Returns whether files are read if their columns are joined, and not otherwise."""
    if "union_by_name" not in format_named(source.format).options or options.union_by_name:
        return False
    joined = msgspec.structs.replace(options, union_by_name=True)
    return problem_of(source, files, options) is not None and problem_of(source, files, joined) is None


def _choose(files: tuple[RawFile, ...], options: SourceOptions, *, allow_empty: bool) -> Choice:
    try:
        return choose(files, options)
    except NoRowsError:
        if not allow_empty or not files:
            raise
        # Only the name can show the format.
        return Choice(source_for(format_of(b"", files[0].name) or "csv"))


def _without_others(listing: Listing, options: SourceOptions) -> Listing:
    # Before known files are taken out: what is left then shows no longer what accompanies the data.
    passed = {file.name for file in _choose(listing.files, options, allow_empty=True).passed_over}
    return msgspec.structs.replace(listing, files=tuple(file for file in listing.files if file.name not in passed))


def _hash_of_labels(options: SourceOptions) -> str | None:
    if options.labels is None:
        return None
    # It takes 70 ms to import, and few have label files.
    from shardkit.sources.media.labels import label_files

    digest = hashlib.sha256()
    for file in label_files(options):
        digest.update(f"{file.name}\0{_hash_of(file)}\0".encode())
    return digest.hexdigest()


def _hash_of(file: RawFile) -> str:
    if file.member is None:
        return storage.hash_file(file.path)
    with open_stored(file) as stream:
        return hashlib.sha256(read_exactly(stream, file.num_bytes)).hexdigest()


def _labels_beside(files: tuple[RawFile, ...], root: str, options: SourceOptions) -> Beside | None:
    is_asked = options.labels is None and options.format in (None, "images", "audio", "video", "numpy-files")
    suffixes = (".npy",) if options.array_record == "file" or options.format == "numpy-files" else STREAM_SUFFIXES
    if not is_asked or not any(has_image_suffix(f.name) or suffix_of(f.name) in suffixes for f in files):
        return None
    from shardkit.sources.media.labels import labels_beside

    return labels_beside(files, root, options)


def _without_labels(files: tuple[RawFile, ...], options: SourceOptions) -> tuple[RawFile, ...]:
    if options.labels is None:
        return files
    from shardkit.sources.media.labels import without_label_files

    kept = without_label_files(files, options)
    if files and not kept:
        raise UsageError(
            "the inputs hold the labels and nothing else",
            where=printable(options.labels),
            next_step="Name the folder of the files that they are for, or leave --labels out to read them as rows",
        )
    return kept
