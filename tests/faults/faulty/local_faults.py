"""Faults of local folders: what changes them is numbered and fails, by way of the functions that all Python code calls.

There is no file system of one's own to mount in every process, and shardkit asks the system itself, not fsspec.
"""

from __future__ import annotations

import builtins
import errno
import functools
import io
import os
from collections.abc import Callable
from typing import Any

from tests.faults.faulty.operations import Operations, kill_all

_real_open, _real_os_open = io.open, os.open
_OWN_NAMES = ("lock",)
_ERRORS = {"error": errno.EIO, "timeout": errno.ETIMEDOUT, "full": errno.ENOSPC}


def install(operations: Operations) -> None:
    """Replaces what changes folders and files, in this process and those that it forks."""
    for module_name, name in {
        "link": "link", "rename": "rename", "replace": "rename", "unlink": "delete", "remove": "delete",
        "mkdir": "make-folder", "rmdir": "delete-folder", "fsync": "sync",
    }.items():  # fmt: skip
        setattr(os, module_name, _numbered(operations, name, getattr(os, module_name)))
    os.open = _opening(operations)
    builtins.open = io.open = _opening_files(operations)  # type: ignore[assignment]


def _numbered(operations: Operations, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        path, source = _paths_of(name, args, options)
        with operations.entered() as is_first:
            if not is_first or not _counts(operations, path):
                return function(*args, **options)
            kind = operations.begin(name, path, **({"source": source} if source else {}))
            if kind in _ERRORS:
                raise OSError(_ERRORS[kind], os.strerror(_ERRORS[kind]), path)
            answer = function(*args, **options)
            if kind == "kill-after":
                kill_all()
            if kind == "lost-answer":
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return function(*args, **options) if kind == "asked-again" else answer

    return call


def _opening(operations: Operations) -> Callable[..., int]:
    @functools.wraps(_real_os_open)
    def call(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if flags & os.O_CREAT:
            _begin_opening(operations, os.fspath(path) if not isinstance(path, int) else "")
        return _real_os_open(path, flags, *args, **options)

    return call


def _opening_files(operations: Operations) -> Callable[..., Any]:
    @functools.wraps(_real_open)
    def call(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **options: Any) -> Any:
        path = _path_of_handle(file) if isinstance(file, int) else _text(file)
        if "b" not in mode or not set(mode) & set("wxa+") or not _counts(operations, path):
            return _real_open(file, mode, buffering, *args, **options)
        if not isinstance(file, int):
            _begin_opening(operations, path)
        raw = _FaultyFile(file, mode.replace("b", ""), opener=options.get("opener"))
        raw.prepare(operations, path)
        if buffering == 0:
            return raw
        return io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)

    return call


def _begin_opening(operations: Operations, path: str) -> None:
    if not _counts(operations, path):
        return
    kind = operations.begin("open", path)
    if kind in _ERRORS:
        raise OSError(_ERRORS[kind], os.strerror(_ERRORS[kind]), path)
    if kind == "kill-after":
        # A file without a name is opened by its folder, and is gone with the process.
        if not os.path.isdir(path):
            _real_os_open(path, os.O_WRONLY | os.O_CREAT, 0o666)
        kill_all()


class _FaultyFile(io.FileIO):
    def prepare(self, operations: Operations, path: str) -> None:
        """Makes its writes count."""
        self._operations, self._path = operations, path

    def write(self, data: Any, /) -> int:
        with self._operations.entered() as is_first:
            kind = self._operations.begin("write", self._path) if is_first else None
            if kind in _ERRORS:
                raise OSError(_ERRORS[kind], os.strerror(_ERRORS[kind]), self._path)
            if kind == "torn":
                super().write(memoryview(data)[: len(data) // 2])
                kill_all()
            num_bytes = super().write(data)
            if kind == "kill-after":
                kill_all()
            return num_bytes or 0


def _counts(operations: Operations, path: str) -> bool:
    return path.startswith(operations.plan.folders) and not path.endswith(_OWN_NAMES) and "/progress/" not in path


def _paths_of(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[str, str]:
    if name == "sync":
        return _path_of_handle(args[0]), ""
    if name in ("link", "rename"):
        return _text(args[1]), _text(args[0])
    folder = options.get("dir_fd")
    return (_text(args[0]) if folder is None else f"{_path_of_handle(folder)}/{os.fsdecode(args[0])}"), ""


def _text(path: Any) -> str:
    return os.path.abspath(os.fsdecode(path)) if isinstance(path, str | bytes | os.PathLike) else ""


def _path_of_handle(handle: int) -> str:
    try:
        # A cleaning may have taken the name of a temporary file.
        return os.readlink(f"/proc/self/fd/{handle}").removesuffix(" (deleted)")
    except OSError:
        return ""
