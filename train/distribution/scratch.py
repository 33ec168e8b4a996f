"""The folder of a supervisor while it runs. Workers leave their signs of life there.

A killed supervisor leaves its folder, and the next one removes it. A lock shows whether the owner of a folder runs. It
ends with its process, and every process that sees the folder sees it, even with other process numbers.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

PREFIX = "shardkit-train-"

_LOCK = "lock"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Makes a folder for the length of the block, after those whose owner was killed are removed."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{_LOCK}"):
        _remove_if_left(path)
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        # The lock gets its name after it is held; other processes pass over a folder without that name.
        new = Path(folder, f"{_LOCK}.new")
        with new.open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            new.rename(new.with_name(_LOCK))
            yield Path(folder)


def _remove_if_left(path: Path) -> None:
    # Another user's, or another supervisor removes it right now.
    with contextlib.suppress(OSError), path.open("rb") as lock:
        if _is_left(lock):
            shutil.rmtree(path.parent, ignore_errors=True)


def _is_left(lock: BinaryIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
