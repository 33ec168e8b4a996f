"""A conversion on Dataflow: handed over, watched until it ends, and ended with a sentence."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from beam_pipelines.engines.dataflow.job import ENDED, NOTHING, RUNNING, UNKNOWN, DataflowJob, Look, Watch, explain_end
from beam_pipelines.engines.dataflow.submit import plan_job, submit
from beam_pipelines.engines.settings import EngineOptions, number_of
from beam_pipelines.quiet import quiet_beam, temporary_files_in
from shardkit.conversion.commit.commit import own_commit
from shardkit.conversion.exchange import fetch
from shardkit.conversion.failures import FAILURE_FILES, read_failure
from shardkit.conversion.plan import Plan, load_plan
from shardkit.conversion.progress import Totals
from shardkit.errors import ShardkitError, StorageError

_TICK_S = 0.25
CANCEL_S = 60.0
_CANCEL_POLL_S = 1.0


class DataflowRun:
    """One conversion on Dataflow, a `RemoteRun`; the job is there as soon as it was handed over."""

    service = "Dataflow"
    jobs_url = "https://console.cloud.google.com/dataflow/jobs"
    cancel_s = CANCEL_S

    def __init__(self, options: EngineOptions, on_job: Callable[[DataflowJob], None]) -> None:
        self._options = options
        self._on_job = on_job
        self._watch: Watch | None = None
        self._folder: str | None = None
        self.job: DataflowJob | None = None
        self.is_submitting = False
        self.is_cancel_taken = False

    def run(self, plan_path: str) -> None:
        """Runs a stored plan, and returns when the dataset is committed.

        Args:
            plan_path: Of the plan, where all workers can read it.

        Raises:
            ShardkitError: What a worker reported, or what became of the job.
        """
        plan = load_plan(plan_path)
        chosen, flags = plan_job(self._options, plan)
        with quiet_beam():
            self.job = self._hand_over(flags, plan_path)
            self._on_job(self.job)
            self._watch = watch = Watch(self.job.look, number_of(chosen, "poll-seconds"))
            lost_s, stall_s = (60 * number_of(chosen, f"{name}-minutes") for name in ("lost", "stall"))
            try:
                _wait(watch, self.job, plan, lost_s, stall_s)
            finally:
                watch.stop()
        if own_commit(plan) is None:
            raise StorageError(
                "the job is done, and there is no dataset",
                where=self.job.url,
                state=NOTHING,
                next_step="Look at its log there",
            )

    def clean_up(self) -> None:
        """Removes the files that Beam made to hand the job over."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def progress(self) -> tuple[Totals, int | None]:
        """Returns the workers' counts at the last look, and the bytes of all shards, None before they are known."""
        latest = self._watch.latest if self._watch is not None else None
        return (latest.totals, latest.num_planned_bytes) if latest is not None else (Totals(), None)

    def cancel(self) -> str:
        """Cancels the job, and returns its state as soon as it has ended, or after `CANCEL_S`.

        Raises:
            Exception: If Dataflow does not answer for so long.
        """
        assert self.job is not None
        return _cancel(self.job, self._take_note)

    def after_cancel(self, plan: Plan, state: str | None) -> str:
        """Returns a sentence on the job and what it committed, given the state that `cancel` returned, if it did."""
        assert self.job is not None
        name = f"the job {self.job.id}"
        if state is None:
            return f"{name} could not be cancelled, Dataflow does not answer; look at it at {self.job.url}"
        if state not in ENDED:
            return f"{name} was asked to end and has not yet ({state}); look at it at {self.job.url}"
        how = "was cancelled" if state == "JOB_STATE_CANCELLED" else f"had ended before ({state})"
        found = state_of(plan)
        again = "; run the same command again to go on where it stopped" if found == NOTHING else ""
        return f"{name} {how}. {found}{again}"

    def _take_note(self) -> None:
        self.is_cancel_taken = True

    def _hand_over(self, flags: Sequence[str], plan_path: str) -> DataflowJob:
        self._folder = tempfile.mkdtemp(prefix="shardkit-")
        try:
            self.is_submitting = True
            with temporary_files_in(Path(self._folder)):
                return submit(flags, plan_path)
        except BaseException:
            self.is_submitting = False
            raise
        finally:
            self.clean_up()


def state_of(plan: Plan) -> str:
    """Returns a sentence on what a job of this plan, which has ended, committed."""
    try:
        committed = own_commit(plan)
    except ShardkitError:
        return "Whether it was committed is not known"
    return NOTHING if committed is None else f"It was committed all the same, as version {committed.version}"


def _cancel(job: DataflowJob, on_taken: Callable[[], None] = lambda: None) -> str:
    deadline = time.monotonic() + CANCEL_S
    is_asked = False
    while True:
        try:
            if not is_asked:
                job.cancel()
                on_taken()
            is_asked = True
            if (state := job.state()) in ENDED or time.monotonic() > deadline:
                return state
        except Exception:
            if time.monotonic() > deadline:
                raise
        time.sleep(_CANCEL_POLL_S)


def _wait(watch: Watch, job: DataflowJob, plan: Plan, lost_s: float, stall_s: float) -> None:
    moved: tuple[Look | None, float] = (None, time.monotonic())
    while True:
        is_new = watch.seen.wait(_TICK_S)
        watch.seen.clear()
        latest = watch.latest
        if watch.silent_s() > lost_s:
            raise StorageError(
                "Dataflow does not answer any more",
                where=job.url,
                why=watch.why or "the connection stands, and no answer comes",
                state="The job goes on without this command",
                next_step="Look at it there; it commits the dataset by itself",
            )
        if latest is None or not is_new:
            continue
        if latest.state == "JOB_STATE_DONE":
            return
        if latest.state in ENDED:
            _raise_reported(plan)
            raise explain_end(latest.state, job.errors(), job.url, state_of(plan))
        _cancel_what_cannot_end_well(job, plan)
        if moved[0] != latest or latest.state not in (RUNNING, UNKNOWN):
            moved = (latest, time.monotonic())
        elif latest.state == UNKNOWN and time.monotonic() - moved[1] > lost_s:
            raise StorageError(
                "Dataflow does not know what becomes of the job",
                where=job.url,
                why=f"its state has been unknown for {lost_s / 60:.3g} minutes",
                state="The job may go on without this command",
                next_step="Look at it there; if it runs, it commits the dataset by itself",
            )
        elif latest.state == RUNNING and time.monotonic() - moved[1] > stall_s:
            with suppress(Exception):
                _cancel(job)
            raise StorageError(
                "the job stood still and was cancelled",
                where=job.url,
                why=f"its workers counted nothing for {stall_s / 60:.3g} minutes",
                state=state_of(plan),
                next_step="Look at its log there, then run the same command again; --engine-option stall-minutes=N "
                "waits longer",
            )


def _cancel_what_cannot_end_well(job: DataflowJob, plan: Plan) -> None:
    # Dataflow tries failed work four times, and more workers are paid for meanwhile.
    try:
        _raise_reported(plan)
    except StorageError:
        return
    except ShardkitError:
        with suppress(Exception):
            job.cancel()
        raise


def _raise_reported(plan: Plan) -> None:
    with suppress(ShardkitError):
        fetch(plan, FAILURE_FILES)
    failure = read_failure(plan)
    if failure is not None and failure.error is not None:
        error = ShardkitError.from_dict(failure.error)
        error.state = error.state or state_of(plan)
        raise error
