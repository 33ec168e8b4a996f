"""Beam's own runner, Flink, and engines behind a job service of Beam. Nothing of Beam is imported."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from beam_pipelines.engines.beam_engine import BeamEngine
from beam_pipelines.engines.settings import (
    SHARED,
    STALL,
    EngineOptions,
    EngineSpec,
    Facts,
    Setting,
    flag_name,
    no_value,
)
from shardkit.errors import UsageError

FLINK_JAR = "SHARDKIT_FLINK_JOB_SERVER_JAR"


def _workers(facts: Facts) -> str:
    return str(facts.num_workers)


def environment_settings(default: str, reason: str) -> tuple[Setting, ...]:
    return (
        Setting(
            "environment-type",
            "how workers run Python: LOOPBACK (in this process), EXTERNAL (a worker pool), DOCKER or PROCESS",
            "environment_type",
            lambda facts: default,
            default,
            reason,
            choices=("LOOPBACK", "EXTERNAL", "DOCKER", "PROCESS"),
        ),
        Setting(
            "environment-config",
            "for EXTERNAL the address of the worker pool, for DOCKER the image, for PROCESS its JSON",
            "environment_config",
            no_value,
        ),
    )


def needs_nothing(options: EngineOptions, facts: Facts) -> UsageError | None:
    return None


def _needs_jar(options: EngineOptions, facts: Facts) -> UsageError | None:
    if any(flag_name(typed) in ("flink_job_server_jar", "job_endpoint") for typed in options.flags):
        return None
    path = dict(options.values).get("jar") or facts.environment.get(FLINK_JAR)
    if path and Path(path).is_file():
        if zipfile.is_zipfile(path):
            return None
        return UsageError(
            f"{path} is no job server for Flink",
            why="it is no jar file",
            next_step="Name it with --engine-option jar=FILE",
        )
    return UsageError(
        "there is no job server for Flink" + (f" at {path}" if path else ""),
        why="it is no part of Beam's Python package, and shardkit downloads nothing without being asked",
        next_step=f"Name the file with --engine-option jar=FILE, or in {FLINK_JAR}",
    )


class OneProcess(BeamEngine):
    """Beam's own runner, which runs the pipeline in this process."""

    spec = EngineSpec(
        runner="apache_beam.runners.portability.fn_api_runner.FnApiRunner",
        title="Beam's own runner for one process",
        text=("It runs the pipeline of the engines below in this process, one step after the other.",),
        settings=(STALL,),
        needs=needs_nothing,
        examples=("shardkit convert 'raw/*.csv' out/flights --runner beam",),
    )  # fmt: skip

    def why_no_workers(self) -> str | None:
        return "it does one piece of work after the other"


class Flink(BeamEngine):
    """Apache Flink."""

    spec = EngineSpec(
        runner="FlinkRunner",
        title="Apache Flink, through Beam's job server",
        text=(
            "Beam's job server for Flink, a jar file, is started here and hands the job to the cluster. It needs Java.",
            SHARED,
        ),
        settings=(
            Setting("master", "address of the cluster, such as 10.0.0.5:8081", "flink_master", lambda f: "[local]",
                    "[local]", "a small Flink inside of the job server, for a first try"),
            Setting("jar", "Beam's job server for Flink", "flink_job_server_jar",
                    lambda f: f.environment.get(FLINK_JAR), f"${FLINK_JAR}"),
            Setting("parallelism", "subtasks at the same time", "parallelism", _workers, "--workers",
                    "Flink's own default is one"),
            Setting("jvm", "an option of the job server's Java", "job_server_jvm_properties", lambda f: "-Xmx2g",
                    "-Xmx2g", "descriptions of a few bytes need no more; Java would take a quarter of the memory"),
            *environment_settings("LOOPBACK", "workers in this process need no installation; on a cluster: EXTERNAL"),
            STALL,
        ),
        needs=_needs_jar,
        examples=(
            "shardkit convert 'raw/*.csv' out/flights --runner flink --engine-option "
            "jar=beam-runners-flink-1.20-job-server.jar -- --flink_version=1.20",
        ),
    )  # fmt: skip

    def starts_workers_here(self, parsed: Mapping[str, Any]) -> bool:
        """Returns whether a Flink inside of the job server runs the job."""
        return str(parsed.get("flink_master")) in ("[local]", "[auto]")


class Portable(BeamEngine):
    """Any job service of Beam."""

    spec = EngineSpec(
        runner="PortableRunner",
        title="any job service of Beam, with its own workers or a pool of external ones",
        text=(
            "A pool is started where workers are to run, in an environment that has the same shardkit[beam] and needs "
            "no TensorFlow: python -m apache_beam.runners.worker.worker_pool_main --service_port 50000",
            SHARED,
        ),
        settings=(
            Setting("endpoint", "address of the job service; embed starts one in this process", "job_endpoint",
                    lambda f: "embed", "embed", "it needs nothing but Beam's Python package"),
            *environment_settings("LOOPBACK", "workers in this process need no installation"),
            STALL,
        ),
        needs=needs_nothing,
        examples=(
            "shardkit convert 'raw/*.csv' out/flights --runner portable --engine-option environment-type=EXTERNAL "
            "--engine-option environment-config=127.0.0.1:50000",
        ),
    )  # fmt: skip

    def why_no_workers(self) -> str | None:
        return "the job service, or the pool of workers, says what is done at the same time"
