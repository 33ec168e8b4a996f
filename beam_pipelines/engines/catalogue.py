"""The engines that can run a conversion, and their default settings. Pure data: nothing of Beam is imported."""

from __future__ import annotations

import importlib.util
import os
import zipfile
from pathlib import Path

from beam_pipelines.engines.dataflow.settings import DATAFLOW
from beam_pipelines.engines.settings import Engine, EngineOptions, Facts, Needs, Setting, flag_name
from shardkit.errors import UsageError, missing_extra

FLINK_JAR, SPARK_JAR, PRISM = (
    "SHARDKIT_FLINK_JOB_SERVER_JAR", "SHARDKIT_SPARK_JOB_SERVER_JAR", "SHARDKIT_PRISM",
)  # fmt: skip
STALL_MINUTES = "10"
# Partitions a worker: enough that an uneven one leaves no worker idle, few enough that dealing them out costs little.
_PARTITIONS_A_WORKER = 8
_MAX_PARTITIONS = 256


def _nothing(facts: Facts) -> str | None:
    return None


def _workers(facts: Facts) -> str:
    return str(facts.num_workers)


def _partitions(facts: Facts) -> str:
    return str(max(1, min(facts.num_input_splits, _PARTITIONS_A_WORKER * facts.num_workers, _MAX_PARTITIONS)))


_STALL = Setting(
    "stall-minutes",
    "give up when no worker has done anything for so long",
    None,
    lambda facts: STALL_MINUTES,
    STALL_MINUTES,
    "a lost worker would else be waited for without end; the longest step without a sign takes a few minutes",
)
_SHARED = (
    "Workers find the plan, and leave what they read, in the work folder: --work-dir must name a folder that all of "
    "them share. The engine itself carries descriptions of a few bytes only, so its memory and its shuffle do not grow "
    "with the data. Where workers share no disk, --work-dir names a folder in a store, such as s3://bucket/work: then "
    "the records go through the engine's shuffle, in chunks of 1 MiB."
)


def _environment(default: str, reason: str) -> tuple[Setting, ...]:
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
            _nothing,
        ),
    )


def _needs_dask(options: EngineOptions, facts: Facts) -> UsageError | None:
    is_there = importlib.util.find_spec("distributed") is not None
    return None if is_there else missing_extra("dask", "distributed")


def _needs_nothing(options: EngineOptions, facts: Facts) -> UsageError | None:
    return None


def _needs_file(key: str, variable: str, what: str, flags: tuple[str, ...], *, is_jar: bool = True) -> Needs:
    def needs(options: EngineOptions, facts: Facts) -> UsageError | None:
        if any(flag_name(typed) in flags for typed in options.flags):
            return None
        path = dict(options.values).get(key) or facts.environment.get(variable)
        if path and Path(path).is_file():
            if zipfile.is_zipfile(path) or (not is_jar and os.access(path, os.X_OK)):
                return None
            why = "it is no jar file" if is_jar else "it is neither a zip file nor may it be run"
            return UsageError(f"{path} is no {what}", why=why, next_step=f"Name it with --engine-option {key}=FILE")
        return UsageError(
            f"there is no {what}" + (f" at {path}" if path else ""),
            why="it is no part of Beam's Python package, and shardkit downloads nothing without being asked",
            next_step=f"Name the file with --engine-option {key}=FILE, or in {variable}",
        )

    return needs


ENGINES: dict[str, Engine] = {
    "beam": Engine(
        runner="apache_beam.runners.portability.fn_api_runner.FnApiRunner",
        title="Beam's own runner for one process",
        text=("It runs the pipeline of the engines below in this process, one step after the other.",),
        settings=(_STALL,),
        needs=_needs_nothing,
        examples=("shardkit convert 'raw/*.csv' out/flights --runner beam",),
    ),
    "dask": Engine(
        runner="apache_beam.runners.dask.dask_runner.DaskRunner",
        title="a running Dask cluster, or a new one on this machine",
        text=(
            "Without an address, processes are started here, one for each of --workers, and ended with the conversion. "
            "A worker that dies is replaced, and its work is done again.",
            "Under Python 3.11 Dask's profiler locks a worker now and then; it is off in processes that are started "
            "here. Start the workers of another cluster with DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED=False.",
            _SHARED,
        ),
        settings=(
            Setting("address", "of the scheduler of a running cluster, such as tcp://10.0.0.5:8786",
                    "dask_client_address", _nothing, "a new cluster on this machine"),
            Setting("partitions", "into which the parts of the inputs are dealt", "dask_npartitions",
                    _partitions, f"{_PARTITIONS_A_WORKER} a worker, {_MAX_PARTITIONS} at most",
                    "Beam's own default puts up to 128 parts into one, and one worker would do everything"),
            _STALL,
        ),
        needs=_needs_dask,
        extra="dask",
        examples=(
            "shardkit convert 'raw/*.csv' out/flights --runner dask --workers 4",
            "shardkit convert 'raw/*.csv' /mnt/shared/flights --runner dask --engine-option "
            "address=tcp://10.0.0.5:8786",
        ),
    ),
    "flink": Engine(
        runner="FlinkRunner",
        title="Apache Flink, through Beam's job server",
        text=(
            "Beam's job server for Flink, a jar file, is started here and hands the job to the cluster. It needs Java.",
            _SHARED,
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
            *_environment("LOOPBACK", "workers in this process need no installation; use EXTERNAL on a cluster"),
            _STALL,
        ),
        needs=_needs_file("jar", FLINK_JAR, "job server for Flink", ("flink_job_server_jar", "job_endpoint")),
        examples=(
            "shardkit convert 'raw/*.csv' out/flights --runner flink --engine-option "
            "jar=beam-runners-flink-1.20-job-server.jar -- --flink_version=1.20",
        ),
    ),
    "spark": Engine(
        runner="SparkRunner",
        title="Apache Spark 3, through Beam's job server",
        text=(
            "Beam's job server for Spark, a jar file, is started here and hands the job to the cluster. It needs Java.",
            _SHARED,
        ),
        settings=(
            Setting("master", "address of the cluster, such as spark://10.0.0.5:7077", "spark_master_url",
                    lambda f: f"local[{f.num_workers}]", "local[--workers]",
                    "a small Spark inside of the job server, for a first try"),
            Setting("jar", "Beam's job server for Spark 3", "spark_job_server_jar",
                    lambda f: f.environment.get(SPARK_JAR), f"${SPARK_JAR}"),
            Setting("jvm", "an option of the job server's Java", "job_server_jvm_properties", lambda f: "-Xmx2g",
                    "-Xmx2g", "descriptions of a few bytes need no more; Java would take a quarter of the memory"),
            *_environment("LOOPBACK", "workers in this process need no installation; use EXTERNAL on a cluster"),
            _STALL,
        ),
        needs=_needs_file("jar", SPARK_JAR, "job server for Spark", ("spark_job_server_jar", "job_endpoint")),
        examples=(
            "shardkit convert 'raw/*.csv' out/flights --runner spark --engine-option "
            "jar=beam-runners-spark-3-job-server.jar --engine-option master=spark://10.0.0.5:7077",
        ),
    ),
    "prism": Engine(
        runner="PrismRunner",
        title="Prism, Beam's own runner for one machine, written in Go",
        text=("Beam would download it; here its program has to be named.", _SHARED),
        settings=(
            Setting("program", "Prism itself, or the zip file that it comes in", "prism_location",
                    lambda f: f.environment.get(PRISM), f"${PRISM}"),
            *_environment("LOOPBACK", "workers in this process need no installation"),
            _STALL,
        ),
        needs=_needs_file("program", PRISM, "program of Prism", ("prism_location",), is_jar=False),
        examples=("shardkit convert 'raw/*.csv' out/flights --runner prism --engine-option program=/opt/prism",),
    ),
    "portable": Engine(
        runner="PortableRunner",
        title="any job service of Beam, with its own workers or a pool of external ones",
        text=(
            "A pool is started where workers are to run, in an environment that has the same shardkit[beam] and needs "
            "no TensorFlow: python -m apache_beam.runners.worker.worker_pool_main --service_port 50000",
            _SHARED,
        ),
        settings=(
            Setting("endpoint", "address of the job service; embed starts one in this process", "job_endpoint",
                    lambda f: "embed", "embed", "it needs nothing but Beam's Python package"),
            *_environment("LOOPBACK", "workers in this process need no installation"),
            _STALL,
        ),
        needs=_needs_nothing,
        examples=(
            "shardkit convert 'raw/*.csv' out/flights --runner portable --engine-option environment-type=EXTERNAL "
            "--engine-option environment-config=127.0.0.1:50000",
        ),
    ),
    "dataflow": DATAFLOW,
}  # fmt: skip
