"""Local SGD: workers step on their own shares of the batches and average their weights now and then.

Variables are plain ones of each worker, made outside of the strategy, so that a step sees one replica. The strategy
serves for collectives only.

A sync averages the weights, the moving statistics of layers and the moving averages of the weights, and adds up the
sums of the steps since the last one. The optimizer's memory and the loss scale stay each worker's own, so that a sync
costs as much as the gradients of one step do. Each worker saves its own state beside a checkpoint. The same
number of workers goes on exactly; another number goes on from the mean.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from train.distribution.devices import Devices
from train.loop.step_loop import Steps
from train.models.batch import Batch
from train.optimization.gradients import ComputeGradients
from train.optimization.objectives import Objective
from train.optimization.step import evaluate_step, train_step
from train.optimization.updater import Updater
from train.runs.worker_states import WorkerStates


class LocalSteps:
    """What the workers share and what each keeps. Must be made outside of the strategy's scope."""

    def __init__(self, devices: Devices, model: keras.Model, updater: Updater, num_sums: int) -> None:
        self._devices = devices
        self._model = model
        self._updater = updater
        averages = [] if updater.averages is None else updater.averages.values
        self._shared = [*_floats(v.value for v in model.variables), *averages]
        # A worker with its own loss scale may skip updates that others make, so it counts its updates itself.
        updates = updater.optimizer.iterations.value
        scale = [] if updater.loss_scale is None else [updates, *updater.loss_scale.variables]
        self._own = [*_floats(v.value for v in updater.optimizer.variables), *scale]
        self._pending = tf.Variable(tf.zeros([num_sums], tf.float64), trainable=False)

    def steps(self, backward: ComputeGradients, objective: Objective) -> Steps:
        """Returns steps of this worker alone, and such after which the workers meet."""

        @tf.function(reduce_retracing=True)
        def train_locally(batch: Batch) -> None:
            sums = train_step(backward, self._updater, objective, batch)
            self._pending.assign_add(tf.cast(sums, tf.float64))

        @tf.function
        def sync(is_stop_wanted: tf.Tensor) -> tf.Tensor:
            sums = tf.concat([tf.cast(self._pending, tf.float32), is_stop_wanted[tf.newaxis]], axis=0)
            means, total = self._on_replica(_reduce, [tf.convert_to_tensor(v) for v in self._shared], sums)
            for variable, mean in zip(self._shared, means, strict=True):
                variable.assign(mean)
            self._pending.assign(tf.zeros_like(self._pending))
            return total

        def train(batch: Batch, is_stop_wanted: tf.Tensor) -> tf.Tensor:
            train_locally(batch)
            return sync(is_stop_wanted)

        @tf.function(reduce_retracing=True)
        def evaluate_locally(batch: Batch) -> None:
            self._pending.assign_add(tf.cast(evaluate_step(self._model, objective, batch), tf.float64))

        @tf.function
        def add_up(is_stop_wanted: tf.Tensor) -> tf.Tensor:
            sums = tf.concat([tf.cast(self._pending, tf.float32), is_stop_wanted[tf.newaxis]], axis=0)
            _, total = self._on_replica(_reduce, [], sums)
            self._pending.assign(tf.zeros_like(self._pending))
            return total

        def evaluate(batch: Batch, is_stop_wanted: tf.Tensor) -> tf.Tensor:
            evaluate_locally(batch)
            return add_up(is_stop_wanted)

        return Steps(train, evaluate, train_locally, evaluate_locally)

    def states(self, folder: Path, meet: Callable[[int], None]) -> WorkerStates:
        """Returns the files of the state that each worker keeps, beside the checkpoints in a folder."""
        devices = self._devices
        state = self._updater.state
        return WorkerStates(folder, state, self._own, devices.num_workers, devices.worker_index, meet)

    def _on_replica(self, work: Callable[..., Any], *values: Any) -> Any:
        strategy = self._devices.strategy

        def on_device(*values: Any) -> Any:
            # A collective takes its place from its input, so that must have one.
            return work(*tf.nest.map_structure(tf.identity, values))

        results = strategy.run(on_device, args=values)
        return tf.nest.map_structure(lambda r: strategy.experimental_local_results(r)[0], results)


def _reduce(values: Sequence[tf.Tensor], sums: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns the means of values and the sum of sums, over all workers."""
    context = tf.distribute.get_replica_context()
    by_dtype = defaultdict(list)  # What travels together is packed, and must be of one type.
    for i, value in enumerate(values):
        by_dtype[value.dtype].append(i)
    means: dict[int, tf.Tensor] = {}
    for indices in by_dtype.values():
        reduced = context.all_reduce(tf.distribute.ReduceOp.MEAN, [values[i] for i in indices])
        means |= zip(indices, reduced, strict=True)
    return [means[i] for i in range(len(values))], context.all_reduce(tf.distribute.ReduceOp.SUM, sums)


def _floats(variables: Iterable[tf.Variable]) -> list[tf.Variable]:
    return [v for v in variables if v.dtype.is_floating]
