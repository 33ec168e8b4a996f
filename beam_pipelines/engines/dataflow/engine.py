"""The engine Google Cloud Dataflow. Nothing of Beam is imported before it is needed."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from beam_pipelines.engines.beam_engine import BeamEngine
from beam_pipelines.engines.dataflow.settings import (
    DATAFLOW,
    check_packages,
    checked_settings,
    has_client,
    work_root_url,
)
from beam_pipelines.engines.engine import Start
from beam_pipelines.engines.settings import Chosen, Facts
from shardkit.conversion.plan import Plan
from shardkit.conversion.request import ConvertRequest
from shardkit.errors import UsageError, missing_extra
from shardkit.storage.files import redact
from shardkit.storage.options import VARIABLE

_REACHED = ("gs", "gcs", "s3", "az", "abfs", "abfss", "hdfs", "hf")


class Dataflow(BeamEngine):
    """Jobs on Google Cloud Dataflow, which go on without the command."""

    spec = DATAFLOW

    def find_obstacle(self) -> UsageError | None:
        """Returns an error where Google's client is absent; options are checked when a request is prepared."""
        return None if has_client() else missing_extra("dataflow", "google-cloud-dataflow-client")

    def prepare(self, request: ConvertRequest, num_workers: int | None) -> ConvertRequest:
        """Checks options and places, and returns the request with the place of the work folder.

        Raises:
            UsageError: If an option is missing, or something lies where workers cannot read it.
        """
        checked_settings(self.options, Facts(0, 0, os.environ))
        _check_reach(request)
        if num_workers is not None:
            raise UsageError(
                "--workers means nothing on Dataflow",
                why="it starts as many workers as there is work for",
                next_step="Give --engine-option max-workers=N as a cap",
            )
        if os.environ.get(VARIABLE):
            raise UsageError(
                "--storage-options do not reach the workers of Dataflow",
                why="they act as a service account, in a network of the project",
                next_step="Leave it out; --engine-option service-account=NAME says as whom they read and write",
            )
        check_packages(self.options)
        # Workers read the plan from there.
        url = work_root_url(dict(self.options.values)["temp-location"])
        return msgspec.structs.replace(request, work_dir=request.work_dir or url)

    def check(self) -> tuple[str, ...]:
        """Checks the typed flags of Beam; the rest was checked when the request was prepared."""
        self.require()
        return self.check_flags()

    def settings_and_flags(self, plan: Plan, num_workers: int) -> tuple[tuple[Chosen, ...], list[str]]:
        from beam_pipelines.engines.dataflow.submit import plan_job

        return plan_job(self.options, plan)

    def start(self, plan: Plan, num_workers: int, say: Callable[[str], None]) -> Start:
        """Returns how a plan is run, unless a job runs it already."""
        from beam_pipelines.engines.dataflow.run import DataflowRun
        from beam_pipelines.engines.dataflow.submit import refuse_running

        refuse_running(self.options, plan)
        run = DataflowRun(self.options, lambda job: say(f"Dataflow runs it as job {job.id}: {job.url}"))
        return Start(lambda plan_path, on_lost_worker: run.run(plan_path), lambda: None, run.progress, run)


def _check_reach(request: ConvertRequest) -> None:
    labels = request.source.labels
    read = [
        ("the input", request.inputs),
        ("the destination", (request.destination,)),
        ("the file of --labels", () if labels is None else (labels,)),
        ("the --work-dir", () if request.work_dir is None else (request.work_dir,)),
    ]
    for what, paths in read:
        for path in paths:
            if path.partition("://")[0].lower() not in _REACHED:
                raise UsageError(
                    f"{what} {redact(path)!r} is out of the reach of Dataflow's workers",
                    why="they see no file of this machine, and no server of its network",
                    next_step="Put it into a store and give its URL, such as gs://bucket/folder",
                )
