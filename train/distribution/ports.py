"""Free ports of this host that stay free until a worker listens on them."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Self

LOOPBACK = "127.0.0.1"


class HeldPorts:
    """Ports on loopback, bound but not listened to while the block runs.

    A system gives a bound port to no other process. A port that is free could be taken by an outgoing connection of
    TensorFlow. A socket that allows sharing of its address can still listen there; those of TensorFlow do.

    Args:
        count: Their number.
    """

    def __init__(self, count: int) -> None:
        self._sockets = [_bound() for _ in range(count)]

    @property
    def addresses(self) -> tuple[str, ...]:
        """`host:port` of each."""
        return tuple(f"{LOOPBACK}:{held.getsockname()[1]}" for held in self._sockets)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for held in self._sockets:
            held.close()


def _bound() -> socket.socket:
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.bind((LOOPBACK, 0))
    # Only after the bind: a system may give the same port to two sockets that allow sharing.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return held
