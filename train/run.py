"""A training run, from a request to its final table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

import keras
import tensorflow as tf

from shardkit.errors import UsageError
from shardkit.reading.dataset import Splits
from shardkit.units import format_number
from train.agreement import Agreement
from train.best import keep_best
from train.board import Board
from train.caching import keep_examples
from train.checkpoints import Checkpoints, Restored
from train.cluster import Cluster
from train.communication import measure_all_reduce_s
from train.config import LabelSpec
from train.devices import ALONE, Devices, choose_devices
from train.failures import explained
from train.gradients import all_layers, gradient_function
from train.heartbeat import START_LIMIT_S, Heartbeat
from train.input import BatchInput, ReaderInput
from train.labels import MAX_NAMES_SHOWN, note_on_classes, note_on_unseen
from train.launch import run_identity
from train.learner import Learner, check_model
from train.learners import make_learner
from train.local_sgd import LocalSteps
from train.loop import Loop, Steps, distribute_steps
from train.memory import configure_memory
from train.memory_advice import advise
from train.memory_estimate import estimate_memory
from train.metrics import EpochMetrics, Meter
from train.model_choice import is_user_model
from train.nonfinite import not_a_number
from train.objectives import Objective
from train.optimizer_options import OptimizerOptions, check_micro_batches, choose_optimizer, describe_optimizer
from train.optimizers import make_optimizer
from train.plan import Shared, TrainPlan
from train.precision import note_on_outputs, set_precision
from train.preparation import Preparation
from train.profiler import Profiler
from train.progress import best_epoch, choose_monitor, should_stop
from train.recompute import recomputing
from train.rendezvous import meet
from train.report import Reporter
from train.request import Request, make_plan
from train.run_folder import RunFolder, RunRecord, check_same_run, note_on_model_file
from train.schedules import plan_schedule
from train.setup import make_label, make_objective, make_record
from train.signals import Stop
from train.stock_input import StockInput
from train.sums import layout_for, zero_sums
from train.syncing import check_one_replica, num_syncs
from train.updater import Updater
from train.user_model import call_user_code, model_path
from train.verdict import Circumstances, give_verdict


class Setup(NamedTuple):
    """Everything that a run needs before its first step."""

    request: Request
    devices: Devices
    plan: TrainPlan
    label: LabelSpec
    learner: Learner
    objective: Objective
    updater: Updater
    input: BatchInput
    local: LocalSteps | None = None

    @property
    def is_user_model(self) -> bool:
        """Whether the model is from a file of the user."""
        return is_user_model(self.request.model)


def run(
    request: Request, folder: RunFolder, reporter: Reporter, stop: Stop | None = None, cluster: Cluster = ALONE
) -> None:
    """Trains as requested and leaves everything in the folder.

    Args:
        request: What is wanted.
        folder: Open; only the chief writes there.
        reporter: Told about everything.
        stop: Asked whether the run should stop; None if nobody could want it.
        cluster: Who train together.

    Raises:
        ShardkitError: If the request does not fit, or shards or checkpoints are damaged.
    """
    options, patience = request.options, request.options.early_stopping
    nonces = meet(cluster, run_identity(options, request.dataset.manifest.fingerprint), options.rendezvous_timeout_s)
    before = folder.read_record()
    setup = set_up(request, cluster, None if before is None else before.shared, nonces)
    model, layout, is_chief = setup.learner.model, setup.objective.layout, cluster.is_chief
    monitor = choose_monitor(options.monitor, layout, has_validation=request.splits.validation is not None)
    heartbeat = Heartbeat.from_environment(os.environ)
    profile_steps = options.profile_steps if is_chief else None
    profiler = Profiler(profile_steps, folder.tensorboard, setup.plan.num_steps, reporter.say)
    agree = Agreement(setup.devices, str(folder.path))
    checkpoints = Checkpoints(
        folder.checkpoints,
        model,
        setup.updater.state,
        layout.num_sums,
        reporter.warn,
        is_chief=is_chief,
        workers=None if setup.local is None else setup.local.states(folder.checkpoints, agree),
    )
    record = make_record(request, setup.label, setup.learner, setup.plan)
    start, epochs = begin(request, folder, before, record, checkpoints, reporter, setup.plan.steps_per_epoch)
    agree(start.step)
    if is_chief:
        folder.write_record(record)
    describe(reporter, setup)
    board = Board(folder.tensorboard, lambda: float(setup.updater.optimizer.learning_rate))
    with heartbeat.busy("communication", START_LIMIT_S):
        all_reduce_s = measure_all_reduce_s(setup.devices, model, setup.updater.options.reduce_in)
        meter = Meter(all_reduce_s / (setup.plan.sync_every or 1))

    def save_best(*, is_new: bool) -> bool:
        with heartbeat.busy("checkpoint", START_LIMIT_S):
            return is_chief and keep_best(folder.checkpoints, folder.best, epochs, monitor, is_new=is_new)

    save_best(is_new=False)

    def keep(line: EpochMetrics) -> None:
        setup.updater.check()
        epochs.append(line)
        if is_chief:
            folder.write_metrics(epochs)
            board.write(line)
        reporter.finished_epoch(line, setup.plan.num_epochs)

    loop = Loop(
        plan=setup.plan,
        layout=layout,
        steps=make_steps(setup),
        validation=setup.input.validation(),
        checkpoints=checkpoints,
        checkpoint_every=request.options.checkpoint_every,
        reporter=reporter,
        profiler=profiler,
        on_epoch=keep,
        weights_to_evaluate=setup.updater.averaged,
        should_stop=lambda: patience is not None and should_stop(epochs, patience, monitor),
        explained=partial(explained_for, setup),
        stop=stop or Stop(),
        meet=agree,
        heartbeat=heartbeat,
        on_saved=partial(save_best, is_new=True),
        meter=meter,
        on_step=board.write_step if is_chief else lambda *_: None,
        not_a_number=partial(not_a_number, request, setup.plan, setup.input, setup.devices.worker_index),
    )
    batches = setup.input.training(setup.plan.position(start.step))
    if setup.is_user_model:
        call_user_code(model_path(request.model), lambda: loop.run(batches, start))
    else:
        loop.run(batches, start)
    board.close()
    reporter.final_table(epochs, request.split_names)
    if patience is not None and epochs and epochs[-1].step < setup.plan.num_steps:
        reporter.say(f"ended early: {monitor} has not improved for {format_number(patience, 'epoch')}")
    if (verdict := give_verdict([line for line in epochs if line.step > start.step], circumstances(setup))) is not None:
        reporter.say(f"verdict     {verdict}")
    if (best := best_epoch(epochs, monitor)) is not None:
        kept = f", kept in {folder.best}" if save_best(is_new=False) else ""
        reporter.say(f"best        epoch {best + 1} by {monitor}{kept}")
    reporter.say(f"checkpoints {folder.checkpoints}")
    reporter.say(f"metrics     {folder.metrics_path}, and tensorboard --logdir {folder.tensorboard}")


def set_up(
    request: Request, cluster: Cluster = ALONE, shared: Shared | None = None, nonces: Mapping[int, str] | None = None
) -> Setup:
    """Returns devices, plan, model and input of a run.

    Args:
        request: What is wanted.
        cluster: Who train together.
        shared: Of the run that goes on; None for a new one.
        nonces: Of the other workers, when they met.

    Raises:
        UsageError: If the request fits neither the devices nor the data.
    """
    configure_memory(request.options.memory_limit)
    devices = choose_devices(request.options.strategy, request.options.replicas, cluster, nonces)
    keras.utils.set_random_seed(request.options.seed)
    set_precision(request.options.precision)
    plan = make_plan(request, devices.num_replicas, devices.num_workers, shared)
    options = choose_optimizer(request.options, request.defaults, plan.global_batch_size)
    check_micro_batches(options.accumulate, plan.global_batch_size, plan.num_replicas)
    schedule = plan_schedule(options.schedule, options.learning_rate, plan.num_steps, options.warmup_steps)
    split = request.splits.train
    # Workers that step on their own have variables of their own, which the strategy does not know.
    owner = devices.strategy if plan.sync_every is None else tf.distribute.get_strategy()
    with explained(request.dataset, split, (*request.features, request.label_feature)):
        label = make_label(request)
        learner = make_learner(
            request.model, request.dataset, split, request.features, label, request.image_size, owner
        )
        preparation = Preparation(learner, label, request.label_feature, request.image_size)
        input_, note = make_input(request, devices, plan, preparation)
    learner = learner._replace(notes=(*learner.notes, *filter(None, [note])))
    with owner.scope():
        if is_user_model(request.model):
            notes = check_model(learner, request.model, input_.spec.inputs, label)
            learner = learner._replace(notes=(*learner.notes, *notes))
        updater = Updater(make_optimizer(options, schedule), learner.model.trainable_variables, options, plan.num_steps)
    objective, local = make_objective(request, label), None
    if plan.sync_every is not None:
        check_one_replica(devices.num_replicas, devices.num_workers)
        local = LocalSteps(devices, learner.model, updater, objective.layout.num_sums)
    return Setup(request, devices, plan, label, learner, objective, updater, input_, local)


def make_steps(setup: Setup) -> Steps:
    """Returns the two steps."""
    model, objective = setup.learner.model, setup.objective
    asked = setup.request.options
    backward = gradient_function(
        model,
        objective,
        num_micro_batches=setup.updater.options.accumulate,
        xla=asked.xla,
        forward=recomputing(model) if asked.recompute else None,
    )
    steps = distribute_steps(setup.devices.strategy, model, backward, setup.updater, objective, setup.plan)
    return steps if setup.local is None else setup.local.steps(steps, backward, objective)


def make_input(
    request: Request, devices: Devices, plan: TrainPlan, preparation: Preparation
) -> tuple[BatchInput, str | None]:
    """Returns what reads the batches of this worker, and what the user should know of it.

    Raises:
        UsageError: If the examples cannot be kept where they are wanted.
    """
    options, index = request.options, devices.worker_index
    if options.reader == "tfdata":
        if options.cache != "none":
            raise UsageError(
                f"--cache {options.cache} is for shardkit's own reader",
                why="--reader tfdata was given",
                next_step="Leave one of them out",
            )
        return StockInput(request.dataset, request.splits, preparation, plan, index, options.seed), None
    opened = Splits(request.dataset)
    note = keep_examples(opened, request.split_names, options.cache, options.workers_per_host or 1)
    return ReaderInput(opened, request.splits, preparation, plan, index, options.seed), note


def begin(
    request: Request,
    folder: RunFolder,
    before: RunRecord | None,
    record: RunRecord,
    checkpoints: Checkpoints,
    reporter: Reporter,
    steps_per_epoch: int,
) -> tuple[Restored, list[EpochMetrics]]:
    """Returns where the run starts and the epochs that it already has.

    Raises:
        UsageError: If the folder holds another run.
        DamageError: If it holds checkpoints and none can be read.
    """
    if before is not None:
        check_same_run(before, record, folder.path)
        if (changed := note_on_model_file(before, record)) is not None:
            reporter.warn(changed)
    restored = checkpoints.restore_newest() if request.options.resume else None
    if restored is not None and before is None:
        raise UsageError(
            "there are checkpoints, and nothing says of which run",
            where=str(folder.path),
            why=f"{folder.record_path.name} is not there",
            next_step="Put it back, or choose another --output",
        )
    if restored is None:
        if request.options.resume:
            reporter.note("there is no checkpoint to go on from; the run starts from the beginning")
        return Restored(0, zero_sums(layout_for(record.label))), []
    reporter.say(f"resumed after step {restored.step:,}")
    if before is not None and before.num_epochs != record.num_epochs:
        reporter.note(
            f"the run began with {format_number(before.num_epochs, 'epoch')}; the learning rate now follows its "
            f"schedule over {record.num_epochs}"
        )
    # Of an epoch that was stopped before it was validated, there may be a line without its checkpoint.
    last_step = restored.step - 1 if restored.sums[0] else restored.step
    lines = [line for line in folder.read_metrics() if line.step <= last_step]
    if (num_missing := last_step // steps_per_epoch - len(lines)) > 0:
        reporter.warn(
            f"{folder.metrics_path} lacks {format_number(num_missing, 'epoch')} before step {restored.step:,}; the "
            "best epoch and early stopping know the others only"
        )
    return restored, lines


def describe(reporter: Reporter, setup: Setup) -> None:
    """Prints what is about to happen, with its arithmetic."""
    request, devices, plan, label, learner, *_ = setup
    target = f"{label.name} (regression)"
    if label.task == "classification":
        shown = ", ".join(label.class_names[:MAX_NAMES_SHOWN])
        more = ", ..." if len(label.class_names) > MAX_NAMES_SHOWN else ""
        target = f"{label.name} ({len(label.classes)} classes: {shown}{more})"
    manifest = request.dataset.manifest
    reporter.say(
        f"{manifest.name}  label {target}  model {request.model}, {learner.summary}, "
        f"{learner.model.count_params():,} parameters"
    )
    reporter.say(
        f"{request.splits.train}  {format_number(plan.num_train_examples, 'example')}, "
        f"{format_number(plan.num_epochs, 'epoch')} of {format_number(plan.steps_per_epoch, 'step')} of "
        f"{plan.global_batch_size}"
        + (f" ({format_number(plan.num_left_out, 'example')} left out, others each time)" if plan.num_left_out else "")
        + f"  {devices.summary}"
    )
    reporter.say(
        describe_optimizer(
            setup.updater.options,
            request.options.scale_learning_rate,
            plan.global_batch_size,
            request.defaults.global_batch_size,
        )
    )
    if plan.sync_every is not None:
        syncs = num_syncs(plan.steps_per_epoch, plan.sync_every)
        reporter.say(f"workers step on their own and average their weights {format_number(syncs, 'time')} an epoch")
    if request.splits.validation is None:
        reporter.note("no split to validate on, so there will be train metrics only; convert with --split test=0.1")
    else:
        reporter.say(
            f"{request.splits.validation}  {plan.num_validation_examples:,} examples, validated after each epoch"
        )
    for split, count in label.num_unlabelled.items():
        if count:
            reporter.note(f"{count:,} examples of {split} have no label; they have weight 0")
    own_notes = [text for text in (note_on_classes(label), note_on_unseen(label)) if text]
    for text in (*own_notes, *learner.notes, *_model_notes(learner.model, plan, setup.updater.options)):
        reporter.note(text)


def circumstances(setup: Setup) -> Circumstances:
    """Returns what decides how a run can be made faster."""
    return Circumstances(
        reader=setup.request.options.reader,
        compression=setup.request.dataset.manifest.compression,
        has_images=bool(setup.learner.images),
        reduce_in=setup.updater.options.reduce_in,
        num_cores=len(os.sched_getaffinity(0)),
    )


def explained_for(setup: Setup, kind: str) -> AbstractContextManager[None]:
    """Returns the context that explains errors while the train or the validation split is read."""
    request, plan, accumulate = setup.request, setup.plan, setup.updater.options.accumulate
    is_training = kind == "train"
    split = request.splits.train if is_training else request.splits.validation or request.splits.train
    limit_mib = request.options.memory_limit

    def more_memory() -> str:
        num_examples = plan.replica_batch_size // accumulate
        estimate = estimate_memory(setup.learner.model, setup.updater.optimizer, num_examples)
        limit_bytes = None if limit_mib is None else limit_mib * 2**20
        return advise(
            plan.global_batch_size, plan.num_replicas, accumulate, estimate, limit_bytes, is_training=is_training
        )

    return explained(request.dataset, split, (*setup.learner.features, request.label_feature), more_memory)


def _model_notes(model: keras.Model, plan: TrainPlan, options: OptimizerOptions) -> list[str]:
    notes = [note for note in [note_on_outputs(model, options.precision)] if note]
    if plan.num_replicas == 1 and options.reduce_in != "float32":
        notes.append("there is one replica, so gradients are not added up and --reduce-in saves nothing")
    normalizations = [x for x in all_layers(model) if isinstance(x, keras.layers.BatchNormalization)]
    if plan.sync_every is not None and normalizations:
        notes.append(
            "batch normalization sees one worker's share of a batch; its statistics are averaged with the weights"
        )
    elif plan.num_replicas > 1 and not all(layer.synchronized for layer in normalizations):
        notes.append("batch normalization sees one replica's share of a batch; synchronized=True makes it see all")
    return notes
