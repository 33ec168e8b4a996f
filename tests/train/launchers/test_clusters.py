"""`shardkit train` on clusters of Spark and Ray that somebody started: a run like one of this host, and how it ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.campaign import in_campaign
from tests.support.engines.native import LIGHT_JAVA, ray_cluster, spark_cluster
from tests.support.training.outputs import assert_same, learned
from tests.support.training.workers import FEATURES, SETTINGS, finish_all, labelled_rows, start_processes, train_command
from train.distribution.worker_identity import WORKER_IDENTITY

pytestmark = [pytest.mark.slow, pytest.mark.full]

LONG = ("--epochs", 16, "--checkpoint-every", 7)
SPARK = (
    "conf.spark.executor.memory=512m", "conf.spark.driver.host=127.0.0.1", "conf.spark.executor.cores=1",
    f"conf.spark.executor.extraJavaOptions={LIGHT_JAVA}", f"conf.spark.driver.extraJavaOptions={LIGHT_JAVA}",
)  # fmt: skip


def need(launcher: str) -> None:
    pytest.importorskip({"spark": "pyspark"}.get(launcher, launcher))
    if launcher == "spark" and shutil.which("java") is None:
        pytest.skip("Spark finds no program java")


@pytest.fixture(scope="module")
def on_spark(tmp_path_factory) -> Iterator[tuple[str, ...]]:
    need("spark")
    with spark_cluster(tmp_path_factory.mktemp("spark")) as (address, _, _):
        yield words_of("spark", f"master={address}", *SPARK)


@pytest.fixture(scope="module")
def on_ray() -> Iterator[tuple[str, ...]]:
    need("ray")
    with ray_cluster() as (address, _, _):
        yield words_of("ray", f"address={address}")


@pytest.fixture(params=["spark", *in_campaign("ray")])
def cluster(request) -> tuple[str, ...]:
    """Returns the options that name a cluster of two places, each on a host of its own as far as it knows."""
    return request.getfixturevalue(f"on_{request.param}")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    from tests.support.training.tensorflow_writer import write_dataset

    rows = labelled_rows(690)
    return write_dataset(tmp_path_factory.mktemp("data"), FEATURES, {"train": rows[:600], "test": rows[600:]})


@pytest.fixture(scope="module")
def whole(dataset, tmp_path_factory) -> Path:
    """Returns a run of two workers of this host."""
    folder = tmp_path_factory.mktemp("whole")
    process = start(dataset, folder / "run", *LONG, "--workers-per-host", 2)
    ((code, _, said),) = finish_all([process])
    assert code == 0, said
    return folder / "run"


def words_of(launcher: str, *options: str) -> tuple[str, ...]:
    return ("--launcher", launcher, *(word for option in options for word in ("--launcher-option", option)))


def start(dataset: Path, output: Path, *more: object) -> subprocess.Popen[str]:
    command = train_command(dataset, *SETTINGS, "--output", output, *more)
    return start_processes(None, command, folder=output.parent)[0]


def workers_in(output: Path) -> list[psutil.Process]:
    """Returns the processes of workers of a run, wherever they are below."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(output) in process.cmdline() and WORKER_IDENTITY in process.environ():
                found.append(process)
    return sorted(found, key=lambda p: p.environ()[WORKER_IDENTITY].partition('"index":')[2])


def wait_for_epoch(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    assert any(line.startswith("epoch 2 of") for line in process.stderr), process.communicate()


@pytest.mark.parametrize(("launcher", "lost"), [("spark", "task"), ("ray", "worker")])
def test_what_is_killed_goes_on_bit_for_bit_as_on_one_host(dataset, whole, request, tmp_path, launcher, lost) -> None:
    named = request.getfixturevalue(f"on_{launcher}")
    process = start(dataset, tmp_path / "run", *LONG, *named, "--workers", 2)
    wait_for_epoch(process)
    victim = workers_in(tmp_path / "run")[1]
    os.kill(victim.pid if lost == "worker" else victim.ppid(), signal.SIGKILL)
    ((code, out, said),) = finish_all([process])
    assert code == 0, said
    assert "worker 1 was killed by SIGKILL after step" in said
    assert "restarting 2 workers from the last checkpoint, restart 1 of 3" in said
    assert "epoch" in out
    assert_same(whole, tmp_path / "run")
    assert learned(whole) == learned(tmp_path / "run")
    assert workers_in(tmp_path / "run") == []


def test_a_run_that_is_preempted_saves_and_leaves_nothing_behind(dataset, cluster, tmp_path) -> None:
    process = start(dataset, tmp_path / "run", "--epochs", 400, *cluster, "--workers", 2)
    wait_for_epoch(process)
    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    ((code, _, said),) = finish_all([process])
    assert code == 143, said
    assert "terminated: The last checkpoint is after step " in said
    psutil.wait_procs(below, timeout=10)
    assert [p for p in below if p.is_running()] == []
    assert workers_in(tmp_path / "run") == []


@pytest.mark.parametrize("launcher", ["spark", "ray"])
def test_a_cluster_with_too_few_places_ends_the_command(dataset, request, tmp_path, launcher) -> None:
    need(launcher)
    # Threads of one process of Java are places as well, and there sooner.
    named = words_of("spark", "master=local[2]") if launcher == "spark" else request.getfixturevalue("on_ray")
    started_s = time.monotonic()
    process = start(dataset, tmp_path / "run", *named, "--workers", 3, "--rendezvous-timeout", 2)
    ((code, _, said),) = finish_all([process])
    assert code == 5, said
    assert "the cluster does not start 3 workers" in said
    assert "Traceback" not in said
    assert time.monotonic() - started_s < 60
