"""A run before its first step: devices, plan, model, optimizer and input, made from a request."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import keras
import tensorflow as tf

from shardkit.errors import UsageError
from shardkit.reading.lengths import count_lengths
from shardkit.reading.splits import Splits
from train.asynchronous.steps import UnitSteps
from train.distribution.cluster import Cluster
from train.distribution.devices import ALONE, Devices, choose_devices
from train.input.caching import keep_examples
from train.input.preparation import Preparation
from train.input.reader_input import Assignment, BatchInput, ReaderInput, read_lengths
from train.input.reading_errors import explained
from train.input.tfdata_input import TfdataInput
from train.loop.local_sgd import LocalSteps
from train.loop.step_loop import Steps, distribute_steps
from train.models.factory import load_builder
from train.models.model_inputs import ModelBundle, ModelSettings
from train.models.user_model import check_model
from train.optimization.gradients import ComputeGradients, gradient_function
from train.optimization.objectives import Objective
from train.optimization.precision import set_precision
from train.optimization.recompute import recomputing
from train.optimization.replicas import with_replica_seeds
from train.optimization.step import evaluate_step, train_step
from train.optimization.updater import Updater, make_optimizer
from train.options.config import LabelSpec
from train.options.length_buckets import Boundaries, SplitBuckets, bucket_split
from train.options.model_defaults import check_image_size, is_user_model, model_kind
from train.options.optimizer_options import Schedule, check_micro_batches, choose_optimizer, plan_schedule
from train.options.step_plan import Shared, TrainPlan
from train.options.strategy_checks import check_one_replica
from train.parts import make_label, make_objective
from train.runs.request import Request, make_plan


class Setup(NamedTuple):
    """Everything that a run needs before its first step."""

    request: Request
    devices: Devices
    plan: TrainPlan
    label: LabelSpec
    bundle: ModelBundle
    objective: Objective
    updater: Updater
    input: BatchInput
    schedule: Schedule
    local: LocalSteps | None = None
    buckets: SplitBuckets | None = None

    @property
    def is_user_model(self) -> bool:
        """Whether the model is from a file of the user."""
        return is_user_model(self.request.model)


class Material(NamedTuple):
    """What a worker learns from.

    Attributes:
        buckets: Of the train split; None where batches hold examples of any length.
    """

    label: LabelSpec
    bundle: ModelBundle
    input: BatchInput
    buckets: SplitBuckets | None = None


def set_up(
    request: Request, cluster: Cluster = ALONE, shared: Shared | None = None, nonces: Mapping[int, str] | None = None
) -> Setup:
    """Returns devices, plan, model and input of a run.

    Raises:
        UsageError: If the request fits neither the devices nor the data.
    """
    configure_memory(request.options.memory_limit)
    is_last = request.options.elastic and cluster.num_workers == 1
    # The last one of several workers that is left is no longer one of several.
    strategy = "auto" if is_last else request.options.strategy
    devices = choose_devices(strategy, request.options.replicas, cluster, nonces)
    plan = make_plan(request, devices.num_replicas, devices.num_workers, shared)
    options = choose_optimizer(request.options, request.defaults, plan.global_batch_size)
    check_micro_batches(options.accumulate, plan.global_batch_size, plan.num_replicas)
    schedule = plan_schedule(options.schedule, options.learning_rate, plan.num_steps, options.warmup_steps)
    # Workers that step on their own hold separate variables, which the strategy does not know.
    owner = devices.strategy if plan.sync_every is None else tf.distribute.get_strategy()
    label, bundle, batches, buckets = set_up_input(request, plan, devices.worker_index, owner)
    with owner.scope():
        if is_user_model(request.model):
            notes = check_model(bundle, request.model, batches.spec.inputs, label)
            bundle = bundle._replace(notes=(*bundle.notes, *notes))
        updater = Updater(make_optimizer(options, schedule), bundle.model.trainable_variables, options, plan.num_steps)
    objective, local = make_objective(request, label), None
    if plan.sync_every is not None:
        check_one_replica(devices.num_replicas, devices.num_workers)
        local = LocalSteps(devices, bundle.model, updater, objective.layout.num_sums)
    return Setup(request, devices, plan, label, bundle, objective, updater, batches, schedule, local, buckets)


def set_up_input(request: Request, plan: TrainPlan, worker_index: int, owner: tf.distribute.Strategy) -> Material:
    """Returns the label, the model and the batches of one worker.

    Raises:
        UsageError: If the request does not fit the data.
    """
    keras.utils.set_random_seed(request.options.seed)
    set_precision(request.options.precision)
    split = request.splits.train
    with explained(request.dataset, split, (*request.features, request.label_feature)):
        label = make_label(request)
        settings = ModelSettings(request.model, label, request.image_size, owner)
        bundle = load_builder(request.model).make_bundle(settings, request.dataset, split, request.features)
        reads_images = bool(bundle.images) or model_kind(request.model).reads_images
        check_image_size(request.options.image_size, request.model, reads_images=reads_images)
        return _with_batches(request, plan, worker_index, label, bundle)


def make_steps(setup: Setup) -> Steps:
    """Returns the two steps."""
    own_index = 0 if setup.local is None else setup.devices.worker_index
    backward = with_replica_seeds(setup.bundle.model, _backward(setup), own_index)
    if setup.local is not None:
        return setup.local.steps(backward, setup.objective)
    return distribute_steps(
        setup.devices.strategy, setup.bundle.model, backward, setup.updater, setup.objective, setup.plan
    )


def make_unit_steps(setup: Setup, num_workers: int) -> UnitSteps:
    """Returns the steps that deal out units of an asynchronous run to so many workers."""
    objective = setup.objective
    return UnitSteps(
        setup.devices.strategy,
        partial(train_step, _backward(setup), setup.updater, objective),
        partial(evaluate_step, setup.bundle.model, objective),
        setup.input.spec,
        objective.layout.num_sums,
        num_workers,
    )


def _backward(setup: Setup) -> ComputeGradients:
    model, asked = setup.bundle.model, setup.request.options
    return gradient_function(
        model,
        setup.objective,
        num_micro_batches=setup.updater.options.accumulate,
        xla=asked.xla,
        forward=recomputing(model) if asked.recompute else None,
    )


def _with_batches(
    request: Request, plan: TrainPlan, worker_index: int, label: LabelSpec, bundle: ModelBundle
) -> Material:
    options = request.options
    preparation = Preparation(bundle, label, request.label_feature, request.image_size)
    assigned = Assignment(request.splits, plan, worker_index, options.seed)
    if options.reader == "tfdata":
        return Material(label, bundle, TfdataInput(request.dataset, preparation, assigned))
    opened = Splits(request.dataset)
    note = keep_examples(opened, request.split_names, options.cache, options.workers_per_host or 1)
    buckets = {} if options.length_buckets is None else assign_length_buckets(request, bundle, opened)
    if note is not None:
        bundle = bundle._replace(notes=(*bundle.notes, note))
    batches = ReaderInput(opened, preparation, assigned, buckets)
    return Material(label, bundle, batches, buckets.get(request.splits.train))


def assign_length_buckets(request: Request, bundle: ModelBundle, opened: Splits) -> dict[str, SplitBuckets]:
    """Returns the buckets of each split that is read, by its name, and tells the splits the lengths of their examples.

    The validation split has those of the train split, and one more if it has longer examples. Each is read once.

    Raises:
        DamageError: If an example cannot be read.
    """
    asked, found = request.options.length_buckets, dict[str, SplitBuckets]()
    wanted: Boundaries | None = asked if isinstance(asked, tuple) else None
    (feature,) = bundle.features
    for name in request.split_names:
        lengths = read_lengths(opened[name], bundle)
        opened[name].set_lengths(feature.name, lengths)
        found[name] = bucket_split(feature.name, wanted, lengths, count_lengths(lengths))
        wanted = found[name].boundaries
    return found


def configure_memory(limit_mib: int | None) -> None:
    """Sets how much memory TensorFlow takes of each GPU; must be called before it computes anything.

    Args:
        limit_mib: Of each GPU; None takes memory as it is needed, so that others can use the GPU, too.

    Raises:
        UsageError: If there is no GPU to limit, or TensorFlow has begun.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if limit_mib is not None and not gpus:
        raise UsageError(
            "--memory-limit is for GPUs, and there is none",
            next_step="Leave it out; a smaller --global-batch-size or --accumulate needs less memory",
        )
    try:
        # All alike, because TensorFlow refuses growth on some of them only.
        for gpu in gpus:
            if limit_mib is None:
                tf.config.experimental.set_memory_growth(gpu, True)
            else:
                configuration = tf.config.LogicalDeviceConfiguration(memory_limit=limit_mib)
                tf.config.set_logical_device_configuration(gpu, [configuration])
    except RuntimeError as error:
        raise UsageError(
            "the memory of the GPUs cannot be set any more",
            why="TensorFlow has already computed in this process",
            next_step="Set it in a separate process, before anything else uses TensorFlow",
        ) from error
