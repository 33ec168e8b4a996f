"""Signs of life: a worker says how far it is, and how long it may be silent from now on.

A frozen process gives no sign, nor does one whose main thread waits for ever while its other threads go on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from shardkit.decode_errors import DECODE_ERRORS
from train.distribution.worker_identity import own_identity

# A worker with long steps may be silent for a few of them.
STEP_LIMIT_S = 10.0
STEP_LIMIT_FACTOR = 5.0
# A step that took much longer than the others is forgotten over the next ones.
STEP_MEMORY = 0.9
START_LIMIT_S = 300.0
STEPPING = "training"
STARTING = "starting"

_RECORD_BYTES = 256


class Pulse(msgspec.Struct, frozen=True, kw_only=True):
    """One sign of life.

    Attributes:
        count: Signs so far; what changes is alive.
        step: Steps completed; None before the first.
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
        clock: Seconds.
    """

    def __init__(self, path: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beat_s: float | None = None
        self._step_s = 0.0
        self._num_busy = 0
        self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._pulse = Pulse()

    @staticmethod
    def from_environment(environment: Mapping[str, str]) -> Heartbeat:
        """Returns the heartbeat that the supervisor of this process reads."""
        identity = own_identity(environment)
        return Heartbeat(None if identity is None else identity.heartbeat)

    def beat(self, step: int, limit_s: float | None = None) -> None:
        """Says that so many steps are completed; in a block of `busy`, that the block makes progress.

        Args:
            step: Steps that are completed.
            limit_s: Silence that is fine from now on; None follows from how long the steps took.
        """
        now_s = self._clock()
        if self._beat_s is not None:
            self._step_s = max(now_s - self._beat_s, STEP_MEMORY * self._step_s)
        is_limit_known = self._beat_s is not None or not self._num_busy
        self._beat_s = now_s
        if limit_s is None:
            limit_s = max(STEP_LIMIT_S, STEP_LIMIT_FACTOR * self._step_s) if is_limit_known else self._pulse.limit_s
        self._write(step=step, phase=self._pulse.phase if self._num_busy else STEPPING, limit_s=limit_s)

    @contextmanager
    def busy(self, phase: str, limit_s: float) -> Iterator[None]:
        """Says that the block may take longer than a step. Such blocks may be nested.

        After two beats in the block, their distance sets the limit of silence.

        Args:
            phase: Title of the work, for the user: "evaluation".
            limit_s: After which it counts as frozen.
        """
        before, step_s = self._pulse, self._step_s
        self._num_busy += 1
        self._beat_s, self._step_s = None, 0.0
        self._write(step=before.step, phase=phase, limit_s=limit_s)
        try:
            yield
        finally:
            self._num_busy -= 1
            # What the block took says nothing about a step.
            self._beat_s, self._step_s = None, step_s
            self._write(step=self._pulse.step, phase=before.phase, limit_s=before.limit_s)

    def leave(self, phase: str, limit_s: float) -> None:
        """Says that the rest of the process may take so long."""
        self._num_busy += 1
        self._write(step=self._pulse.step, phase=phase, limit_s=limit_s)

    def _write(self, *, step: int | None, phase: str, limit_s: float) -> None:
        self._pulse = Pulse(count=self._pulse.count + 1, step=step, phase=phase, limit_s=limit_s)
        if self._file is not None:
            os.pwrite(self._file, msgspec.json.encode(self._pulse).ljust(_RECORD_BYTES), 0)


class Watch:
    """Judges the signs of life of one worker by the clock of the process that reads them.

    Args:
        path: The file that the worker writes; None where its signs come another way.
        now_s: When the worker was started.
    """

    def __init__(self, path: Path | None, now_s: float, start_limit_s: float = START_LIMIT_S) -> None:
        self._path = path
        self._changed_s = now_s
        self.pulse = Pulse(limit_s=start_limit_s)

    def look(self, now_s: float) -> None:
        """Reads the newest sign."""
        if self._path is None:
            return
        # There may be none yet, or it is just being written.
        with suppress(OSError):
            self.hear(self._path.read_bytes(), now_s)

    def hear(self, text: bytes, now_s: float) -> None:
        """Takes a sign as the worker wrote it."""
        try:
            found = msgspec.json.decode(text, type=Pulse)
        except DECODE_ERRORS:
            return
        if found.count != self.pulse.count:
            self.pulse, self._changed_s = found, now_s

    def forgive(self, now_s: float) -> None:
        """Counts the silence from now on."""
        self._changed_s = now_s

    def silent_s(self, now_s: float) -> float:
        """Returns how long there was no sign."""
        return now_s - self._changed_s
