"""Which files the inputs name, under which names, and how they are compressed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from shardkit import storage
from shardkit.errors import UsageError
from shardkit.sources import sniff
from shardkit.sources.base import RawFile
from shardkit.sources.streams import open_raw, printable

_GLOB = re.compile(r"[*?\[]")
_MANY_NOTES = 5
_REMOTE_THREADS = 32


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a conversion.

    Attributes:
        files: Sorted by name, each once.
        root: The folder that the names are relative to; empty if the inputs have none in common.
        notes: What a user should know about them, one sentence each.
    """

    files: tuple[RawFile, ...]
    root: str
    notes: tuple[str, ...] = ()


def list_inputs(patterns: Sequence[str]) -> Listing:
    """Returns the files that files, folders and globs name, sorted by their name relative to the common root.

    The root of a file is its folder, of a folder itself, of a glob the folder before its first wildcard; of several
    inputs what their roots have in common. Files that are called like a README are left out unless all are.

    Raises:
        UsageError: If an input names nothing, or cannot be read.
        BadInputError, StorageError: If a file vanishes or cannot be read.
    """
    if not patterns:
        raise UsageError("no input was named", next_step="Name files, folders or globs")
    found: dict[str, storage.FileInfo] = {}
    repeated: list[str] = []
    for pattern in patterns:
        for info in storage.expand_input(pattern):
            if info.path in found:
                repeated.append(info.path)
            found[info.path] = info
    root = common_root([_root_of(p, found) for p in patterns])
    listed = sorted((_raw_file(info, root) for info in found.values()), key=_name_of)
    files, left_out = _without_documents(_with_compression(listed))
    notes = (
        *_some_notes([_name(path, root) for path in dict.fromkeys(repeated)], "was named twice and is read once"),
        *_some_notes(left_out, "is called like a document and was left out"),
        *_some_notes([f.name for f in files if f.num_bytes == 0], "is empty: 0 rows"),
    )
    return Listing(files=tuple(files), root=root, notes=notes)


def common_root(roots: Sequence[str]) -> str:
    """Returns the longest folder that all paths lie in, empty if they share none."""
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


def _raw_file(info: storage.FileInfo, root: str) -> RawFile:
    name = _name(info.path, root)
    if not name.isascii() and name != name.encode("utf-8", "replace").decode():
        raise UsageError(f"the file name {name!r} is not UTF-8", next_step="Rename the file")
    return RawFile(path=info.path, name=name, num_bytes=info.num_bytes, version=info.version)


def _name(path: str, root: str) -> str:
    return path.removeprefix(root).lstrip("/") if root else path


def _name_of(file: RawFile) -> str:
    return file.name


def _with_compression(files: list[RawFile]) -> list[tuple[RawFile, bool]]:
    # And whether each is called like an image.
    named = [(file, sniff.has_image_suffix(file.name)) for file in files]
    if all(storage.is_local(f.path) for f in files):
        return [_sniffed(*f) for f in named]
    with ThreadPoolExecutor(_REMOTE_THREADS) as threads:
        return list(threads.map(lambda f: _sniffed(*f), named))


def _sniffed(file: RawFile, like_image: bool) -> tuple[RawFile, bool]:
    # A million images would be a million more requests, and an image inside a gzip is not read anyway.
    if like_image or file.num_bytes == 0:
        return file, like_image
    with open_raw(file) as stream:
        head = stream.read(16)
    return msgspec.structs.replace(file, compression=sniff.compression_of(head)), like_image


def _without_documents(files: list[tuple[RawFile, bool]]) -> tuple[list[RawFile], list[str]]:
    among_images = any(like_image for _, like_image in files)
    left_out = {
        f.name
        for f, like_image in files
        if not like_image and sniff.is_document_name(f.name, among_images=among_images) and not _is_image(f)
    }
    if len(left_out) == len(files):
        left_out = set()
    return [f for f, _ in files if f.name not in left_out], sorted(left_out)


def _is_image(file: RawFile) -> bool:
    with open_raw(file) as stream:
        return sniff.image_type_of(stream.read(16)) is not None


def _some_notes(names: list[str], what: str) -> tuple[str, ...]:
    notes = [f"{printable(name)} {what}" for name in names[:_MANY_NOTES]]
    if len(names) > _MANY_NOTES:
        notes.append(f"and so with {len(names) - _MANY_NOTES:,} more files")
    return tuple(notes)
