"""Workers as tasks of a barrier stage of Spark, which start together or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from shardkit.clusters.spark import PACKAGES, SUBMITTED, base_settings, check_master, find_obstacle, new_context
from train.launchers.launcher import TRAINING, Launcher, Task

_CONF = "conf."


class SparkLauncher(Launcher):
    """Apache Spark 3.5 or 4."""

    packages = PACKAGES
    extra = "spark"
    keys = ("master", "python")
    passed_on = f"{_CONF}spark."

    def check_address(self) -> None:
        """Checks that Java is there, and that the master answers."""
        if (obstacle := find_obstacle(self._options.get("master"), os.environ, TRAINING)) is not None:
            raise obstacle
        check_master(self._options.get("master"), TRAINING)

    def begin_session(self, folder: Path) -> str:
        python = self._options.get("python") or os.environ.get("PYSPARK_PYTHON", sys.executable)
        os.environ["PYSPARK_PYTHON"] = python
        master = self._options.get("master", None if SUBMITTED in os.environ else f"local[{self._num_workers}]")
        # The supervisor of the command decides what follows when a worker is lost.
        settings = base_settings(master, str(folder)) | {
            "spark.stage.maxConsecutiveAttempts": "1",
            # It also decides how long the workers wait for their places.
            "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
            "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "1000000",
        }
        typed = {key.removeprefix(_CONF): value for key, value in self._options.items() if key.startswith(_CONF)}
        self._context = new_context(settings | typed, folder, TRAINING)
        return str(self._context.getConf().get("spark.driver.host"))

    def run(self, count: int, task: Task) -> None:
        self._context.parallelize(range(count), count).barrier().mapPartitions(partial(_in_barrier, task)).collect()

    def cancel(self) -> None:
        self._context.cancelAllJobs()

    def end_session(self) -> None:
        self._context.stop()

    def explain(self, lines: Sequence[str]) -> str:
        """Returns the line of the exception of Spark, before its traces."""
        found = [line for line in lines if "Exception" in line or "Error" in line]
        return (found or list(lines))[-1 if "Traceback" in "".join(lines) else 0].strip()


def _in_barrier(task: Task, partition: Any) -> Iterator[None]:
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    if (gpus := context.resources().get("gpu")) is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus.addresses)
    index = context.partitionId()
    task(index, context.getTaskInfos()[index].address.rpartition(":")[0])
    return iter(())
