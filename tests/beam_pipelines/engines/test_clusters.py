"""Spark, Ray and Dask on clusters that somebody started: their own processes die, and the command says so in time."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys

import psutil
import pytest

from shardkit.dataset.open import list_versions
from shardkit.storage import files as storage
from tests.support.engines.conversions import SETTINGS, convert, shards_of, start, wait_for
from tests.support.engines.native import (
    dask_workers,
    end,
    processes_below,
    ray_cluster,
    running_dask_cluster,
    spark_cluster,
)
from tests.support.stores.servers import serve, use

pytestmark = [pytest.mark.slow, pytest.mark.full]

# Executors ask for little, and their driver is on this machine.
SPARK = ("conf.spark.executor.memory=512m", "conf.spark.driver.host=127.0.0.1", "conf.spark.executor.cores=1")


@pytest.fixture(scope="module")
def cluster_of_spark(tmp_path_factory):
    pytest.importorskip("pyspark")
    if shutil.which("java") is None:
        pytest.skip("Spark finds no program java")
    with spark_cluster(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster


def options_of(words):
    return [part for word in words for part in ("--engine-option", word)]


def executors(worker):
    """Returns the processes that do work for the worker of a cluster: those of Java."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [p for p in worker.children() if p.name() == "java"]
    return []


def lose(process, destination, lost):
    """Kills processes of a cluster while a command works on it, and checks how the command ends."""
    wait_for(process, lambda: any(destination.glob("work/*/extract/*.msgpack")))
    for each in lost:
        end(each)
    _, stderr = process.communicate(timeout=480)
    assert process.returncode == 5, stderr
    assert "Nothing was committed" in stderr
    assert "Traceback" not in stderr
    assert list_versions(str(destination)) == []


def test_an_executor_that_dies_is_replaced_by_spark(tmp_path, inputs, shouted, slowed, cluster_of_spark):
    address, _, worker = cluster_of_spark
    process = start(
        inputs, tmp_path / "out", *slowed.option, "--runner", "spark", *options_of((f"master={address}", *SPARK))
    )
    wait_for(process, lambda: any(tmp_path.glob("out/work/*/extract/*.msgpack")))
    executors(worker)[0].kill()
    slowed.run()
    _, stderr = process.communicate(timeout=480)
    assert process.returncode == 0, stderr
    assert list(shards_of(tmp_path / "out").values()) == shouted
    assert executors(worker) == []


def test_a_program_that_is_submitted_to_spark_is_a_command_as_ever(tmp_path, inputs, clean, cluster_of_spark):
    import shardkit.__main__ as program

    submit = shutil.which("spark-submit", path=os.path.dirname(sys.executable))
    own = ("--master", cluster_of_spark[0], "--conf", "spark.executor.memory=512m")
    command = [submit, *own, program.__file__, "convert", inputs, tmp_path / "out", *SETTINGS, "--runner", "spark"]
    result = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
    )
    assert result.returncode == 0, result.stderr
    assert shards_of(tmp_path / "out") == clean


def test_a_master_that_is_lost_with_all_of_its_workers_ends_the_command(tmp_path, inputs, slowed, cluster_of_spark):
    address, master, worker = cluster_of_spark
    asked = options_of((f"master={address}", *SPARK, "stall-minutes=1"))
    process = start(inputs, tmp_path / "out", *slowed.option, "--runner", "spark", *asked)
    lose(process, tmp_path / "out", (master, worker))
    gone = convert(inputs, tmp_path / "other", "--runner", "spark", *asked)
    assert gone.returncode == 5
    assert "there is no master of Spark" in gone.stderr


@pytest.fixture
def cluster_of_ray():
    pytest.importorskip("ray")
    with ray_cluster() as cluster:
        yield cluster


def test_a_node_of_ray_that_dies_changes_no_byte(tmp_path, inputs, shouted, slowed, cluster_of_ray):
    address, _, second = cluster_of_ray
    process = start(inputs, tmp_path / "out", *slowed.option, "--runner", "ray", *options_of((f"address={address}",)))
    wait_for(process, lambda: any(tmp_path.glob("out/work/*/extract/*.msgpack")))
    end(second)
    slowed.run()
    _, stderr = process.communicate(timeout=480)
    assert process.returncode == 0, stderr
    assert list(shards_of(tmp_path / "out").values()) == shouted


def test_a_head_of_ray_that_is_lost_ends_the_command(tmp_path, inputs, slowed, cluster_of_ray):
    address, head, second = cluster_of_ray
    process = start(inputs, tmp_path / "out", *slowed.option, "--runner", "ray", *options_of((f"address={address}",)))
    lose(process, tmp_path / "out", (head, second))


@pytest.fixture
def cluster_of_dask(tmp_path):
    pytest.importorskip("distributed")
    (tmp_path / "cluster").mkdir()
    with running_dask_cluster(tmp_path / "cluster") as cluster:
        yield cluster


def test_a_scheduler_of_dask_that_is_named_by_its_file_does_the_work(
    tmp_path, inputs, shouted, slowed, cluster_of_dask
):
    process = start(
        inputs, tmp_path / "out", *slowed.option, "--runner", "dask", *options_of((f"address={cluster_of_dask[0]}",))
    )
    wait_for(process, lambda: any(tmp_path.glob("out/work/*/extract/*.msgpack")))
    assert dask_workers(processes_below(process)) == [], "it started a cluster beside the named one"
    slowed.run()
    _, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stderr
    assert list(shards_of(tmp_path / "out").values()) == shouted


def test_workers_of_dask_that_live_on_keep_nothing_of_a_conversion(tmp_path, inputs, clean, monkeypatch):
    pytest.importorskip("distributed")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    with serve("moto", tmp_path) as server:
        use(server, monkeypatch)
        with running_dask_cluster(tmp_path) as (address, _, _):
            for path in inputs.iterdir():
                storage.put_file(path, f"{server.url}/in/{path.name}")
            for name in ("one", "two"):
                own = ("--runner", "dask", *options_of((f"address={address}",)), "--work-dir", f"{server.url}/work")
                result = convert(f"{server.url}/in", f"{server.url}/{name}", *own)
                assert result.returncode == 0, result.stderr
                assert shards_of(f"{server.url}/{name}") == clean
            assert list((tmp_path / "tmp").glob("shardkit-worker-*")) == []


def test_a_scheduler_of_dask_that_is_lost_ends_the_command(tmp_path, inputs, slowed, cluster_of_dask):
    address, scheduler, _ = cluster_of_dask
    process = start(inputs, tmp_path / "out", *slowed.option, "--runner", "dask", *options_of((f"address={address}",)))
    lose(process, tmp_path / "out", (scheduler,))
