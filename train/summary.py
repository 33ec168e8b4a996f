"""The lines that a run prints before its first step and after its last."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import keras

from shardkit.storage import files as storage
from shardkit.units import format_number
from train.optimization.gradients import all_layers
from train.optimization.objectives import Classification
from train.optimization.precision import note_on_outputs
from train.options.config import LabelSpec
from train.options.labels import MAX_NAMES_SHOWN, note_on_classes, note_on_unseen, notes_on_unlabelled
from train.options.optimizer_options import OptimizerOptions, describe_optimizer
from train.options.step_plan import TrainPlan
from train.options.strategy_checks import can_sync, num_syncs
from train.reporting.bottleneck import Circumstances, find_bottleneck
from train.reporting.early_stopping import choose_monitor
from train.reporting.metrics import EpochMetrics
from train.reporting.report import Reporter
from train.setup import Setup


def describe(reporter: Reporter, setup: Setup) -> None:
    """Prints the plan of a run, with its arithmetic."""
    request, plan, label, bundle = setup.request, setup.plan, setup.label, setup.bundle
    name = request.dataset.manifest.name
    reporter.say(
        f"{name}  label {_target(label)}  model {request.model}, {bundle.summary}, "
        f"{bundle.model.count_params():,} parameters"
    )
    reporter.say(
        f"{request.splits.train}  {format_number(plan.num_train_examples, 'example')}, "
        f"{format_number(plan.num_epochs, 'epoch')} of {format_number(plan.steps_per_epoch, 'step')} of "
        f"{plan.global_batch_size}"
        + (f" ({format_number(plan.num_dropped, 'example')} left out, others each time)" if plan.num_dropped else "")
        + f"  {setup.devices.summary}"
    )
    for text in _settings(setup):
        reporter.say(text)
    if request.splits.validation is None:
        reporter.note("no split to validate on, so there will be train metrics only; convert with --split test=0.1")
    else:
        reporter.say(
            f"{request.splits.validation}  {format_number(plan.num_validation_examples, 'example')}, validated after "
            "each epoch"
        )
    own_notes = [*notes_on_unlabelled(label), *filter(None, (note_on_classes(label), note_on_unseen(label)))]
    for text in (*own_notes, *bundle.notes, *_model_notes(bundle.model, plan, setup.updater.options)):
        reporter.note(text)


def _target(label: LabelSpec) -> str:
    if label.task == "regression":
        return f"{label.name} (regression)"
    shown = ", ".join(label.class_names[:MAX_NAMES_SHOWN])
    more = ", ..." if len(label.class_names) > MAX_NAMES_SHOWN else ""
    return f"{label.name} ({len(label.classes)} classes: {shown}{more})"


def _settings(setup: Setup) -> Iterator[str]:
    """Yields the lines on length buckets, optimizer, loss, early stopping and averages."""
    request, plan = setup.request, setup.plan
    if (buckets := setup.buckets) is not None:
        ends = ", ".join(f"{end:,}" for end in buckets.boundaries)
        yield f"length buckets of {buckets.feature} up to {ends}; {buckets.padding:.1%} of them is padding"
    yield describe_optimizer(
        setup.updater.options,
        setup.schedule.num_warm_up_steps,
        request.options.scale_learning_rate,
        plan.global_batch_size,
        request.defaults.global_batch_size,
    )
    if (loss := _loss(setup)) is not None:
        yield f"loss  {loss}"
    if (patience := request.options.early_stopping) is not None:
        has_validation = request.splits.validation is not None
        monitor = choose_monitor(request.options.monitor, setup.objective.layout, has_validation=has_validation)
        yield f"ends early after {format_number(patience, 'epoch')} without a better {monitor}"
    if plan.sync_every is not None:
        syncs = num_syncs(plan.steps_per_epoch, plan.sync_every)
        yield (
            f"workers step on their own and average their weights {format_number(syncs, 'time')} an epoch, every "
            f"{format_number(max(1, round(plan.steps_per_epoch / syncs)), 'step')} or so"
        )


def conclude(reporter: Reporter, setup: Setup, epochs: Sequence[EpochMetrics], first_step: int, monitor: str) -> None:
    """Prints the result of a run, and advice to make it faster."""
    request, patience = setup.request, setup.request.options.early_stopping
    reporter.final_table(epochs, request.split_names)
    if patience is not None and epochs and epochs[-1].step < setup.plan.num_steps:
        reporter.say(f"ended early: {monitor} has not improved for {format_number(patience, 'epoch')}")
    own = [line for line in epochs if line.step > first_step]
    steps = setup.plan.steps_per_epoch
    first_part = 1.0 - first_step % steps / steps
    if (bottleneck := find_bottleneck(own, circumstances(setup), first_part)) is not None:
        reporter.say(f"bottleneck  {bottleneck}")


def _loss(setup: Setup) -> str | None:
    """Returns label smoothing and class weights of the loss in words, None if there are none."""
    objective, label = setup.objective, setup.label
    if not isinstance(objective, Classification):
        return None
    parts = [f"label smoothing {objective.label_smoothing:g}"] if objective.label_smoothing else []
    if objective.class_weights is not None:
        pairs = [f"{n} {weight:.4g}" for n, weight in zip(label.class_names, objective.class_weights, strict=True)]
        more = ", ..." if len(pairs) > MAX_NAMES_SHOWN else ""
        parts.append(f"class weights {', '.join(pairs[:MAX_NAMES_SHOWN])}{more}")
    return "  ".join(parts) or None


def circumstances(setup: Setup) -> Circumstances:
    """Returns the facts that decide how a run can be made faster."""
    options, plan, reduce_in = setup.request.options, setup.plan, setup.updater.options.reduce_in
    return Circumstances(
        reader=options.reader,
        compression=setup.request.dataset.manifest.compression,
        has_images=bool(setup.bundle.images),
        reduce_in=reduce_in,
        num_cores=len(os.sched_getaffinity(0)),
        is_remote=not storage.is_local(setup.request.dataset.url),
        cache=options.cache,
        num_epochs=plan.num_epochs,
        sync_every=plan.sync_every,
        can_sync=can_sync(options, plan.num_replicas, plan.num_workers),
    )


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
