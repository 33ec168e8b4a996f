"""Whether the other workers can be called."""

from __future__ import annotations

import contextlib
import socket
import time

from shardkit.errors import StorageError
from train.distribution.cluster import Cluster, name_of, parse_address
from train.distribution.heartbeat import START_LIMIT_S

_CALL_LIMIT_S = 1.0
_PAUSE_S = 0.1


def is_open(address: str) -> bool:
    """Returns whether somebody listens at `host:port`."""
    with contextlib.suppress(OSError):
        socket.create_connection(parse_address(address, "the cluster"), timeout=_CALL_LIMIT_S).close()
        return True
    return False


def wait_for_peers(cluster: Cluster, limit_s: float = START_LIMIT_S) -> None:
    """Waits until all other workers can be called.

    Raises:
        StorageError: If one of them cannot in time; names it.
    """
    until_s = time.monotonic() + limit_s
    for index, address in cluster.peers.items():
        while not is_open(address):
            if time.monotonic() > until_s:
                raise StorageError(
                    f"{name_of(index, cluster.num_servers)} did not start in {limit_s:g} s",
                    where=address,
                    next_step="See its log, and that its host can be reached",
                )
            time.sleep(_PAUSE_S)
