"""Steps that each worker takes on its own against variables that parameter servers hold: Hogwild, as Recht et al. 2011.

The chief deals out units of batches; a unit whose worker is lost goes to another one, whole. The changes
that the lost worker made to the weights stay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from train.asynchronous.input import TRAINING, VALIDATION, ask, error_of_worker
from train.asynchronous.work_units import Unit
from train.models.batch import Batch
from train.reporting.metric_sums import Sums

# Units of each worker: one that it does, and one more, so that it does not have to wait for the chief.
NUM_PENDING = 2


class UnitResult(NamedTuple):
    """What a worker says of a unit that it did."""

    unit: Unit
    sums: Sums
    waited_s: float
    took_s: float


class UnitSteps:
    """Deals out units. Must be made by the chief, which calls it from one thread."""

    def __init__(
        self,
        strategy: tf.distribute.experimental.ParameterServerStrategy,
        train_step: Callable[[Batch], tf.Tensor],
        evaluate_step: Callable[[Batch], tf.Tensor],
        spec: Batch,
        num_sums: int,
        num_workers: int,
    ) -> None:
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._num_pending = num_workers * NUM_PENDING
        self._train = _unit_function(strategy, train_step, TRAINING, spec, num_sums)
        self._evaluate = _unit_function(strategy, evaluate_step, VALIDATION, spec, num_sums)

    def train(self, units: Iterable[Unit], is_stopped: Callable[[], bool]) -> Iterator[UnitResult]:
        """Yields the results of units, in their order; all that were begun are done when it ends.

        Args:
            units: Of one epoch.
            is_stopped: Called before each unit; returns whether to begin no more.

        Raises:
            ShardkitError: If a worker met one.
        """
        return self._run(self._train, units, is_stopped)

    def evaluate(self, units: Iterable[Unit], is_stopped: Callable[[], bool]) -> Iterator[UnitResult]:
        """Yields the results of units of a pass over the validation split, as `train` does."""
        return self._run(self._evaluate, units, is_stopped)

    def _run(self, function: Any, units: Iterable[Unit], is_stopped: Callable[[], bool]) -> Iterator[UnitResult]:
        pending: deque[tuple[Unit, Any]] = deque()
        try:
            for unit in units:
                if is_stopped():
                    break
                pending.append((unit, self._coordinator.schedule(function, args=tuple(map(_number, unit)))))
                if len(pending) >= self._num_pending:
                    yield _result(*pending.popleft())
            while pending:
                yield _result(*pending.popleft())
        except tf.errors.OpError as error:
            known = error_of_worker(error)
            if known is None:
                raise
            raise known from error


def _unit_function(
    strategy: tf.distribute.Strategy, step: Callable[[Batch], tf.Tensor], token: str, spec: Batch, num_sums: int
) -> Any:
    @tf.function
    def run_unit(first: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        def one(i: tf.Tensor, sums: tf.Tensor, waited_s: tf.Tensor) -> tuple[tf.Tensor, ...]:
            wait_s, batch = ask(token, first + i, spec)
            of_batch = strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step, args=(batch,)), axis=None)
            return i + 1, sums + tf.cast(of_batch, tf.float64), waited_s + wait_s

        started_at = tf.timestamp()
        begin = (tf.zeros([], tf.int64), tf.zeros([num_sums], tf.float64), tf.zeros([], tf.float64))
        with tf.control_dependencies([started_at]):
            _, sums, waited_s = tf.while_loop(lambda i, *_: i < count, one, begin, parallel_iterations=1)
        with tf.control_dependencies([sums]):
            took_s = tf.timestamp() - started_at
        return tf.concat([sums, [waited_s, took_s]], axis=0)

    return run_unit


def _result(unit: Unit, remote: Any) -> UnitResult:
    *sums, waited_s, took_s = remote.fetch()
    return UnitResult(unit, np.array(sums, np.float64), float(waited_s), float(took_s))


def _number(value: int) -> tf.Tensor:
    return tf.constant(value, tf.int64)
