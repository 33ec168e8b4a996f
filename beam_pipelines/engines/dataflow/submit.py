"""Hands a job over to Dataflow: its options, the check of the rights, and the error where it is refused."""

from __future__ import annotations

import os
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
from apache_beam.runners.dataflow.dataflow_runner import DataflowPipelineResult, DataflowRunner
from apache_beam.runners.dataflow.internal.apiclient import DataflowApplicationClient
from google.cloud import dataflow

from beam_pipelines.convert import convert_pipeline
from beam_pipelines.engines.beam_options import parsed_options, refused_by_beam
from beam_pipelines.engines.dataflow.job import NOTHING, DataflowJob, first_line, job_url
from beam_pipelines.engines.dataflow.settings import DATAFLOW, checked_settings, default_labels, parse_labels
from beam_pipelines.engines.settings import Chosen, EngineOptions, Facts, beam_flags, flag_name, value_of
from beam_pipelines.quiet import quiet_beam
from shardkit.conversion.plan import Plan
from shardkit.errors import ConflictError, ShardkitError, StorageError, UsageError


def plan_job(options: EngineOptions, plan: Plan) -> tuple[tuple[Chosen, ...], list[str]]:
    """Returns every setting with its value, and the flags of Beam that the job is made with.

    Raises:
        UsageError: If an option is missing, or has a value that cannot be.
    """
    facts = Facts(0, len(plan.input_splits), os.environ, plan.destination, plan.fingerprint)
    chosen = tuple(
        c._replace(value=_with_defaults(c.value, plan.destination)) if c.setting.key == "labels" else c
        for c in checked_settings(options, facts)
    )
    return chosen, beam_flags(DATAFLOW, chosen, options.flags)


def refuse_running(options: EngineOptions, plan: Plan) -> None:
    """Checks that no job runs the same conversion: its plan would be tidied away under it.

    Raises:
        ConflictError: If one does.
        UsageError, StorageError: If Dataflow cannot be asked.
    """
    chosen, flags = plan_job(options, plan)
    name = value_of(chosen, "job-name")
    with quiet_beam():
        found = parsed_options(flags)
        place = found.view_as(GoogleCloudOptions)
        _check_credentials(flags)
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


def submit(flags: Sequence[str], plan_path: str) -> DataflowJob:
    """Hands a job over.

    Args:
        plan_path: Of the plan, where all workers can read it.

    Raises:
        UsageError, ConflictError, StorageError: If it is not taken.
    """
    runner, result = _run(options := parsed_options(flags), plan_path)
    place = options.view_as(GoogleCloudOptions)
    return DataflowJob(runner.dataflow_client, str(result.job_id()), str(place.project), str(place.region))


def write_job(flags: Sequence[str], plan_path: str) -> None:
    """Writes a job where the flag `--template_location` says, and hands nothing over.

    Raises:
        UsageError, StorageError: If it cannot be made.
    """
    with quiet_beam():
        _run(parsed_options(flags), plan_path)


def _run(options: PipelineOptions, plan_path: str) -> tuple[DataflowRunner, DataflowPipelineResult]:
    runner = DataflowRunner()
    try:
        pipeline = beam.Pipeline(runner=runner, options=options)
        convert_pipeline(pipeline, plan_path)
    except ValueError as error:
        raise refused_by_beam(" ".join(str(error).split())) from error
    try:
        return runner, pipeline.run()
    except ShardkitError:
        raise
    except Exception as error:
        raise _explain_refusal(error) from error


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


def _with_defaults(value: str | None, destination: str) -> str:
    labels = {**default_labels(destination), **parse_labels(value or "")}
    return ",".join(f"{key}={text}" for key, text in labels.items())
