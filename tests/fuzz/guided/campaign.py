"""Runs targets, each in a separate process, and starts it again behind an input that ends it."""

from __future__ import annotations

import multiprocessing
import re
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.guided.child import Board, Finding, work
from tests.fuzz.guided.target import Job, Limits, Target

_MAX_STARTS = 4
_POLL_S = 0.25
_TAIL_CHARACTERS = 6000
_COVERAGE = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)/")


class Outcome(NamedTuple):
    """What became of one target.

    Attributes:
        name: Of the target.
        num_runs: Inputs that were parsed.
        seconds: Wall time.
        coverage: Edges, features and inputs of the corpus; None without guidance.
        findings: Different ones.
        tail: Last lines that the process wrote whose input ended it.
    """

    name: str
    num_runs: int
    seconds: float
    coverage: tuple[int, int, int] | None
    findings: list[Finding]
    tail: str


def run_target(target: Target, job: Job) -> Outcome:
    """Runs a target, in as many processes as its inputs end."""
    context = multiprocessing.get_context("fork")
    findings: list[Finding] = []
    begin, done, log_text, tail = time.monotonic(), 0, "", ""
    for start in range(_MAX_STARTS):
        with tempfile.TemporaryDirectory() as folder:
            log = str(Path(folder, "log"))
            board = Board()
            here, there = context.Pipe(duplex=False)
            rest = job._replace(seed=job.seed + start, num_runs=job.num_runs - done)
            process = context.Process(target=work, args=(target, rest, board, there, log), daemon=True)
            process.start()
            there.close()
            is_hung = _watch(process, here, board, job.limits, findings)
            log_text = Path(log).read_text(errors="replace") if Path(log).exists() else ""
        num_parsed, _, data = board.read()
        done += num_parsed
        if not is_hung and process.exitcode == 0:
            break
        kind, what = (
            ("hung", f"over {job.limits.max_s:g} s") if is_hung else ("crashed", f"exit code {process.exitcode}")
        )
        findings.append(Finding(kind, what, "", data))
        tail = log_text[-_TAIL_CHARACTERS:]
        if done >= job.num_runs:
            break
    found = _COVERAGE.findall(log_text)
    coverage = tuple(map(int, found[-1])) if found else None
    return Outcome(target.name, done, time.monotonic() - begin, coverage, findings, tail)


def _watch(
    process: multiprocessing.process.BaseProcess, pipe: Connection, board: Board, limits: Limits, found: list[Finding]
) -> bool:
    """Gathers findings until the process ends; kills it where its pulse stands still, and returns whether it did."""
    pulse, since = -1, time.monotonic()
    is_open = True
    while is_open or process.exitcode is None:
        if is_open and pipe.poll(_POLL_S):
            try:
                finding = pipe.recv()
                if finding.signature not in [f.signature for f in found]:
                    found.append(finding)
            except EOFError:
                is_open = False
        elif not is_open:
            process.join(_POLL_S)
        now = board.read()[1]
        if now != pulse:
            pulse, since = now, time.monotonic()
        elif process.exitcode is None and pulse > 0 and time.monotonic() - since > limits.max_s:
            process.kill()
            process.join()
            return True
    process.join()
    return False
