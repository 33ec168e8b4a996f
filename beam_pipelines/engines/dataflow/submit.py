"""Hands a job over to Dataflow: its options, the check of the rights, and the error where it is refused."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import apache_beam as beam
from apache_beam.options.pipeline_options import GoogleCloudOptions
from apache_beam.runners.dataflow.dataflow_runner import DataflowRunner
from apache_beam.runners.dataflow.internal.apiclient import DataflowApplicationClient
from google.cloud import dataflow

from beam_pipelines.convert import convert_pipeline
from beam_pipelines.engines.beam_options import parsed_options, refused_by_beam
from beam_pipelines.engines.dataflow.job import NOTHING, DataflowJob, first_line, job_url
from beam_pipelines.engines.dataflow.packaging import Packaging, extras_for, packaging_of, packaging_rows, requirements
from beam_pipelines.engines.dataflow.settings import DATAFLOW, checked_settings, default_labels, parse_labels
from beam_pipelines.engines.dataflow.wheel import declared_requirements, look_at_launcher, pinned_versions
from beam_pipelines.engines.settings import Chosen, EngineOptions, Facts, beam_flags, flag_name, value_of
from beam_pipelines.quiet import quiet_beam
from shardkit.conversion.plan import Plan
from shardkit.errors import ConflictError, ShardkitError, StorageError, UsageError


class JobRequest(NamedTuple):
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


def plan_request(options: EngineOptions, plan: Plan) -> JobRequest:
    """Returns the request for a job.

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
    return JobRequest(rows, packaging, lines, beam_flags(DATAFLOW, chosen, options.flags))


def refuse_running(options: EngineOptions, plan: Plan) -> None:
    """Checks that no job runs the same conversion: its plan would be tidied away under it.

    Raises:
        ConflictError: If one does.
        UsageError, StorageError: If Dataflow cannot be asked.
    """
    request = plan_request(options, plan)
    name = value_of(request.chosen, "job-name")
    with quiet_beam():
        found = parsed_options(request.flags)
        place = found.view_as(GoogleCloudOptions)
        _check_credentials(request.flags)
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
        flags: Of Beam, with those of the packages.
        plan_path: Of the plan, where all workers can read it.

    Raises:
        UsageError, ConflictError, StorageError: If it is not taken.
    """
    runner = DataflowRunner()
    options = parsed_options(flags)
    try:
        pipeline = beam.Pipeline(runner=runner, options=options)
        convert_pipeline(pipeline, plan_path)
    except ValueError as error:
        raise refused_by_beam(" ".join(str(error).split())) from error
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


def _with_defaults(value: str | None, destination: str) -> str:
    labels = {**default_labels(destination), **parse_labels(value or "")}
    return ",".join(f"{key}={text}" for key, text in labels.items())
