"""Which local files an input argument names. Nothing is passed over in silence but what is hidden."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from shardkit.errors import UsageError


def list_local_files(pattern: str) -> list[str]:
    """Returns the absolute paths that a file, a folder or a glob stands for, sorted, each once.

    Raises:
        UsageError: If nothing is there, or a folder may not be read.
    """
    try:
        target = Path(pattern).expanduser()
    except RuntimeError as error:
        raise UsageError(f"the input {pattern!r} is refused", why="there is no such home folder") from error
    if not any(c in pattern for c in "*?[") or _ask(target, Path.exists):
        return _files_of(target.absolute())
    # Brackets in the name of the current folder are no pattern.
    absolute = str(target) if target.is_absolute() else f"{glob.escape(str(Path.cwd()))}/{target}"
    matches = glob.glob(absolute, recursive=True)  # noqa: PTH207 - Path.glob finds hidden files
    if not matches:
        raise UsageError(f"no file matches {pattern!r}", next_step="Check the pattern, and quote it")
    # `**` matches a folder and the folders in it.
    return sorted({path for match in matches for path in _files_of(Path(match))})


def _files_of(target: Path) -> list[str]:
    if not _ask(target, Path.is_dir):
        return [str(target)]
    paths = sorted(_walk(target, frozenset()))
    if not paths:
        raise UsageError("the input folder holds no files", where=str(target))
    return paths


def _walk(folder: Path, above: frozenset[tuple[int, int]]) -> Iterator[str]:
    # os.walk and Path.rglob pass over folders that they may not read.
    try:
        found = folder.stat()
        names = os.listdir(folder)  # noqa: PTH208
    except OSError as error:
        raise _unreadable(folder, error) from error
    here = (found.st_dev, found.st_ino)
    if here in above:
        return  # a link to a folder above
    for name in names:
        path = folder / name
        if name.startswith("."):
            continue
        if _ask(path, Path.is_dir):
            yield from _walk(path, above | {here})
        else:
            yield str(path)


def _ask(path: Path, question: Callable[[Path], bool]) -> bool:
    try:
        return question(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> UsageError:
    return UsageError("cannot read the input", where=str(path), why=(error.strerror or str(error)).lower())
