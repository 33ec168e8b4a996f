"""Checkpoints: whole or absent, with everything that a run needs to go on exactly.

Keras 3 does not save the state of its seed generators (dropout, augmentation layers) in a `tf.train.Checkpoint` of a
model, and restores without complaint; they are added here by hand.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from shardkit.errors import DamageError, UsageError
from shardkit.storage import files as storage
from shardkit.storage.regular_files import NotRegularError, open_regular
from train.optimization.precision import find_not_finite
from train.optimization.replicas import seed_states
from train.reporting.metric_sums import Sums
from train.runs.best_checkpoint import remove_others
from train.runs.run_folder import CHECKPOINT_PREFIX, list_checkpoints, promised_checkpoints
from train.runs.worker_states import WorkerStates

MAX_TO_KEEP = 3


class Restored(NamedTuple):
    """What a checkpoint says about the run. `sums` are those of the epoch that was under way."""

    step: int
    sums: Sums


class Trained(NamedTuple):
    """What a checkpoint keeps, besides where the run stands."""

    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    num_sums: int


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: Where they lie.
        trained: What they keep.
        warn: Called with sentences about checkpoints that cannot be used.
        is_chief: Whether this worker writes them; the others read only.
        workers: What each worker alone remembers; None where they all remember the same.
        had_whole: Whether one of them was ever whole.
    """

    def __init__(
        self,
        folder: Path,
        trained: Trained,
        warn: Callable[[str], None],
        *,
        is_chief: bool = True,
        workers: WorkerStates | None = None,
        had_whole: bool = True,
    ) -> None:
        self.folder = folder
        self._had_whole = had_whole
        self._model = trained.model
        self._is_chief = is_chief
        self._warn = warn
        self._workers = workers
        self._step = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._sums = tf.Variable(tf.zeros([trained.num_sums], tf.float64), trainable=False)
        drop_damaged_list(folder, warn)
        seeds = [state.value for state in seed_states(trained.model)]
        self._checkpoint = tf.train.Checkpoint(
            model=trained.model, optimizer=trained.optimizer, step=self._step, sums=self._sums, seeds=seeds
        )
        self._manager = tf.train.CheckpointManager(
            self._checkpoint, str(folder), max_to_keep=MAX_TO_KEEP, checkpoint_name=CHECKPOINT_PREFIX
        )
        self.last_saved: int | None = None

    @property
    def last_step(self) -> int | None:
        """Step of the newest checkpoint that is there."""
        return max(list_checkpoints(self.folder), default=None)

    def save(self, step: int, sums: Sums) -> None:
        """Writes a checkpoint after `step` steps and removes the oldest ones."""
        if self._workers is not None:
            self._workers.save(step)
        is_there, self.last_saved = step == self.last_saved, step
        if is_there or not self._is_chief:
            return
        self._step.assign(step)
        self._sums.assign(sums)
        self._manager.save(checkpoint_number=step)
        remove_forgotten(self.folder, self._manager.checkpoints)
        if self._workers is not None:
            self._workers.remove_old()

    def restore_newest(self) -> Restored | None:
        """Restores the newest checkpoint that is whole; returns None if none was ever finished.

        The chief removes what a kill left of those that were being written.

        Raises:
            DamageError: If the run had checkpoints and none can be read.
            UsageError: If the checkpoint is of another model.
        """
        if self._is_chief:
            remove_unfinished(self.folder)
        steps = promised_checkpoints(self.folder)
        for step in reversed(steps):
            path = str(self.folder / f"{CHECKPOINT_PREFIX}-{step}")
            if (damage := self._find_damage(path, step)) is not None:
                self._warn(f"the checkpoint {path} is damaged and is passed over: {damage}")
                continue
            try:
                self._checkpoint.read(path).assert_existing_objects_matched()
            except (AssertionError, ValueError, TypeError) as error:
                raise UsageError(
                    "the checkpoint is of another model",
                    where=path,
                    why=str(error).strip().splitlines()[0],
                    next_step="Use the model that the run began with, or another --output",
                ) from error
            if (name := find_not_finite(self._model.trainable_variables)) is not None:
                self._warn(f"the checkpoint {path} is passed over: {name!r} holds NaN or infinity")
                continue
            if self._workers is not None:
                self._workers.restore(step)
            self.last_saved = step
            return Restored(int(self._step.numpy()), np.array(self._sums.numpy(), np.float64))
        if steps and self._had_whole:
            raise DamageError(
                "no checkpoint can be read",
                where=str(self.folder),
                next_step="Start again with another --output",
            )
        if steps:
            self._warn("the first checkpoint was never finished; the run starts from the beginning")
            if self._is_chief:
                remove_others(self.folder)
        return None

    def _find_damage(self, path: str, step: int) -> str | None:
        damage = find_damage(path)
        paths = [] if damage is not None or self._workers is None else self._workers.paths(path, step)
        return damage or next(filter(None, map(find_damage, paths)), None)


def drop_damaged_list(folder: Path, warn: Callable[[str], None]) -> None:
    """Removes TensorFlow's list of checkpoints where TensorFlow would fail at it; the files tell as much.

    Raises:
        DamageError: If something else than a file is in its place.
    """
    path = folder / "checkpoint"
    try:
        open_regular(path).close()
        tf.train.get_checkpoint_state(str(folder))
    except FileNotFoundError:
        return
    except NotRegularError as error:
        raise DamageError(
            "the list of checkpoints cannot be read",
            where=str(path),
            why=error.strerror,
            next_step="Remove it; the run goes on from the checkpoints that are there",
        ) from error
    except ValueError as error:
        warn(f"the list of checkpoints {path} is damaged and is made anew: {str(error).splitlines()[0]}")
        path.unlink(missing_ok=True)


def remove_forgotten(folder: Path, known: Sequence[str]) -> None:
    """Removes old checkpoints that TensorFlow does not know, as its own list of them was damaged."""
    names = {Path(path).name for path in known}
    with storage.translate_os_errors(folder):
        for name in (f"{CHECKPOINT_PREFIX}-{step}" for step in list_checkpoints(folder)[:-MAX_TO_KEEP]):
            if name not in names:
                (folder / f"{name}.index").unlink()
                for path in folder.glob(f"{name}.data-*"):
                    path.unlink()


def remove_unfinished(folder: Path) -> None:
    """Removes the folders in which TensorFlow was writing a checkpoint when it was killed.

    They are as large as a checkpoint, and TensorFlow itself keeps them even when it writes the same one again.
    """
    with storage.translate_os_errors(folder):
        for path in folder.glob(f"{CHECKPOINT_PREFIX}-*_temp"):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)


def find_damage(path: str) -> str | None:
    """Returns why a checkpoint cannot be read, None if every tensor of it has the checksum that was stored."""
    try:
        # TensorFlow would wait for a pipe.
        for file in Path(path).parent.glob(f"{Path(path).name}.*"):
            open_regular(file).close()
        reader = tf.train.load_checkpoint(path)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except Exception as error:  # noqa: BLE001 - TensorFlow raises IndexError, RuntimeError and more for damaged files
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    return None
