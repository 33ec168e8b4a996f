"""The worker processes of one host: started together, watched, ended together."""

from __future__ import annotations

import abc
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from shardkit.runtime.early_signals import STOPPED_VARIABLE
from train.distribution.cluster import TF_CONFIG, Cluster
from train.distribution.exit_codes import PEER_LOST_CODES
from train.distribution.heartbeat import Watch
from train.distribution.restart_policy import StartFailed, WorkerEnded, WorkerFroze
from train.distribution.worker_identity import WORKER_IDENTITY, WorkerIdentity

# Shorter than TensorFlow's own patience with the peers of a stopped process, with room for the restart.
STOPPED_LIMIT_S = 8.0

# Share of its limit. A worker that is silent for that long when another one passes the limit is a suspect, too.
_SUSPECT_SHARE = 0.8


class Member(NamedTuple):
    """The inputs of one worker process.

    Attributes:
        log: File for its output; None passes the output through.
    """

    cluster: Cluster
    log: Path | None


class Workers(abc.ABC):
    """The running workers of one generation, wherever they run."""

    def __init__(self) -> None:
        self._workers: dict[int, Worker] = {}

    @abc.abstractmethod
    def start(self, members: Sequence[Member]) -> list[StartFailed]:
        """Starts all workers; returns those that the system refuses, and why."""

    @abc.abstractmethod
    def replace(self, member: Member) -> StartFailed | None:
        """Ends one worker and starts it again; returns why not, if the system refuses."""

    def drop(self, index: int) -> None:
        """Ends one worker with all that it started, at once, and forgets it; nothing if it never started."""
        if (worker := self._workers.pop(index, None)) is not None:
            worker.end()

    def look(self) -> list[WorkerEnded | WorkerFroze]:
        """Returns the ended and frozen workers. If all that ended lost a peer, only stopped ones count as frozen."""
        now_s = time.monotonic()
        for worker in self._workers.values():
            worker.look(now_s)
        ended = [w.take_end() for w in self._workers.values() if w.has_news]
        silent = [w for w in self._workers.values() if w.is_running]
        if ended and all(e.code in PEER_LOST_CODES for e in ended):
            frozen = [w.frozen(now_s, ()) for w in silent if w.is_stopped]
        else:
            suspects = [w.index for w in silent if w.is_frozen(now_s, _SUSPECT_SHARE)]
            frozen = [w.frozen(now_s, tuple(i for i in suspects if i != w.index)) for w in silent if w.is_frozen(now_s)]
        frozen.sort(key=lambda f: not f.is_stopped)
        return [*ended, *frozen]

    def forgive(self) -> None:
        """Starts all clocks anew, after this process itself was held up."""
        now_s = time.monotonic()
        for worker in self._workers.values():
            worker.forgive(now_s)

    def signal(self, number: int) -> None:
        """Sends a signal to each worker that is there, and wakes those that are stopped."""
        for worker in self._workers.values():
            if worker.is_running:
                worker.send_signal(number)

    def wait_for(self, index: int, timeout_s: float) -> int | None:
        """Returns the exit code of a worker that ends in time, None otherwise."""
        worker = self._workers.get(index)
        return None if worker is None else worker.wait(timeout_s)

    def end(self) -> None:
        """Ends every worker with all that it started, at once."""
        for worker in self._workers.values():
            worker.end()
        self._workers.clear()


# Of a command, a generation, a folder for signs of life, `start_limit_s` and `stopped`: see `WorkerProcesses`.
StartsWorkers = Callable[[Sequence[str], int, Path, float, str], Workers]


class WorkerProcesses(Workers):
    """The running workers of one generation.

    Args:
        stopped: Sentence of a worker that is stopped before it knows the saved steps.
    """

    def __init__(
        self, command: Sequence[str], generation: int, folder: Path, start_limit_s: float, stopped: str
    ) -> None:
        self._command = tuple(command)
        self._generation = generation
        self._folder = folder
        self._start_limit_s = start_limit_s
        self._stopped = stopped
        super().__init__()
        self._num_started = 0
        # The pipe carries no data. Its end tells the workers that the supervisor is gone.
        self._stdin, self._lifeline = os.pipe()

    def start(self, members: Sequence[Member]) -> list[StartFailed]:
        return [refusal for member in members if (refusal := self._start_one(member)) is not None]

    def replace(self, member: Member) -> StartFailed | None:
        self.drop(member.cluster.index)
        return self._start_one(member, is_late=True)

    def end(self) -> None:
        super().end()
        for descriptor in (self._stdin, self._lifeline):
            os.close(descriptor)

    def _start_one(self, member: Member, *, is_late: bool = False) -> StartFailed | None:
        index = member.cluster.index
        # A new file for each start: the heartbeats of the previous process would be taken for those of this one.
        heartbeat = self._folder / f"{self._generation}-{index}-{self._num_started}"
        self._num_started += 1
        identity = WorkerIdentity(index=index, generation=self._generation, heartbeat=str(heartbeat), is_late=is_late)
        try:
            process = self._open(member, environment_of(os.environ, member.cluster, identity, self._stopped))
        except OSError as error:
            return StartFailed(index, (error.strerror or str(error)).lower())
        self._workers[index] = _WorkerProcess(index, process, Watch(heartbeat, time.monotonic(), self._start_limit_s))
        return None

    def _open(self, member: Member, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with contextlib.ExitStack() as files:
            log = None if member.log is None else files.enter_context(member.log.open("ab"))
            # In its own process group, so that Ctrl-C reaches it once, through the supervisor.
            return subprocess.Popen(
                self._command,
                stdin=self._stdin,
                stdout=log,
                stderr=None if log is None else subprocess.STDOUT,
                env=environment,
                process_group=0,
            )


class Worker(abc.ABC):
    """One worker and its signs of life.

    Attributes:
        is_running: Whether it has not ended, as far as is known.
        ended_s: When it ended, by the monotonic clock; infinite where that is not noted.
    """

    def __init__(self, index: int, watch: Watch) -> None:
        self.index = index
        self.is_running = True
        self.has_news = False
        self.ended_s = float("inf")
        self._watch = watch
        self._code: int | None = None
        self._stopped_at_s: float | None = None

    @property
    def is_stopped(self) -> bool:
        """Whether the system holds its process."""
        return self._stopped_at_s is not None

    @abc.abstractmethod
    def look(self, now_s: float) -> None:
        """Sees whether it lives."""

    @abc.abstractmethod
    def send_signal(self, number: int) -> None:
        """Sends it a signal, and wakes it."""

    @abc.abstractmethod
    def wait(self, timeout_s: float) -> int | None:
        """Returns its exit code if it ends in time."""

    @abc.abstractmethod
    def end(self) -> None:
        """Ends it with all that it started, at once."""

    def take_end(self) -> WorkerEnded:
        """Returns its end, and counts it as reported."""
        self.has_news = False
        assert self._code is not None
        return WorkerEnded(self.index, self._code, self._watch.pulse.step)

    def is_frozen(self, now_s: float, share: float = 1.0) -> bool:
        """Whether it has been silent for more than a share of its limit, or stopped for too long."""
        if self._stopped_at_s is not None and now_s - self._stopped_at_s > STOPPED_LIMIT_S:
            return True
        return self._watch.silent_s(now_s) > share * self._watch.pulse.limit_s

    def frozen(self, now_s: float, others: tuple[int, ...]) -> WorkerFroze:
        """Returns its silence as an event."""
        since_s = self._watch.silent_s(now_s) if self._stopped_at_s is None else now_s - self._stopped_at_s
        pulse = self._watch.pulse
        return WorkerFroze(self.index, since_s, pulse.phase, pulse.step, self.is_stopped, others)

    def forgive(self, now_s: float) -> None:
        """Counts its silence from now on."""
        self._watch.forgive(now_s)
        if self._stopped_at_s is not None:
            self._stopped_at_s = now_s


class _WorkerProcess(Worker):
    """A worker that is a process of this host."""

    def __init__(self, index: int, process: subprocess.Popen[bytes], watch: Watch) -> None:
        super().__init__(index, watch)
        self._process = process

    def look(self, now_s: float) -> None:
        if not self.is_running:
            return
        # Not reaped yet: no other process or group can have its number.
        if os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            self._watch.look(now_s)
            self.end()
            self.has_news = True
            return
        self._watch.look(now_s)
        # A process that ends just now has no such changes.
        with contextlib.suppress(ChildProcessError):
            change = os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
            if change is not None:
                self._stopped_at_s = now_s if change.si_code == os.CLD_STOPPED else None

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)
        self._process.send_signal(signal.SIGCONT)

    def wait(self, timeout_s: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def end(self) -> None:
        if not self.is_running:
            return
        end_group(self._process)
        self._code = self._process.wait()
        self.is_running = False


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kills a process that is not reaped yet, with all that it started."""
    # A zombie's group counts as forbidden on some systems.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def environment_of(own: Mapping[str, str], cluster: Cluster, identity: WorkerIdentity, stopped: str) -> dict[str, str]:
    """Returns the environment of a worker: that of the process that starts it, and its place."""
    environment = {name: value for name, value in own.items() if name != TF_CONFIG}
    environment |= {WORKER_IDENTITY: identity.to_text(), STOPPED_VARIABLE: stopped}
    config = cluster.tf_config()
    if config is None:
        return environment
    # A call to a worker that is gone must fail, not wait for it: only then is its work given to another one.
    patience = {"GRPC_FAIL_FAST": "use_caller"} if cluster.num_servers else {}
    return environment | {TF_CONFIG: config} | patience
