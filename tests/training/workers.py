"""Starts the workers of a run by hand, as processes that find each other in `TF_CONFIG`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from train.seat import SEAT, Seat


def free_addresses(count: int) -> list[str]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return ["{}:{}".format(*one.getsockname()) for one in sockets]


def start_workers(count: int, *arguments: object, folder: Path) -> list[subprocess.Popen[str]]:
    return start_processes(count, [sys.executable, "-m", "shardkit", "train", *map(str, arguments)], folder=folder)


def start_processes(count: int, command: Sequence[str], *, folder: Path) -> list[subprocess.Popen[str]]:
    addresses = free_addresses(count)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "KERAS_", "SHARDKIT_"))}
    started = []
    for index in range(count):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        seat = Seat(index=index, generation=0, heartbeat=str(folder / f"heartbeat-{index}"))
        environment = clean | {"TF_CONFIG": json.dumps(config), SEAT: seat.to_text()}
        started.append(
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
            )
        )  # fmt: skip
    return started


def finish_all(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    found = []
    for process in processes:
        out, err = process.communicate(timeout=240)
        found.append((process.returncode, out, err))
    return found
