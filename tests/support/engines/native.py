"""Spark, Ray and Dask as tests need them: which processes are workers, and clusters that are started by hand."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.support.stores.servers import free_port

# Java compiles little then, which is most of what its start takes.
LIGHT_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Changes what it reads; and takes a while as long as there is a file, so that workers can be killed at work.
_FUNCTIONS = """import pathlib
import time
import pyarrow.compute as pc

def shout(batch):
    if pathlib.Path({file!r}).exists():
        time.sleep(0.25)
    i = batch.schema.get_field_index("word")
    return batch.set_column(i, "word", pc.utf8_upper(batch["word"]))
"""


class Slowed:
    """A function of the user, for --map, that is slow until it may run."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "slow"
        self._file.touch()
        (folder / "functions.py").write_text(_FUNCTIONS.format(file=str(self._file)))
        self.option = ("--map", f"{folder}/functions.py:shout")

    def run(self) -> None:
        """Lets it run."""
        self._file.unlink(missing_ok=True)


def processes_below(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Returns all processes that a command started, and those that they did."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process.pid).children(recursive=True)
    return []


def spark_workers(found: list[psutil.Process]) -> list[psutil.Process]:
    """Returns those of the processes that run tasks of Spark: children of the one that Java starts."""
    return [p for p in found if _says(p, "pyspark.daemon") and _says(_parent(p), "pyspark.daemon")]


def ray_workers(found: list[psutil.Process]) -> list[psutil.Process]:
    """Returns those of the processes that run a task of Ray at this moment."""
    return [p for p in found if _says(p, "ray::call_step")]


def dask_workers(found: list[psutil.Process]) -> list[psutil.Process]:
    """Returns those of the processes that are workers of Dask, and no helper of multiprocessing."""
    return [p for p in found if _says(p, "spawn_main")]


WORKERS = {"spark": spark_workers, "ray": ray_workers, "dask": dask_workers}


@contextlib.contextmanager
def spark_cluster(folder: Path) -> Iterator[tuple[str, psutil.Process, psutil.Process]]:
    """Starts a master and a worker of Spark as their scripts do; yields the address, and both processes."""
    from pyspark.find_spark_home import _find_spark_home

    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    with contextlib.ExitStack() as stack:

        def start(name: str, *arguments: str) -> psutil.Process:
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            own = {"SPARK_DAEMON_JAVA_OPTS": LIGHT_JAVA, "SPARK_DAEMON_MEMORY": "512m", "SPARK_LOCAL_DIRS": str(folder)}
            process = psutil.Popen(
                [f"{_find_spark_home()}/bin/spark-class", f"org.apache.spark.deploy.{name}", *arguments],
                env={**os.environ, **own},
                stdout=log,
                stderr=log,
            )
            stack.callback(end, process)
            return process

        master = start("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(free_port()))
        _wait_for_words(folder / "master.Master.log", "I have been elected leader")
        own = ("--host", "127.0.0.1", "--cores", "2", "--memory", "2g", "--webui-port", str(free_port()))
        worker = start("worker.Worker", address, *own, "--work-dir", str(folder / "apps"))
        _wait_for_words(folder / "worker.Worker.log", "Successfully registered with master")
        yield address, master, worker


@contextlib.contextmanager
def ray_cluster() -> Iterator[tuple[str, psutil.Process, psutil.Process]]:
    """Starts a cluster of two nodes with a processor each; yields its address, its head, and its second node."""
    from ray.cluster_utils import Cluster

    def raylet(node: object) -> psutil.Process:
        return psutil.Process(node.all_processes["raylet"][0].process.pid)

    own = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=own)
    try:
        head = psutil.Process(cluster.head_node.all_processes["gcs_server"][0].process.pid)
        own.pop("include_dashboard")
        second = cluster.add_node(**own)
        cluster.wait_for_nodes()
        yield cluster.address, head, raylet(second)
    finally:
        cluster.shutdown()


@contextlib.contextmanager
def running_dask_cluster(folder: Path) -> Iterator[tuple[str, psutil.Process, psutil.Process]]:
    """Starts a scheduler and a worker as somebody would by hand; yields the scheduler's file, and both processes."""
    file = folder / "scheduler.json"
    with contextlib.ExitStack() as stack:

        def start(*arguments: str) -> psutil.Process:
            process = psutil.Popen(
                [sys.executable, "-m", "dask", *arguments, "--no-dashboard", "--host", "127.0.0.1"],
                env={**os.environ, "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False"},
                cwd=folder,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(end, process)
            return process

        scheduler = start("scheduler", "--port", "0", "--scheduler-file", str(file))
        _wait_for_words(file, '"workers"')
        worker = start("worker", "--scheduler-file", str(file), "--nthreads", "2")
        yield str(file), scheduler, worker


def end(process: psutil.Process) -> None:
    """Kills a process and all below it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        found = [process, *process.children(recursive=True)]
        for each in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(found, timeout=10)


def _wait_for_words(log: Path, words: str) -> None:
    deadline = time.monotonic() + 90
    while not log.exists() or words not in log.read_text(errors="replace"):
        assert time.monotonic() < deadline, f"{log} does not say {words!r}"
        time.sleep(0.1)


def _says(process: psutil.Process | None, words: str) -> bool:
    try:
        return process is not None and words in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def _parent(process: psutil.Process) -> psutil.Process | None:
    try:
        return process.parent()
    except psutil.NoSuchProcess:
        return None
