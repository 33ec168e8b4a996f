"""Storage operations of all processes of a conversion: numbered, logged, and stopped where the plan says so."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from tests.faults.faulty.fault_plan import FaultPlan, Operation, kind_for

LAG_S = 0.2
_MEETING_LIMIT_S = 10.0
_POLL_S = 0.002
# Before anything is replaced.
_open, _close, _pread, _pwrite, _write = os.open, os.close, os.pread, os.pwrite, os.write


class Operations:
    """The operations of one conversion, as each of its processes sees them."""

    def __init__(self, plan: FaultPlan) -> None:
        self._plan = plan
        self._inside = threading.local()

    @property
    def plan(self) -> FaultPlan:
        return self._plan

    def begin(self, name: str, path: str, **more: Any) -> str | None:
        """Numbers and logs an operation; returns what is to happen to it, but for what happens before it.

        Does not return where the plan says `kill-before`.
        """
        with _locked(f"{self._plan.log}.count") as handle:
            number = int(_pread(handle, 20, 0) or b"0") + 1
            _pwrite(handle, str(number).encode(), 0)
            kind = kind_for(self._plan.faults, Operation(number, name, path))
            line = {"number": number, "name": name, "path": path, "pid": os.getpid(), "fault": kind, **more}
            log = _open(self._plan.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            _write(log, json.dumps(line).encode() + b"\n")
            _close(log)
        if kind == "kill-before":
            kill_all()
        if kind == "lag":
            time.sleep(LAG_S)
        if kind == "meet":
            self._meet()
        return None if kind in ("lag", "meet") else kind

    @contextmanager
    def entered(self) -> Iterator[bool]:
        """Yields whether this thread is not in an operation already, of which this one is a part."""
        is_first = not getattr(self._inside, "is_so", False)
        self._inside.is_so = True
        try:
            yield is_first
        finally:
            if is_first:
                self._inside.is_so = False

    def _meet(self) -> None:
        path = join_meeting(self._plan.log)
        end = time.monotonic() + _MEETING_LIMIT_S
        while time.monotonic() < end:
            with _locked(path) as handle:
                if int(_pread(handle, 20, 0)) >= self._plan.num_parties:
                    return
            time.sleep(_POLL_S)


def join_meeting(log: str) -> str:
    """Comes to the meeting of a plan as one more party; returns the file that counts them."""
    path = f"{log}.met"
    with _locked(path) as handle:
        number = int(_pread(handle, 20, 0) or b"0") + 1
        _pwrite(handle, str(number).encode(), 0)
    return path


def kill_all() -> NoReturn:
    """Kills the whole conversion as the system would, this process included."""
    os.killpg(os.getpgrp(), signal.SIGKILL)
    raise AssertionError("SIGKILL was survived")


def read_log(path: Path) -> list[dict[str, Any]]:
    """Returns the operations that were begun, in order."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


@contextmanager
def _locked(path: str) -> Iterator[int]:
    # Opened anew each time: what is inherited over a fork shares its lock.
    handle = _open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        _close(handle)
