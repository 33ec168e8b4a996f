"""A training run, from a request to its final table."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from shardkit.errors import UsageError
from shardkit.units import format_number
from train.asynchronous.loop import UnitLoop, UnitMeter
from train.asynchronous.steps import NUM_PENDING
from train.asynchronous.work_units import steps_a_unit
from train.distribution.agreement import Agreement
from train.distribution.cluster import Cluster
from train.distribution.devices import ALONE
from train.distribution.heartbeat import START_LIMIT_S, Heartbeat
from train.distribution.launch import run_identity
from train.distribution.lost_peers import is_lost_peer
from train.distribution.rendezvous import meet
from train.distribution.signals import Stop
from train.input.reading_errors import explained
from train.loop.epoch_loop import EpochLoop
from train.loop.nonfinite import Search, find_bad_batch, not_a_number, weights_not_finite
from train.loop.step_loop import StepLoop
from train.models.user_model import call_user_code, model_path
from train.optimization.communication import measure_all_reduce_s
from train.optimization.first_replica import sharing_of_first
from train.optimization.memory_advice import advise
from train.optimization.memory_estimate import estimate_memory
from train.optimization.precision import find_not_finite
from train.parameter_servers import dismiss
from train.parts import make_record
from train.reporting.early_stopping import best_epoch, choose_monitor, should_stop
from train.reporting.metric_sums import layout_for, zero_sums
from train.reporting.metrics import EpochMetrics, Meter
from train.reporting.profiler import Profiler
from train.reporting.report import Reporter
from train.reporting.tensorboard import TensorBoardWriter
from train.runs.best_checkpoint import keep_best
from train.runs.checkpoints import Checkpoints, Restored
from train.runs.request import Request, newer_note
from train.runs.run_folder import RunFolder, RunRecord, check_same_run, note_on_model_file, notes_on_changes
from train.setup import Setup, make_steps, make_unit_steps, set_up
from train.summary import conclude, describe


def run(
    request: Request, folder: RunFolder, reporter: Reporter, stop: Stop | None = None, cluster: Cluster = ALONE
) -> None:
    """Trains as requested and leaves everything in the folder.

    Args:
        request: What is wanted.
        folder: Open; only the chief writes there.
        reporter: Gets all messages.
        stop: Says whether the run should stop; None if nothing can stop it.
        cluster: The workers that train together.

    Raises:
        ShardkitError: If the request does not fit, or shards or checkpoints are damaged.
    """
    options, patience = request.options, request.options.early_stopping
    nonces = meet(cluster, run_identity(options, request.dataset.manifest.fingerprint), options.rendezvous_timeout_s)
    before = folder.read_record()
    setup = set_up(request, cluster, None if before is None else before.shared, nonces)
    model, layout, is_chief = setup.bundle.model, setup.objective.layout, cluster.is_chief
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
        had_whole=folder.had_checkpoint(),
    )
    boundaries = None if setup.buckets is None else setup.buckets.boundaries
    record = make_record(request, setup.label, setup.bundle, setup.plan, setup.schedule, boundaries)
    start, epochs = begin(request, folder, before, record, checkpoints, reporter, setup.plan.steps_per_epoch)
    agree(start.step)
    if is_chief:
        folder.write_record(record)
    describe(reporter, setup)
    tensorboard = TensorBoardWriter(folder.tensorboard, lambda: float(setup.updater.optimizer.learning_rate))
    with heartbeat.busy("communication", START_LIMIT_S):
        # A run that averages its weights does so to send less.
        num_repetitions = None if setup.plan.sync_every is None else 1
        all_reduce_s = measure_all_reduce_s(setup.devices, model, setup.updater.options.reduce_in, num_repetitions)
        meter = Meter(all_reduce_s * setup.plan.syncs_a_step)

    def save_best(*, is_new: bool) -> bool:
        with heartbeat.busy("checkpoint", START_LIMIT_S):
            return is_chief and keep_best(folder.checkpoints, folder.best, epochs, monitor, is_new=is_new)

    save_best(is_new=False)

    def check_weights(step: int) -> None:
        found = find_not_finite(model.trainable_variables)
        if agree.any(found is not None):
            with heartbeat.busy("search for the inputs that are no numbers", START_LIMIT_S):
                first = max(checkpoints.last_saved or 0, step - setup.plan.steps_per_epoch)
                bad = find_bad_batch(setup.plan, setup.input, setup.devices.worker_index, first, step)
                is_elsewhere = agree.any(bad is not None) and bad is None
            kept = checkpoints.last_step
            raise weights_not_finite(found, step, kept, request, setup.plan, bad, is_elsewhere=is_elsewhere)

    def keep(line: EpochMetrics) -> None:
        setup.updater.check()
        epochs.append(line)
        if is_chief:
            folder.write_metrics(epochs)
            tensorboard.write(line)
        reporter.finished_epoch(line, setup.plan.num_epochs)

    validation = setup.input.validation()
    kind: Callable[..., EpochLoop]
    if cluster.num_servers:
        units, num_workers = make_unit_steps(setup, cluster.num_commanded), cluster.num_commanded
        unit_meter, has_validation = UnitMeter(num_workers), validation is not None
        kind = partial(UnitLoop, units=units, num_workers=num_workers, meter=unit_meter, has_validation=has_validation)
    else:
        batches = setup.input.training(setup.plan.position(start.step))
        kind = partial(StepLoop, steps=make_steps(setup), batches=batches, validation=validation, meter=meter)
    loop = kind(
        plan=setup.plan,
        layout=layout,
        checkpoints=checkpoints,
        checkpoint_every=request.options.checkpoint_every,
        reporter=reporter,
        profiler=profiler,
        on_epoch=keep,
        weights_to_evaluate=weights_to_evaluate(setup),
        should_stop=lambda: patience is not None and should_stop(epochs, patience, monitor),
        explained=partial(explained_for, setup),
        stop=stop or Stop(),
        meet=agree,
        heartbeat=heartbeat,
        on_saved=partial(save_best, is_new=True),
        on_step=tensorboard.write_step if is_chief else lambda *_: None,
        not_a_number=partial(
            not_a_number,
            request,
            setup.plan,
            setup.input,
            setup.devices.worker_index,
            agree.any,
            lambda: checkpoints.last_step,
            search_of(setup, cluster),
        ),
        check_weights=check_weights,
    )
    try:
        if setup.is_user_model:
            call_user_code(
                model_path(request.model),
                lambda: loop.run(start),
                is_foreign=lambda error: cluster.num_workers > 1 and is_lost_peer(error),
            )
        else:
            loop.run(start)
    except Exception:
        # The supervisor must hear the exit code, which comes only when TensorFlow has ended its threads.
        heartbeat.leave("the end after an error", START_LIMIT_S)
        raise
    tensorboard.close()
    conclude(reporter, setup, epochs, start.step, monitor)
    if (best := best_epoch(epochs, monitor)) is not None:
        kept = f", kept in {folder.best}" if save_best(is_new=False) else ""
        reporter.say(f"best        epoch {best + 1} by {monitor}{kept}")
    reporter.say(f"checkpoints {folder.checkpoints}")
    reporter.say(f"metrics     {folder.metrics_path}, and tensorboard --logdir {folder.tensorboard}")
    if cluster.num_servers:
        dismiss(cluster)


def search_of(setup: Setup, cluster: Cluster) -> Search:
    """Returns where to look for inputs that are no numbers, once the loss is none."""
    plan = setup.plan
    if not cluster.num_servers:
        return Search()
    # Any step that was under way on any worker may have made the loss no number.
    num_around = 2 * NUM_PENDING * cluster.num_commanded * steps_a_unit(plan.steps_per_epoch, cluster.num_commanded)
    return Search(num_around, num_around)


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
        if (newer := newer_note(request.dataset)) is not None:
            reporter.note(newer)
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
    if restored.step > steps_per_epoch * record.num_epochs:
        was = "was" if record.num_epochs == 1 else "were"
        raise UsageError(
            f"the run has {format_number(restored.step // steps_per_epoch, 'epoch')} already",
            where=str(folder.path),
            why=f"{format_number(record.num_epochs, 'epoch')} in all {was} asked for",
            next_step="Use as many --epochs or more, or another --output",
        )
    reporter.say(f"resumed after step {restored.step:,}")
    for text in () if before is None else notes_on_changes(before, record):
        reporter.note(text)
    # An epoch that was stopped before its validation may have a line without its checkpoint.
    last_step = restored.step - 1 if restored.sums[0] else restored.step
    lines = [line for line in folder.read_metrics() if line.step <= last_step]
    if (num_missing := last_step // steps_per_epoch - len(lines)) > 0:
        reporter.warn(
            f"{folder.metrics_path} lacks {format_number(num_missing, 'epoch')} before step {restored.step:,}; the "
            "best epoch and early stopping know the others only"
        )
    return restored, lines


def weights_to_evaluate(setup: Setup) -> Callable[[], AbstractContextManager[None]]:
    """Returns a maker of contexts in which all replicas validate the model that a checkpoint keeps."""
    if setup.local is not None:
        return setup.updater.averaged  # Each worker holds its own variables, which were averaged just before.
    share = sharing_of_first(setup.devices.strategy, setup.bundle.model)

    def make() -> AbstractContextManager[None]:
        share()
        return setup.updater.averaged()

    return make


def explained_for(setup: Setup, kind: str) -> AbstractContextManager[None]:
    """Returns the context that explains errors while the train or the validation split is read."""
    request, plan, accumulate = setup.request, setup.plan, setup.updater.options.accumulate
    is_training = kind == "train"
    split = request.splits.train if is_training else request.splits.validation or request.splits.train
    limit_mib = request.options.memory_limit

    def more_memory() -> str:
        num_examples = plan.replica_batch_size // accumulate
        estimate = estimate_memory(
            setup.bundle.model,
            setup.updater.optimizer,
            num_examples,
            setup.updater.kept,
            recompute=request.options.recompute,
        )
        limit_bytes = None if limit_mib is None else limit_mib * 2**20
        return advise(
            plan.global_batch_size, plan.num_replicas, accumulate, estimate, limit_bytes, is_training=is_training
        )

    return explained(request.dataset, split, (*setup.bundle.features, request.label_feature), more_memory)
