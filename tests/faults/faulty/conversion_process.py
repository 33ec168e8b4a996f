"""A conversion with faults, as a group of processes."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.paths import ROOT

LIMIT_S = 90.0


class Ended(NamedTuple):
    """How a conversion ended: its exit code, negative for a signal, and what it said."""

    code: int
    said: str


class Hung(Exception):
    """A conversion that did not end in time, and was killed."""


class Conversion:
    """A running conversion, in a separate process group."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], launcher: Sequence[str] = ()) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the conversion
        self._process = subprocess.Popen(
            [*launcher, sys.executable, "-m", "tests.faults.command", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=ROOT,
            env={**os.environ, **environment},
        )
        self.pid = self._process.pid
        # Polling would notice the end late.
        self._end = os.pidfd_open(self.pid)

    def signal(self, number: int) -> None:
        """Sends a signal to its first process; it may be gone."""
        self._process.send_signal(number)

    def signal_all(self, number: int) -> None:
        """Sends a signal to all of its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        """Returns whether it ends within some time."""
        return bool(select.select([self._end], [], [], timeout_s)[0])

    def end(self, limit_s: float = LIMIT_S) -> Ended:
        """Waits for the end of all of its processes.

        Raises:
            Hung: If it takes too long.
        """
        try:
            if not self.has_ended(limit_s):
                raise Hung(f"no end within {limit_s:.0f} s: {self._said()[-500:]}")
            code = self._process.wait()
            self._wait_for_others(limit_s)
            return Ended(code, self._said())
        finally:
            self.signal_all(signal.SIGKILL)
            self._process.wait()
            self._output.close()
            os.close(self._end)

    def _said(self) -> str:
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def _wait_for_others(self, limit_s: float) -> None:
        end = time.monotonic() + limit_s
        while is_group_alive(self.pid):
            if time.monotonic() > end:
                raise Hung(f"processes are left after {limit_s:.0f} s")
            time.sleep(0.002)


def is_group_alive(group: int) -> bool:
    """Returns whether a process of a group runs; a process that has ended and was not reaped does not."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            return True
    return False
