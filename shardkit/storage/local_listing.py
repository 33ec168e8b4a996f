"""Which local files an input argument names. Only hidden files are passed over in silence."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from shardkit.errors import UsageError
from shardkit.storage.locations import redact


class LocalFile(NamedTuple):
    """A file that may be read.

    Attributes:
        path: Absolute.
        modified_ns: When it was last written to, in nanoseconds since 1970.
        identity: The same for all names of one file.
    """

    path: str
    num_bytes: int
    modified_ns: int
    identity: int


class LocalFiles(NamedTuple):
    """What an input argument names.

    Attributes:
        files: Sorted by path, each path once; a file may be there by several names.
        circles: Folders that were reached by a second name, and the name by which they were read.
    """

    files: list[LocalFile]
    circles: list[tuple[str, str]]


def list_local_files(pattern: str) -> LocalFiles:
    """Returns the files that a file, a folder or a glob stands for. Links are followed, into no folder twice.

    Raises:
        UsageError: If nothing is there, or anything that is may not be read or is no regular file.
    """
    try:
        target = Path(pattern).expanduser()
    except RuntimeError as error:
        raise UsageError(
            f"the input {redact(pattern)!r} is refused",
            why="there is no such home folder",
            next_step="Write the path out instead of ~",
        ) from error
    circles: list[tuple[str, str]] = []
    if not any(c in pattern for c in "*?[") or _exists(target):
        return LocalFiles(sorted(_files_of(str(target.absolute()), circles)), circles)
    # Brackets in the name of the current folder are no pattern.
    matches = list(_matches(str(Path.cwd()), str(target), circles))
    if not matches:
        raise UsageError(f"no file matches {redact(pattern)!r}", next_step="Check the pattern, and quote it")
    # `**` matches a folder and the folders in it.
    files = {file for match in matches for file in _files_of(str(Path(match)), circles)}
    return LocalFiles(sorted(files), list(dict.fromkeys(circles)))


def find_local_file(path: str) -> LocalFile:
    """Returns size and time of a file. Raises UsageError if it is missing, may not be read or is no regular file."""
    try:
        return _readable(path, os.stat(path))  # noqa: PTH116
    except OSError as error:
        raise _unreadable(path, error) from error


def other_names(paths: Iterable[str]) -> dict[str, str]:
    """Returns those of several paths that lead to the same file as another one, with the one that it goes by.

    That is the one without links if it is among them. Hard links are separate files: neither is the real one.

    Args:
        paths: Of files with the same identity.
    """
    by_place: dict[str, list[str]] = {}
    for path in paths:
        by_place.setdefault(os.path.realpath(path), []).append(path)
    found: dict[str, str] = {}
    for place, names in by_place.items():
        kept = place if place in names else min(names)
        found |= {name: kept for name in names if name != kept}
    return found


def walk_files(folder: str) -> list[tuple[str, int, float]]:
    """Returns path, size and time of all files below a folder, sorted; links as they are, and into none."""
    found: list[tuple[str, int, float]] = []
    folders = [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                        continue
                    # Another process may have removed it.
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        found.append((entry.path, status.st_size, status.st_mtime))
        except FileNotFoundError:
            continue
    return sorted(found)


def _matches(folder: str, pattern: str, circles: list[tuple[str, str]]) -> Iterator[str]:
    # Python's `**` follows links to folders above it, which makes a million paths.
    before, mark, after = _cut(pattern)
    found = glob.glob(before, root_dir=folder) if before else [""]  # noqa: PTH207 - Path.glob finds hidden files
    for match in found:
        path = os.path.join(folder, match) if match else folder  # noqa: PTH118
        if not mark:
            yield path
        elif not os.path.isdir(path):  # noqa: PTH112
            continue
        elif not after:
            yield path
        else:
            for below, _ in _walk(path, circles):
                yield from _matches(below, after, circles)


def _cut(pattern: str) -> tuple[str, bool, str]:
    parts = pattern.split("/")
    if "**" not in parts:
        return pattern, False, ""
    place = parts.index("**")
    before = "/".join(parts[:place])
    after = "/".join(parts[place + 1 :])
    return before or ("/" if pattern.startswith("/") else ""), True, after


def _files_of(target: str, circles: list[tuple[str, str]]) -> list[LocalFile]:
    try:
        found = os.stat(target)  # noqa: PTH116
    except OSError as error:
        raise _unreadable(target, error) from error
    if not stat.S_ISDIR(found.st_mode):
        return [_readable(target, found)]
    files = [_file_of(entry) for _, entries in _walk(target, circles) for entry in entries]
    if not files:
        raise UsageError(
            "the input folder holds no files",
            where=target,
            next_step="Name a folder with files; those that start with a dot do not count",
        )
    return files


def _file_of(entry: os.DirEntry[str]) -> LocalFile:
    try:
        return _readable(entry.path, entry.stat())
    except OSError as error:
        raise _unreadable(entry.path, error) from error


def _walk(top: str, circles: list[tuple[str, str]]) -> Iterator[tuple[str, list[os.DirEntry[str]]]]:
    # A folder and all below with what is no folder in them, each once, by a name without links if it has one.
    # os.walk and Path.rglob pass over folders that they may not read.
    seen: dict[tuple[int, int], str] = {}
    folders, links = [top], list[str]()
    while folders or links:
        folder = folders.pop() if folders else links.pop(0)
        try:
            found = os.stat(folder)  # noqa: PTH116
            known = seen.setdefault((found.st_dev, found.st_ino), folder)
            if known is not folder:
                circles.append((folder, known))
                continue
            with os.scandir(folder) as entries:
                listed = [entry for entry in entries if not entry.name.startswith(".")]
        except OSError as error:
            raise _unreadable(folder, error) from error
        folders += sorted((e.path for e in listed if e.is_dir(follow_symlinks=False)), reverse=True)
        linked = {e.path for e in listed if e.is_symlink() and os.path.isdir(e.path)}  # noqa: PTH112
        links += sorted(linked)
        yield folder, [e for e in listed if not e.is_dir(follow_symlinks=False) and e.path not in linked]


def _readable(path: str, found: os.stat_result) -> LocalFile:
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(
            "the input is not a regular file",
            where=path,
            next_step="Name files and folders only; write what a pipe or device gives to a file first",
        )
    # Asking the system takes as long as all the rest; a file that every user may read needs no question.
    if found.st_mode & 0o444 != 0o444 and not os.access(path, os.R_OK):
        raise UsageError(
            "cannot read the input",
            where=path,
            why="permission denied",
            next_step="Make it readable, or leave it out with --exclude GLOB",
        )
    return LocalFile(path, found.st_size, found.st_mtime_ns, found.st_dev << 64 | found.st_ino)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise _unreadable(str(path), error) from error


def _unreadable(path: str, error: OSError) -> UsageError:
    return UsageError(
        "cannot read the input",
        where=path,
        why=(error.strerror or str(error)).lower(),
        next_step="Check the path and its permissions, or leave it out with --exclude GLOB",
    )
