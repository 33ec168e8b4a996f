"""What happens to the runs: where they are killed, what else is done to them, and how they go on."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.fuzz.kill_inputs import CHECKPOINT_EVERY, checkpoint_steps
from tests.fuzz.kill_trials import Trial

NUM_SEVERAL = 3
PASSED_OVER = "is damaged and is passed over"


def at_a_step(trial: Trial) -> None:
    """SIGKILL between two checkpoints, or before the first."""
    run = trial.start()
    trial.reach_random_step(run)
    run = trial.lose(run)
    trial.go_on_to_the_end(run)


def while_writing(trial: Trial) -> None:
    """SIGKILL while a checkpoint is written."""
    run = trial.start()
    trial.reach_writing(run)
    run = trial.lose(run)
    trial.go_on_to_the_end(run)


def while_restoring(trial: Trial) -> None:
    """SIGKILL once more while the run is started again."""
    run = trial.start()
    trial.reach_random_step(run, CHECKPOINT_EVERY)
    run = trial.lose(run)
    trial.reach_restoring(run)
    run = trial.lose(run)
    trial.go_on_to_the_end(run)


def several(trial: Trial) -> None:
    """Several SIGKILLs at steps, while writing and while restoring."""
    run = trial.start()
    for _ in range(NUM_SEVERAL):
        newest = trial.newest()
        first, last = newest + CHECKPOINT_EVERY, trial.subject.num_steps - 2 * CHECKPOINT_EVERY
        reach = trial.rng.choice(("restoring", "writing", "step")) if first < last else "restoring"
        if reach == "restoring":
            trial.reach_restoring(run)
        elif reach == "writing":
            trial.reach_writing(run)
        else:
            trial.reach_random_step(run, first, min(last, newest + trial.subject.num_steps // 2))
        run = trial.lose(run)
    trial.go_on_to_the_end(run)


def terminated(trial: Trial) -> None:
    """SIGTERM, which ends with 143 after one more checkpoint."""
    run = trial.start()
    trial.reach_random_step(run, CHECKPOINT_EVERY)
    pid = run.pid
    if trial.is_supervised and trial.rng.random() < 0.5:
        run.until(lambda: len(run.workers()) == trial.num_processes)
        # What a chief commands goes on until the chief has ended.
        is_any = trial.subject.name != "servers"
        pid = trial.rng.choice([w.pid for i, w in run.workers().items() if is_any or i == 0])
    run.signal(signal.SIGTERM, pid)
    trial.note(f"SIGTERM to {'the run' if pid == run.pid else 'one worker'}; {trial.state()}")
    trial.check_end(run, 128 + signal.SIGTERM)
    if not any(text.startswith("terminated: ") for _, text in run.said):
        trial.problems.append("it did not say how to go on")
    run = trial.start()
    trial.go_on_to_the_end(run)


def frozen(trial: Trial) -> None:
    """SIGSTOP: a supervisor replaces the worker; what nobody watches is woken and goes on."""
    run = trial.start()
    trial.reach_random_step(run, CHECKPOINT_EVERY)
    if trial.is_supervised:
        trial.lose_worker(run, trial.rng.randrange(trial.num_processes), signal.SIGSTOP)
        trial.see_first_step(run)
    else:
        run.signal(signal.SIGSTOP)
        trial.note("SIGSTOP")
        time.sleep(trial.rng.uniform(0.5, 3))
        run.signal(signal.SIGCONT)
        trial.note("SIGCONT")
    trial.finish(run)


def under_a_supervisor(trial: Trial) -> None:
    """SIGKILL of the only worker of a supervisor."""
    trial.supervise()
    run = trial.start()
    trial.reach_random_step(run, CHECKPOINT_EVERY)
    trial.lose_worker(run, 0)
    trial.go_on_to_the_end(run)


def supervisor_killed(trial: Trial) -> None:
    """SIGKILL of the supervisor alone."""
    if not trial.is_supervised:
        trial.supervise()
    run = trial.start()
    trial.reach_random_step(run, CHECKPOINT_EVERY)
    run.signal(signal.SIGKILL)
    trial.note(f"SIGKILL to the supervisor; {trial.state()}")
    trial.check_end(run, -signal.SIGKILL)
    run = trial.start()
    trial.go_on_to_the_end(run)


def damaged(trial: Trial) -> None:
    """SIGKILL, and the newest checkpoint is damaged on disk."""
    run = trial.start()
    trial.reach_random_step(run, 3 * CHECKPOINT_EVERY)
    trial.kill(run)
    step = checkpoint_steps(trial.checkpoints)[-1]
    index = trial.checkpoints / f"step-{step}.index"
    data = trial.checkpoints / f"step-{step}.data-00000-of-00001"
    path, change = trial.rng.choice(
        [(data, _truncate), (data, _flip), (data, _zero), (data, _remove), (index, _truncate), (index, _empty)]
    )
    change(path, trial.rng)
    trial.note(f"{change.__name__.strip('_')} {path.name}")
    if trial.rng.random() < 0.5:
        (trial.checkpoints / "checkpoint").write_text("nonsense")
        trial.note("nonsense in checkpoint")
    run = trial.start()
    trial.go_on_to_the_end(run)
    if not any(PASSED_OVER in text and f"step-{step}" in text for _, text in run.said):
        trial.problems.append("the damage was not told")


def _truncate(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def _empty(path: Path, rng: random.Random) -> None:
    os.truncate(path, 0)


def _remove(path: Path, rng: random.Random) -> None:
    path.unlink()


def _flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _zero(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    start = rng.randrange(max(1, len(content) - 4096))
    content[start : start + 4096] = bytes(len(content[start : start + 4096]))
    path.write_bytes(content)


KINDS: dict[str, Callable[[Trial], None]] = {
    "SIGKILL at a step": at_a_step,
    "SIGKILL while a checkpoint is written": while_writing,
    "SIGKILL while it is restored": while_restoring,
    "several SIGKILLs": several,
    "SIGTERM": terminated,
    "SIGSTOP": frozen,
    "newest checkpoint damaged": damaged,
    "SIGKILL of the supervisor": supervisor_killed,
    "SIGKILL under a supervisor": under_a_supervisor,
}
WITHOUT = {"workers": {"SIGKILL under a supervisor"}, "servers": {"SIGKILL under a supervisor"}}
"""What a strategy has no need of: its workers have a supervisor anyway."""
