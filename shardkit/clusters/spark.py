"""Spark, by PySpark: a Spark in a process of Java below this one, or a cluster."""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardkit.clusters.addresses import UNTOUCHED, Client, check_port, refuse_storage_options
from shardkit.errors import StorageError, UsageError

PACKAGES = ("pyspark", "py4j")
# Set by spark-submit, which has started a Spark and runs this process below it.
SUBMITTED = "PYSPARK_GATEWAY_PORT"
_ONE_MASTER = re.compile(r"spark://([^:/,]+):(\d+)")


def find_obstacle(master: str | None, environment: Mapping[str, str], client: Client) -> UsageError | None:
    """Returns what is missing here before Spark can be used, None if nothing is."""
    if (master or "").startswith("sc://") or environment.get("SPARK_REMOTE"):
        return UsageError(
            f"Spark Connect cannot run {client.work}",
            why="it takes queries of tables only, and no functions of files",
            state=UNTOUCHED,
            next_step=f"Name the cluster itself, like {client.option} master=spark://HOST:7077, and unset SPARK_REMOTE",
        )
    java = Path(environment.get("JAVA_HOME", ""), "bin/java")
    if java.exists() or shutil.which("java") is not None:
        return None
    return UsageError(
        "Spark needs Java, and there is none",
        why="JAVA_HOME names none, and no program java is on the path",
        state=UNTOUCHED,
        next_step="Install Java 17, such as the package openjdk-17-jre-headless",
    )


def check_master(master: str | None, client: Client) -> None:
    """Checks that the master of a cluster answers.

    Raises:
        UsageError: If the address is none.
        StorageError: If nothing answers.
    """
    if master is None or master.startswith("local"):
        return
    refuse_storage_options()
    if master.startswith("spark://") and "," not in master:
        if (found := _ONE_MASTER.fullmatch(master)) is None:
            raise UsageError(
                f"{master!r} is no address of a master of Spark",
                state=UNTOUCHED,
                next_step=f"Write it like {client.option} master=spark://HOST:7077",
            )
        check_port("master of Spark", master, found[1], int(found[2]), client)


def base_settings(master: str | None, folder: str) -> dict[str, str]:
    """Returns the settings of a session, before those of the user.

    Args:
        master: Address of the cluster; None leaves it to spark-submit.
        folder: For files of Spark on this machine.
    """
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
    return settings


def new_context(settings: Mapping[str, str], folder: Path, client: Client) -> Any:
    """Returns a new context of Spark, whose messages go to `spark.log` in a folder.

    Raises:
        StorageError: If Spark does not start.
    """
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
                state=client.kept,
                next_step="With --debug it shows everything",
            ) from error
