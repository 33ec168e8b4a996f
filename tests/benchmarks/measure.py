"""How the benchmarks measure: contenders take turns in one run, CPU time, medians over rounds, ratios in the end."""

from __future__ import annotations

import importlib.util
import math
import platform
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

Cell = str | int | float | None


class Contender(NamedTuple):
    """One way to do the work.

    Attributes:
        work: Does it once. What it returns is dropped before the next call.
        share: Part of the rows that one call handles; slow ways are measured on fewer rows.
    """

    name: str
    work: Callable[[], object]
    share: float = 1.0


class Check(NamedTuple):
    """What was asked and what was measured; more is better."""

    what: str
    measured: float | None
    target: float


def median_seconds(contenders: Sequence[Contender], rounds: int, min_s: float = 0.05) -> dict[str, float]:
    """Returns the median CPU seconds that each contender takes for all rows, on all threads of this process.

    Args:
        contenders: They take turns; the order shifts by one every round.
        rounds: Measurements of each.
        min_s: A measurement repeats the work for about that long.
    """
    repeats = {}
    for contender in contenders:
        contender.work()
        started = time.process_time()
        contender.work()
        repeats[contender.name] = max(1, math.ceil(min_s / max(time.process_time() - started, 1e-6)))
    seconds: dict[str, list[float]] = {c.name: [] for c in contenders}
    for number in range(rounds):
        shift = number % len(contenders)
        for contender in (*contenders[shift:], *contenders[:shift]):
            started = time.process_time()
            for _ in range(repeats[contender.name]):
                contender.work()
            elapsed = time.process_time() - started
            seconds[contender.name].append(elapsed / repeats[contender.name] / contender.share)
    return {name: statistics.median(values) for name, values in seconds.items()}


def print_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Prints columns under a title, text to the left and numbers to the right."""
    cells = [[_text(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in (headers, *cells)) for i in range(len(headers))]
    is_text = [all(isinstance(row[i], str) for row in rows) for i in range(len(headers))]
    print(f"\n{title}")
    for line in (headers, ["-" * width for width in widths], *cells):
        aligned = [
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(line, widths, is_text, strict=True)
        ]
        print("  ".join(aligned).rstrip(), flush=True)


def print_checks(checks: Sequence[Check]) -> None:
    """Prints which targets were met."""
    rows = [(v.what, v.measured, f">= {v.target:g}", _outcome(v)) for v in checks]
    print_table("targets", ("what", "measured", "target", "outcome"), rows)


def print_machine(*packages: str) -> None:
    """Prints what a reader needs to compare figures: processor, Python, versions of the packages."""
    model = "unknown processor"
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = f"{len(names)} x {names[0]}" if names else model
    versions = ", ".join(f"{package} {version_of(package)}" for package in packages)
    print(f"{model}; Python {platform.python_version()}; {versions}")


def version_of(package: str) -> str:
    """Returns the installed version of a distribution."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def is_installed(module: str) -> bool:
    """Whether a top-level module can be imported here."""
    return importlib.util.find_spec(module) is not None


def shardkit_command() -> str:
    """Returns the installed command, that of this environment first."""
    beside = Path(sys.executable).parent / "shardkit"
    found = str(beside) if beside.exists() else shutil.which("shardkit")
    if found is None:
        raise SystemExit("the command shardkit is not installed")
    return found


def _outcome(check: Check) -> str:
    if check.measured is None:
        return "not measured"
    return "met" if check.measured >= check.target else "MISSED"


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}" if abs(cell) < 10 else f"{cell:.1f}"
    return f"{cell:,}" if isinstance(cell, int) else cell
