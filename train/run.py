"""A training run, from a request to its final table."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager

from shardkit.errors import UsageError
from shardkit.units import format_number
from train.asynchronous.loop import UnitLoop
from train.asynchronous.steps import NUM_PENDING
from train.asynchronous.work_units import steps_a_unit
from train.distribution.cluster import Cluster
from train.distribution.devices import ALONE, Agreement
from train.distribution.heartbeat import START_LIMIT_S, Heartbeat
from train.distribution.launch import run_identity
from train.distribution.lost_peers import is_lost_peer
from train.distribution.rendezvous import meet
from train.distribution.signals import Stop
from train.input.reading_errors import explained
from train.loop.epoch_loop import EpochLoop, Hooks, LoopParts
from train.loop.nonfinite import Batches, not_a_number, weights_not_finite
from train.loop.step_loop import StepLoop
from train.models.user_model import call_user_code, model_path
from train.optimization.gradients import measure_all_reduce_s
from train.optimization.memory_estimate import advise, estimate_memory
from train.optimization.precision import find_not_finite
from train.optimization.replicas import sharing_of_first
from train.options.step_plan import TrainPlan
from train.parameter_servers import dismiss
from train.parts import make_record
from train.reporting.early_stopping import best_epoch, choose_monitor, should_stop
from train.reporting.metric_sums import Sums, zero_sums
from train.reporting.metrics import EpochMetrics, Meter
from train.reporting.report import Reporter
from train.reporting.tensorboard import Profiler, TensorBoardWriter
from train.runs.best_checkpoint import keep_best
from train.runs.checkpoints import Checkpoints, Restored, Trained
from train.runs.request import Request, newer_note
from train.runs.run_folder import RunFolder, RunRecord, check_same_run, note_on_model_file, notes_on_changes
from train.setup import Setup, make_steps, make_unit_steps, set_up
from train.summary import conclude, describe


def run(
    request: Request, folder: RunFolder, reporter: Reporter, stop: Stop | None = None, cluster: Cluster = ALONE
) -> None:
    """Trains as requested and leaves everything in the folder.

    Raises:
        ShardkitError: If the request does not fit, or shards or checkpoints are damaged.
    """
    options = request.options
    nonces = meet(cluster, run_identity(options, request.dataset.manifest.fingerprint), options.rendezvous_timeout_s)
    before = folder.read_record()
    setup = set_up(request, cluster, None if before is None else before.shared, nonces)
    training = Training(setup, folder, reporter, cluster)
    start = training.begin(before)
    describe(reporter, setup)
    loop = training.make_loop(start, stop or Stop())
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
        training.heartbeat.leave("the end after an error", START_LIMIT_S)
        raise
    training.end(start)
    if cluster.num_servers:
        dismiss(cluster)


class Training(Hooks):
    """A run that is under way, and what it does at the events of its loop."""

    def __init__(self, setup: Setup, folder: RunFolder, reporter: Reporter, cluster: Cluster) -> None:
        options, layout = setup.request.options, setup.objective.layout
        has_validation = setup.request.splits.validation is not None
        self._setup, self._folder, self._reporter, self._cluster = setup, folder, reporter, cluster
        self._monitor = choose_monitor(options.monitor, layout, has_validation=has_validation)
        self.heartbeat = Heartbeat.from_environment(os.environ)
        profile_steps = options.profile_steps if cluster.is_chief else None
        self._profiler = Profiler(profile_steps, folder.tensorboard, setup.plan.num_steps, reporter.say)
        self._agree = Agreement(setup.devices, str(folder.path))
        self._checkpoints = Checkpoints(
            folder.checkpoints,
            Trained(setup.bundle.model, setup.updater.state, layout.num_sums),
            reporter.warn,
            is_chief=cluster.is_chief,
            workers=None if setup.local is None else setup.local.states(folder.checkpoints, self._agree),
            had_whole=folder.had_checkpoint(),
        )
        self._tensorboard = TensorBoardWriter(folder.tensorboard, lambda: float(setup.updater.optimizer.learning_rate))
        self._batches = Batches(setup.request, setup.plan, setup.input, setup.devices.worker_index)
        self._make_weights = weights_to_evaluate(setup)
        self._epochs: list[EpochMetrics] = []

    def begin(self, before: RunRecord | None) -> Restored:
        """Writes the record, and returns where the run starts, with the epochs that it already has.

        Raises:
            UsageError: If the folder holds another run.
            DamageError: If it holds checkpoints and none can be read.
        """
        setup, folder = self._setup, self._folder
        boundaries = None if setup.buckets is None else setup.buckets.boundaries
        record = make_record(setup.request, setup.label, setup.bundle, setup.plan, setup.schedule, boundaries)
        if before is not None:
            check_same_run(before, record, folder.path)
            if (newer := newer_note(setup.request.dataset)) is not None:
                self._reporter.note(newer)
            if (changed := note_on_model_file(before, record)) is not None:
                self._reporter.warn(changed)
        start = self._restore(before, record) if setup.request.options.resume else None
        if start is None:
            start = Restored(0, zero_sums(setup.objective.layout))
        self._agree(start.step)
        if self._cluster.is_chief:
            folder.write_record(record)
        return start

    def _restore(self, before: RunRecord | None, record: RunRecord) -> Restored | None:
        restored = self._checkpoints.restore_newest()
        if restored is None:
            self._reporter.note("there is no checkpoint to go on from; the run starts from the beginning")
            return None
        if before is None:
            raise UsageError(
                "there are checkpoints, and nothing says of which run",
                where=str(self._folder.path),
                why=f"{self._folder.record_path.name} is not there",
                next_step="Put it back, or choose another --output",
            )
        check_is_left(restored.step, self._setup.plan, self._folder)
        self._reporter.say(f"resumed after step {restored.step:,}")
        for text in notes_on_changes(before, record):
            self._reporter.note(text)
        self._epochs = self._epochs_before(restored)
        return restored

    def _epochs_before(self, restored: Restored) -> list[EpochMetrics]:
        # An epoch that was stopped before its validation may have a line without its checkpoint.
        last_step = restored.step - 1 if restored.sums[0] else restored.step
        lines = [line for line in self._folder.read_metrics() if line.step <= last_step]
        if (num_missing := last_step // self._setup.plan.steps_per_epoch - len(lines)) > 0:
            self._reporter.warn(
                f"{self._folder.metrics_path} lacks {format_number(num_missing, 'epoch')} before step "
                f"{restored.step:,}; the best epoch and early stopping know the others only"
            )
        return lines

    def make_loop(self, start: Restored, stop: Stop) -> EpochLoop:
        """Returns the loop from where the run starts; what was killed before is made good."""
        setup, num_workers = self._setup, self._cluster.num_commanded
        self._keep_best(is_new=False)
        parts = LoopParts(
            plan=setup.plan,
            layout=setup.objective.layout,
            checkpoints=self._checkpoints,
            checkpoint_every=setup.request.options.checkpoint_every,
            reporter=self._reporter,
            profiler=self._profiler,
            heartbeat=self.heartbeat,
            stop=stop,
            meet=self._agree,
            hooks=self,
        )
        validation = setup.input.validation()
        if self._cluster.num_servers:
            units = make_unit_steps(setup, num_workers)
            return UnitLoop(parts, units, num_workers, has_validation=validation is not None)
        batches = setup.input.training(setup.plan.position(start.step))
        return StepLoop(parts, self._measured(), make_steps(setup), batches, validation)

    def _measured(self) -> Meter:
        setup = self._setup
        # A run that averages its weights does so to send less.
        num_repetitions = None if setup.plan.sync_every is None else 1
        reduce_in = setup.updater.options.reduce_in
        with self.heartbeat.busy("communication", START_LIMIT_S):
            all_reduce_s = measure_all_reduce_s(setup.devices, setup.bundle.model, reduce_in, num_repetitions)
        return Meter(all_reduce_s * setup.plan.syncs_a_step)

    def _keep_best(self, *, is_new: bool) -> bool:
        with self.heartbeat.busy("checkpoint", START_LIMIT_S):
            return self._cluster.is_chief and keep_best(
                self._folder.checkpoints, self._folder.best, self._epochs, self._monitor, is_new=is_new
            )

    def explained(self, kind: str) -> AbstractContextManager[None]:
        return explained_for(self._setup, kind)

    def weights_to_evaluate(self) -> AbstractContextManager[None]:
        return self._make_weights()

    def should_stop(self) -> bool:
        patience = self._setup.request.options.early_stopping
        return patience is not None and should_stop(self._epochs, patience, self._monitor)

    def on_step(self, num_steps: int, sums: Sums, meter: Meter) -> None:
        if self._cluster.is_chief:
            self._tensorboard.write_step(num_steps, sums, meter)

    def on_epoch(self, line: EpochMetrics) -> None:
        self._setup.updater.check()
        self._epochs.append(line)
        if self._cluster.is_chief:
            self._folder.write_metrics(self._epochs)
            self._tensorboard.write(line)
        self._reporter.finished_epoch(line, self._setup.plan.num_epochs)

    def on_saved(self) -> None:
        self._keep_best(is_new=True)

    def not_a_number(self, num_steps: int) -> UsageError:
        num_around = 0
        if self._cluster.num_servers:
            # Any step that was under way on any worker may have made the loss no number.
            num_workers = self._cluster.num_commanded
            num_around = 2 * NUM_PENDING * num_workers * steps_a_unit(self._setup.plan.steps_per_epoch, num_workers)
        return not_a_number(self._batches, num_steps, num_around, self._agree.any, self._checkpoints.last_step)

    def check_weights(self, num_steps: int) -> None:
        found = find_not_finite(self._setup.bundle.model.trainable_variables)
        if self._agree.any(found is not None):
            with self.heartbeat.busy("search for the inputs that are no numbers", START_LIMIT_S):
                first = max(self._checkpoints.last_saved or 0, num_steps - self._setup.plan.steps_per_epoch)
                bad = self._batches.first_bad(range(first, num_steps))
                is_elsewhere = self._agree.any(bad is not None) and bad is None
            kept = self._checkpoints.last_step
            raise weights_not_finite(found, num_steps, kept, self._batches, bad, is_elsewhere=is_elsewhere)

    def end(self, start: Restored) -> None:
        """Prints the result of the run, and keeps its best checkpoint."""
        self._tensorboard.close()
        folder, say = self._folder, self._reporter.say
        conclude(self._reporter, self._setup, self._epochs, start.step, self._monitor)
        if (best := best_epoch(self._epochs, self._monitor)) is not None:
            kept = f", kept in {folder.best}" if self._keep_best(is_new=False) else ""
            say(f"best        epoch {best.epoch + 1} by {self._monitor}{kept}")
        say(f"checkpoints {folder.checkpoints}")
        say(f"metrics     {folder.metrics_path}, and tensorboard --logdir {folder.tensorboard}")


def check_is_left(step: int, plan: TrainPlan, folder: RunFolder) -> None:
    """Checks that a run that has taken so many steps has no more epochs than were asked for.

    Raises:
        UsageError: If it has.
    """
    if step > plan.num_steps:
        was = "was" if plan.num_epochs == 1 else "were"
        raise UsageError(
            f"the run has {format_number(step // plan.steps_per_epoch, 'epoch')} already",
            where=str(folder.path),
            why=f"{format_number(plan.num_epochs, 'epoch')} in all {was} asked for",
            next_step="Use as many --epochs or more, or another --output",
        )


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
