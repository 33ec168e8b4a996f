"""The engine Spark, by PySpark: a Spark in a process of Java below this one, or a cluster."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from beam_pipelines.engines.addresses import UNTOUCHED, check_port, refuse_storage_options
from beam_pipelines.engines.native import NativeEngine, Session, Work
from beam_pipelines.engines.settings import SHARED, STALL, Chosen, EngineOptions, EngineSpec, Facts, Setting, value_of
from beam_pipelines.engines.watch import KEPT
from shardkit.conversion.shards.chunks import UnitKey
from shardkit.conversion.steps import Step, call_step
from shardkit.errors import StorageError, UsageError

# Set by spark-submit, which has started a Spark and runs this process below it.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
_CONF = "conf."
_TRIES = 4
_ONE_MASTER = re.compile(r"spark://([^:/,]+):(\d+)")


def _master(facts: Facts) -> str | None:
    return None if _SUBMITTED in facts.environment else f"local[{facts.num_workers},{_TRIES}]"


def _python(facts: Facts) -> str:
    return facts.environment.get("PYSPARK_PYTHON", sys.executable)


def _needs(options: EngineOptions, facts: Facts) -> UsageError | None:
    master = dict(options.values).get("master", "")
    if master.startswith("sc://") or facts.environment.get("SPARK_REMOTE"):
        return UsageError(
            "Spark Connect cannot run a conversion",
            why="it takes queries of tables only, and no functions of files",
            state=UNTOUCHED,
            next_step="Name the cluster itself, like --engine-option master=spark://HOST:7077, and unset SPARK_REMOTE",
        )
    java = Path(facts.environment.get("JAVA_HOME", ""), "bin/java")
    if java.exists() or shutil.which("java") is not None:
        return None
    return UsageError(
        "Spark needs Java, and there is none",
        why="JAVA_HOME names none, and no program java is on the path",
        state=UNTOUCHED,
        next_step="Install Java 17, such as the package openjdk-17-jre-headless",
    )


class Spark(NativeEngine):
    """Apache Spark 3.5 or 4."""

    packages = ("pyspark", "py4j")
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

    def check_address(self, chosen: Sequence[Chosen]) -> None:
        """Checks that the master of a cluster answers."""
        master = value_of(chosen, "master")
        if master is None or master.startswith("local"):
            return
        refuse_storage_options()
        if master.startswith("spark://") and "," not in master:
            if (found := _ONE_MASTER.fullmatch(master)) is None:
                raise UsageError(
                    f"{master!r} is no address of a master of Spark",
                    state=UNTOUCHED,
                    next_step="Write it like --engine-option master=spark://HOST:7077",
                )
            check_port("master of Spark", master, found[1], int(found[2]))

    @contextmanager
    def session(self, work: Work) -> Iterator[Session]:
        """Begins a session with Spark."""
        os.environ["PYSPARK_PYTHON"] = str(value_of(work.chosen, "python"))
        context = _new_context(_settings(work), work.plan.work_path("tmp"))
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
    master, folder = value_of(work.chosen, "master"), str(work.plan.work_path("tmp"))
    settings = {
        "spark.app.name": "shardkit",
        # What a killed process leaves is found by the next run.
        "spark.local.dir": folder,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        # The folder of the user, where anything may lie, is no place of modules.
        "spark.executorEnv.PYTHONSAFEPATH": "1",
    }
    if master is not None:
        settings["spark.master"] = master
        if master.startswith("local"):
            settings |= {
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.host": "127.0.0.1",
                "spark.executorEnv.SPARK_LOCAL_DIRS": folder,
                # Java only hands work out: compiling its own code takes more of the processor than all it does.
                "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            }
    return settings | typed


def _new_context(settings: dict[str, str], folder: Path) -> Any:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        conf.set(key, value)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "spark.log"
    with path.open("wb") as log, warnings.catch_warnings():
        # With a new pandas PySpark warns of its functions of tables, of which none is used.
        warnings.simplefilter("ignore")
        try:
            streams = {} if os.environ.get("SHARDKIT_DEBUG") else {"stdout": log, "stderr": log}
            return SparkContext(conf=conf, gateway=launch_gateway(conf, streams))
        except Exception as error:
            lines = path.read_text(errors="replace").splitlines() or str(error).splitlines() or [type(error).__name__]
            raise StorageError(
                "Spark did not start",
                why=next((line for line in lines if re.search(r"(Error|Exception)\b.*:", line)), lines[-1])[:500],
                state=KEPT,
                next_step="With --debug it shows everything",
            ) from error
