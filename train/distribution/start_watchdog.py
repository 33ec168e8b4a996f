"""A process beside a worker that ends it when TensorFlow would wait for another worker for ever.

TensorFlow starts its part of the cluster in one call, which holds Python's lock until all workers are there: no thread
of the worker runs meanwhile, and no signal handler.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

import train
from train.distribution.cluster import Cluster, parse_address
from train.distribution.exit_codes import WATCHDOG_SIGNAL
from train.distribution.rendezvous import MAX_GREETING_BYTES, MAX_NAMED, decode_greeting

# What TensorFlow may take to start after all have met.
START_LIMIT_S = 120.0

_EVERY_S = 1.0
_CALL_LIMIT_S = 1.0
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from train.distribution.start_watchdog import look; look(sys.argv[2])"
)


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What a watchdog watches.

    Attributes:
        cluster: As its worker sees it.
        nonces: Of the other workers when they met, by index.
    """

    cluster: Cluster
    nonces: dict[int, str]
    limit_s: float
    worker: int


@contextlib.contextmanager
def watched(cluster: Cluster, nonces: Mapping[int, str], limit_s: float = START_LIMIT_S) -> Iterator[None]:
    """Ends this process if another worker begins anew, or too much time passes, while the block starts TensorFlow.

    It ends by `WATCHDOG_SIGNAL`, after a sentence on stderr.
    """
    if cluster.num_workers == 1:
        yield
        return
    signal.signal(WATCHDOG_SIGNAL, signal.SIG_DFL)
    task = Task(cluster=cluster, nonces=dict(nonces), limit_s=limit_s, worker=os.getpid())
    own_path = str(Path(train.__file__).resolve().parent.parent)
    command = (sys.executable, "-P", "-c", _PROGRAM, own_path, msgspec.json.encode(task).decode())
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as watchdog:
        try:
            yield
        finally:
            watchdog.kill()


def look(text: str) -> None:
    """Watches until the worker closes the pipe on stdin, or ends it.

    Args:
        text: A `Task` as JSON.
    """
    task = msgspec.json.decode(text, type=Task)
    until_s = time.monotonic() + task.limit_s
    while not select.select([0], [], [], _EVERY_S)[0]:
        lost = _find_loss(task, is_over=time.monotonic() > until_s)
        # A worker that has ended closed the pipe, and its number may belong to another process by now.
        if lost is not None and not select.select([0], [], [], 0)[0]:
            os.write(2, f"lost: {lost}.\n".encode())
            os.kill(task.worker, WATCHDOG_SIGNAL)
            return


def _find_loss(task: Task, *, is_over: bool) -> str | None:
    for index, address in task.cluster.peers.items():
        line = overhear(address)
        greeting = None if line is None else decode_greeting(line)
        if greeting is not None and greeting.nonce != task.nonces.get(index):
            return f"worker {index} at {address} was lost and begins anew"
    if not is_over:
        return None
    silent = [f"worker {i} at {a}" for i, a in task.cluster.peers.items() if overhear(a) is None]
    among = f"; nothing listens at {', '.join(silent[:MAX_NAMED])}" if silent else ""
    return f"TensorFlow did not start in {task.limit_s:g} s{among}"


def overhear(address: str) -> bytes | None:
    """Returns the first line of the answer there, None if there is none."""
    try:
        connection = socket.create_connection(parse_address(address, "the cluster"), timeout=_CALL_LIMIT_S)
    except OSError:
        return None
    with connection, connection.makefile("rb") as lines:
        try:
            return lines.readline(MAX_GREETING_BYTES)
        except OSError:
            return b""
