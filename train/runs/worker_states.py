"""State that differs from worker to worker, in files beside the checkpoints of a run.

Only workers that step on their own have such state: that of their optimizers. It is as large as the chief's optimizer
state, which lies in the checkpoint. So each worker writes its own state instead of sending it to the chief.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import tensorflow as tf

from train.runs.run_folder import CHECKPOINT_PREFIX, list_checkpoints

_NAME = re.compile(rf"{CHECKPOINT_PREFIX}-(\d+)-worker-\d+\..*")


class WorkerStates:
    """The files of all workers but the chief.

    Args:
        folder: Of the checkpoints, which all workers share.
        state: The part of the checkpoint that says how many workers there were.
        own: Variables of this worker; those of the chief are in the checkpoint.
        num_workers: Of the run, now.
        worker_index: Of this one.
        meet: Waits for all workers, which stand after the same step.
    """

    def __init__(
        self,
        folder: Path,
        state: tf.train.Checkpoint,
        own: Sequence[tf.Variable],
        num_workers: int,
        worker_index: int,
        meet: Callable[[int], None],
    ) -> None:
        self._folder = folder
        self._own = own
        self._now = num_workers
        self._index = worker_index
        self._meet = meet
        self._checkpoint = tf.train.Checkpoint(own=list(own))
        self._num_workers = tf.Variable(num_workers, trainable=False)
        state.num_workers = self._num_workers

    def save(self, step: int) -> None:
        """Writes this worker's; returns when all workers have, so that the checkpoint can follow."""
        if self._index and self._own:
            self._checkpoint.write(self._path(step, self._index))
        self._num_workers.assign(self._now)
        self._meet(step)

    def paths(self, checkpoint: str, step: int) -> list[str]:
        """Returns the files that a checkpoint needs to be complete."""
        if not self._own:
            return []
        name = "optimizer/num_workers/.ATTRIBUTES/VARIABLE_VALUE"
        count = int(tf.train.load_checkpoint(checkpoint).get_tensor(name))
        return [self._path(step, i) for i in range(1, count)]

    def restore(self, step: int) -> None:
        """Reads this worker's, after the checkpoint was; another number of workers all take the mean."""
        count = int(self._num_workers.numpy())
        if not self._own:
            return
        if count == self._now:
            if self._index:
                self._checkpoint.read(self._path(step, self._index)).assert_consumed()
            return
        totals = [v.numpy() for v in self._own]
        for i in range(1, count):
            self._checkpoint.read(self._path(step, i)).assert_consumed()
            totals = [total + v.numpy() for total, v in zip(totals, self._own, strict=True)]
        for variable, total in zip(self._own, totals, strict=True):
            variable.assign(tf.cast(total / count, variable.dtype))

    def remove_old(self) -> None:
        """Removes those of checkpoints that are there no more."""
        oldest = min(list_checkpoints(self._folder), default=0)
        for path in self._folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match and int(match.group(1)) < oldest:
                path.unlink(missing_ok=True)

    def _path(self, step: int, index: int) -> str:
        return str(self._folder / f"{CHECKPOINT_PREFIX}-{step}-worker-{index}")
