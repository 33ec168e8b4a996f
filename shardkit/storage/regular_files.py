"""Opening local files of which only a regular one will do: a pipe would be waited for, and a device may have no end."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFDIR: "folder",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


class NotRegularError(OSError):
    """Something else lies where a file is expected. Its `strerror` says what."""


class KeptFile(io.FileIO):
    """A file that is closed, once and without a warning, when the last reference to it is gone."""

    # Not a function of Python's: an interrupt that arrived in it would be lost.
    __del__ = io.FileIO.close


def open_regular(path: Path) -> BinaryIO:
    """Opens a file for reading bytes, at once.

    Raises:
        NotRegularError: If it is a folder, a pipe, a socket or a device.
        OSError: If it is missing or may not be read.
    """
    _check_regular(path)
    return open(path, "rb", opener=_open_at_once)


def keep_regular(path: Path) -> KeptFile:
    """Opens a file that closes when the last reference is gone; see `open_regular`."""
    _check_regular(path)
    return KeptFile(path, "rb", opener=_open_at_once)


def _check_regular(path: Path) -> None:
    # Opening some devices changes them, so the kind of file is asked before.
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "thing of another kind")
        raise NotRegularError(errno.EINVAL, f"it is a {kind}, not a file", str(path))


def _open_at_once(name: str, flags: int) -> int:
    # Opening does not wait either if the file has become a pipe since it was checked.
    return os.open(name, flags | os.O_NONBLOCK)
