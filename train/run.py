"""A training run, from a request to its final table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

import keras
import tensorflow as tf

from shardkit.adapters.tfdata import shard_files
from shardkit.features import Features
from shardkit.units import format_number
from train.board import Board
from train.checkpoints import Checkpoints, Restored
from train.choices import IMAGE, TABULAR
from train.config import LabelSpec
from train.devices import Devices, choose_devices
from train.failures import explained
from train.input import BatchInput
from train.labels import note_on_classes
from train.learner import Learner, check_model, make_learner
from train.loop import Loop, distribute_steps
from train.metrics import EpochMetrics, zero_sums
from train.objectives import objective_for
from train.plan import Position, TrainPlan
from train.profiler import Profiler
from train.report import Reporter
from train.request import Request
from train.run_folder import RunFolder, RunRecord, check_same_run
from train.setup import learning_rate_of, make_label, make_optimizer, make_plan, make_record
from train.user_model import call_user_code, model_path

_MAX_NAMES_SHOWN = 5


class Setup(NamedTuple):
    """Everything that a run needs before its first step."""

    request: Request
    devices: Devices
    plan: TrainPlan
    label: LabelSpec
    learner: Learner
    optimizer: keras.optimizers.Optimizer
    input: BatchInput

    @property
    def is_user_model(self) -> bool:
        """Whether the model is from a file of the user."""
        return self.request.model not in (TABULAR, IMAGE)


def run(request: Request, folder: RunFolder, reporter: Reporter) -> None:
    """Trains as requested and leaves everything in the folder.

    Raises:
        ShardkitError: If the request does not fit, or shards or checkpoints are damaged.
    """
    setup = set_up(request)
    profiler = Profiler(request.options.profile_steps, folder.tensorboard, setup.plan.num_steps, reporter.say)
    checkpoints = Checkpoints(folder.checkpoints, setup.learner.model, setup.optimizer, reporter.warn)
    record = make_record(request, setup.label, setup.learner, setup.plan)
    start, epochs = begin(request, folder, record, checkpoints, reporter)
    describe(reporter, setup)
    board = Board(folder.tensorboard)

    def keep(line: EpochMetrics) -> None:
        epochs.append(line)
        folder.write_metrics(epochs)
        board.write(line)
        reporter.finished_epoch(line, setup.plan.num_epochs)

    loop = Loop(
        plan=setup.plan,
        task=setup.label.task,
        steps=distribute_steps(
            setup.devices.strategy, setup.learner.model, setup.optimizer, objective_for(setup.label), setup.plan
        ),
        validation=validation_batches(setup),
        checkpoints=checkpoints,
        checkpoint_every=request.options.checkpoint_every,
        reporter=reporter,
        profiler=profiler,
        on_epoch=keep,
        explained=partial(explained_for, request, setup.learner.features),
    )
    batches = train_batches(setup, setup.plan.position(start.step))
    if setup.is_user_model:
        call_user_code(model_path(request.model), lambda: loop.run(batches, start))
    else:
        loop.run(batches, start)
    board.close()
    reporter.final_table(epochs, request.split_names)
    reporter.say(f"checkpoints {folder.checkpoints}")
    reporter.say(f"metrics     {folder.metrics_path}, and tensorboard --logdir {folder.tensorboard}")


def set_up(request: Request) -> Setup:
    """Returns devices, plan, model and input of a run.

    Raises:
        UsageError: If the request fits neither the devices nor the data.
    """
    devices = choose_devices(request.options.strategy, request.options.replicas)
    keras.utils.set_random_seed(request.options.seed)
    plan = make_plan(request, devices)
    split = request.splits.train
    with explained(request.dataset, split, (*request.features, request.label_feature)):
        label = make_label(request)
        learner = make_learner(
            request.model, request.dataset, split, request.features, label, request.image_size, devices.strategy
        )
    input_ = BatchInput(learner, label, request.label_feature, plan, request.image_size, request.options.seed)
    with devices.strategy.scope():
        optimizer = make_optimizer(plan, learning_rate_of(request), request.defaults.weight_decay)
        setup = Setup(request, devices, plan, label, learner, optimizer, input_)
        if setup.is_user_model:
            spec = train_batches(setup, Position(0, 0)).element_spec
            notes = check_model(learner, request.model, spec.inputs, label)
            setup = setup._replace(learner=learner._replace(notes=(*learner.notes, *notes)))
        optimizer.build(learner.model.trainable_variables)
    return setup


def train_batches(setup: Setup, start: Position) -> tf.data.Dataset:
    """Returns the batches of all steps from a position on."""
    return setup.input.training(shard_files(setup.request.dataset, setup.request.splits.train), start)


def validation_batches(setup: Setup) -> tf.data.Dataset | None:
    """Returns one pass over the validation split, None without one."""
    split = setup.request.splits.validation
    return None if split is None else setup.input.validation(shard_files(setup.request.dataset, split))


def begin(
    request: Request, folder: RunFolder, record: RunRecord, checkpoints: Checkpoints, reporter: Reporter
) -> tuple[Restored, list[EpochMetrics]]:
    """Returns where the run starts and the epochs that it already has; stores its record.

    Raises:
        UsageError: If the folder holds another run.
        DamageError: If it holds checkpoints and none can be read.
    """
    before = folder.read_record()
    if before is not None:
        check_same_run(before, record, folder.path)
    restored = checkpoints.restore_newest() if request.options.resume else None
    folder.write_record(record)
    if restored is None:
        if request.options.resume:
            reporter.note("there is no checkpoint to go on from; the run starts from the beginning")
        return Restored(0, zero_sums()), []
    reporter.say(f"resumed after step {restored.step:,}")
    if before is not None and before.num_epochs != record.num_epochs:
        reporter.note(
            f"the run began with {format_number(before.num_epochs, 'epoch')}; the learning rate now follows its "
            f"schedule over {record.num_epochs}"
        )
    return restored, [line for line in folder.read_metrics() if line.step <= restored.step]


def describe(reporter: Reporter, setup: Setup) -> None:
    """Prints what is about to happen, with its arithmetic."""
    request, devices, plan, label, learner, *_ = setup
    target = f"{label.name} (regression)"
    if label.task == "classification":
        shown = ", ".join(label.class_names[:_MAX_NAMES_SHOWN])
        more = ", ..." if len(label.class_names) > _MAX_NAMES_SHOWN else ""
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
        + f"  learning rate {learning_rate_of(request):g}  {devices.summary}"
    )
    if request.splits.validation is None:
        reporter.note("no split to validate on, so there will be train metrics only; convert with --split test=0.1")
    else:
        reporter.say(
            f"{request.splits.validation}  {plan.num_validation_examples:,} examples, validated after each epoch"
        )
    for split, count in label.num_unlabelled.items():
        if count:
            reporter.note(f"{count:,} examples of {split} have no label; they have weight 0")
    if suspicion := note_on_classes(label):
        reporter.note(suspicion)
    for text in (*learner.notes, *_model_notes(learner.model, plan)):
        reporter.note(text)


def explained_for(request: Request, features: Features, kind: str) -> AbstractContextManager[None]:
    """Returns the context that explains errors while the train or the validation split is read."""
    split = request.splits.train if kind == "train" else request.splits.validation or request.splits.train
    return explained(request.dataset, split, (*features, request.label_feature))


def _model_notes(model: keras.Model, plan: TrainPlan) -> list[str]:
    normalizations = [x for x in _all_layers(model) if isinstance(x, keras.layers.BatchNormalization)]
    if plan.num_replicas > 1 and not all(layer.synchronized for layer in normalizations):
        return ["batch normalization sees one replica's share of a batch; synchronized=True makes it see all"]
    return []


def _all_layers(layer: keras.layers.Layer) -> Iterator[keras.layers.Layer]:
    for inner in getattr(layer, "layers", ()):
        yield inner
        yield from _all_layers(inner)
