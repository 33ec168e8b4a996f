"""From gradients to weights: the optimizer and its learning rate, the loss scale, clipping, decay, averages, pruning.

The module uses public parts of Keras and TensorFlow only. It avoids `Optimizer.apply`, which would add gradients up
over replicas by itself, in float32, before their sum can be checked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import keras
import msgspec
import tensorflow as tf

from shardkit.errors import UsageError
from train.optimization.gradients import Gradient, are_finite, clip_gradients, scale_gradients
from train.optimization.precision import LossScale
from train.options.optimizer_options import DROP_FACTOR, DROPS, FINAL_SHARE, FIRST_SHARE, OptimizerOptions, Schedule

# Pruning begins and ends at these shares of the steps, and prunes so often in between.
_FIRST_PRUNED, _LAST_PRUNED, _NUM_PRUNINGS = 0.1, 0.75, 100
_NO_KERNEL = re.compile("bias|gamma|beta|embeddings")


class Updater:
    """Applies gradients. Must be made in the scope of the strategy."""

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        variables: Sequence[keras.Variable],
        options: OptimizerOptions,
        num_steps: int,
    ) -> None:
        optimizer.build(variables)
        self.optimizer = optimizer
        self.options = options
        self._variables = tuple(variables)
        self.loss_scale = LossScale() if options.needs_loss_scale else None
        self.averages = None if options.ema is None else WeightAverages(variables, options.ema)
        self.pruning = (
            None if options.sparsity is None else Pruning(variables, plan_pruning(options.sparsity, num_steps))
        )
        parts = {"loss_scale": self.loss_scale, "averages": self.averages, "pruning": self.pruning}
        self.state = tf.train.Checkpoint(
            optimizer=optimizer, **{name: part for name, part in parts.items() if part is not None}
        )

    @property
    def scale(self) -> tf.Tensor:
        """What the loss is multiplied by."""
        return tf.constant(1.0) if self.loss_scale is None else tf.convert_to_tensor(self.loss_scale.scale)

    @property
    def kept(self) -> list[tf.Variable]:
        """Moving averages and masks, which take memory beside the weights."""
        averages = [] if self.averages is None else self.averages.values
        return [*averages, *([] if self.pruning is None else self.pruning.masks.values())]

    def check(self) -> None:
        """Checks that updates are made at all. Raises UsageError if gradients overflow whatever the loss scale."""
        if self.loss_scale is not None:
            self.loss_scale.check()

    def averaged(self) -> AbstractContextManager[None]:
        """Returns a context in which the model has the weights that are to be evaluated and given away."""
        return nullcontext() if self.averages is None else self.averages.in_place_of(self._variables)

    def apply(self, gradients: Sequence[Gradient], scale: tf.Tensor) -> None:
        """Updates the weights once, or the loss scale alone if the gradients overflowed.

        Args:
            gradients: Of the scaled loss, added up over all replicas, so the same on all of them.
            scale: Of the loss.
        """
        context = tf.distribute.get_replica_context()
        is_finite = tf.constant(True)
        if self.loss_scale is not None:
            is_finite = are_finite(gradients)
            gradients = scale_gradients(gradients, 1.0 / scale)
        if self.options.clip_norm is not None:
            gradients = clip_gradients(gradients, self.options.clip_norm)
        positions = [i for i, g in enumerate(gradients) if g is not None]

        def everywhere(strategy: tf.distribute.Strategy, gradients: list[Any], is_finite: Any) -> None:
            self._apply_everywhere(strategy, dict(zip(positions, gradients, strict=True)), is_finite)

        context.merge_call(everywhere, args=([gradients[i] for i in positions], is_finite))

    def _apply_everywhere(self, strategy: tf.distribute.Strategy, gradients: dict[int, Any], is_finite: Any) -> None:
        scale = self.loss_scale
        if scale is None:
            self._update(strategy, gradients)
            return

        def go_on() -> tf.Tensor:
            self._update(strategy, gradients)
            scale.grow()
            return tf.constant(True)

        def skip() -> tf.Tensor:
            scale.shrink()
            return tf.constant(False)

        # The same on all replicas; a condition may stand here only, where no replica is on its own.
        tf.cond(strategy.experimental_local_results(is_finite)[0], go_on, skip)

    def _update(self, strategy: tf.distribute.Strategy, gradients: dict[int, Any]) -> None:
        rate = tf.cast(self.optimizer.learning_rate, tf.float32)
        averages = [None] * len(self._variables) if self.averages is None else self.averages.values
        masks = {} if self.pruning is None else self.pruning.masks
        for i, gradient in gradients.items():
            variable = self._variables[i]
            own = _Own(gradient, rate, averages[i], masks.get(str(i)))
            strategy.extended.update(variable.value, partial(self._update_one, variable), args=own, group=False)
        self.optimizer.iterations.value.assign_add(1)

    def _update_one(
        self,
        variable: keras.Variable,
        weights: tf.Variable,
        gradient: Gradient,
        rate: tf.Tensor,
        average: tf.Variable | None,
        mask: tf.Variable | None,
    ) -> None:
        """Updates a device's own copy of a variable, of its average and of its mask."""
        num_updates = tf.convert_to_tensor(self.optimizer.iterations.value)
        decay = self.options.weight_decay
        if decay and not _NO_KERNEL.search(variable.name):
            weights.assign_sub(weights * (decay * rate))
        self.optimizer.update_step(gradient, weights, rate)
        if variable.constraint is not None:
            weights.assign(variable.constraint(weights))
        if mask is not None and self.pruning is not None:
            self.pruning.update(mask, weights, num_updates)
            weights.assign(weights * mask)
        if average is not None and self.averages is not None:
            momentum = self.averages.momentum_at(num_updates)
            average.assign(momentum * average + (1.0 - momentum) * weights)
            if mask is not None:
                average.assign(average * mask)


class _Own(NamedTuple):
    """What `Updater._update_one` takes beside the weights; on each device its own."""

    gradient: Any
    rate: tf.Tensor
    average: tf.Variable | None
    mask: tf.Variable | None


class WeightAverages(tf.Module):
    """A moving average of every trainable variable. Must be made in the scope of the strategy.

    Args:
        momentum: Share of the average that a step keeps. Less in the first steps, so that the average of a short run is
            not that of its initial weights.
    """

    def __init__(self, variables: Sequence[keras.Variable], momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.values = [tf.Variable(tf.identity(v.value), trainable=False, name=f"average_{v.name}") for v in variables]

    def momentum_at(self, num_updates: tf.Tensor) -> tf.Tensor:
        """Returns the momentum of the update that follows `num_updates` updates."""
        done = tf.cast(num_updates, tf.float32)
        return tf.minimum(self.momentum, (1.0 + done) / (10.0 + done))

    @contextmanager
    def in_place_of(self, variables: Sequence[keras.Variable]) -> Iterator[None]:
        """Gives a model its averaged weights for the length of the block."""
        self._swap(variables)
        try:
            yield
        finally:
            self._swap(variables)

    def _swap(self, variables: Sequence[keras.Variable]) -> None:
        for variable, average in zip(variables, self.values, strict=True):
            value = tf.identity(variable.value)
            variable.value.assign(average)
            average.assign(value)


class PruningPlan(msgspec.Struct, frozen=True, kw_only=True):
    """When how much is pruned.

    Attributes:
        sparsity: Share of zeros in each kernel at the end.
        first_step: Updates before the first round.
        last_step: Updates before the last round; the weights that are left recover in the rest of the run.
        every: Updates from one round to the next.
    """

    sparsity: float
    first_step: int
    last_step: int
    every: int


def plan_pruning(sparsity: float, num_steps: int) -> PruningPlan:
    """Returns the plan for a run."""
    first, last = int(_FIRST_PRUNED * num_steps), int(_LAST_PRUNED * num_steps)
    return PruningPlan(
        sparsity=sparsity, first_step=first, last_step=last, every=max(1, (last - first) // _NUM_PRUNINGS)
    )


class Pruning(tf.Module):
    """The masks of the kernels. Must be made in the scope of the strategy.

    Args:
        variables: The model's trainable ones; of them kernels are pruned, not embeddings, biases or normalizations.

    Raises:
        UsageError: If the model has no kernel.
    """

    def __init__(self, variables: Sequence[keras.Variable], plan: PruningPlan) -> None:
        super().__init__()
        self.plan = plan
        kernels = {i: v for i, v in enumerate(variables) if len(v.shape) >= 2 and not _NO_KERNEL.search(v.name)}
        if not kernels:
            raise UsageError("the model has no kernels that could be pruned", next_step="Leave out --prune")
        self.masks = {
            str(i): tf.Variable(tf.ones(v.shape), trainable=False, name=f"mask_{v.name}") for i, v in kernels.items()
        }

    def update(self, mask: tf.Variable, weights: tf.Variable, num_updates: tf.Tensor) -> None:
        """Sets a mask anew if a round is due."""
        plan = self.plan
        step = tf.cast(num_updates, tf.int64)
        is_round = tf.equal((step - plan.first_step) % plan.every, 0) | tf.equal(step, plan.last_step)
        is_due = is_round & (step >= plan.first_step) & (step <= plan.last_step)
        mask.assign(tf.cond(is_due, lambda: magnitude_mask(weights, self._sparsity(step)), lambda: tf.identity(mask)))

    def _sparsity(self, step: tf.Tensor) -> tf.Tensor:
        plan = self.plan
        length = max(1, plan.last_step - plan.first_step)
        done = tf.cast(step - plan.first_step, tf.float64) / length if plan.last_step > plan.first_step else 1.0
        return plan.sparsity * (1 - (1 - done) ** 3)


def magnitude_mask(weights: tf.Tensor, sparsity: tf.Tensor) -> tf.Tensor:
    """Returns 0 for the smallest weights, 1 for the others; of equal ones the first are 0, so the share is exact."""
    flat = tf.reshape(tf.abs(weights), [-1])
    size = tf.size(flat)
    num_zeros = tf.cast(tf.round(sparsity * tf.cast(size, tf.float64)), tf.int32)
    smallest = tf.argsort(flat, stable=True)[:num_zeros]
    mask = tf.tensor_scatter_nd_update(tf.ones_like(flat), smallest[:, tf.newaxis], tf.zeros([num_zeros], flat.dtype))
    return tf.reshape(mask, tf.shape(weights))


class PlannedRate(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate of every step, as a graph."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self.schedule = schedule

    def __call__(self, step: Any) -> tf.Tensor:
        """Returns the learning rate of the update that follows `step` updates."""
        plan = self.schedule
        now = tf.cast(step, tf.float32)
        num_left = max(1, plan.num_steps - plan.num_warm_up_steps)
        done = tf.clip_by_value((now - plan.num_warm_up_steps) / num_left, 0.0, 1.0)
        if plan.kind == "cosine":
            share = FINAL_SHARE + (1 - FINAL_SHARE) * (1 + tf.cos(math.pi * done)) / 2
        elif plan.kind == "linear":
            share = 1 - (1 - FINAL_SHARE) * done
        elif plan.kind == "step":
            share = tf.add_n([tf.cast(done >= drop, tf.float32) for drop in DROPS])
            share = tf.pow(DROP_FACTOR, share)
        else:
            share = tf.ones_like(done)
        if plan.num_warm_up_steps:
            warm = FIRST_SHARE + (1 - FIRST_SHARE) * now / plan.num_warm_up_steps
            share = tf.where(now < plan.num_warm_up_steps, warm, share)
        return plan.peak * share

    def get_config(self) -> dict[str, Any]:
        """Returns the values that the schedule was made from."""
        plan = self.schedule
        return {
            "kind": plan.kind,
            "peak": plan.peak,
            "num_steps": plan.num_steps,
            "num_warm_up_steps": plan.num_warm_up_steps,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> PlannedRate:
        """Returns the schedule that `get_config` described."""
        return cls(Schedule(**config))


def make_optimizer(options: OptimizerOptions, schedule: Schedule) -> keras.optimizers.Optimizer:
    """Returns the optimizer; weight decay, clipping, averages and the loss scale are `train.optimization.updater`'s."""
    rate = PlannedRate(schedule)
    if options.name == "sgd":
        return keras.optimizers.SGD(rate, momentum=options.momentum)
    if options.name == "lion":
        return keras.optimizers.Lion(rate)
    return keras.optimizers.Adam(rate)
