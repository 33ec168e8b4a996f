"""The phases of a conversion in words: rows, speed and time left, and one line about them."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from shardkit.conversion.progress import Totals
from shardkit.units import format_count, format_duration, format_number, format_size

BAR = "━"
_WINDOW_SECONDS = 20.0
_MIN_BAR, _MAX_BAR = 6, 30


class Phase(NamedTuple):
    """Where a conversion is.

    Attributes:
        num_bytes: Of all that is to be done; None where that is unknown.
        num_kept_bytes: Those of them that an earlier attempt did.
    """

    name: str
    num_bytes: int | None = None
    num_done_bytes: int = 0
    num_kept_bytes: int = 0
    num_rows: int = 0
    num_rejected: int = 0

    @property
    def share(self) -> float:
        """What is done, 0 to 1."""
        if not self.num_bytes:
            return 0.0 if self.num_bytes is None else 1.0
        return min(1.0, self.num_done_bytes / self.num_bytes)

    @property
    def num_worked_bytes(self) -> int:
        """Done by this attempt."""
        return max(0, self.num_done_bytes - self.num_kept_bytes)


def find_phases(
    totals: Totals, num_input_bytes: int, num_framed_bytes: int | None, *, has_first_pass: bool
) -> tuple[Phase, ...]:
    """Returns the phases of a conversion that have begun, in order; the last one is going on.

    Args:
        num_framed_bytes: Of all shards before compression; None before they are laid out.
    """
    first_pass = Phase(
        "first pass",
        num_input_bytes,
        totals.num_first_pass_bytes,
        totals.num_kept_first_pass_bytes,
        totals.num_first_pass_rows,
    )
    reading = Phase(
        "reading",
        num_input_bytes,
        totals.num_input_bytes,
        totals.num_kept_input_bytes,
        totals.num_rows,
        totals.num_rejected,
    )
    writing = Phase(
        "writing",
        num_framed_bytes,
        totals.num_framed_bytes,
        totals.num_kept_framed_bytes,
        totals.num_written_rows,
    )
    begun: tuple[Phase, ...] = ()
    if has_first_pass:
        begun = (first_pass,)
        if totals.num_input_bytes == 0:
            return begun if first_pass.share < 1 else (*begun, Phase("comparing"))
        begun = (first_pass, Phase("comparing"))
    begun = (*begun, reading)
    if reading.share < 1:
        return begun
    begun = (*begun, Phase("laying out"))
    if num_framed_bytes is None:
        return begun
    begun = (*begun, writing)
    return begun if writing.share < 1 else (*begun, Phase("committing"))


class Speed:
    """How fast one phase goes, from the work of this attempt in the last seconds."""

    def __init__(self, now: float) -> None:
        self._started = now
        self._samples: deque[tuple[float, int]] = deque([(now, 0)])
        self._last_change = now
        self._work = (0, 0)

    def add(self, now: float, num_worked_bytes: int, num_rows: int = 0) -> None:
        """Takes note of the work so far; a part of an input whose rows are many counts as bytes when it is done."""
        if (num_worked_bytes, num_rows) > self._work:
            self._work, self._last_change = (num_worked_bytes, num_rows), now
        self._samples.append((now, num_worked_bytes))
        while len(self._samples) > 2 and now - self._samples[1][0] >= _WINDOW_SECONDS:
            self._samples.popleft()

    def rate(self) -> float | None:
        """Returns bytes a second, None before there is anything to tell."""
        (first, before), (last, after) = self._samples[0], self._samples[-1]
        return (after - before) / (last - first) if last - first >= 1 and after > before else None

    def idle_seconds(self, now: float) -> float:
        """Returns for how long nothing was done."""
        return now - self._last_change


class Figures(NamedTuple):
    """The words about a phase, piece by piece; empty where there are none."""

    name: str
    share: float | None
    percent: str = ""
    rows: str = ""
    rate: str = ""
    rejected: str = ""
    left: str = ""


def describe(phase: Phase, speed: Speed, now: float, elapsed: float) -> Figures:
    """Returns the words about a phase that is going on."""
    if phase.num_bytes is None:
        return Figures(phase.name, None, left=whole_seconds(elapsed))
    rate = speed.rate()
    if speed.idle_seconds(now) > _WINDOW_SECONDS:
        left = f"no progress for {whole_seconds(speed.idle_seconds(now))}"
    else:
        left = f"{whole_seconds((phase.num_bytes - phase.num_done_bytes) / rate)} left" if rate else ""
    return Figures(
        phase.name,
        phase.share,
        percent=f"{int(100 * phase.share)} %",
        rows=format_number(phase.num_rows, "row") if phase.num_rows else "",
        rate=rate_text(rate) if rate else "",
        rejected=f"{format_count(phase.num_rejected)} rejected" if phase.num_rejected else "",
        left=left,
    )


def draw(figures: Figures, width: int, *, bar: str = BAR) -> str:
    """Returns one line that fits a terminal: the least important words are left out first.

    Args:
        width: Columns of the terminal; the last one stays free, because filling it may start a new line.
    """
    room = width - 1
    shown = {k: v for k, v in figures._asdict().items() if k not in ("name", "share") and v}
    for name in ("rate", "rows", "rejected", "left"):
        if len("  ".join([figures.name, *shown.values()])) > room:
            shown.pop(name, None)
    line = "  ".join([figures.name, *shown.values()])
    free = min(_MAX_BAR, room - len(line) - 2)
    if figures.share is not None and free >= _MIN_BAR:
        filled = (bar * int(figures.share * free)).ljust(free, " " if bar == BAR else ".")
        line = "  ".join([figures.name, filled, *shown.values()])
    return line[: max(0, room)]


def plain(figures: Figures) -> str:
    """Returns a line for a log."""
    shown = [v for k, v in figures._asdict().items() if k not in ("name", "share") and v]
    return f"{figures.name}: {', '.join(shown)}"


def last_line(phase: Phase, elapsed: float) -> str:
    """Returns the words about a phase that is over."""
    if phase.num_bytes is None:
        return f"{phase.name}: done in {format_duration(elapsed)}"
    facts = [format_number(phase.num_rows, "row"), format_size(phase.num_bytes)]
    if phase.num_kept_bytes:
        facts.append(f"{format_size(phase.num_kept_bytes)} of that before")
    if phase.num_rejected:
        facts.append(f"{format_count(phase.num_rejected)} rejected")
    rate = f" ({rate_text(phase.num_worked_bytes / elapsed)})" if elapsed > 0 and phase.num_worked_bytes else ""
    return f"{phase.name}: done, {', '.join(facts)} in {format_duration(elapsed)}{rate}"


def whole_seconds(seconds: float) -> str:
    """Returns a duration without fractions of a second."""
    return f"{max(1, round(seconds))} s" if seconds < 59.5 else format_duration(seconds)


def rate_text(rate: float) -> str:
    """Returns bytes a second in words."""
    value, unit = (rate / 1e6, "MB/s") if rate >= 1e5 else (rate / 1e3, "kB/s")
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"
