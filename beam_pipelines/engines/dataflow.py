"""A conversion on Dataflow: handed over with all that its workers install, and watched until it ends."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import NamedTuple

import apache_beam as beam
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
from apache_beam.runners.dataflow.dataflow_runner import DataflowRunner
from apache_beam.runners.dataflow.internal.apiclient import DataflowApplicationClient
from google.cloud import dataflow

from beam_pipelines.convert import convert_pipeline
from beam_pipelines.engines.dataflow_job import (
    ENDED,
    RUNNING,
    DataflowJob,
    Look,
    Watch,
    explain_end,
    first_line,
    job_url,
)
from beam_pipelines.engines.dataflow_packaging import (
    Packaging,
    extras_for,
    packaging_of,
    packaging_rows,
    requirements,
)
from beam_pipelines.engines.dataflow_settings import DATAFLOW, checked_settings, default_labels, parse_labels
from beam_pipelines.engines.dataflow_wheel import (
    declared_requirements,
    look_at_launcher,
    pinned_versions,
    stage_packages,
)
from beam_pipelines.engines.settings import (
    Chosen,
    EngineOptions,
    Facts,
    beam_flags,
    flag_name,
    number_of,
    value_of,
)
from beam_pipelines.failures import read_failure
from beam_pipelines.local import quiet_beam, temporary_files_in
from shardkit.conversion.plan import Plan, load_plan
from shardkit.conversion.progress import Totals
from shardkit.dataset import list_versions, open_dataset
from shardkit.errors import ConflictError, DamageError, ShardkitError, StorageError, UsageError

NOTHING = "Nothing was committed"
_TICK_S = 0.25
CANCEL_S = 60.0
_CANCEL_POLL_S = 1.0


class Handover(NamedTuple):
    """All that a job is made with.

    Attributes:
        chosen: Settings, with how workers get shardkit.
        packaging: How they get it.
        lines: What they install beside it.
        flags: Of Beam, but for the packages, which are made when the job is.
    """

    chosen: tuple[Chosen, ...]
    packaging: Packaging
    lines: tuple[str, ...]
    flags: list[str]


def plan_handover(options: EngineOptions, plan: Plan) -> Handover:
    """Returns what a job will be made with.

    Raises:
        UsageError: If something is missing, or workers could not get shardkit.
    """
    facts = Facts(0, len(plan.input_splits), os.environ, plan.destination, plan.fingerprint)
    chosen = tuple(
        c._replace(value=_with_defaults(c.value, plan.destination)) if c.setting.key == "labels" else c
        for c in checked_settings(options, facts)
    )
    packaging = packaging_of(chosen, look_at_launcher())
    extras = extras_for((plan.destination, *(f.path for f in plan.files)), plan.recipe)
    lines = requirements(packaging, extras, declared_requirements(packaging), pinned_versions())
    rows = (*packaging_rows(packaging, lines), *(c for c in chosen if c.setting.key != "package"))
    return Handover(rows, packaging, lines, beam_flags(DATAFLOW, chosen, options.flags))


class DataflowRun:
    """One conversion on Dataflow; the job is there as soon as it was handed over.

    Args:
        options: What the engine is told.
        on_job: Called when the job is there.
    """

    def __init__(self, options: EngineOptions, on_job: Callable[[DataflowJob], None]) -> None:
        self._options = options
        self._on_job = on_job
        self._watch: Watch | None = None
        self._folder: str | None = None
        self.job: DataflowJob | None = None
        self.is_submitting = False

    def run(self, plan_path: str) -> None:
        """Runs a stored plan, and returns when the dataset is committed.

        Args:
            plan_path: Of the plan, where all workers can read it.

        Raises:
            ShardkitError: What a worker reported, or what became of the job.
        """
        plan = load_plan(plan_path)
        handover = plan_handover(self._options, plan)
        with quiet_beam():
            self.job = self._hand_over(handover, plan_path)
            self._on_job(self.job)
            self._watch = watch = Watch(self.job.look, number_of(handover.chosen, "poll-seconds"))
            lost_s, stall_s = (60 * number_of(handover.chosen, f"{name}-minutes") for name in ("lost", "stall"))
            try:
                _wait(watch, self.job, plan, lost_s, stall_s)
            finally:
                watch.stop()
        if committed_version(plan) is None:
            raise StorageError(
                "the job is done, and there is no dataset",
                where=self.job.url,
                state=NOTHING,
                next_step="Look at its log there",
            )

    def clean_up(self) -> None:
        """Removes what was made to be handed over."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def progress(self) -> tuple[Totals, int | None]:
        """Returns what the workers counted by the last look, and the bytes of all shards, None before that is known."""
        latest = self._watch.latest if self._watch is not None else None
        return (latest.totals, latest.num_planned_bytes) if latest is not None else (Totals(), None)

    def cancel(self) -> str:
        """Cancels the job, and returns its state as soon as it has ended, or after `CANCEL_S`.

        Raises:
            Exception: If Dataflow does not answer for so long.
        """
        assert self.job is not None
        return _cancel(self.job)

    def _hand_over(self, handover: Handover, plan_path: str) -> DataflowJob:
        self._folder = tempfile.mkdtemp(prefix="shardkit-")
        try:
            packages = stage_packages(handover.packaging, handover.lines, Path(self._folder), self._options.flags)
            self.is_submitting = True
            with temporary_files_in(Path(self._folder)):
                return _submit([*packages, *handover.flags], plan_path)
        finally:
            self.is_submitting = False
            self.clean_up()


def committed_version(plan: Plan) -> int | None:
    """Returns the version that a job of this plan committed, as the store says, None if there is none.

    Raises:
        ShardkitError: If the store does not answer.
    """
    for version in reversed(list_versions(plan.destination)):
        with suppress(DamageError):
            if open_dataset(plan.destination, version).manifest.created.commit_id == plan.created.commit_id:
                return version
    return None


def state_of(plan: Plan) -> str:
    """Returns a sentence on what a job of this plan, which has ended, committed."""
    try:
        version = committed_version(plan)
    except ShardkitError:
        return "Whether it was committed is not known"
    return NOTHING if version is None else f"It was committed all the same, as version {version}"


def _with_defaults(value: str | None, destination: str) -> str:
    labels = {**default_labels(destination), **parse_labels(value or "")}
    return ",".join(f"{key}={text}" for key, text in labels.items())


def refuse_running(options: EngineOptions, plan: Plan) -> None:
    """Checks that no job runs the same conversion: its plan would be tidied away under it.

    Raises:
        ConflictError: If one does.
        UsageError, StorageError: If Dataflow cannot be asked.
    """
    handover = plan_handover(options, plan)
    name = value_of(handover.chosen, "job-name")
    with quiet_beam():
        found = _parsed(handover.flags)
        place = found.view_as(GoogleCloudOptions)
        _check_credentials(handover.flags)
        try:
            jobs = DataflowApplicationClient(found)._jobs_client.list_jobs(
                dataflow.ListJobsRequest(
                    project_id=place.project,
                    location=place.region,
                    filter=dataflow.ListJobsRequest.Filter.ACTIVE,
                )
            )
            active = next((str(job.id) for job in jobs if job.name == name), None)
        except Exception as error:
            raise _explain_refusal(error) from error
    if active is not None:
        raise _running_already(job_url(str(place.project), str(place.region), active), None)


def _parsed(flags: Sequence[str]) -> PipelineOptions:
    said = io.StringIO()
    try:
        # Of options that cannot be parsed, Python's parser tells the standard error and ends the process.
        with redirect_stderr(said):
            options = PipelineOptions(list(flags))
            # They are looked at when they are first asked for.
            options.get_all_options()
    except (ValueError, SystemExit) as error:
        raise _refused_by_beam(said.getvalue() or str(error)) from error
    return options


def _refused_by_beam(words: str) -> UsageError:
    lines = words.strip().splitlines()
    return UsageError(
        "Beam refuses what the job is told",
        why=" ".join(lines[-1].split()) if lines else None,
        state="Nothing was handed over",
        next_step="Correct the option; --dry-run shows all that it is told",
    )


def _submit(flags: Sequence[str], plan_path: str) -> DataflowJob:
    runner = DataflowRunner()
    options = _parsed(flags)
    try:
        pipeline = beam.Pipeline(runner=runner, options=options)
        convert_pipeline(pipeline, plan_path, 0)
    except ValueError as error:
        raise _refused_by_beam(" ".join(str(error).split())) from error
    try:
        result = pipeline.run()
    except ShardkitError:
        raise
    except Exception as error:
        raise _explain_refusal(error) from error
    place = options.view_as(GoogleCloudOptions)
    return DataflowJob(runner.dataflow_client, str(result.job_id()), str(place.project), str(place.region))


def _check_credentials(flags: Sequence[str]) -> None:
    # Beam would look for them for half a minute, and then go on without.
    if "no_auth" in map(flag_name, flags):
        return
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    try:
        google.auth.default()
    except DefaultCredentialsError as error:
        raise UsageError(
            "there are no credentials for Google Cloud",
            why=first_line(error),
            state="Nothing was handed over",
            next_step="Run: gcloud auth application-default login",
        ) from error


def _explain_refusal(error: Exception) -> ShardkitError:
    why, code = first_line(error), getattr(error, "code", None)
    if type(error).__name__ == "DataflowJobAlreadyExistsError" or code == 409:
        return _running_already(None, why)
    if code in (400, 401, 403, 404):
        return UsageError(
            "Dataflow refused the job",
            why=why,
            state="Nothing was handed over",
            next_step="Check --project, --region, --temp-location and what your account may do there",
        )
    return StorageError(
        "the job could not be handed over",
        why=why,
        state=NOTHING,
        next_step="Run the same command again; with --debug it shows everything",
    )


def _running_already(url: str | None, why: str | None) -> ConflictError:
    return ConflictError(
        "the same conversion is running already on Dataflow",
        where=url,
        why=why,
        state="It was not disturbed",
        next_step="Wait for it to end, or cancel it in the console",
    )


def _cancel(job: DataflowJob) -> str:
    deadline = time.monotonic() + CANCEL_S
    is_asked = False
    while True:
        try:
            if not is_asked:
                job.cancel()
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
                why=watch.why,
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
        if moved[0] != latest or latest.state != RUNNING:
            moved = (latest, time.monotonic())
        elif time.monotonic() - moved[1] > stall_s:
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
    # Dataflow tries four times what fails, and more workers are paid for meanwhile.
    try:
        _raise_reported(plan)
    except StorageError:
        return
    except ShardkitError:
        with suppress(Exception):
            job.cancel()
        raise


def _raise_reported(plan: Plan) -> None:
    failure = read_failure(plan)
    if failure is not None and failure.error is not None:
        error = ShardkitError.from_dict(failure.error)
        error.state = error.state or state_of(plan)
        raise error
