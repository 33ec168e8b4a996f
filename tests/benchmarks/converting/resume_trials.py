"""Conversions that are killed, and what finishing them costs as the kernel sees it: `strace` counts reads of inputs.

What a resumed run may read: what was left, 5 % of all input, and one input split for each worker. What was left are
the input splits without a record in the work folder; with duplicates removed every split is read twice, so it may be
left twice. A mapped file counts as read for all of the mapping, needed or not.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil

_CALLS = "read,pread64,readv,preadv,preadv2,mmap,sendfile,copy_file_range,splice"
_READ = re.compile(r"(?:p?read(?:64|v|v2)?)\(\d+<(.*?)>.*\) = (\d+)$")
_COPIED = re.compile(r"(?:sendfile\(\d+<.*?>, \d+|copy_file_range\(\d+|splice\(\d+)<(.*?)>.*\) = (\d+)$")
_MAPPED = re.compile(r"mmap\([^,]+, (\d+), [^,]+, [^,]+, \d+<(.*?)>")
_SLACK = 0.05
_POLL_S = 0.002


class Conversion(NamedTuple):
    """What is converted.

    Attributes:
        num_workers: Likewise.
    """

    name: str
    source: Path
    options: tuple[str, ...]
    num_workers: int

    def command(self, destination: Path) -> list[str]:
        """Returns the command, the same for the first run and for the one that resumes."""
        start = (sys.executable, "-m", "shardkit", "convert", str(self.source), str(destination))
        return [*start, "--workers", str(self.num_workers), *self.options]


class Work(NamedTuple):
    """How far a conversion got.

    Attributes:
        num_finished, num_splits: Input splits in the spool, and in all; 0 of 0 before there is a plan.
        left_bytes: Input that was not read to the end, as often as it has to be.
        total_bytes: All input, as often as it has to be read.
        largest_bytes: Of one input split.
    """

    num_finished: int
    num_splits: int
    left_bytes: int
    total_bytes: int
    largest_bytes: int


class Trial(NamedTuple):
    """One conversion that was killed and finished.

    Attributes:
        read_bytes: What the kernel gave out of the inputs to the run that finished it.
        differences: Names of files that are not those of a conversion that nobody disturbed.
        seconds: That finishing it took, traced.
    """

    conversion: Conversion
    moment: str
    work: Work
    read_bytes: int
    allowed_bytes: int
    differences: tuple[str, ...]
    seconds: float

    @property
    def is_same(self) -> bool:
        """Whether all shards and the manifest are those of a conversion that nobody disturbed."""
        return not self.differences

    @property
    def is_fine(self) -> bool:
        """Whether the promise held."""
        return self.is_same and self.read_bytes <= self.allowed_bytes


def has_strace() -> bool:
    """Whether reads can be traced here."""
    if shutil.which("strace") is None:
        return False
    probe = subprocess.run(
        ["strace", "-f", "--seccomp-bpf", "-o", os.devnull, "true"], capture_output=True, check=False
    )
    return probe.returncode == 0


def input_bytes(source: Path) -> int:
    """Returns the size of all inputs."""
    return sum(p.stat().st_size for p in source.rglob("*") if p.is_file())


def run_traced(conversion: Conversion, destination: Path, traces: Path) -> int:
    """Runs a conversion to its end and returns how many bytes of the inputs were read.

    Raises:
        RuntimeError: If it fails.
    """
    shutil.rmtree(traces, ignore_errors=True)
    traces.mkdir(parents=True)
    # A file for each thread: no call is then split over two lines.
    strace = ["strace", "-ff", "-qq", "-y", "-s", "0", "--seccomp-bpf", "-e", f"trace={_CALLS}"]
    command = [*strace, "-o", str(traces / "trace"), *conversion.command(destination)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"{conversion.name}: code {run.returncode}: {run.stderr[-2000:]}")
    prefix = f"{conversion.source.resolve()}/"
    return sum(_read_bytes(line, prefix) for trace in traces.iterdir() for line in trace.open(errors="replace"))


def _read_bytes(line: str, prefix: str) -> int:
    if match := _READ.match(line) or _COPIED.match(line):
        return int(match[2]) if match[1].startswith(prefix) else 0
    if match := _MAPPED.match(line):
        return int(match[1]) if match[2].startswith(prefix) else 0
    return 0


def start(conversion: Conversion, destination: Path) -> subprocess.Popen[bytes]:
    """Starts a conversion in a process group of its own."""
    return subprocess.Popen(
        conversion.command(destination), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def kill_when(process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> bool:
    """Kills the whole process group once the condition holds; returns False if it ended before."""
    while not condition():
        if process.poll() is not None:
            return False
        time.sleep(_POLL_S)
    children = []
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    was_killed = process.wait() == -signal.SIGKILL
    psutil.wait_procs(children, timeout=10)
    return was_killed


def work_of(conversion: Conversion, destination: Path) -> Work:
    """Returns how far a killed conversion got, from the files in its work folder."""
    is_read_twice = "--dedup" in conversion.options
    for path in destination.glob("work/*/plan-*.json"):
        sizes = {s["index"]: s["num_bytes"] for s in json.loads(path.read_text())["input_splits"]}
        steps = ["extract", "survey"] if is_read_twice else ["extract"]
        left = 0
        for step in steps:
            done = {int(p.stem) for p in path.parent.glob(f"{step}/*.msgpack")}
            left += sum(size for index, size in sizes.items() if index not in done)
        num_finished = len(list(path.parent.glob("extract/*.msgpack")))
        return Work(num_finished, len(sizes), left, sum(sizes.values()) * len(steps), max(sizes.values()))
    total = input_bytes(conversion.source) * (1 + is_read_twice)
    return Work(0, 0, total, total, 0)


def contents(destination: Path) -> dict[str, str]:
    """Returns a hash of every file of a dataset, of the manifest without its `created` block and its own checksum."""
    found = {}
    # A commit that was cut off leaves a temporary file with a leading dot, which is no part of a dataset.
    for path in sorted(p for p in destination.rglob("*") if p.is_file() and not p.name.startswith(".")):
        content = path.read_bytes()
        if path.parent.name == "manifests" and path.suffix == ".json":
            manifest: dict[str, Any] = json.loads(content)
            del manifest["created"], manifest["sha256"], manifest["shard_table"]["path"]
            content = json.dumps(manifest, sort_keys=True).encode()
        name = re.sub(r"-[0-9a-f]{16}\.shards", ".shards", path.relative_to(destination).as_posix())
        found[name] = hashlib.sha256(content).hexdigest()
    return found


def phases(destination: Path, conversion: Conversion) -> dict[str, Callable[[], bool]]:
    """Returns conditions under which a conversion is in each of its phases."""

    def finished(step: str) -> float:
        work = work_of(conversion, destination)
        done = len(list(destination.glob(f"work/*/{step}/*.msgpack")))
        return done / work.num_splits if work.num_splits else 0.0

    found: dict[str, Callable[[], bool]] = {
        "planned": lambda: any(destination.glob("work/*/plan-*.json")),
        "first rows in the spool": lambda: any(destination.glob("work/*/spool/*")),
        "half in the spool": lambda: finished("extract") >= 0.5,
        "all in the spool": lambda: finished("extract") >= 1,
        "first shard": lambda: any(destination.glob("data/*/*.gz")),
        "half of the shards": lambda: len(list(destination.glob("data/*/*.gz"))) >= 10,
        "commit": lambda: any(destination.glob("manifests/*.parquet")),
    }
    if "--dedup" in conversion.options:
        found["half digested"] = lambda: finished("survey") >= 0.5
    return found


def try_once(
    conversion: Conversion,
    folder: Path,
    moment: str,
    condition: Callable[[], bool],
    wanted: dict[str, str],
    undisturbed_bytes: int = 0,
) -> Trial | None:
    """Kills a conversion once the condition holds, and finishes it; None if it was too fast to be killed.

    Args:
        folder: For the dataset and the traces.
        moment: What the condition is called.
        wanted: Contents of the dataset of an undisturbed run.
        undisturbed_bytes: What that one reads, planning included: that much is left where there was no plan yet.
    """
    destination = folder / "out"
    process = start(conversion, destination)
    if not kill_when(process, condition) or any(destination.glob("manifests/*.json")):
        shutil.rmtree(destination, ignore_errors=True)
        return None
    work = work_of(conversion, destination)
    if work.num_splits == 0:
        work = work._replace(left_bytes=max(work.left_bytes, undisturbed_bytes))
    started = time.perf_counter()
    num_read = run_traced(conversion, destination, folder / "traces")
    seconds = time.perf_counter() - started
    slack = _SLACK * input_bytes(conversion.source) + conversion.num_workers * work.largest_bytes
    found = contents(destination)
    differences = tuple(sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name)))
    shutil.rmtree(destination)
    return Trial(conversion, moment, work, num_read, work.left_bytes + int(slack), differences, seconds)


def random_moment(rng: random.Random, seconds: float) -> tuple[str, Callable[[], bool]]:
    """Returns a moment of a run that takes so long, as a name and as a condition."""
    delay_s = rng.uniform(0, seconds)
    stop = time.monotonic() + delay_s
    return f"after {delay_s:.2f} s", lambda: time.monotonic() >= stop
