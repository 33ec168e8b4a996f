"""The identity that a supervisor gives to a worker, and the end of a worker whose supervisor has ended."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping

import msgspec

from shardkit.runtime.process_limits import die_with_parent

WORKER_IDENTITY = "SHARDKIT_WORKER"

_STDIN = 0


class WorkerIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The place of one worker process.

    Attributes:
        generation: Times that the supervisor has started the workers before.
        is_late: Whether it takes the place of one that was lost, while the others go on.
    """

    index: int
    generation: int
    heartbeat: str
    is_late: bool = False

    def to_text(self) -> str:
        """Returns the value of the environment variable `WORKER_IDENTITY`."""
        return msgspec.json.encode(self).decode()


def own_identity(environment: Mapping[str, str]) -> WorkerIdentity | None:
    """Returns the identity of this process, None if no supervisor started it."""
    text = environment.get(WORKER_IDENTITY)
    return None if text is None else msgspec.json.decode(text, type=WorkerIdentity)


def end_with_supervisor() -> None:
    """Makes this worker end when its supervisor does, whatever ended that one.

    The kernel ends even a stopped worker, where it can; the end of the pipe on stdin serves other systems, and a
    supervisor that ended before this call.
    """
    die_with_parent()
    threading.Thread(target=_wait_for_end_of_pipe, name="supervisor", daemon=True).start()


def _wait_for_end_of_pipe() -> None:
    while os.read(_STDIN, 1):
        pass
    os._exit(128 + signal.SIGKILL)
