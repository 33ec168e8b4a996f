"""Signs of life: a worker says how far it is, and how long it may be silent from now on.

A frozen process says nothing, and neither does one that waits for ever while its other threads go on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from train.seat import own_seat

# A step that takes long is announced by the ones before it: so many times the longest one so far may pass.
STEP_LIMIT_S = 10.0
STEP_LIMIT_FACTOR = 5.0
START_LIMIT_S = 300.0
STEPPING = "training"
STARTING = "starting"

_RECORD_BYTES = 256


class Pulse(msgspec.Struct, frozen=True, kw_only=True):
    """One sign of life.

    Attributes:
        count: Signs so far; what changes is alive.
        step: Steps completed; None before the first.
        phase: What the worker does.
        limit_s: Silence that is fine from now on.
    """

    count: int = 0
    step: int | None = None
    phase: str = STARTING
    limit_s: float = START_LIMIT_S


class Heartbeat:
    """Gives the signs of life of this process; does nothing where no supervisor reads them.

    Args:
        path: The file to write to; None for none.
    """

    def __init__(self, path: str | None) -> None:
        self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._pulse = Pulse()

    @staticmethod
    def from_environment(environment: Mapping[str, str]) -> Heartbeat:
        """Returns the heartbeat that the supervisor of this process reads."""
        seat = own_seat(environment)
        return Heartbeat(None if seat is None else seat.heartbeat)

    def beat(self, step: int, longest_step_s: float = 0.0) -> None:
        """Says that a step is done.

        Args:
            step: Steps completed.
            longest_step_s: What one has taken so far, for those who expect long ones.
        """
        limit_s = max(STEP_LIMIT_S, STEP_LIMIT_FACTOR * longest_step_s)
        self._write(step=step, phase=STEPPING, limit_s=limit_s)

    @contextmanager
    def busy(self, phase: str, limit_s: float) -> Iterator[None]:
        """Says that the block may take longer than a step; to be used again inside another such block if need be.

        Args:
            phase: What it does, for the user: "evaluation".
            limit_s: After which it counts as frozen.
        """
        before = self._pulse
        self._write(step=before.step, phase=phase, limit_s=limit_s)
        try:
            yield
        finally:
            self._write(step=self._pulse.step, phase=before.phase, limit_s=before.limit_s)

    def _write(self, *, step: int | None, phase: str, limit_s: float) -> None:
        self._pulse = Pulse(count=self._pulse.count + 1, step=step, phase=phase, limit_s=limit_s)
        if self._file is not None:
            os.pwrite(self._file, msgspec.json.encode(self._pulse).ljust(_RECORD_BYTES), 0)


class Watch:
    """Judges the signs of life of one worker by the clock of the one who reads them.

    Args:
        path: The file that the worker writes.
        now_s: When the worker was started.
        start_limit_s: Silence that is fine before the first sign.
    """

    def __init__(self, path: Path, now_s: float, start_limit_s: float = START_LIMIT_S) -> None:
        self._path = path
        self._changed_s = now_s
        self.pulse = Pulse(limit_s=start_limit_s)

    def look(self, now_s: float) -> None:
        """Reads the newest sign."""
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=Pulse)
        except (OSError, msgspec.DecodeError):
            return  # There is none yet, or it is just being written.
        if found.count != self.pulse.count:
            self.pulse, self._changed_s = found, now_s

    def forgive(self, now_s: float) -> None:
        """Counts the silence from now on."""
        self._changed_s = now_s

    def silent_s(self, now_s: float) -> float:
        """Returns how long there was no sign."""
        return now_s - self._changed_s
