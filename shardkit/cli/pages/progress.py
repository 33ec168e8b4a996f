"""How far a conversion is: one line that is drawn anew on a terminal, a few plain lines in a log.

Only a carriage return writes over the line: no cursor is hidden that a killed process would not show again, and a line
above is never touched. A log gets no control codes.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

from shardkit.cli.pages.phases import BAR, Phase, Speed, describe, draw, find_phases, last_line, plain
from shardkit.conversion.plan import Plan
from shardkit.conversion.progress import Totals, read_totals
from shardkit.conversion.shards.layout import load_layout
from shardkit.runtime.threads import start_thread

_REFRESH_SECONDS = 0.25
_QUIET_SECONDS = 2.0  # A run that is over by then says nothing.
_LINE_SECONDS = 10.0
_CLEAR = "\r\x1b[K"

# Whether the last thing on the terminal is a line that is to be drawn over.
_is_drawn = threading.Event()


class Display:
    """Shows phase after phase on a stream.

    Args:
        is_live: Whether one line can be drawn over and over.
    """

    def __init__(self, stream: TextIO, *, is_live: bool, started: float) -> None:
        self._stream = stream
        self._is_live = is_live
        self._started = started
        self._phase: Phase | None = None
        self._phase_started = started
        self._speed = Speed(started)
        self._said_at, self._said_share = started, 0.0
        self._over: list[str] = []
        self._is_held = False
        self._bar = BAR if _can_show(stream, BAR) else "#"
        self.seconds: dict[str, float] = {}

    def begin(self, now: float) -> None:
        """Starts the clock of the next phase."""
        self._phase_started = now

    def update(self, phases: Sequence[Phase], now: float) -> None:
        """Shows where the conversion is.

        Args:
            phases: Those that have begun; the last one is going on.
        """
        if self._is_held:
            return
        for phase in phases[:-1]:
            self._end_phase(phase, now)
        phase = phases[-1]
        if self._phase is None or phase.name != self._phase.name:
            self._speed = Speed(now)
            self._said_at, self._said_share = now, phase.share
        self._phase = phase
        self._speed.add(now, phase.num_worked_bytes, phase.num_rows)
        if now - self._started >= _QUIET_SECONDS:
            self._say_over()
        if self._is_live:
            self._draw(now)
        else:
            self._log(now)

    def end(self, now: float, *, is_done: bool) -> None:
        """Takes the line away; finished phases stay in the log, and a phase that was cut off is not called done."""
        if self._phase is not None and is_done:
            self._end_phase(self._phase, now)
            if now - self._started >= _QUIET_SECONDS:
                self._say_over()
        self.clear()
        self._phase = None

    def say(self, line: str) -> None:
        """Writes a line that stays."""
        self.clear()
        self._write(f"{line}\n")

    def hold(self) -> None:
        """Shows nothing from here on, because the user is asked a question."""
        self._is_held = True
        self.clear()

    def clear(self) -> None:
        """Takes the line away that is to be drawn over."""
        if _is_drawn.is_set():
            _is_drawn.clear()
            self._write(_CLEAR)

    def _end_phase(self, phase: Phase, now: float) -> None:
        if phase.name in self.seconds:
            return
        elapsed, self._phase_started = now - self._phase_started, now
        self.seconds[phase.name] = elapsed
        # Steps between the phases are over in an instant most of the time.
        if phase.num_bytes is not None or elapsed >= _QUIET_SECONDS:
            self._over.append(last_line(phase, elapsed))

    def _say_over(self) -> None:
        if self._over:
            self.clear()
            self._write("".join(f"{line}\n" for line in self._over))
            self._over = []

    def _draw(self, now: float) -> None:
        assert self._phase is not None
        elapsed = now - self._phase_started
        if self._phase.num_bytes is None and elapsed < 1:
            self.clear()
            return
        line = draw(describe(self._phase, self._speed, now, elapsed), _width_of(self._stream), bar=self._bar)
        self._write(f"\r{line}\x1b[K")
        _is_drawn.set()

    def _log(self, now: float) -> None:
        assert self._phase is not None
        elapsed, since = now - self._phase_started, now - self._said_at
        # The longer it takes the rarer the lines: a night leaves about a hundred.
        if since >= _LINE_SECONDS and (since >= elapsed / 10 or self._phase.share - self._said_share >= 0.1):
            self._write(f"{plain(describe(self._phase, self._speed, now, elapsed))}\n")
            self._said_at, self._said_share = now, self._phase.share

    def _write(self, text: str) -> None:
        # The reader of this output may have left; the work goes on.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()


def new_display() -> Display:
    """Returns a display on stderr."""
    return Display(sys.stderr, is_live=is_live(sys.stderr, os.environ), started=time.monotonic())


def is_live(stream: TextIO, environment: object) -> bool:
    """Returns whether a stream is a terminal on which a line can be drawn over.

    Args:
        stream: Such as stderr.
        environment: Such as `os.environ`; `TERM=dumb` and `CI` ask for plain lines.
    """
    assert hasattr(environment, "get")
    terminal, ci = environment.get("TERM", ""), environment.get("CI", "")
    return stream.isatty() and terminal not in ("", "dumb", "unknown") and ci.lower() in ("", "0", "false")


def fresh_line() -> str:
    """Returns the text before a message that ends the run: nothing of a drawn line may stay before it."""
    if _is_drawn.is_set():
        return _CLEAR
    return "\n" if sys.stderr.isatty() else ""


@contextlib.contextmanager
def planning(display: Display) -> Iterator[None]:
    """Shows that inputs are listed and looked at, if that takes more than a second."""
    with _followed(display, lambda: (Phase("planning"),)):
        yield


@contextlib.contextmanager
def converting(
    display: Display, plan: Plan, read_progress: Callable[[], tuple[Totals, int | None]] | None = None
) -> Iterator[None]:
    """Shows how far the conversion of a plan is.

    Args:
        read_progress: Returns what all workers counted, and the bytes of all shards, None before that is known. Only
            where workers share no disk with the command.
    """
    num_input_bytes = sum(s.num_bytes for s in plan.input_splits)
    num_framed_bytes: int | None = None

    def look() -> tuple[Phase, ...]:
        nonlocal num_framed_bytes
        before: tuple[Phase, ...] = ()
        if read_progress is None:
            totals = read_totals(plan.work_path("progress"))
        else:
            totals, num_framed_bytes = read_progress()
            before = (Phase("waiting for workers"),)
            if totals == Totals():
                return before
        if read_progress is None and num_framed_bytes is None and totals.num_input_bytes >= num_input_bytes:
            with contextlib.suppress(FileNotFoundError):
                num_framed_bytes = sum(s.num_bytes for s in load_layout(plan).splits)
        has_first_pass = plan.recipe.reads_twice or totals.num_first_pass_bytes > 0
        return (*before, *find_phases(totals, num_input_bytes, num_framed_bytes, has_first_pass=has_first_pass))

    with _followed(display, look):
        yield


@contextlib.contextmanager
def _followed(display: Display, look: Callable[[], tuple[Phase, ...]]) -> Iterator[None]:
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(_REFRESH_SECONDS):
            with contextlib.suppress(OSError):
                display.update(look(), time.monotonic())

    display.begin(time.monotonic())
    display.update(look(), time.monotonic())
    thread = threading.Thread(target=follow, daemon=True, name="progress")
    start_thread(thread)
    is_done = False
    try:
        yield
        is_done = True
    finally:
        ended.set()
        thread.join()
        if is_done:
            with contextlib.suppress(OSError):
                display.update(look(), time.monotonic())
        display.end(time.monotonic(), is_done=is_done)


def _can_show(stream: TextIO, character: str) -> bool:
    try:
        character.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _width_of(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
