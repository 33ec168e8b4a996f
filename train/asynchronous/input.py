"""Batches of units on the worker that trains on them, though another process wrote the graph that asks for them.

A graph that calls Python names the function by a token, and the process that runs the graph looks it up among its own.
So each worker reads its own shards with its own reader, and no batch passes through the chief.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.ops import script_ops

from shardkit.errors import DamageError, ShardkitError
from train.models.batch import Batch

TRAINING: Final = "shardkit-training"
VALIDATION: Final = "shardkit-validation"
FAREWELL: Final = "shardkit-farewell"

_MARK = "shardkit-error:"
_END = ":shardkit-end"


class UnitSource:
    """Answers for one kind of batches, in the order in which they are asked for.

    Args:
        begin: Returns the batches from a step on.
        explained: Makes the context that explains errors of TensorFlow.
        on_batch: Called with the step of each.
    """

    def __init__(
        self,
        begin: Callable[[int], Iterable[Batch]],
        explained: Callable[[], AbstractContextManager[None]],
        on_batch: Callable[[int], None] = lambda step: None,
    ) -> None:
        self._begin = begin
        self._explained = explained
        self._on_batch = on_batch
        self._iterator: Iterator[Batch] | None = None
        self._next_step = 0

    def __call__(self, step: npt.NDArray[np.int64]) -> list[npt.NDArray[Any]]:
        """Returns the seconds that were waited for a batch, float64, and the parts of the batch."""
        started_at = time.monotonic()
        try:
            with self._explained():
                batch = self._read(int(step))
        except ShardkitError as error:
            self._iterator = None
            raise ValueError(_MARK + msgspec.json.encode(error.to_dict()).decode() + _END) from None
        parts = [part.numpy() for part in tf.nest.flatten(batch)]
        self._on_batch(int(step))
        return [np.array(time.monotonic() - started_at), *parts]

    def _read(self, step: int) -> Batch:
        if self._iterator is None or step != self._next_step:
            # Not before the old one has ended: both would read ahead.
            self._iterator = None
            self._iterator = iter(self._begin(step))
        batch = next(self._iterator, None)
        if batch is None:
            raise DamageError(
                "the shards hold fewer examples than the manifest says", next_step="Run `shardkit verify`"
            )
        self._next_step = step + 1
        return batch


def answer(token: str, function: Callable[..., Any]) -> None:
    """Makes this process answer to a token with a function, for as long as the process lives."""
    _ANSWERS.append(function)
    # TensorFlow has no public way to choose a token, and holds functions weakly.
    script_ops._py_funcs._funcs[token] = function


def ask(token: str, step: tf.Tensor, spec: Batch) -> tuple[tf.Tensor, Batch]:
    """Returns the seconds that were waited for a batch, float64, and the batch; part of a graph on a worker."""
    parts = tf.nest.flatten(spec)
    waited_s, *tensors = tf.raw_ops.PyFunc(input=[step], token=token, Tout=[tf.float64, *(p.dtype for p in parts)])
    shaped = [tf.ensure_shape(t, p.shape) for t, p in zip(tensors, parts, strict=True)]
    return tf.ensure_shape(waited_s, []), tf.nest.pack_sequence_as(spec, shaped)


def error_of_worker(error: BaseException) -> ShardkitError | None:
    """Returns the error of shardkit that a worker met, None if this one is of another kind."""
    _, found, rest = str(error).partition(_MARK)
    return ShardkitError.from_dict(msgspec.json.decode(rest.partition(_END)[0])) if found else None


_ANSWERS: list[Callable[..., Any]] = []
