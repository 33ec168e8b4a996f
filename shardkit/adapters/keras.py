"""Keras on TensorFlow, JAX or PyTorch: batches for `model.fit`, and a callback that goes on in the middle of an epoch.

    data = Batches(train, label="carrier", global_batch_size=256, features=["carrier", "distance", "dep_delay"])
    Resume("runs/flights.npz", model, data, every_steps=500).fit(epochs=3)

With several processes of JAX, `keras.distribution.DataParallel(auto_shard_dataset=False)` joins the batches: each
process reads its own part of them.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import threading
import traceback
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from shardkit.errors import DamageError, UsageError
from shardkit.reading.batch import Batch, Ragged
from shardkit.reading.hooks import BatchSource
from shardkit.reading.reader import BatchReader
from shardkit.storage import files as storage
from shardkit.storage.temporary_files import temporary_beside


class Place(NamedTuple):
    """How far a run is: the epoch and the step of its next batch."""

    epoch: int
    step: int


class Batches(keras.utils.PyDataset):
    """Batches of one epoch after the other, each epoch in another order.

    An item is `(inputs, label)`, where the inputs are a dict of arrays by feature name. Where the label is nullable or
    the last batch is filled up, it is `(inputs, label, weights)`: rows without a label and those that fill up weigh 0.
    Of a nullable input `NAME/present` is an array of bools, and a null itself is 0, NaN or False.

    `model.fit` gets it with `shuffle=False` and without `steps_per_epoch`: an epoch is the whole split, shuffled
    differently each time.

    Args:
        split: What is read: a split, a mixture, or one of them with functions on its batches.
        label: Name of the feature to predict; None gives `(inputs,)` alone.
        global_batch_size: Examples that all processes together take a step.
        examples: What a batch becomes, in place of the above: `(inputs,)`, `(inputs, label)` or with weights.
        **settings: Others of `Split.batches`, such as `seed`, `shuffle`, `remainder`, `features`. Without `num_workers`
            the backend says which of how many processes this one is.

    Raises:
        UsageError: If the numbers do not fit together, or a feature is no array of numbers; says what to do.
    """

    def __init__(
        self,
        split: BatchSource,
        *,
        label: str | None = None,
        global_batch_size: int,
        examples: Callable[[Batch], tuple[Any, ...]] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        if "num_workers" not in settings:
            settings["worker_index"], settings["num_workers"] = _process()
        self._open: Callable[[int], BatchReader] = lambda epoch: split.batches(
            epoch=epoch, global_batch_size=global_batch_size, **settings
        )
        is_padded = settings.get("remainder") == "pad"
        self._examples = examples or (lambda batch: _examples(batch, label, is_padded=is_padded))
        # TensorFlow reads ahead in a thread, and begins with a new iterator before it ends the old one.
        self._lock = threading.Lock()
        self._batches: Iterator[Batch] = iter(())
        self._next: Place | None = None
        self._num_steps = self._open(0).num_steps
        self._first = Place(0, 0)
        self._epoch = 0
        self._num_read = 0
        self.is_chief = settings.get("worker_index", 0) == 0

    def state(self, place: Place) -> dict[str, Any]:
        """Returns what `restore` needs to go on from a place."""
        return {**self._open(place.epoch).state(), "step": place.step}

    def restore(self, state: dict[str, Any]) -> None:
        """Makes the next epoch that is read that of a state, from its step on.

        Raises:
            UsageError: If the state is of another dataset, split or order.
        """
        self._open(state["epoch"]).restore(state)
        self._first = Place(state["epoch"], state["step"])
        self._epoch = self._first.epoch

    @property
    def num_batches(self) -> int:
        """How many batches of the epoch come; fewer than others in one that goes on."""
        return self._num_steps - self._skipped()

    def place_after(self, num_batches: int) -> Place:
        """Returns the place after so many batches of the epoch."""
        step = self._skipped() + num_batches
        return Place(self._epoch, step) if step < self._num_steps else Place(self._epoch + 1, 0)

    def on_epoch_begin(self) -> None:
        """Begins an epoch, or a look at its first batches, after which Keras begins it again."""
        self._num_read = 0

    def on_epoch_end(self) -> None:
        """Goes to the next epoch if this one was read. Keras ends an epoch twice."""
        if self._num_read == self.num_batches:
            self._epoch, self._num_read = self._epoch + 1, 0

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """Returns a batch of the epoch. In order they are read ahead; any other is a seek."""
        with self._lock:
            if index > self._num_read:
                raise UsageError(
                    "fit would shuffle batches, which are shuffled already",
                    next_step="Call model.fit(..., shuffle=False): each epoch is shuffled differently",
                )
            self._num_read = max(self._num_read, index + 1)
            place = Place(self._epoch, self._skipped() + index)
            if place != self._next:
                reader = self._open(place.epoch)
                reader.restore({**reader.state(), "step": place.step})
                self._batches = iter(reader)
            batch = next(self._batches)
            self._next = Place(place.epoch, place.step + 1)
        return self._examples(batch)

    def _skipped(self) -> int:
        return self._first.step if self._epoch == self._first.epoch else 0


class Resume(keras.callbacks.Callback):
    """Keeps weights, optimizer, random states and the place in the data; made again, it goes on from there.

    Args:
        path: Of the file that keeps them, such as `runs/flights.npz`. It is replaced whole.
        model: Compiled. Its state is loaded if the file is there.
        data: Goes to the place that was kept.
        every_steps: Steps between two states; one is kept after each epoch as well.

    Raises:
        UsageError: If the file is of another model or other data.
        DamageError: If it is damaged, or none that was kept.
    """

    def __init__(
        self, path: str | PathLike[str], model: keras.Model, data: Batches, *, every_steps: int = 1000
    ) -> None:
        super().__init__()
        self._path, self._kept_model, self._data, self._every_steps = Path(path), model, data, every_steps
        if self._path.is_file():
            model.optimizer.build(model.trainable_variables)
            try:
                with np.load(self._path) as kept:
                    self._load(kept, _variables(model))
            except (KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
                raise DamageError(
                    "the state cannot be read",
                    where=str(self._path),
                    why=str(error),
                    next_step="Name the file that an earlier run kept, or remove it to begin anew",
                ) from error

    def fit(self, *, epochs: int, callbacks: Sequence[keras.callbacks.Callback] = (), **settings: Any) -> Any:
        """Trains until `epochs` epochs are whole, those before the kept state included.

        All epochs of a call of Keras have as many steps, so a separate call trains what is left of an epoch that was
        cut, and its loss is that of these steps.

        Args:
            epochs: In all.
            callbacks: Others. Each call of `model.fit` begins and ends them.
            **settings: Others of `model.fit`, such as `validation_data`.

        Returns:
            What the last call of `model.fit` returned; None if nothing was left.
        """
        history = None
        place = self._data.place_after(0)
        for end in (place.epoch + 1, epochs) if place.step else (epochs,):
            if (epoch := self._data.place_after(0).epoch) < end and not (history and self._kept_model.stop_training):
                try:
                    history = self._kept_model.fit(
                        self._data,
                        initial_epoch=epoch,
                        epochs=end,
                        shuffle=False,
                        callbacks=[self, *callbacks],
                        **settings,
                    )
                except BaseException as error:
                    _end_iterators(error)
                    raise
        return history

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keeps the state where it is time."""
        place = self._data.place_after(batch + 1)
        if place.step and place.step % self._every_steps == 0:
            self._keep(place)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Keeps the state after an epoch."""
        self._keep(Place(epoch + 1, 0))

    def _load(self, kept: Mapping[str, Any], variables: Sequence[keras.Variable]) -> None:
        if [kept[f"{i}"].shape for i in range(len(kept) - 1)] != [tuple(v.shape) for v in variables]:
            raise UsageError(
                "the state is of another model", where=str(self._path), next_step="Give the model that it was kept of"
            )
        self._data.restore(json.loads(bytes(kept["state"])))
        for i, variable in enumerate(variables):
            variable.assign(kept[f"{i}"])

    def _keep(self, place: Place) -> None:
        if not self._data.is_chief:
            return
        state = np.frombuffer(json.dumps(self._data.state(place)).encode(), np.uint8)
        storage.make_folder(str(self._path.parent))
        with storage.translate_os_errors(self._path), temporary_beside(self._path) as (partial, file):
            arrays: dict[str, Any] = {f"{i}": _array(v) for i, v in enumerate(_variables(self.model))}
            np.savez(file, state=state, **arrays)
            file.flush()
            partial.replace(self._path)


def _end_iterators(error: BaseException) -> None:
    """Destroys the iterators of TensorFlow that a stopped `model.fit` leaves in reference cycles, in this thread.

    Python's collector would destroy one in any thread. If that is a thread that makes batches, it waits for the thread
    of TensorFlow that reads ahead, which waits for the batch: both hang.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__", "").startswith("keras."):
            with contextlib.suppress(RuntimeError):
                frame.clear()
    gc.collect()


def _variables(model: keras.Model) -> list[keras.Variable]:
    # Keras's own files of weights leave out the states of dropout and other randomness.
    return [*model.variables, *model.optimizer.variables]


def _array(variable: keras.Variable) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = keras.ops.convert_to_numpy(variable)
    # NumPy has no bfloat16, whose every value is a float32.
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def _process() -> tuple[int, int]:
    """Returns the index of this process and how many train together."""
    backend = keras.backend.backend()
    if backend == "jax":
        from shardkit.adapters.jax import place_of_process as place_in_jax

        return place_in_jax()
    if backend == "torch":
        from shardkit.adapters.torch import place_of_process

        return place_of_process()
    return 0, 1


def _examples(batch: Batch, label: str | None, *, is_padded: bool) -> tuple[Any, ...]:
    columns = dict(itertools.chain(_numbers(batch), ((f"{n}/present", bools) for n, bools in batch.present.items())))
    if label is None:
        return (columns,)
    y = columns.pop(label)
    is_known = columns.pop(f"{label}/present", None)
    if is_known is None and not is_padded:
        return (columns, y)
    # Only the last batch has a mask, and all are to have one form.
    weights = np.ones(len(y), np.float32)
    for bools in (is_known, batch.mask):
        weights *= 1 if bools is None else bools
    # A weight of 0 makes no number of NaN.
    y = y.copy()
    y[weights == 0] = 0
    return (columns, y, weights)


def _numbers(batch: Batch) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    for name, column in batch.items():
        if isinstance(column, Ragged) or column.dtype.kind not in "biuf":
            raise UsageError(
                f"feature {name!r} is no array of numbers",
                why="Keras takes no text, bytes, times or lists of any length from Python",
                next_step="Name the others with features=[...], or make numbers of it: split.map(function)",
            )
        yield name, column
