"""The engine Spark, by PySpark: a Spark in a process of Java below this one, or a cluster."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from beam_pipelines.engines.native import NativeEngine, Session, Work
from beam_pipelines.engines.settings import SHARED, STALL, Chosen, EngineOptions, EngineSpec, Facts, Setting, value_of
from shardkit.clusters.addresses import CONVERSION
from shardkit.clusters.spark import PACKAGES, SUBMITTED, base_settings, check_master, find_obstacle, new_context
from shardkit.conversion.shards.chunks import UnitKey
from shardkit.conversion.steps import Step, call_step
from shardkit.errors import UsageError

_CONF = "conf."
_TRIES = 4


def _master(facts: Facts) -> str | None:
    return None if SUBMITTED in facts.environment else f"local[{facts.num_workers},{_TRIES}]"


def _python(facts: Facts) -> str:
    return facts.environment.get("PYSPARK_PYTHON", sys.executable)


def _needs(options: EngineOptions, facts: Facts) -> UsageError | None:
    return find_obstacle(dict(options.values).get("master"), facts.environment, CONVERSION)


class Spark(NativeEngine):
    """Apache Spark 3.5 or 4."""

    packages = PACKAGES
    cluster = "master"
    lost = r"(Python worker exited unexpectedly|ExecutorLostFailure)[^\n]*"
    spec = EngineSpec(
        title="Apache Spark 3.5 or 4, by PySpark: on this machine, or a cluster",
        text=(
            "Without an address, Spark runs on this machine with --workers tasks at the same time, and ends with the "
            "conversion. It needs Java 17. On a cluster PySpark must have the version of the cluster's Spark, and "
            "shardkit must be installed where tasks run. A task whose process dies is done again by Spark, four times "
            "at most.",
            "--engine-option conf.spark.NAME=VALUE gives Spark its own settings, as its spark-defaults.conf does. "
            "With spark-submit, which takes its own --master, the program to submit is what "
            "python -c 'import shardkit.__main__ as m; print(m.__file__)' shows. Spark Connect takes no functions of "
            "files, and is refused.",
            SHARED,
        ),
        settings=(
            Setting("master", "address of the cluster, such as spark://10.0.0.5:7077, yarn or k8s://https://HOST:443",
                    None, _master, "this machine", "with spark-submit its own --master holds"),
            Setting("python", "Python where tasks run; it needs the minor version of this one", None, _python,
                    "$PYSPARK_PYTHON or this one"),
            STALL,
        ),
        needs=_needs,
        extra="spark",
        passed_on=f"{_CONF}spark.",
        examples=(
            "shardkit convert 'raw/*.csv' out/flights --runner spark --workers 4",
            "shardkit convert 'raw/*.csv' /mnt/shared/flights --runner spark --engine-option "
            "master=spark://10.0.0.5:7077 --engine-option conf.spark.executor.memory=2g",
        ),
    )  # fmt: skip

    def why_no_workers(self) -> str | None:
        """Returns that spark-submit says it, or a named cluster."""
        return "spark-submit says what does the work" if SUBMITTED in os.environ else super().why_no_workers()

    def check_address(self, chosen: Sequence[Chosen]) -> None:
        """Checks that the master of a cluster answers."""
        check_master(value_of(chosen, "master"), CONVERSION)

    @contextmanager
    def session(self, work: Work) -> Iterator[Session]:
        os.environ["PYSPARK_PYTHON"] = str(value_of(work.chosen, "python"))
        context = new_context(_settings(work), work.plan.work_path("tmp"), CONVERSION)
        call = partial(partial, _call_step, work.plan_path)

        def each(step: Step, items: Sequence[Any]) -> list[Any]:
            return context.parallelize(items, len(items)).map(call(step)).collect() if items else []

        def shuffled(cut: Step, write: Step, items: Sequence[Any], keys: Sequence[UnitKey]) -> list[Any]:
            number_of_key = {key: number for number, key in enumerate(keys)}
            pairs = context.parallelize(items, len(items)).flatMap(call(cut))
            # A partition has one key: its records go from Spark's files to a file of the step, and are never held.
            parts = pairs.partitionBy(len(keys), number_of_key.__getitem__)
            return parts.mapPartitions(partial(_write_partition, call(write))).collect()

        try:
            yield Session(each, shuffled, context.stop)
        finally:
            with suppress(Exception):
                context.stop()


def _call_step(plan_path: str, step: Step, item: Any) -> Any:
    # Spark kills its workers, which then remove nothing. It removes its own folders, when the job ends.
    tempfile.tempdir = (os.environ.get("LOCAL_DIRS") or os.environ.get("SPARK_LOCAL_DIRS") or "").partition(",")[
        0
    ] or None
    return call_step(plan_path, step, item)


def _write_partition(write: Any, pairs: Iterable[tuple[UnitKey, bytes]]) -> Iterator[Any]:
    rest = iter(pairs)
    for key, first in rest:
        yield write((key, _values(first, rest)))


def _values(first: bytes, rest: Iterator[tuple[UnitKey, bytes]]) -> Iterator[bytes]:
    yield first
    yield from (value for _, value in rest)


def _settings(work: Work) -> dict[str, str]:
    typed = {c.setting.key.removeprefix(_CONF): str(c.value) for c in work.chosen if c.setting.key.startswith(_CONF)}
    return base_settings(value_of(work.chosen, "master"), str(work.plan.work_path("tmp"))) | typed
