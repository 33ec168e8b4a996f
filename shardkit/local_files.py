"""Which local files an input argument names. Nothing is passed over in silence but what is hidden."""

from __future__ import annotations

import glob
import os
import stat
from pathlib import Path
from typing import NamedTuple

from shardkit.errors import UsageError


class LocalFile(NamedTuple):
    """A file that may be read.

    Attributes:
        path: Absolute.
        num_bytes: Size.
        modified_ns: When it was last written to, in nanoseconds since 1970.
    """

    path: str
    num_bytes: int
    modified_ns: int


def list_local_files(pattern: str) -> list[LocalFile]:
    """Returns the files that a file, a folder or a glob stands for, sorted by path, each once.

    Raises:
        UsageError: If nothing is there, or anything that is may not be read or is no regular file.
    """
    try:
        target = Path(pattern).expanduser()
    except RuntimeError as error:
        raise UsageError(
            f"the input {pattern!r} is refused",
            why="there is no such home folder",
            next_step="Write the path out instead of ~",
        ) from error
    if not any(c in pattern for c in "*?[") or _exists(target):
        return sorted(_files_of(str(target.absolute())))
    # Brackets in the name of the current folder are no pattern.
    absolute = str(target) if target.is_absolute() else f"{glob.escape(str(Path.cwd()))}/{target}"
    matches = glob.glob(absolute, recursive=True)  # noqa: PTH207 - Path.glob finds hidden files
    if not matches:
        raise UsageError(f"no file matches {pattern!r}", next_step="Check the pattern, and quote it")
    # `**` matches a folder and the folders in it.
    return sorted({file for match in matches for file in _files_of(str(Path(match)))})


def find_local_file(path: str) -> LocalFile:
    """Returns size and time of a file.

    Raises:
        UsageError: If it is missing, may not be read or is no regular file.
    """
    try:
        return _readable(path, os.stat(path))  # noqa: PTH116
    except OSError as error:
        raise _unreadable(path, error) from error


def _files_of(target: str) -> list[LocalFile]:
    try:
        found = os.stat(target)  # noqa: PTH116
    except OSError as error:
        raise _unreadable(target, error) from error
    if not stat.S_ISDIR(found.st_mode):
        return [_readable(target, found)]
    files: list[LocalFile] = []
    _walk(target, found, frozenset(), files)
    if not files:
        raise UsageError(
            "the input folder holds no files",
            where=target,
            next_step="Name a folder with files; those that start with a dot do not count",
        )
    return files


def _walk(folder: str, found: os.stat_result, above: frozenset[tuple[int, int]], files: list[LocalFile]) -> None:
    # os.walk and Path.rglob pass over folders that they may not read.
    here = (found.st_dev, found.st_ino)
    if here in above:
        return  # a link to a folder above
    path = folder
    try:
        with os.scandir(folder) as entries:
            listed = [entry for entry in entries if not entry.name.startswith(".")]
        for entry in listed:
            path = entry.path
            found = entry.stat()
            if stat.S_ISDIR(found.st_mode):
                _walk(path, found, above | {here}, files)
            else:
                files.append(_readable(path, found))
    except OSError as error:
        raise _unreadable(path, error) from error


def _readable(path: str, found: os.stat_result) -> LocalFile:
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(
            "the input is not a regular file",
            where=path,
            next_step="Name files and folders only; write what a pipe or device gives to a file first",
        )
    # Asking the system takes as long as all the rest; what everybody may read needs no question.
    if found.st_mode & 0o444 != 0o444 and not os.access(path, os.R_OK):
        raise UsageError(
            "cannot read the input",
            where=path,
            why="permission denied",
            next_step="Make it readable, or leave it out with --exclude GLOB",
        )
    return LocalFile(path, found.st_size, found.st_mtime_ns)


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
