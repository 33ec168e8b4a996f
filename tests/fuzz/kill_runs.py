"""Runs of `shardkit train` as processes, seen from outside: what they say and when, their workers, who is left."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

_MARK = "KILLED_RUN"
_WORKER_IDENTITY = "SHARDKIT_WORKER"
_NOTICE = re.compile(r"; (?:(restarting|going on with) \d+ worker|the others go on)")
_POLL_S = 0.001
_GONE_S = 5.0
LIMIT_S = 240.0


class EndedEarly(Exception):
    """A run ended before it could be killed."""


class Stuck(Exception):
    """Something did not happen in a time that is long enough for it."""


class Worker(NamedTuple):
    """One worker process of a supervisor."""

    pid: int
    generation: int
    heartbeat: Path

    @property
    def step(self) -> int | None:
        """Steps that it has completed; None before its first."""
        with contextlib.suppress(OSError, ValueError):
            return json.loads(self.heartbeat.read_bytes())["step"]
        return None


class Run:
    """One run with all that it starts.

    Args:
        command: Of `shardkit train`.
        folder: For the temporary files of its processes.
    """

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._mark = uuid.uuid4().hex
        folder.mkdir(parents=True, exist_ok=True)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "KERAS_", "SHARDKIT_"))}
        self.command = shlex.join(command)
        self.started_s = time.monotonic()
        self.said: list[tuple[float, str]] = []
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**clean, "TMPDIR": str(folder), _MARK: self._mark},
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The number of the first process."""
        return self._process.pid

    @property
    def is_over(self) -> bool:
        """Whether the first process has ended."""
        return self._process.poll() is not None

    def until(self, is_so: Callable[[], object], limit_s: float = LIMIT_S) -> None:
        """Waits until something is so.

        Raises:
            EndedEarly: If the run ends first.
            Stuck: If it takes too long.
        """
        end_s = time.monotonic() + limit_s
        while not is_so():
            if self.is_over:
                raise EndedEarly
            if time.monotonic() > end_s:
                raise Stuck("what was waited for did not happen")
            time.sleep(_POLL_S)

    def pause(self, seconds: float) -> None:
        """Lets the run go on for a while."""
        end_s = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= end_s)

    def workers(self) -> dict[int, Worker]:
        """Returns the processes that the supervisor started, by their index."""
        found = {}
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.pid).children():
                with contextlib.suppress(psutil.Error, KeyError):
                    identity = json.loads(child.environ()[_WORKER_IDENTITY])
                    found[identity["index"]] = Worker(child.pid, identity["generation"], Path(identity["heartbeat"]))
        return found

    def worker(self, index: int, generation: int) -> Worker:
        """Waits until there is a worker of that start, and returns it."""

        def found() -> Worker | None:
            worker = self.workers().get(index)
            return worker if worker is not None and worker.generation == generation else None

        self.until(found)
        worker = found()
        if worker is None:
            raise EndedEarly
        return worker

    def signal(self, number: int, pid: int | None = None) -> float:
        """Sends a signal to one process, the first if none is named; returns when that was."""
        os.kill(pid or self.pid, number)
        return time.monotonic()

    def kill_all(self) -> None:
        """Kills every process of the run at once, the first one first."""
        self._process.kill()
        while left := self.left():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_S)
        self._process.wait()

    def loss_said(self, since_s: float) -> tuple[float, bool]:
        """Waits until the supervisor tells a loss; returns when it did, and whether it starts all workers again."""

        def found() -> tuple[float, bool] | None:
            notices = ((s, _NOTICE.search(t)) for s, t in self.said if s >= since_s)
            return next(((s, match[1] is not None) for s, match in notices if match), None)

        self.until(found)
        loss = found()
        assert loss is not None
        return loss

    def first_steps(self, generation: int, count: int) -> float:
        """Waits until all workers of a generation have made a step, and returns when that was."""

        def have_stepped() -> bool:
            time.sleep(0.02)
            own = [w for w in self.workers().values() if w.generation == generation]
            return len(own) == count and all(w.step is not None for w in own)

        self.until(have_stepped)
        return time.monotonic()

    def end(self, limit_s: float = LIMIT_S) -> int:
        """Waits for the end and returns the exit code.

        Raises:
            Stuck: If it takes too long; everything is killed then.
        """
        try:
            code = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill_all()
            raise Stuck("the run did not end") from None
        self._reader.join(_GONE_S)
        return code

    def left(self) -> list[int]:
        """Returns the processes of the run that are there."""
        marked = f"{_MARK}={self._mark}".encode()
        return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and _has(p, marked)]

    def survivors(self) -> tuple[float, list[int]]:
        """Returns how long it takes until nobody is left, and who is left after some seconds."""
        started_s = time.monotonic()
        while (left := self.left()) and time.monotonic() - started_s < _GONE_S:
            time.sleep(0.02)
        return time.monotonic() - started_s, left

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.said.append((time.monotonic(), line.rstrip()))


def _has(process: Path, marked: bytes) -> bool:
    try:
        is_dead = (process / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        return not is_dead and marked in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
