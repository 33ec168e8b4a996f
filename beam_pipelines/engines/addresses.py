"""Checks the addresses that options name before anything is read: an engine would wait for them for ever."""

from __future__ import annotations

import os
import socket

from shardkit.errors import StorageError, UsageError
from shardkit.storage.options import VARIABLE

CONNECT_S = 10.0
UNTOUCHED = "Nothing was read or written"


def refuse_storage_options() -> None:
    """Raises `UsageError` if there are options of stores, which workers that others start do not get."""
    if os.environ.get(VARIABLE):
        raise UsageError(
            "--storage-options do not reach workers that others start",
            why="they stay with this command and what it starts itself",
            state=UNTOUCHED,
            next_step="Leave it out, and let the environment or profile of the workers say what the option does",
        )


def check_port(what: str, address: str, host: str, port: int) -> None:
    """Raises `StorageError` if no program listens there."""
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise no_answer(what, address, getattr(error, "strerror", None) or str(error)) from error


def no_answer(what: str, address: str, why: str) -> StorageError:
    """Returns the error for a service that is not there."""
    return StorageError(
        f"there is no {what}",
        where=address,
        why=why,
        # The first process of a conversion may have read something and died with the service.
        state="Nothing was committed",
        next_step="Start it, or correct the address, and run the same command again",
    )
