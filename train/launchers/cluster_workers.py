"""The workers of a generation in tasks of a cluster, as their command sees them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple

import msgspec

from shardkit.errors import StorageError
from train.distribution.cluster import Cluster
from train.distribution.heartbeat import Watch
from train.distribution.restart_policy import StartFailed, WorkerEnded, WorkerFroze
from train.distribution.worker_processes import Member, Worker, Workers
from train.launchers.channel import Gate, Order, Report, send
from train.launchers.launcher import Launcher
from train.launchers.task import run_worker

_END_S = 5.0
_LISTEN_S = 0.25
_STDOUT, _STDERR = 1, 2


class Place(NamedTuple):
    """Where workers run.

    Attributes:
        proof: Path of a file that all workers must see.
    """

    launcher: Launcher
    proof: str
    wait_s: float


class ClusterWorkers(Workers):
    """The workers of one generation in tasks of a cluster.

    Args:
        command, generation, folder, start_limit_s, stopped: See `WorkerProcesses`.
    """

    def __init__(
        self, place: Place, command: Sequence[str], generation: int, folder: Path, start_limit_s: float, stopped: str
    ) -> None:
        super().__init__()
        # Behind the Python of this host.
        self._order = Order(
            command=tuple(command[1:]),
            generation=generation,
            stopped=stopped,
            folder=str(Path.cwd()),
            proof=place.proof,
        )
        self._launcher, self._wait_s = place.launcher, place.wait_s
        self._start_limit_s, self._stopped = start_limit_s, stopped
        self._members: Sequence[Member] = ()
        self._tasks: dict[int, tuple[Report, Connection]] = {}
        self._failure: list[Exception] = []
        self._listener: threading.Thread | None = None

    def start(self, members: Sequence[Member]) -> list[StartFailed]:
        """Asks the cluster for a task a worker; they start when all tasks are there."""
        self._gate = Gate(self._launcher.begin())
        self._members = members
        self._until_s = time.monotonic() + self._wait_s
        self._job = threading.Thread(target=self._run, daemon=True, name="launcher")
        self._job.start()
        return []

    def replace(self, member: Member) -> StartFailed:
        """Refuses: a cluster starts all tasks of a run together."""
        return StartFailed(member.cluster.index, "a cluster starts all workers together")

    def look(self) -> list[WorkerEnded | WorkerFroze]:
        """Returns the ended and frozen workers; starts all of them when their tasks are there."""
        if not self._workers:
            self._look_for_tasks()
        # A cluster ends the tasks beside one that is lost: the first end is the cause.
        self._workers = dict(sorted(self._workers.items(), key=lambda item: item[1].ended_s))
        return super().look()

    def signal(self, number: int) -> None:
        """Sends a signal to each worker that is there; those that still wait for a place end with it."""
        if not self._workers:
            for member in self._members:
                self._workers[member.cluster.index] = _Absent(member.cluster.index, 128 + number)
        super().signal(number)

    def end(self) -> None:
        """Ends every worker with all that it started, and the job of the cluster."""
        if not self._members:
            return  # The session did not begin.
        for worker in self._workers.values():
            if worker.is_running:
                worker.send_signal(signal.SIGKILL)
        until_s = time.monotonic() + _END_S
        for worker in self._workers.values():
            worker.wait(until_s - time.monotonic())
        super().end()
        if self._listener is not None:
            self._listener.join()
        self._gate.close()
        for _, connection in self._tasks.values():
            connection.close()
        self._job.join(max(1.0, until_s - time.monotonic()))
        if self._job.is_alive():
            self._launcher.cancel()
            self._job.join(_END_S)

    def _run(self) -> None:
        try:
            self._launcher.run(len(self._members), partial(run_worker, self._gate.door))
        except Exception as error:  # noqa: BLE001 - shown by the thread that waits for the tasks
            self._failure.append(error)

    def _look_for_tasks(self) -> None:
        while not self._gate.arrived.empty():
            report, connection = self._gate.arrived.get()
            self._tasks[report.index] = (report, connection)
        if len(self._tasks) == len(self._members):
            self._start_workers()
        elif not self._job.is_alive() or time.monotonic() > self._until_s:
            raise self._no_place()

    def _start_workers(self) -> None:
        addresses = tuple(self._tasks[m.cluster.index][0].address for m in self._members)
        tasks = []
        for member in self._members:
            index = member.cluster.index
            cluster = Cluster(workers=addresses, index=index) if len(addresses) > 1 else Cluster()
            worker = _Task(self._tasks[index][1], member, Watch(None, time.monotonic(), self._start_limit_s))
            worker.send(msgspec.structs.replace(self._order, cluster=cluster))
            self._workers[index] = worker
            tasks.append(worker)
        self._listener = threading.Thread(target=_listen, args=(tasks,), daemon=True, name="tasks")
        self._listener.start()

    def _no_place(self) -> StorageError:
        found, count = len(self._tasks), len(self._members)
        if self._failure:
            lines = [line for line in str(self._failure[0]).splitlines() if line.strip()]
            why = self._launcher.explain(lines) if lines else type(self._failure[0]).__name__
        else:
            why = f"{found} of {count} workers got a place on the cluster in {self._wait_s:g} s"
        return StorageError(
            f"the cluster does not start {count} workers",
            why=why[:500],
            state=self._stopped,
            next_step="Give the cluster more free slots, use fewer --workers, or let --rendezvous-timeout wait longer; "
            "shardkit and its extra train must be installed on all of its hosts",
        )


def _listen(tasks: Sequence[_Task]) -> None:
    """Hears what tasks say, until all are over."""
    while running := [task for task in tasks if task.is_running]:
        ready = wait([task.connection for task in running], _LISTEN_S)
        for task in running:
            if task.connection in ready:
                task.hear()


class _Task(Worker):
    """A worker in a task that is connected. One thread hears it, and another one watches it."""

    def __init__(self, connection: Connection, member: Member, watch: Watch) -> None:
        super().__init__(member.cluster.index, watch)
        self.connection = connection
        self._log = member.log
        self._is_over = threading.Event()

    def hear(self) -> None:
        """Takes the next report; waits for it."""
        try:
            report = msgspec.json.decode(self.connection.recv_bytes(), type=Report)
        except (EOFError, OSError):
            # A task that is lost has lost its worker.
            report = Report(code=-signal.SIGKILL)
        if report.pulse:
            self._watch.hear(report.pulse, time.monotonic())
        for descriptor, text in ((_STDOUT, report.output), (_STDERR, report.errors)):
            if text and self._log is None:
                os.write(descriptor, text)
            elif text and self._log is not None:
                with self._log.open("ab") as log:
                    log.write(text)
        if report.code is not None:
            self._code, self.ended_s = report.code, time.monotonic()
            self.is_running, self.has_news = False, True
            self._is_over.set()

    def look(self, now_s: float) -> None:
        """Does nothing: the thread that hears it sees whether it lives."""

    def send(self, order: Order) -> None:
        """Says something to the task, unless it is lost, which shows when it is heard."""
        with contextlib.suppress(OSError):
            send(self.connection, order)

    def send_signal(self, number: int) -> None:
        self.send(Order(signal=number))

    def wait(self, timeout_s: float) -> int | None:
        self._is_over.wait(max(0.0, timeout_s))
        return self._code

    def end(self) -> None:
        """Ends the worker; a task that is out of reach is left to its cluster."""
        self.send_signal(signal.SIGKILL)
        self.is_running = False


class _Absent(Worker):
    """A worker that was stopped before it had a task."""

    def __init__(self, index: int, code: int) -> None:
        super().__init__(index, Watch(None, time.monotonic()))
        self._code, self.is_running, self.has_news = code, False, True

    def look(self, now_s: float) -> None:
        """Does nothing."""

    def send_signal(self, number: int) -> None:
        """Does nothing."""

    def wait(self, timeout_s: float) -> int | None:
        return self._code

    def end(self) -> None:
        """Does nothing."""
