"""What a command and the tasks of its workers say to each other, over one connection a task.

A task calls the command, which listens while the workers of a generation run. Both prove that they know the key, which
the cluster carries to the task; then messages are JSON.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import NamedTuple

import msgspec

from train.distribution.cluster import Cluster

_CALL_LIMIT_S = 60.0
# Seconds after which the end of a host shows that sends nothing any more.
_IDLE_S, _EVERY_S, _TRIES = 20, 5, 3


class Door(NamedTuple):
    """Where tasks call their command.

    Attributes:
        key: Without which nothing is said.
    """

    host: str
    port: int
    key: bytes


class Order(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a command says: first what a worker is, then signals for it.

    Attributes:
        command: Words behind the Python of the host.
        stopped: Sentence of a worker that is stopped before it knows the saved steps.
        folder: In which the command was typed.
        proof: A file that the command made in the folder of the run.
    """

    command: tuple[str, ...] = ()
    cluster: Cluster = Cluster()
    generation: int = 0
    stopped: str = ""
    folder: str = ""
    proof: str = ""
    signal: int | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a task says: first where its worker will listen, then what the worker does.

    Attributes:
        address: `host:port`.
        output, errors: What it wrote to stdout and stderr.
        pulse: Its newest sign of life.
        code: With which it ended, negative for a signal.
    """

    index: int = 0
    address: str = ""
    output: bytes = b""
    errors: bytes = b""
    pulse: bytes = b""
    code: int | None = None


def send(connection: Connection, message: Order | Report) -> None:
    """Sends a message; `OSError` if the other side is gone."""
    connection.send_bytes(msgspec.json.encode(message))


@contextlib.contextmanager
def call(door: Door) -> Iterator[Connection]:
    """Calls the command of this task, and keeps the connection for the length of the block."""
    with _connection(socket.create_connection((door.host, door.port), _CALL_LIMIT_S)) as command:
        answer_challenge(command, door.key)
        deliver_challenge(command, door.key)
        yield command


class Gate:
    """Where a command waits for its tasks.

    Args:
        host: Of this process, as the cluster reaches it.

    Attributes:
        arrived: Their first reports, as they come.
    """

    def __init__(self, host: str) -> None:
        is_here = host == "localhost" or host.startswith("127.")
        is_dual = not is_here and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if is_dual else socket.AF_INET
        listen_at = ("127.0.0.1" if is_here else "", 0)
        self._listener = socket.create_server(listen_at, family=family, dualstack_ipv6=is_dual, backlog=256)
        self.door = Door(host.strip("[]"), self._listener.getsockname()[1], os.urandom(32))
        self.arrived: queue.SimpleQueue[tuple[Report, Connection]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True, name="gate").start()

    def close(self) -> None:
        """Lets no task in any more, and sends away those that wait."""
        # Only this wakes the thread that listens.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        while not self.arrived.empty():
            self.arrived.get()[1].close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                threading.Thread(target=self._admit, args=(caller,), daemon=True, name="gate").start()

    def _admit(self, caller: socket.socket) -> None:
        connection = _connection(caller)
        try:
            deliver_challenge(connection, self.door.key)
            answer_challenge(connection, self.door.key)
            self.arrived.put((msgspec.json.decode(connection.recv_bytes(), type=Report), connection))
        except (OSError, EOFError, AuthenticationError, AssertionError, msgspec.DecodeError):
            connection.close()


def _connection(found: socket.socket) -> Connection:
    found.settimeout(None)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", _IDLE_S), ("TCP_KEEPINTVL", _EVERY_S), ("TCP_KEEPCNT", _TRIES)):
        if hasattr(socket, name):
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return Connection(found.detach())
