"""The worker processes of one host: started together, watched, ended together."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
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
        cluster: As it sees it.
        log: File for its output; None passes the output through.
    """

    cluster: Cluster
    log: Path | None


class WorkerProcesses:
    """The running workers of one generation.

    Args:
        command: That a worker runs.
        generation: Of the workers.
        folder: For signs of life.
        start_limit_s: Silence that is fine before the first sign.
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
        self._workers: dict[int, _Worker] = {}
        self._num_started = 0
        # The pipe carries no data. Its end tells the workers that the supervisor is gone.
        self._stdin, self._lifeline = os.pipe()

    def start(self, members: Sequence[Member]) -> list[StartFailed]:
        """Starts all workers; returns those that the system refuses, and why."""
        return [refusal for member in members if (refusal := self._start_one(member)) is not None]

    def replace(self, member: Member) -> StartFailed | None:
        """Ends one worker and starts it again; returns why not, if the system refuses."""
        self.drop(member.cluster.index)
        return self._start_one(member, is_late=True)

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
                worker.process.send_signal(number)
                worker.process.send_signal(signal.SIGCONT)

    def wait_for(self, index: int, timeout_s: float) -> int | None:
        """Returns the exit code of a worker that ends in time, None otherwise."""
        worker = self._workers.get(index)
        if worker is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return worker.process.wait(timeout_s)
        return None

    def end(self) -> None:
        """Ends every worker with all that it started, at once."""
        for worker in self._workers.values():
            worker.end()
        self._workers.clear()
        for descriptor in (self._stdin, self._lifeline):
            os.close(descriptor)

    def _start_one(self, member: Member, *, is_late: bool = False) -> StartFailed | None:
        index = member.cluster.index
        # A new file for each start: the heartbeats of the previous process would be taken for those of this one.
        heartbeat = self._folder / f"{self._generation}-{index}-{self._num_started}"
        self._num_started += 1
        identity = WorkerIdentity(index=index, generation=self._generation, heartbeat=str(heartbeat), is_late=is_late)
        try:
            process = self._open(member, _environment(os.environ, member.cluster, identity, self._stopped))
        except OSError as error:
            return StartFailed(index, (error.strerror or str(error)).lower())
        self._workers[index] = _Worker(index, process, Watch(heartbeat, time.monotonic(), self._start_limit_s))
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


class _Worker:
    """One process and its signs of life."""

    def __init__(self, index: int, process: subprocess.Popen[bytes], watch: Watch) -> None:
        self.index = index
        self.process = process
        self.is_running = True
        self.has_news = False
        self._watch = watch
        self._stopped_at_s: float | None = None

    @property
    def is_stopped(self) -> bool:
        return self._stopped_at_s is not None

    def look(self, now_s: float) -> None:
        if not self.is_running:
            return
        # Not reaped yet: no other process or group can have its number.
        if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            self._watch.look(now_s)
            self.end()
            self.has_news = True
            return
        self._watch.look(now_s)
        # A process that ends just now has no such changes.
        with contextlib.suppress(ChildProcessError):
            change = os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
            if change is not None:
                self._stopped_at_s = now_s if change.si_code == os.CLD_STOPPED else None

    def take_end(self) -> WorkerEnded:
        self.has_news = False
        return WorkerEnded(self.index, self.process.wait(), self._watch.pulse.step)

    def is_frozen(self, now_s: float, share: float = 1.0) -> bool:
        if self._stopped_at_s is not None and now_s - self._stopped_at_s > STOPPED_LIMIT_S:
            return True
        return self._watch.silent_s(now_s) > share * self._watch.pulse.limit_s

    def frozen(self, now_s: float, others: tuple[int, ...]) -> WorkerFroze:
        since_s = self._watch.silent_s(now_s) if self._stopped_at_s is None else now_s - self._stopped_at_s
        pulse = self._watch.pulse
        return WorkerFroze(self.index, since_s, pulse.phase, pulse.step, self.is_stopped, others)

    def forgive(self, now_s: float) -> None:
        self._watch.forgive(now_s)
        if self._stopped_at_s is not None:
            self._stopped_at_s = now_s

    def end(self) -> None:
        if not self.is_running:
            return
        # A zombie's group counts as forbidden on some systems.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.is_running = False


def _environment(own: Mapping[str, str], cluster: Cluster, identity: WorkerIdentity, stopped: str) -> dict[str, str]:
    environment = {name: value for name, value in own.items() if name != TF_CONFIG}
    environment |= {WORKER_IDENTITY: identity.to_text(), STOPPED_VARIABLE: stopped}
    config = cluster.tf_config()
    if config is None:
        return environment
    # A call to a worker that is gone must fail, not wait for it: only then is its work given to another one.
    patience = {"GRPC_FAIL_FAST": "use_caller"} if cluster.num_servers else {}
    return environment | {TF_CONFIG: config} | patience
