"""How `formats_speed.py` measures commands and waiting peers: wall and CPU time, and the memory of process trees."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import psutil

from tests.benchmarks.process_memory import tree_bytes

SAMPLE_S = 0.05


class FailedRunError(Exception):
    """A contender ended with an error."""


class Spent(NamedTuple):
    """What one conversion took; the peak is the proportional set size of all processes, sampled."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


class PeakMemory:
    """Samples the memory of a process and all its descendants while the block runs."""

    def __init__(self, process: psutil.Process) -> None:
        self.peak_bytes = 0
        self._process = process
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, tree_bytes(self._process))
            if self._ended.wait(SAMPLE_S):
                return


def run_command(command: Sequence[str]) -> Spent:
    """Runs a command to its end; CPU time is that of its whole process tree. Raises FailedRunError if it fails."""
    before, started = os.times(), time.monotonic()
    process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    with PeakMemory(process) as memory:
        _, errors = process.communicate()
        wall_s = time.monotonic() - started
    if process.returncode != 0:
        raise FailedRunError(f"{' '.join(command)} ended with {process.returncode}:\n{errors[-2000:]}")
    after = os.times()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Spent(wall_s, cpu_s, memory.peak_bytes)


class PeerProcess:
    """A peer that has imported what it needs and waits for conversions; see `format_peers.py`."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        """Starts it; messages go to a file."""
        self._log = log
        with log.open("w") as errors:
            pipe = subprocess.PIPE
            self._process = psutil.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True)

    def wait_until_ready(self) -> None:
        """Waits until it has imported everything. Raises FailedRunError if it ends before."""
        self._answer()

    def convert(self, source: Path, output: Path) -> Spent:
        """Returns what one conversion took, imports left out. Raises FailedRunError if it fails."""
        with PeakMemory(self._process) as memory:
            try:
                self._process.stdin.write(json.dumps([str(source), str(output)]) + "\n")
                self._process.stdin.flush()
            except OSError:
                pass  # The answer that does not come says why.
            answer = json.loads(self._answer())
        return Spent(answer["wall_s"], answer["cpu_s"], memory.peak_bytes)

    def close(self) -> None:
        """Ends it."""
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> str:
        line = str(self._process.stdout.readline())
        if not line:
            raise FailedRunError(f"ended with {self._process.wait()}:\n{self._log.read_text()[-2000:]}")
        return line


def num_output_bytes(output: Path) -> int:
    """Returns the size of all files of a conversion."""
    return sum(file.stat().st_size for file in output.rglob("*") if file.is_file())


def count_rows(tool: str, output: Path) -> int:
    """Returns how many rows a tool has written, by its files and not by what it says of them.

    MDS shards are the exception for their compression: the number is that of its index.
    """
    if tool == "mds":
        return sum(shard["samples"] for shard in json.loads((output / "index.json").read_text())["shards"])
    patterns = {"shardkit": "data/*/*.tfrecord.gz", "tfds": "*/*/*.tfrecord-*", "beam": "*.tfrecord.gz"}
    return sum(_count_records(path) for path in output.glob(patterns[tool]))


def _count_records(path: Path) -> int:
    from shardkit.encoding.kernel import scan

    data = path.read_bytes()
    frames = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    _, lengths, states, end = scan(frames)
    if end != len(frames) or any(bytes(states)):
        raise SystemExit(f"{path} holds damaged records")
    return len(lengths)
