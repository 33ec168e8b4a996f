"""Starts the workers of a run by hand, as processes that find each other in `TF_CONFIG`."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from shardkit.features import make_feature
from tests.support.fork_server import SERVER_NAME
from train.distribution.worker_identity import WORKER_IDENTITY, WorkerIdentity

FEATURES = (
    make_feature("x", "float64", nullable=True),
    make_feature("color", "string"),
    make_feature("label", "bool"),
)
SETTINGS = ("--label", "label", "--global-batch-size", 60)

# A worker ends with the pipe on its stdin, which `communicate` would close.
_STAYS_OPEN = os.pipe()


def free_addresses(count: int) -> list[str]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return ["{}:{}".format(*one.getsockname()) for one in sockets]


def start_workers(count: int, *arguments: object, folder: Path) -> list[subprocess.Popen[str]]:
    return start_processes(count, train_command(*arguments), folder=folder)


def workers_of(supervisor: subprocess.Popen[str]) -> list[int]:
    """Returns the numbers of the worker processes, in the order they were started."""
    found = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text().split()
    return sorted(int(pid) for pid in found if Path(f"/proc/{pid}/comm").read_text().strip() != SERVER_NAME)


def train_command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "shardkit", "train", *map(str, arguments)]


def start_processes(count: int | None, command: Sequence[str], *, folder: Path) -> list[subprocess.Popen[str]]:
    """Starts a command as each worker, or once and as no worker if there is no count."""
    addresses = free_addresses(count or 0)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "KERAS_", "SHARDKIT_"))}
    if count is None:
        return [_start(command, clean)]
    started = []
    for index in range(count):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        identity = WorkerIdentity(index=index, generation=0, heartbeat=str(folder / f"heartbeat-{index}"))
        environment = clean | {"TF_CONFIG": json.dumps(config), WORKER_IDENTITY: identity.to_text()}
        started.append(_start(command, environment))
    return started


def _start(command: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=_STAYS_OPEN[0], stdout=pipe, stderr=pipe, text=True, env=environment)


def run_workers(count: int, *arguments: object, folder: Path) -> str:
    """Returns what the chief said."""
    ended = finish_all(start_workers(count, *arguments, folder=folder))
    assert [code for code, _, _ in ended] == [0] * count, "".join(err for _, _, err in ended)
    return ended[0][2]


def labelled_rows(num_rows: int) -> list[dict[str, Any]]:
    """Returns rows of `FEATURES` of which the label can be learned."""
    draw = random.Random(0)
    rows = [{"x": draw.uniform(-1, 1), "color": draw.choice("rgb")} for _ in range(num_rows)]
    return [{**r, "label": (r["x"] > 0) != (r["color"] == "r")} for r in rows]


def finish_all(processes: list[subprocess.Popen[str]], timeout_s: float = 480) -> list[tuple[int, str, str]]:
    found = []
    for process in processes:
        out, err = process.communicate(timeout=timeout_s)
        found.append((process.returncode, out, err))
    return found
