"""One worker in a task of a cluster: its process, which ends with the task, and with the command."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path

import msgspec

from shardkit.errors import UsageError
from shardkit.runtime.early_signals import WORDS
from train.distribution.held import HeldPorts, scratch_folder
from train.distribution.worker_identity import WorkerIdentity
from train.distribution.worker_processes import end_group, environment_of
from train.launchers.channel import Door, Order, Report, call, send

_POLL_S = 0.25
_DRAIN_S = 1.0
_CHUNK_BYTES = 1 << 16


def run_worker(door: Door, index: int, host: str) -> None:
    """Runs a worker until it ends, or the command is gone.

    Args:
        host: This one, as the other workers reach it.
    """
    with HeldPorts(1, "") as ports, call(door) as command, contextlib.suppress(EOFError, OSError):
        port = ports.addresses[0].rpartition(":")[2]
        send(command, Report(index=index, address=f"[{host}]:{port}" if ":" in host else f"{host}:{port}"))
        order = msgspec.json.decode(command.recv_bytes(), type=Order)
        folder = order.folder if Path(order.folder).is_dir() else None
        if not Path(folder or "", order.proof).exists():
            send(command, Report(errors=_unseen(order, host).encode(), code=UsageError.exit_code))
            return
        with scratch_folder() as scratch, _process(order, index, scratch / "heartbeat", folder) as process:
            _relay(command, process, scratch / "heartbeat")
            send(command, Report(code=process.wait()))


def _unseen(order: Order, host: str) -> str:
    return (
        f"error[{UsageError.code}]: {Path(order.proof).parent}: the host {host} does not see the folder of the run.\n"
        "  Name an --output that the command and all workers see under one path, and DATASET alike.\n"
    )


@contextlib.contextmanager
def _process(order: Order, index: int, heartbeat: Path, folder: str | None) -> Iterator[subprocess.Popen[bytes]]:
    identity = WorkerIdentity(index=index, generation=order.generation, heartbeat=str(heartbeat))
    for number in WORDS:
        # What Java starts does not heed Ctrl-C, and a worker would inherit that.
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    process = subprocess.Popen(
        (sys.executable, *order.command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment_of(os.environ, order.cluster, identity, order.stopped),
        cwd=folder,
        process_group=0,
    )
    with process:
        try:
            yield process
        finally:
            if process.returncode is None:
                end_group(process)


def _relay(command: Connection, process: subprocess.Popen[bytes], heartbeat: Path) -> None:
    """Passes on what the worker says, and signals for it, until it has ended and said all."""
    assert process.stdout is not None
    assert process.stderr is not None
    stdout, stderr = process.stdout.fileno(), process.stderr.fileno()
    pipes = {stdout, stderr}
    pulse, until_s = b"", float("inf")
    while pipes and time.monotonic() < until_s:
        for ready in wait([command, *pipes], _POLL_S):
            if isinstance(ready, int):
                text = os.read(ready, _CHUNK_BYTES)
                if not text:
                    pipes.remove(ready)
                else:
                    send(command, Report(output=text) if ready == stdout else Report(errors=text))
            else:
                _signal(process, msgspec.json.decode(command.recv_bytes(), type=Order).signal)
        with contextlib.suppress(FileNotFoundError):
            if (newest := heartbeat.read_bytes()) != pulse:
                pulse = newest
                send(command, Report(pulse=pulse))
        if until_s == float("inf") and os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            # What it started may hold the pipes.
            end_group(process)
            until_s = time.monotonic() + _DRAIN_S


def _signal(process: subprocess.Popen[bytes], number: int | None) -> None:
    if number == signal.SIGKILL:
        end_group(process)
    elif number is not None:
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
