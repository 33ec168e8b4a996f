"""Which files the inputs name, under which names, and how they are compressed."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import msgspec

from shardkit import file_types
from shardkit.errors import BadInputError, UsageError
from shardkit.messages import printable
from shardkit.sources.arrays.numpy_source import parts_by_split
from shardkit.sources.base import RawFile, SourceOptions, StoredShard, reason_of
from shardkit.sources.dataset.inputs import Datasets, Version, find_datasets, version_named
from shardkit.sources.file_globs import choice_notes, choose_files, without_excluded
from shardkit.sources.files.archives import ARCHIVE_HEAD_BYTES, Members, expand_archive
from shardkit.sources.files.copies import check_not_unpacked, copies_of_tools
from shardkit.sources.files.many_files import map_files
from shardkit.sources.files.streams import open_raw
from shardkit.sources.files.unpacked import unpacked_copies
from shardkit.sources.inventory import is_companion_file
from shardkit.sources.registry import naming_fault
from shardkit.sources.split_words import folder_that_hides_splits
from shardkit.storage import files as storage
from shardkit.storage.local_listing import other_names

_GLOB = re.compile(r"[*?\[]")
_MANY_NOTES = 5
_UNLISTED = "is in the folder of a dataset that does not name it, and was left out; --format NAME reads all of a format"


class Expanded(msgspec.Struct, frozen=True, kw_only=True):
    """What inputs name.

    Attributes:
        files: Each once.
        root: The folder that their names are relative to; empty if the inputs have none in common.
        repeated: Paths that were named more than once.
        linked: Paths of files and folders that links made of others, and the paths that these go by.
        shards: Of the files those that are read as shards of datasets, by path.
        unlisted: Files in folders of datasets that are left out and are none of shardkit's.
    """

    files: tuple[storage.FileInfo, ...]
    root: str
    repeated: tuple[str, ...]
    linked: tuple[tuple[str, str], ...] = ()
    shards: dict[str, StoredShard] = {}
    unlisted: tuple[str, ...] = ()


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a conversion.

    Attributes:
        files: Sorted by name, each once. Members of a compressed tar and shards of a dataset keep their order.
        root: The folder that the names are relative to; empty if the inputs have none in common.
        notes: What a user should know about them, one sentence each.
        empty_notes: The same about files that are empty, where a file is not a row by itself.
        damaged: Archives that are refused or cannot be listed, and files whose names are no text, where bad rows are
            tolerated, each with the reason.
    """

    files: tuple[RawFile, ...]
    root: str
    notes: tuple[str, ...] = ()
    empty_notes: tuple[str, ...] = ()
    damaged: tuple[tuple[RawFile, str], ...] = ()


class _Inspected(NamedTuple):
    # The facts that a look at a file gave.
    file: RawFile
    like_image: bool
    members: Members | None = None
    refusal: BadInputError | UsageError | None = None
    naming_fault: str | None = None


def list_inputs(patterns: Sequence[str], options: SourceOptions | None = None) -> Listing:
    """Returns the files that files, folders and globs name, sorted by their name relative to the common root.

    The root of a file is its folder, of a folder itself, of a glob the folder before its first wildcard; of several
    inputs what their roots have in common. An archive that is excluded is not opened.

    An archive stands for its members, called `archive.zip/folder/name`. One that is the only input is the root
    itself, and so is a folder in which all of it is in further folders: of `photos.zip` that holds
    `photos/cats/1.jpg` and `photos/dogs/2.jpg` the names are `cats/1.jpg` and `dogs/2.jpg`.

    Raises:
        UsageError: If an input or a glob to include names nothing, nothing is left, or an input cannot be read.
        BadInputError, StorageError: If a file vanishes or cannot be read, or an archive is refused.
        DamagedFileError: If an archive is damaged, unless bad rows are tolerated and something else is left.
    """
    options = options or SourceOptions()
    return list_files(expand_inputs(patterns, options.format), options)


def expand_inputs(patterns: Sequence[str], format: str | None = None) -> Expanded:
    """Returns the files that files, folders and globs name, without looking into any.

    Of a dataset these are the shards of its newest version, unless another format is asked for; the path of a
    manifest stands for that version.

    Raises:
        UsageError: If an input names nothing, or cannot be read.
        DamagedFileError: If a dataset is damaged.
    """
    if not patterns:
        raise UsageError("no input was named", next_step="Name files, folders or globs")
    found: dict[str, storage.FileInfo] = {}
    repeated: list[str] = []
    linked: dict[str, str] = {}
    reads_datasets = format in (None, "dataset")
    versions: list[Version] = []
    folders: list[str] = []
    for pattern in map(storage.pin, patterns):
        path = storage.normalize(pattern)
        version = version_named(path) if reads_datasets else None
        files, circles = storage.expand_input(pattern if version is None else version.folder)
        if version is None:
            folders.append(path)
        else:
            versions.append(version)
        for info in files:
            if info.path in found:
                repeated.append(info.path)
            found[info.path] = info
        linked |= dict(circles)
    root = common_root([*(_root_of(path, found) for path in folders), *(version.folder for version in versions)])
    datasets = find_datasets(found, folders, versions) if reads_datasets else Datasets({}, frozenset(), ())
    found = {path: info for path, info in found.items() if path not in datasets.others}
    shards = datasets.shards
    by_links = _reached_by_links(found.values())
    return Expanded(
        files=tuple(info for info in found.values() if info.path not in by_links),
        root=root,
        repeated=tuple(dict.fromkeys(repeated)),
        linked=tuple(sorted((linked | by_links).items())),
        shards=shards,
        unlisted=datasets.unlisted,
    )


def _reached_by_links(files: Collection[storage.FileInfo]) -> dict[str, str]:
    identities = Counter(info.identity for info in files if info.identity)
    same: dict[int, list[str]] = {}
    for info in files:
        if identities[info.identity] > 1:
            same.setdefault(info.identity, []).append(info.path)
    return {path: kept for paths in same.values() for path, kept in other_names(paths).items()}


def list_files(expanded: Expanded, options: SourceOptions) -> Listing:
    """Returns the inputs of a conversion as `list_inputs` does, from what the inputs name."""
    root = expanded.root
    listed = sorted((_raw_file(info, expanded, options) for info in expanded.files), key=_order_of)
    kept = without_excluded(listed, options)
    inspected = map_files(lambda file: _inspect(file, options), kept)
    if len(inspected) == 1 and inspected[0].members is not None:
        root, members = _within(inspected[0].file, inspected[0].members.files)
        named = [(inspected[0].file.name, file) for file in members]
    else:
        named = [(item.file.name, file) for item in inspected for file in _files_of(item)]
    num_excluded = len(listed) - len(kept)
    chosen = choose_files(named, num_excluded, options)
    files, left_out = _without_manifests(chosen)
    copies = unpacked_copies(files)
    files = [file for file in files if file.name not in copies] if copies else files
    check_not_unpacked((item.file for item in inspected if item.members is not None), files)
    of_tools = copies_of_tools(files)
    files = [file for file in files if file.name not in of_tools] if of_tools else files
    hiding = folder_that_hides_splits([file.name for file in files if not is_companion_file(file.name)])
    if hiding and root and not expanded.shards:
        # Companions of the data may be beside that folder.
        root = f"{root.rstrip('/')}/{hiding.rstrip('/')}"
        files = [msgspec.structs.replace(file, name=file.name.removeprefix(hiding)) for file in files]
    notes = (
        *_some_notes([_name(path, root) for path in expanded.repeated], "was named twice and is read once"),
        *_link_notes(expanded.linked, root),
        *_some_notes([_name(path, root) for path in expanded.unlisted], _UNLISTED),
        *choice_notes(len(chosen), len(named) + num_excluded),
        *(item.members.note for item in inspected if item.members is not None and item.members.note),
        *_naming_notes(inspected, files),
        *_some_notes(copies, "lies beside its unpacked file, which is read once"),
        *_some_notes(of_tools, "is a copy of the file beside it, and was left out"),
        *_some_notes(left_out, "belongs to a dataset beside its shards and was left out"),
    )
    empty_notes = _some_notes(
        [f.name for f in files if f.num_bytes == 0 and not is_companion_file(f.name)], "is empty: 0 rows"
    )
    damaged = [(item.file, item.refusal) for item in inspected if item.refusal is not None]
    if damaged and not any(f.num_bytes for f in files):
        raise damaged[0][1]
    return Listing(
        files=tuple(files),
        root=root,
        notes=notes,
        empty_notes=empty_notes,
        damaged=tuple((f, reason_of(e)) for f, e in damaged),
    )


def common_root(roots: Sequence[str]) -> str:
    """Returns the longest folder that all paths are in, empty if they share none."""
    shared: list[str] = []
    for parts in zip(*(r.split("/") for r in roots), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    if "://" in roots[0] and len(shared) < 3:
        return ""
    return "/".join(shared) or ("/" if roots[0].startswith("/") and shared else "")


def _root_of(pattern: str, found: dict[str, storage.FileInfo]) -> str:
    path = storage.normalize(pattern)
    if path in found:
        return path.rsplit("/", 1)[0]
    wildcard = _GLOB.search(path)
    if wildcard is None or any(p.startswith(f"{path}/") for p in found):
        return path
    return path[: wildcard.start()].rsplit("/", 1)[0]


def _raw_file(info: storage.FileInfo, expanded: Expanded, options: SourceOptions) -> RawFile:
    shard = expanded.shards.get(info.path)
    return RawFile(
        path=info.path,
        name=_name(info.path, expanded.root),
        num_bytes=info.num_bytes,
        version=info.version,
        max_expansion=options.max_expansion,
        split=None if shard is None else shard.split,
        shard=shard,
    )


def _name(path: str, root: str) -> str:
    return path.removeprefix(root).lstrip("/") if root else path


def _order_of(file: RawFile) -> tuple[str, int]:
    # The shards of a dataset keep its order; the names of their folders are hashes.
    return (file.name, 0) if file.shard is None else (file.shard.dataset, file.shard.position)


def _inspect(file: RawFile, options: SourceOptions) -> _Inspected:
    if not file.name.isascii() and escaped(file.name) != file.name:
        return _refuse_name(file, options)
    # A million images would be a million more requests, and an image inside a gzip is not read anyway.
    like_image = file_types.has_image_suffix(file.name)
    if like_image or file.num_bytes == 0 or file.shard is not None:
        return _Inspected(file, like_image)
    with open_raw(file) as stream:
        head = stream.read(ARCHIVE_HEAD_BYTES)
    file = msgspec.structs.replace(file, compression=file_types.compression_of(head))
    try:
        members = expand_archive(file, head, options) or _array_splits(file)
    except BadInputError as error:
        if not options.tolerates_bad_rows:
            raise
        return _Inspected(file, like_image, refusal=error)
    if members is not None or options.format is not None:
        return _Inspected(file, like_image, members)
    return _Inspected(file, like_image, naming_fault=naming_fault(head, file.name, file.compression))


def _array_splits(file: RawFile) -> Members | None:
    if file.compression is not None or file_types.suffix_of(file.name) != ".npz":
        return None
    parts = parts_by_split(file)
    note = f"{printable(file.name)} is read as one file for each split that its arrays are named after"
    return Members(parts, note) if parts else None


def _refuse_name(file: RawFile, options: SourceOptions) -> _Inspected:
    path = escaped(file.path)
    error = UsageError("the file name is not UTF-8", where=printable(path), next_step="Rename the file")
    if not options.tolerates_bad_rows:
        raise error
    return _Inspected(msgspec.structs.replace(file, path=path, name=escaped(file.name)), False, refusal=error)


def escaped(name: str) -> str:
    """Returns a name with the bytes that are not UTF-8 escaped."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _files_of(item: _Inspected) -> list[RawFile]:
    if item.refusal is not None:
        return []
    if item.members is None:
        return [item.file]
    return [msgspec.structs.replace(m, name=f"{item.file.name}/{m.name}") for m in item.members.files]


def _within(archive: RawFile, members: Sequence[RawFile]) -> tuple[str, list[RawFile]]:
    # People pack a folder as often as the files in it.
    folders = [m.name.split("/")[:-1] for m in members if not file_types.is_document_name(m.name)]
    shared = common_root(["/".join(["", *parts[:-1]]) for parts in folders if parts] or [""]).strip("/")
    if not shared or any(not parts for parts in folders):
        return archive.path, list(members)
    prefix = f"{shared}/"
    named = [msgspec.structs.replace(m, name=m.name.removeprefix(prefix)) for m in members]
    return f"{archive.path}/{shared}", named


def _without_manifests(files: list[RawFile]) -> tuple[list[RawFile], list[str]]:
    left_out = {f.name for f in files if file_types.is_manifest_name(f.name)}
    if not left_out or len(left_out) == len(files):
        return files, []
    return [f for f in files if f.name not in left_out], sorted(left_out)


def _naming_notes(inspected: list[_Inspected], files: Sequence[RawFile]) -> Iterator[str]:
    faults = [(item.naming_fault, item.file.name) for item in inspected if item.naming_fault is not None]
    read = {f.name for f in files} if faults else set()
    by_fault: dict[str, list[str]] = {}
    for fault, name in faults:
        if name in read:
            by_fault.setdefault(fault, []).append(name)
    for fault, names in by_fault.items():
        yield from _some_notes(names, f"{fault}; its content counts")


def _link_notes(linked: Sequence[tuple[str, str]], root: str) -> Iterator[str]:
    for path, kept in linked[:_MANY_NOTES]:
        name, other = (printable(escaped(_name(p, root) or p)) for p in (path, kept))
        yield f"{name} is another name of {other}, which is read once"
    if len(linked) > _MANY_NOTES:
        yield f"and so with {len(linked) - _MANY_NOTES:,} more names"


def _some_notes(names: Sequence[str], what: str) -> tuple[str, ...]:
    notes = [f"{printable(name)} {what}" for name in names[:_MANY_NOTES]]
    if len(names) > _MANY_NOTES:
        notes.append(f"and so with {len(names) - _MANY_NOTES:,} more files")
    return tuple(notes)
