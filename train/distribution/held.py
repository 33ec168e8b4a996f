"""What a supervisor holds while it runs: free ports for its workers, and a folder for their signs of life.

A killed supervisor leaves its folder, and the next one removes it.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from shardkit.storage.temporary_files import own_folder

LOOPBACK = "127.0.0.1"
PREFIX = "shardkit-train-"


class HeldPorts:
    """Ports, bound but not listened to while the block runs.

    A system gives a bound port to no other process. A port that is free could be taken by an outgoing connection of
    TensorFlow. A socket that allows sharing of its address can still listen there; those of TensorFlow do.

    Args:
        host: Address of the interface; all of them if empty.
    """

    def __init__(self, count: int, host: str = LOOPBACK) -> None:
        self._sockets = [_bound(host) for _ in range(count)]

    @property
    def addresses(self) -> tuple[str, ...]:
        """`host:port` of each."""
        return tuple("{}:{}".format(*held.getsockname()) for held in self._sockets)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for held in self._sockets:
            held.close()


def _bound(host: str) -> socket.socket:
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.bind((host, 0))
    # Only after the bind: a system may give the same port to two sockets that allow sharing.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return held


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Makes a folder for the length of the block, after those whose owner was killed are removed."""
    folder, lock = own_folder(PREFIX)
    with lock:
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
