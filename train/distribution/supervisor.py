"""Starts the workers of this host, and starts all of them again when one is lost: a thin shell around `decide`."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from shardkit.errors import StorageError
from shardkit.runtime.early_signals import WORDS
from shardkit.runtime.signals import heeded, signals_on_pipe
from shardkit.storage import files as storage
from train.distribution.cluster import WORKER, Cluster, Placement, name_of, task_of
from train.distribution.exit_codes import PEER_LOST_CODES
from train.distribution.heartbeat import START_LIMIT_S
from train.distribution.held import HeldPorts, scratch_folder
from train.distribution.restart_policy import (
    STOP_CODES,
    Event,
    Finish,
    GiveUp,
    GraceOver,
    Replace,
    Restart,
    Signalled,
    State,
    Stop,
    WorkerEnded,
    causes_first,
    decide,
)
from train.distribution.worker_processes import Member, StartsWorkers, WorkerProcesses, Workers

RESUME = "--resume"
# Holds TensorFlow's messages of a chief, whose own output is passed through.
CHIEF_LOG = "chief.log"
# Kubernetes and Slurm kill 30 s after SIGTERM.
GRACE_S = 25.0

_POLL_S = 0.25
_HELD_UP_S = 5.0
_SETTLE_S = 1.0
_MAX_LAST_WORDS = 20
# Whom these end has had no time to say why.
_FROM_OUTSIDE = (signal.SIGKILL, *WORDS)


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor is to keep running.

    Attributes:
        command: Of a worker; `--resume` is added when it is started again.
        placement: The workers of all hosts, and of this one.
        logs: Folder for the output of all workers but this host's first, which is passed through.
        worker_counts: Numbers of workers that can share the run; None if any can.
        grace_s: For a last checkpoint when asked to stop.
        start_limit_s: Silence that is fine until a worker's first sign of life.
        workers: Makes what starts and watches a generation of them.
    """

    command: tuple[str, ...]
    placement: Placement
    logs: Path
    max_restarts: int
    is_elastic: bool = False
    worker_counts: tuple[int, ...] | None = None
    grace_s: float = GRACE_S
    start_limit_s: float = START_LIMIT_S
    workers: StartsWorkers = WorkerProcesses


def supervise(
    orders: Orders,
    say: Callable[[str], None],
    describe_state: Callable[[], str],
    is_saved: Callable[[], bool] = lambda: True,
) -> int:
    """Keeps the workers running to their end, and returns the exit code.

    Args:
        describe_state: Returns the sentence that says what is saved and how to go on.

    Raises:
        StorageError: If workers were lost more often than is allowed.
        UsageError: If the logs cannot be written.
    """
    if orders.placement.count > 1 or orders.placement.num_servers:
        storage.make_folder(str(orders.logs))
    with scratch_folder() as folder, _signals() as wakeup:
        return _Supervisor(orders, folder, wakeup, say, describe_state, is_saved).run()


class _Supervisor:
    def __init__(
        self,
        orders: Orders,
        folder: Path,
        wakeup: int,
        say: Callable[[str], None],
        describe_state: Callable[[], str],
        is_saved: Callable[[], bool],
    ) -> None:
        self._orders = orders
        self._folder = folder
        self._wakeup = wakeup
        self._say = say
        self._describe_state = describe_state
        self._is_saved = is_saved
        self._stop_at_s: float | None = None
        placement = orders.placement
        self._state = State(
            num_workers=placement.num_workers,
            count=placement.count,
            max_restarts=orders.max_restarts,
            is_elastic=orders.is_elastic,
            worker_counts=orders.worker_counts,
            num_servers=placement.num_servers,
        )

    def run(self) -> int:
        while True:
            action = self._run_generation()
            if isinstance(action, Finish):
                return self._finish(action)
            self._say(action.sentence)

    def _run_generation(self) -> Restart | Finish:
        """Runs the workers until something ends them; when it returns, none of them is left."""
        is_local = self._orders.placement.is_local and self._state.count > 1
        with contextlib.ExitStack() as stack:
            ports = stack.enter_context(HeldPorts(self._state.count if is_local else 0))
            limit_s, stopped = self._orders.start_limit_s, self._describe_state()
            worker_processes = self._orders.workers(
                self._command(), self._state.generation, self._folder, limit_s, stopped
            )
            stack.callback(worker_processes.end)
            members = self._members(ports.addresses if is_local else self._orders.placement.workers)
            sizes = {m.log: m.log.stat().st_size for m in members if m.log is not None and m.log.exists()}
            events: list[Event] = [*worker_processes.start(members)]
            while True:
                refusals: list[Event] = []
                for event in causes_first(events):
                    now = msgspec.structs.replace(self._state, is_saved=self._is_saved())
                    self._state, action = decide(now, event)
                    if isinstance(action, Stop):
                        worker_processes.signal(action.number)
                        self._stop_at_s = time.monotonic() + self._orders.grace_s
                    elif isinstance(action, Replace | GiveUp):
                        self._say(action.sentence + self._see_log(event, members))
                        if isinstance(action, GiveUp):
                            worker_processes.drop(action.index)
                        elif (refusal := worker_processes.replace(_member(members, action.index))) is not None:
                            refusals.append(refusal)
                    elif isinstance(action, Restart):
                        return msgspec.structs.replace(action, sentence=action.sentence + self._see_log(event, members))
                    elif isinstance(action, Finish):
                        words = (_own_words(action, worker_processes, members, sizes), action.sentence)
                        return msgspec.structs.replace(action, sentence="\n".join(filter(None, words)) or None)
                events = refusals or self._wait(worker_processes)

    def _command(self) -> tuple[str, ...]:
        command = self._orders.command
        return (*command, RESUME) if self._state.generation and RESUME not in command else command

    def _members(self, addresses: Sequence[str]) -> list[Member]:
        first, num_servers = self._orders.placement.first, self._orders.placement.num_servers
        return [
            Member(
                cluster=Cluster(workers=tuple(addresses), index=i, num_servers=num_servers),
                log=None if i == first else self._orders.logs / log_name(i, num_servers),
            )
            for i in range(first, first + self._state.count)
        ]

    def _see_log(self, event: Event, members: Sequence[Member]) -> str:
        """Returns where a worker wrote why it ended, nothing where it could not."""
        if not isinstance(event, WorkerEnded) or -event.code in _FROM_OUTSIDE:
            return ""
        log = _member(members, event.index).log
        if log is None and event.code < 0 and event.index == 0 and self._state.num_workers > 1:
            log = self._orders.logs / CHIEF_LOG
        return "" if log is None else f"; see {log}"

    def _wait(self, worker_processes: Workers) -> list[Event]:
        """Returns the events, after a while at most."""
        before_s = time.monotonic()
        events: list[Event] = [Signalled(number) for number in self._signals(_POLL_S)]
        if time.monotonic() - before_s > _HELD_UP_S:
            worker_processes.forgive()
        events += worker_processes.look()
        if events and all(isinstance(e, WorkerEnded) and e.code in PEER_LOST_CODES for e in events):
            # The end of a worker that lost a peer may be noticed before the end of the peer.
            until_s = time.monotonic() + _SETTLE_S
            while time.monotonic() < until_s:
                time.sleep(_SETTLE_S / 10)
                known = {(type(e), getattr(e, "index", None)) for e in events}
                events += [e for e in worker_processes.look() if (type(e), e.index) not in known]
        if self._stop_at_s is not None and time.monotonic() > self._stop_at_s:
            events.append(GraceOver())
        return events

    def _signals(self, timeout_s: float) -> list[int]:
        ready, _, _ = select.select([self._wakeup], [], [], timeout_s)
        return [number for number in os.read(self._wakeup, 1024) if number in WORDS] if ready else []

    def _finish(self, action: Finish) -> int:
        if action.code == StorageError.exit_code and action.culprit is None:
            raise StorageError(
                action.sentence or "a worker kept failing",
                state=self._describe_state(),
            )
        if action.sentence:
            self._say(action.sentence)
        first_code = self._state.ended.get(self._orders.placement.first)
        if action.code in STOP_CODES and (first_code is None or first_code < 0):
            # It was killed before it could say so itself.
            self._say(f"{WORDS[signal.Signals(STOP_CODES[action.code])]}: {self._describe_state()}")
        return action.code


def log_name(index: int, num_servers: int) -> str:
    """Returns the name of the file with the output of a worker."""
    job, number = task_of(index, num_servers)
    return f"{number}.log" if job == WORKER else f"{job}-{number}.log"


def _member(members: Sequence[Member], index: int) -> Member:
    return next(m for m in members if m.cluster.index == index)


def _own_words(action: Finish, processes: Workers, members: Sequence[Member], sizes: dict[Path, int]) -> str | None:
    """Returns the last lines of a worker whose output went to a log, None where the first worker ended alike."""
    member = next((m for m in members if m.cluster.index == action.culprit), None)
    if member is None or member.log is None:
        return None
    if processes.wait_for(members[0].cluster.index, _SETTLE_S) == action.code:
        return None
    with member.log.open("rb") as file:
        file.seek(sizes.get(member.log, 0))
        lines = file.read().decode(errors="replace").splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("error[")]
    words = lines[starts[-1] :] if starts else lines
    name = name_of(member.cluster.index, member.cluster.num_servers)
    return "\n".join([f"{name} says:", *words[-_MAX_LAST_WORDS:]])


@contextlib.contextmanager
def _signals() -> Iterator[int]:
    """Gives a descriptor on which the numbers of signals arrive; they do nothing else while the block runs."""
    numbers = (*heeded(WORDS), signal.SIGCHLD)
    with contextlib.ExitStack() as behind, signals_on_pipe(numbers) as read_end:
        behind.callback(os.close, read_end)
        os.set_blocking(read_end, False)
        yield read_end
