"""Trials: runs of the trainer that meet something bad at a random moment, and go on to their end."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.kill_inputs import CHECKPOINT_EVERY, Strategy, checkpoint_steps, partial_files, train_command
from tests.fuzz.kill_runs import EndedEarly, Run, Stuck, Worker

MAX_NOTICE_S = 2.0
MAX_FROZEN_NOTICE_S = 15.0
MAX_RESTART_S = 30.0
MAX_CHECKPOINTS = 3

# The pauses after a checkpoint was begun cover all of it, and what follows: the best one, the removal of the oldest.
_WRITING_S = 0.05
_MAX_TRIES = 4
_MAX_NAMED = 12


class Subject(NamedTuple):
    """What the trials of one strategy have in common.

    Attributes:
        name: Of the strategy.
        strategy: Itself.
        dataset: What is learned.
        options: Of all its runs.
        num_steps: Of the whole run.
        step_s: That a step takes.
        start_s: From the start of a process to its first checkpoint.
        contents: What the unbroken run came to.
    """

    name: str
    strategy: Strategy
    dataset: Path
    options: tuple[str, ...]
    num_steps: int
    step_s: float
    start_s: float
    contents: dict[str, str]


class Outcome(NamedTuple):
    """What became of one trial.

    Attributes:
        kind: Of the trial.
        is_same: Whether the run ended, and its digest is that of the unbroken one.
        notice_s: How long it took until the supervisor told each loss.
        restart_s: From then on, or from the start by hand, to the first step of all workers.
        problems: What should not be.
        story: The commands, and what was done to them when.
        caught: Whether a partly written checkpoint lay there when something was killed; None if nothing was.
    """

    kind: str
    is_same: bool
    notice_s: tuple[float, ...]
    restart_s: tuple[float, ...]
    problems: tuple[str, ...]
    story: tuple[str, ...]
    caught: bool | None = None


class Trial:
    """One run that is disturbed.

    Args:
        subject: Of which strategy.
        folder: Empty; for the run.
        rng: Decides all that is random.
    """

    def __init__(self, subject: Subject, folder: Path, rng: random.Random) -> None:
        self.subject = subject
        self.folder = folder
        self.output = folder / "run"
        self.rng = rng
        self.notice_s: list[float] = []
        self.restart_s: list[float] = []
        self.problems: list[str] = []
        self.story: list[str] = []
        self.caught: bool | None = None
        self._runs: list[Run] = []
        self._num_processes = subject.strategy.num_processes
        self._generation = 0
        self._aim: tuple[int, Worker] | None = None
        self._noticed_s = 0.0
        self._code: int | None = None

    @property
    def is_supervised(self) -> bool:
        return self._num_processes > 0

    @property
    def checkpoints(self) -> Path:
        return self.output / "checkpoints"

    @property
    def num_processes(self) -> int:
        """Under the supervisor; 0 without one."""
        return self._num_processes

    def supervise(self) -> None:
        """Gives a run that has no supervisor one."""
        self._num_processes = self._num_processes or 1

    def start(self) -> Run:
        """Starts the run, or goes on with it."""
        extra = ["--resume"] if self._runs else []
        if self._num_processes == 1:
            extra += ["--max-restarts", "3"]
        command = train_command(self.subject.dataset, self.output, *self.subject.options, *extra)
        run = Run(command, self.folder / "tmp")
        self._generation, self._noticed_s = 0, 0.0
        self.story.append(run.command)
        self._runs.append(run)
        return run

    def note(self, text: str) -> None:
        """Remembers what was done."""
        self.story.append(f"  {time.monotonic() - self._runs[-1].started_s:.2f} s: {text}")

    def reach_random_step(self, run: Run, first: int = 0, last: int | None = None) -> None:
        """Lets a run go on until a random step, or before its first one."""
        last = self.subject.num_steps - 2 * CHECKPOINT_EVERY if last is None else last
        step = self.rng.randrange(first, last)
        if step < CHECKPOINT_EVERY:
            seconds = self.rng.uniform(0, self.subject.start_s)
            self.note(f"{seconds:.3f} s pass")
            run.pause(seconds)
            return
        run.until(lambda: self.newest() >= step // CHECKPOINT_EVERY * CHECKPOINT_EVERY)
        run.pause(self.rng.uniform(0, (step % CHECKPOINT_EVERY + 1) * self.subject.step_s))

    def reach_writing(self, run: Run) -> None:
        """Lets a run go on until it writes a checkpoint."""
        first, last = self.newest(), self.subject.num_steps - 2 * CHECKPOINT_EVERY
        if first < last:
            step = self.rng.randrange(first, last, CHECKPOINT_EVERY)
            run.until(lambda: self.newest() >= step)
        if self.is_supervised:
            # The chief alone writes. Looking for it takes longer than writing does.
            self._take_aim(run, self.rng.choice((0, 0, self._num_processes - 1)))
        before = set(partial_files(self.checkpoints))
        run.until(lambda: set(partial_files(self.checkpoints)) - before)
        run.pause(self.rng.choice((0.0, self.rng.uniform(0, _WRITING_S))))

    def reach_restoring(self, run: Run) -> None:
        """Lets a process go on until some moment before its first step, late ones more often."""
        seconds = self.subject.start_s * self.rng.choice((self.rng.random(), self.rng.uniform(0.6, 1.0)))
        self.note(f"{seconds:.3f} s of the start pass")
        run.pause(seconds)

    def kill(self, run: Run) -> None:
        """Kills all of a run."""
        run.kill_all()
        self.caught = bool(partial_files(self.checkpoints)) or self.caught
        self.note(f"SIGKILL to all; {self.state()}")

    def lose(self, run: Run) -> Run:
        """Kills a random worker, which its supervisor replaces, or all of a run, which is then started again."""
        if self.is_supervised:
            self.lose_worker(run, self.rng.randrange(self._num_processes))
            return run
        self.kill(run)
        return self.start()

    def lose_worker(self, run: Run, index: int, number: int = signal.SIGKILL) -> None:
        """Sends a worker a signal that ends it, the one aimed at if there is one, and measures when that is noticed."""
        index, worker = self._aim or self._take_aim(run, index)
        self._aim = None
        sent_s = run.signal(number, worker.pid)
        self.caught = bool(partial_files(self.checkpoints)) or self.caught
        name = signal.Signals(number).name
        self.note(f"{name} to worker {index} of start {self._generation} after step {worker.step}; {self.state()}")
        self._noticed_s, is_restart = run.loss_said(sent_s)
        self._generation += is_restart
        self.notice_s.append(self._noticed_s - sent_s)
        limit_s = MAX_FROZEN_NOTICE_S if number == signal.SIGSTOP else MAX_NOTICE_S
        if self.notice_s[-1] > limit_s:
            self.problems.append(f"NOTICED LATE, limit {limit_s:g} s")

    def see_first_step(self, run: Run) -> None:
        """Measures how long it takes after a loss was noticed, or the run was started by hand, until all have stepped.

        Of who has no supervisor, the first new checkpoint is seen, which is later.
        """
        if self.is_supervised:
            stepped_s = run.first_steps(self._generation, self._num_processes)
        else:
            newest = self.newest()
            run.until(lambda: self.newest() > newest)
            stepped_s = time.monotonic()
        self.restart_s.append(stepped_s - (self._noticed_s or run.started_s))
        if self._noticed_s and self.restart_s[-1] > MAX_RESTART_S:
            self.problems.append(f"RESTARTED LATE, limit {MAX_RESTART_S:g} s")

    def newest(self) -> int:
        """Returns the step of the newest checkpoint, 0 without one."""
        return (checkpoint_steps(self.checkpoints) or [0])[-1]

    def go_on_to_the_end(self, run: Run) -> None:
        """Sees a run that goes on make its first step, and its end."""
        self.see_first_step(run)
        self.finish(run)

    def finish(self, run: Run) -> None:
        """Waits for the end of the whole run and judges it."""
        self.check_end(run, 0)
        left = [f"{f.name}/{n}" for f in (self.checkpoints, self.output / "best") for n in partial_files(f)]
        steps = checkpoint_steps(self.checkpoints)
        left += [f"step-{step}" for step in steps[:-MAX_CHECKPOINTS]]
        if left:
            self.problems.append(f"files are left: {', '.join(left)}")

    def check_end(self, run: Run, expected: int) -> None:
        """Waits for the end of a process and checks its code and that it leaves nobody behind."""
        self._code = code = run.end()
        gone_s, left = run.survivors()
        self.note(f"ended with {code}, all others {gone_s:.2f} s later; {self.state()}")
        if code != expected:
            said = " | ".join(text for _, text in run.said[-3:])
            self.problems.append(f"exit code {code} instead of {expected}: {said}")
        if left:
            self.problems.append(f"{len(left)} processes are left")

    def state(self) -> str:
        """Returns what lies there."""
        steps, partial = checkpoint_steps(self.checkpoints), partial_files(self.checkpoints)
        return f"checkpoints {steps[-3:]}" + (f" and {', '.join(sorted(partial))}" if partial else "")

    def has_ended_well(self) -> bool:
        """Returns whether a run that ended early did so because it was complete; else that is a problem."""
        self.check_end(self._runs[-1], 0)
        return self._code == 0

    def outcome(self, kind: str, *, is_same: bool) -> Outcome:
        """Returns what became of it."""
        lists = (self.notice_s, self.restart_s, self.problems, self.story)
        return Outcome(kind, is_same, *map(tuple, lists), self.caught)

    def end_all(self) -> None:
        """Leaves no process behind."""
        for run in self._runs:
            run.kill_all()

    def _take_aim(self, run: Run, index: int) -> tuple[int, Worker]:
        self._aim = (index, run.worker(index, self._generation))
        return self._aim

    def is_same(self) -> bool:
        """Returns whether the run came to what the unbroken one did."""
        if self._code:
            return False
        expected, found = self.subject.contents, self.subject.strategy.contents(self.output)
        others = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
        if others:
            more = f" and {len(others) - _MAX_NAMED} more" if len(others) > _MAX_NAMED else ""
            self.problems.append(f"other than unbroken: {', '.join(others[:_MAX_NAMED])}{more}")
        return not others


def try_once(
    subject: Subject, kind: str, disturb: Callable[[Trial], None], folder: Path, rng: random.Random
) -> Outcome | None:
    """Makes one trial; returns None if the run always ended before it could be disturbed."""
    for number in range(_MAX_TRIES):
        trial = Trial(subject, folder / str(number), rng)
        is_same = False
        try:
            disturb(trial)
            is_same = trial.is_same()
        except EndedEarly:
            if trial.has_ended_well():
                continue
        except Stuck as error:
            trial.problems.append(f"HUNG: {error}")
        finally:
            trial.end_all()
        return trial.outcome(kind, is_same=is_same)
    return None
