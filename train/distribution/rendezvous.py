"""All workers of a run meet before TensorFlow starts, which would wait for a missing one without a word.

Each worker listens on its own address and calls all others; both sides of a call say who they are and what they train.
A worker is done when it has reached all others and all others have reached it, and then leaves the port to TensorFlow.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import time
from collections.abc import Mapping

import msgspec

from shardkit.errors import ShardkitError, StorageError, UsageError
from train.distribution.cluster import Cluster, name_of, parse_address
from train.distribution.heartbeat import START_LIMIT_S

DEFAULT_TIMEOUT_S = 300.0

_PROTOCOL = "shardkit-rendezvous-1"
MAX_GREETING_BYTES = 1 << 18
CALL_LIMIT_S = 5.0
_CONNECT_LIMIT_S = 1.0
_PAUSE_S = 0.1
MAX_NAMED = 5
_AGREED = b"agreed\n"

Identity = Mapping[str, str]


class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of itself.

    Attributes:
        protocol: Tells it from whatever else may answer.
        nonce: Of its process; another one after a restart.
        identity: What it trains, by the names of options.
    """

    protocol: str
    index: int
    num_workers: int
    nonce: str
    identity: dict[str, str]


def meet(cluster: Cluster, identity: Identity, timeout_s: float = DEFAULT_TIMEOUT_S) -> dict[int, str]:
    """Waits until all workers are there; returns the nonces of the others by index.

    Args:
        identity: What must be the same for all workers of a run, by name.

    Raises:
        StorageError: If a worker does not come in time; names its address.
        UsageError: If the own port is in use, or a worker trains something else.
    """
    if cluster.num_workers == 1:
        return {}
    greeting = Greeting(
        protocol=_PROTOCOL,
        index=cluster.index,
        num_workers=cluster.num_workers,
        nonce=os.urandom(8).hex(),
        identity=dict(identity),
    )
    with _listen(cluster.workers[cluster.index]) as listener:
        return asyncio.run(_Meeting(cluster, greeting).wait(listener, timeout_s))


def check_greeting(own: Greeting, other: Greeting, expected: int | None) -> ShardkitError | None:
    """Returns why two workers do not belong together, None if they do.

    Args:
        own, other: What the two say.
        expected: Index that belongs to the address that was called; None for a caller.
    """
    who = f"worker {other.index}"
    if other.num_workers != own.num_workers:
        return UsageError(
            f"{who} is one of {other.num_workers} workers, and this is one of {own.num_workers}",
            next_step="Start all hosts with the same --hosts and --workers-per-host",
        )
    if expected is not None and other.index != expected:
        return UsageError(
            f"worker {other.index} answers at the address of worker {expected}",
            next_step="Give each host its own --host-index, its place in --hosts",
        )
    if other.index == own.index and other.nonce != own.nonce:
        return UsageError(f"there are two workers {own.index}", next_step="Give each host its own --host-index")
    for name in sorted(own.identity.keys() | other.identity.keys()):
        mine, theirs = own.identity.get(name), other.identity.get(name)
        if mine != theirs:
            return UsageError(
                f"{who} trains something else",
                why=f"its {name} is {_shown(theirs)}, here it is {_shown(mine)}",
                next_step="Start all hosts with the same command",
            )
    return None


def decode_greeting(line: bytes) -> Greeting | None:
    """Returns the greeting in a line, None if no worker wrote it."""
    try:
        greeting = msgspec.json.decode(line, type=Greeting)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return greeting if greeting.protocol == _PROTOCOL else None


def is_open(address: str) -> bool:
    """Returns whether a process listens at `host:port`."""
    with contextlib.suppress(OSError):
        socket.create_connection(parse_address(address, "the cluster"), timeout=_CONNECT_LIMIT_S).close()
        return True
    return False


def wait_for_peers(cluster: Cluster, limit_s: float = START_LIMIT_S) -> None:
    """Waits until all other workers can be called. Raises StorageError if one of them cannot in time; names it."""
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


class _Meeting:
    """One worker's view of the workers that are there."""

    def __init__(self, cluster: Cluster, own: Greeting) -> None:
        self._cluster = cluster
        self._own = own
        self._nonces: dict[int, str] = {}
        self._callers: dict[int, str] = {}
        self._obstacles: dict[int, str] = dict.fromkeys(cluster.peers, "it does not answer")
        self._is_over = asyncio.Event()
        self._trouble: ShardkitError | None = None

    async def wait(self, listener: socket.socket, timeout_s: float) -> dict[int, str]:
        server = await asyncio.start_server(self._answer, sock=listener, limit=MAX_GREETING_BYTES)
        calls = [asyncio.create_task(self._keep_calling(i, a)) for i, a in self._cluster.peers.items()]
        try:
            async with asyncio.timeout(timeout_s):
                await self._is_over.wait()
        except TimeoutError:
            raise self._missing(timeout_s) from None
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            server.close()
        if self._trouble is not None:
            raise self._trouble
        return self._nonces

    async def _keep_calling(self, index: int, address: str) -> None:
        """Calls a worker until both know of each other; again, should it begin anew."""
        while True:
            if not self._is_met(index):
                try:
                    async with asyncio.timeout(CALL_LIMIT_S):
                        obstacle = await self._call(index, address)
                except TimeoutError:
                    obstacle = "it does not answer"
                except OSError as error:
                    obstacle = _describe(error)
                if obstacle is not None and index in self._callers:
                    # It was there, called this one, and is gone: it has met all others, and this one's call did count.
                    self._nonces[index] = self._callers[index]
                    self._look_around()
                self._obstacles[index] = obstacle or ""
            await asyncio.sleep(_PAUSE_S)

    async def _call(self, index: int, address: str) -> str | None:
        host, port = parse_address(address, "the cluster")
        reader, writer = await asyncio.open_connection(host, port, limit=MAX_GREETING_BYTES)
        try:
            greeting = await _read(reader)
            if greeting is None:
                return "another program answers than a worker that waits"
            writer.write(_encode(self._own))
            await writer.drain()
            if self._fits(greeting, index) and await _read_line(reader) == _AGREED:
                self._nonces[index] = greeting.nonce
                self._look_around()
            return None
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(CALL_LIMIT_S):
                writer.write(_encode(self._own))
                await writer.drain()
                greeting = await _read(reader)
                if greeting is not None and self._fits(greeting, None):
                    self._callers[greeting.index] = greeting.nonce
                    writer.write(_AGREED)
                    await writer.drain()
                    self._look_around()
        except (OSError, TimeoutError):
            return  # The caller left, and will call again if it needs to.
        except asyncio.CancelledError:
            # All workers are there; asyncio's server would log a traceback for each caller that is silent.
            return
        finally:
            writer.close()

    def _fits(self, greeting: Greeting, expected: int | None) -> bool:
        trouble = check_greeting(self._own, greeting, expected)
        if trouble is not None:
            self._trouble = self._trouble or trouble
            self._is_over.set()
        return trouble is None

    def _is_met(self, index: int) -> bool:
        nonce = self._nonces.get(index)
        return nonce is not None and nonce == self._callers.get(index)

    def _look_around(self) -> None:
        if all(map(self._is_met, self._cluster.peers)):
            self._is_over.set()

    def _missing(self, timeout_s: float) -> StorageError:
        missing = {i: a for i, a in self._cluster.peers.items() if not self._is_met(i)}
        words = []
        for index, address in list(missing.items())[:MAX_NAMED]:
            obstacle = self._obstacles[index] or "it cannot reach this one"
            words.append(f"{name_of(index, self._cluster.num_servers)} at {address} ({obstacle})")
        more = f" and {len(missing) - MAX_NAMED} more" if len(missing) > MAX_NAMED else ""
        return StorageError(
            f"not all workers are there after {timeout_s:g} s",
            why=f"missing: {', '.join(words)}{more}",
            next_step="See that each host runs the same command with its own --host-index, and can be reached; "
            "--rendezvous-timeout gives them more time",
        )


def _listen(address: str) -> socket.socket:
    host, port = parse_address(address, "the cluster")
    # A socket that listens on the loopback interface only can be reached from this host only.
    is_loopback = host in ("localhost", "::1") or host.startswith("127.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if is_loopback:
        name = "127.0.0.1" if host == "localhost" else host
    else:
        name = "::" if family == socket.AF_INET6 else "0.0.0.0"
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Not SO_REUSEPORT: with it TensorFlow would share the port with another run, and each get half of the calls.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((name, port))
        listener.listen()
    except OSError as error:
        listener.close()
        is_in_use = error.errno == errno.EADDRINUSE
        raise UsageError(
            f"port {port} of this host is in use" if is_in_use else f"this host cannot listen on port {port}",
            where=address,
            why=None if is_in_use else (error.strerror or str(error)).lower(),
            next_step="End the program that listens there, or choose another port with --hosts",
        ) from error
    return listener


async def _read(reader: asyncio.StreamReader) -> Greeting | None:
    return decode_greeting(await _read_line(reader))


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return b""


def _encode(greeting: Greeting) -> bytes:
    return msgspec.json.encode(greeting) + b"\n"


def _describe(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "its name is not known"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    return (error.strerror or str(error) or type(error).__name__).lower()


def _shown(value: str | None) -> str:
    return "not set" if value is None else value if len(value) <= 80 else value[:80] + "..."
