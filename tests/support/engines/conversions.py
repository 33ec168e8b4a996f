"""Conversions on engines, as commands, and what is compared of their results."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from shardkit.dataset.open import open_dataset

# As Dataflow tells what a worker met, and that it gave up.
TRACE = """Error message from worker: generic::unknown: Traceback (most recent call last):
  File "common.py", line 1, in process
shardkit.errors.BadInputError: a.csv, line 3: expected 2 fields, got 1. Nothing was committed.

During handling of the above exception, another exception occurred:
shardkit.errors.BadInputError: a.csv, line 3: expected 2 fields, got 1 [while running 'Extract-ptransform-7']"""
TRIED = "Workflow failed. Causes: the work item was attempted 4 times without success."
SETTINGS = ("--split", "train=0.7", "--split", "test=0.3", "--num-shards", "8")


def write_inputs(folder: Path, num_files: int = 8, num_rows: int = 10_000) -> Path:
    """Writes CSV files, each a part of the inputs of its own."""
    draw = np.random.default_rng(0)
    for number in range(num_files):
        values = enumerate(draw.random(num_rows), number * num_rows)
        lines = [f"{i},{v:.4f},word{v * 1000:.0f}" for i, v in values]
        (folder / f"{number:02d}.csv").write_text("\n".join(["id,x,word", *lines]) + "\n")
    return folder


def command(source: Path | str, destination: Path | str, *options: object) -> list[str]:
    """Returns the command line of a conversion."""
    own = (str(source), str(destination), *SETTINGS)
    return [sys.executable, "-m", "shardkit", "convert", *own, *map(str, options)]


def convert(
    source: Path | str, destination: Path | str, *options: object, **more: str
) -> subprocess.CompletedProcess[str]:
    """Runs a conversion to its end."""
    return subprocess.run(
        command(source, destination, *options),
        capture_output=True,
        text=True,
        timeout=480,
        env={**os.environ, **more},
        check=False,
    )


def start(source: Path | str, destination: Path | str, *options: object, **more: str) -> subprocess.Popen[str]:
    """Starts a conversion in a group of processes of its own."""
    return subprocess.Popen(
        command(source, destination, *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **more},
    )


def shards_of(destination: Path | str) -> dict[str, str]:
    """Returns the hash of every shard, by name."""
    return {s.path: s.sha256 for s in open_dataset(str(destination)).shards}


def wait_for(
    process: subprocess.Popen[str], condition: Callable[[], bool], limit_s: float = 120, pause_s: float = 0.005
) -> None:
    """Polls until the condition holds; the process must still run then."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert process.poll() is None, f"it ended before it could be cut off: {process.communicate()}"
        assert time.monotonic() < deadline
        time.sleep(pause_s)
