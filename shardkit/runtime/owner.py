"""The process that holds something, named so that others can tell whether it still lives."""

from __future__ import annotations

import os
import platform
import uuid
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import msgspec

from shardkit.decode_errors import DECODE_ERRORS


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """A process.

    Attributes:
        machine: Differs between machines, between containers, and between starts of one machine.
    """

    host: str
    machine: str
    pid: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def this_process() -> Owner:
    """Returns this process."""
    return Owner(host=platform.node(), machine=_this_machine(), pid=os.getpid())


def is_dead(owner: Owner) -> bool:
    """Whether a process is certainly gone. That is known of processes of this machine only."""
    if owner.machine != _this_machine():
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return _is_zombie(owner.pid)


def _is_zombie(pid: int) -> bool:
    """Whether a process has ended, and its parent has not asked for its exit code yet, as in many containers."""
    try:
        status = Path("/proc", str(pid), "stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[:1] == ["Z"]


def decode_owner(raw: bytes) -> Owner | None:
    """Returns the process that `raw` names, None if it names none."""
    try:
        return msgspec.json.decode(raw, type=Owner)
    except DECODE_ERRORS:
        return None


@lru_cache(maxsize=1)
def _this_machine() -> str:
    # Hosts may share a name, and a container has process numbers that mean others outside.
    parts = [platform.node(), f"{uuid.getnode():x}"]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))  # noqa: PTH115
    return " ".join(parts)
