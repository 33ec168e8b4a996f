"""What turns gradients into weights, as one frozen value that belongs to the identity of a run. Pure."""

from __future__ import annotations

import math

import msgspec

from shardkit.errors import UsageError
from shardkit.units import format_number
from train.options.config import OptimizerChoice, Precision, Scaling, ScheduleChoice, TrainOptions
from train.options.model_table import Defaults

WARM_UP_SHARE = 0.05
FIRST_SHARE = 0.01
FINAL_SHARE = 0.01
DROPS = (0.5, 0.75)
DROP_FACTOR = 0.1


DEFAULT_MOMENTUM = 0.9

# The defaults of the models suit AdamW. Of the others, these are the usual ratios to its learning rate and its decay.
_RATE_FACTORS: dict[OptimizerChoice, float] = {"adamw": 1.0, "adam": 1.0, "sgd": 10.0, "lion": 0.1}
_DECAY_FACTORS: dict[OptimizerChoice, float] = {"adamw": 1.0, "adam": 0.0, "sgd": 0.0, "lion": 10.0}


class OptimizerOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that decides what a gradient does to the weights.

    Attributes:
        learning_rate: Peak of the schedule, scaled.
        warmup_steps: None takes a share of the run.
        weight_decay: Share of a weight that is taken off at each step, times the learning rate; decoupled.
        momentum: Of SGD; 0 for the others, which have their own.
        clip_norm: Largest global norm of the gradients; None leaves them as they are.
        accumulate: Micro-batches a step.
        ema: Momentum of the moving average of the weights; None keeps none.
        precision: That layers compute in; weights are always float32.
        reduce_in: That gradients are in while they are added up over replicas.
        sparsity: Share of the weights of kernels that end as zero; None prunes nothing.
    """

    name: OptimizerChoice
    learning_rate: float
    schedule: ScheduleChoice = "cosine"
    warmup_steps: int | None = None
    weight_decay: float = 0.0
    momentum: float = 0.0
    clip_norm: float | None = None
    accumulate: int = 1
    ema: float | None = None
    precision: Precision = "float32"
    reduce_in: Precision = "float32"
    sparsity: float | None = None

    @property
    def needs_loss_scale(self) -> bool:
        """Whether gradients are somewhere in a type that small ones would vanish in."""
        return "float16" in (self.precision, self.reduce_in)


def choose_optimizer(options: TrainOptions, defaults: Defaults, global_batch_size: int) -> OptimizerOptions:
    """Returns the options with everything filled in. Raises UsageError if options contradict each other."""
    name = options.optimizer
    if options.momentum is not None and name != "sgd":
        raise UsageError(f"--momentum is for sgd, not for {name}", next_step="Leave it out or use --optimizer sgd")
    peak = options.learning_rate or defaults.learning_rate * _RATE_FACTORS[name]
    decay = options.weight_decay
    momentum = DEFAULT_MOMENTUM if options.momentum is None else options.momentum
    return OptimizerOptions(
        name=name,
        learning_rate=peak * scale_factor(options.scale_learning_rate, global_batch_size, defaults.global_batch_size),
        schedule=options.schedule,
        warmup_steps=options.warmup_steps,
        weight_decay=defaults.weight_decay * _DECAY_FACTORS[name] if decay is None else decay,
        momentum=momentum if name == "sgd" else 0.0,
        clip_norm=options.clip_norm,
        accumulate=options.accumulate,
        ema=options.ema,
        precision=options.precision,
        reduce_in=options.reduce_in,
        sparsity=options.prune,
    )


def scale_factor(scaling: Scaling, global_batch_size: int, default_batch_size: int) -> float:
    """Returns the factor of the learning rate for a batch of another size than the model's usual one."""
    ratio = global_batch_size / default_batch_size
    return {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[scaling]


def describe_optimizer(
    chosen: OptimizerOptions, num_warm_up_steps: int, scaling: Scaling, batch_size: int, default_batch_size: int
) -> str:
    """Returns the optimizer in a line, with the arithmetic of its learning rate."""
    parts = [f"optimizer  {chosen.name}  learning rate {chosen.learning_rate:g}"]
    if scaling != "none":
        factor = scale_factor(scaling, batch_size, default_batch_size)
        parts[0] += (
            f" ({chosen.learning_rate / factor:g} x {factor:g}, scaled {_SCALINGS[scaling]} from a global batch of "
            f"{default_batch_size} to {batch_size})"
        )
    parts.append(f"schedule {chosen.schedule}")
    if num_warm_up_steps:
        parts.append(f"warm-up {format_number(num_warm_up_steps, 'step')}")
    if chosen.weight_decay:
        parts.append(f"weight decay {chosen.weight_decay:g}")
    if chosen.momentum:
        parts.append(f"momentum {chosen.momentum:g}")
    if chosen.clip_norm is not None:
        parts.append(f"gradients clipped to norm {chosen.clip_norm:g}")
    if chosen.accumulate > 1:
        parts.append(f"{chosen.accumulate} micro-batches a step")
    if chosen.ema is not None:
        parts.append(f"weights averaged with {chosen.ema:g}")
    if chosen.precision != "float32":
        parts.append(f"computes in {chosen.precision}")
    if chosen.reduce_in != "float32":
        parts.append(f"gradients added up in {chosen.reduce_in}")
    if chosen.sparsity is not None:
        parts.append(f"pruned to {chosen.sparsity:.1%} zeros")
    return "  ".join(parts)


_SCALINGS = {"linear": "linearly", "sqrt": "by the square root"}


def check_micro_batches(accumulate: int, global_batch_size: int, num_replicas: int) -> None:
    """Checks that every replica's share of a batch divides into micro-batches.

    Raises:
        UsageError: If it does not; names the nearest sizes that do.
    """
    unit = accumulate * num_replicas
    if global_batch_size % unit:
        below = global_batch_size - global_batch_size % unit
        sizes = f"{below} or {below + unit}" if below else str(unit)
        raise UsageError(
            f"the global batch size {global_batch_size} is not a multiple of {unit}: {accumulate} micro-batches on "
            f"each of {num_replicas} replicas",
            next_step=f"Use --global-batch-size {sizes}, or another --accumulate",
        )


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """How the learning rate goes up to its peak and down again.

    Attributes:
        kind: `cosine` and `linear` end at a hundredth of the peak; `constant` stays; `step` falls to a tenth at half
            and again at three quarters of the steps after the warm-up.
        peak: Highest learning rate.
        num_warm_up_steps: From a hundredth of the peak straight to the peak.
    """

    kind: ScheduleChoice
    peak: float
    num_steps: int
    num_warm_up_steps: int


def plan_schedule(kind: ScheduleChoice, peak: float, num_steps: int, num_warm_up_steps: int | None) -> Schedule:
    """Returns the schedule of a run.

    Args:
        kind: Of the way down.
        peak: Highest learning rate.
        num_warm_up_steps: None takes a twentieth of the steps.

    Raises:
        UsageError: If the run ends before its warm-up does.
    """
    if num_warm_up_steps is None:
        num_warm_up_steps = round(WARM_UP_SHARE * num_steps)
    elif num_warm_up_steps >= num_steps:
        raise UsageError(
            f"a warm-up of {num_warm_up_steps:,} steps does not end within a run of {num_steps:,}",
            next_step="Use fewer --warmup-steps or more --epochs",
        )
    return Schedule(kind=kind, peak=peak, num_steps=num_steps, num_warm_up_steps=num_warm_up_steps)
