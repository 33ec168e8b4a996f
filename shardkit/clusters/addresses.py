"""Checks the addresses that options name before anything is read: an engine would wait for them for ever."""

from __future__ import annotations

import os
import socket
from typing import NamedTuple

from shardkit.errors import StorageError, UsageError
from shardkit.storage.options import VARIABLE

CONNECT_S = 10.0
UNTOUCHED = "Nothing was read or written"


class Client(NamedTuple):
    """Who asks for a cluster, in the words of its messages.

    Attributes:
        work: What is to run there.
        option: That names the cluster.
        absent: The state where the cluster is not there.
        kept: The state where it does not start.
        why_no_ray_client: Why the work does not run through Ray Client.
    """

    work: str
    option: str
    absent: str
    kept: str
    why_no_ray_client: str


# The first process of a conversion may have read something and died with the service.
CONVERSION = Client(
    "a conversion",
    "--engine-option",
    "Nothing was committed",
    "Nothing was committed; finished parts are kept",
    "the layout and the commit are done by the command, which must be on a node of the cluster",
)


def refuse_storage_options() -> None:
    """Raises `UsageError` if there are options of stores, which workers that others start do not get."""
    if os.environ.get(VARIABLE):
        raise UsageError(
            "--storage-options do not reach workers that others start",
            why="they stay with this command and what it starts itself",
            state=UNTOUCHED,
            next_step="Leave it out, and let the environment or profile of the workers say what the option does",
        )


def check_port(what: str, address: str, host: str, port: int, client: Client = CONVERSION) -> None:
    """Raises `StorageError` if no program listens there."""
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise no_answer(what, address, getattr(error, "strerror", None) or str(error), client) from error


def no_answer(what: str, address: str, why: str, client: Client = CONVERSION) -> StorageError:
    """Returns the error for a service that is not there."""
    return StorageError(
        f"there is no {what}",
        where=address,
        why=why,
        state=client.absent,
        next_step="Start it, or correct the address, and run the same command again",
    )
