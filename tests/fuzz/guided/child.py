"""One process that runs one target on many inputs and reports what it finds."""

from __future__ import annotations

import mmap
import os
import random
import resource
import struct
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple, NoReturn

from shardkit.errors import ShardkitError
from tests.fuzz.fuzz_sources import damage
from tests.fuzz.guided.target import Job, Limits, Target
from tests.support.paths import ROOT
from tests.support.wire.kernel_comparison import smaller

MAX_INPUT_BYTES = 2**18
_MIN_LENGTH = 4096
_MAX_TRIALS = 1500
_MAX_FINDINGS = 20
_NEVER_S = 10**6
_ADDRESS_SPACE = 8 * 2**30


class Finding(NamedTuple):
    """An input that a parser does not handle.

    Attributes:
        kind: `escaped`, `memory`, `hung` or `crashed`.
        what: The exception, or the exit code.
        where: The line of the product that raised it, empty if unknown.
        data: The input, cut down where that was possible.
    """

    kind: str
    what: str
    where: str
    data: bytes

    @property
    def signature(self) -> tuple[str, str, str]:
        """What findings of one cause share."""
        return self.kind, "" if self.kind == "memory" else self.what.partition(":")[0], self.where


class Board:
    """Memory that the child shares with its parent: the number of runs, a pulse, and the present input."""

    _HEAD = struct.Struct("<QQQ")

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, self._HEAD.size + MAX_INPUT_BYTES)
        self.num_runs = 0
        self._pulse = 0

    def note(self, data: bytes, *, is_run: bool) -> None:
        """Notes the input that is parsed next."""
        self.num_runs += is_run
        self._pulse += 1
        self._memory[self._HEAD.size : self._HEAD.size + len(data)] = data
        self._HEAD.pack_into(self._memory, 0, self.num_runs, self._pulse, len(data))

    def read(self) -> tuple[int, int, bytes]:
        """Returns the number of runs, the pulse, and the last input."""
        num_runs, pulse, size = self._HEAD.unpack_from(self._memory, 0)
        return num_runs, pulse, self._memory[self._HEAD.size : self._HEAD.size + size]


class _Trial:
    """Runs inputs, and sends the first finding of each signature."""

    def __init__(self, target: Target, limits: Limits, board: Board, pipe: Connection) -> None:
        self._target = target
        self._limits = limits
        self._board = board
        self._pipe = pipe
        self._known: set[tuple[str, str, str]] = set()
        self._refusals = (ShardkitError, *target.refusals)
        self._peak = _peak_bytes()

    def run(self, data: bytes) -> None:
        """Parses one input."""
        data = data[:MAX_INPUT_BYTES]
        found = self._outcome(data, is_run=True)
        if found is None or found.signature in self._known or len(self._known) >= _MAX_FINDINGS:
            return
        self._known.add(found.signature)
        self._pipe.send(found if found.kind == "memory" else self._cut_down(found))

    def _outcome(self, data: bytes, *, is_run: bool) -> Finding | None:
        self._board.note(data, is_run=is_run)
        found = None
        try:
            self._target.run(data)
        except self._refusals:
            pass
        except BaseException as error:  # noqa: BLE001 - that is what is looked for
            found = Finding("escaped", f"{type(error).__name__}: {str(error)[:200]}", _place(error), data)
        peak = _peak_bytes()
        if peak - self._peak > self._limits.max_bytes and found is None:
            found = Finding("memory", f"{(peak - self._peak) // 2**20} MiB more than any input before", "", data)
        self._peak = max(peak, self._peak)
        return found

    def _cut_down(self, found: Finding) -> Finding:
        best, left = found, _MAX_TRIALS

        def is_same(shorter: bytes) -> bool:
            nonlocal best, left
            left -= 1
            outcome = self._outcome(shorter, is_run=False) if left > 0 else None
            if outcome is None or outcome.signature != found.signature:
                return False
            best = outcome
            return True

        smaller(found.data, is_same)
        return best


def work(target: Target, job: Job, board: Board, pipe: Connection, log: str) -> None:
    """Runs a target; what it prints goes into the log."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(descriptor, number)
    _limit_memory()
    seeds = target.seeds()
    trial = _Trial(target, job.limits, board, pipe)
    if job.is_guided:
        _run_guided(trial.run, seeds, job, Path(log).parent)
    rng = random.Random(f"{target.name} {job.seed}")
    for content in seeds[: job.num_runs]:
        trial.run(content)
    for _ in range(job.num_runs - len(seeds)):
        trial.run(damage(rng.choice(seeds), rng))


def _run_guided(run: Callable[[bytes], None], seeds: list[bytes], job: Job, folder: Path) -> NoReturn:
    import atheris

    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    for index, content in enumerate(seeds):
        (corpus / f"seed-{index:03d}").write_bytes(content)
    longest = max(_MIN_LENGTH, *(2 * len(content) for content in seeds))
    settings = {"seed": job.seed, "runs": job.num_runs, "max_len": longest, "len_control": 0}
    # The parent watches time, `_Trial` memory.
    settings |= {"timeout": _NEVER_S, "rss_limit_mb": 0, "artifact_prefix": f"{folder}/"}
    atheris.Setup([sys.argv[0], *(f"-{k}={v}" for k, v in settings.items()), str(corpus)], run)
    # It ends the process.
    atheris.Fuzz()


def _limit_memory() -> None:
    # AddressSanitizer reserves terabytes of addresses.
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * mmap.PAGESIZE + _ADDRESS_SPACE
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if Path(f.filename).is_relative_to(ROOT / "shardkit")] or frames
    name = Path(own[-1].filename)
    return f"{name.relative_to(ROOT) if name.is_relative_to(ROOT) else name.name}:{own[-1].lineno}"
