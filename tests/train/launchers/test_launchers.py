"""Launchers without a cluster: what is refused, and what a task and its command say to each other."""

from __future__ import annotations

import threading
import time
from multiprocessing import AuthenticationError
from pathlib import Path

import msgspec
import pytest

from shardkit.errors import StorageError, UsageError
from shardkit.storage.options import without_options
from tests.support.training.workers import free_addresses
from train.distribution.launch import plan_launch, run_identity
from train.launchers.channel import Gate, Order, Report, call, send
from train.launchers.launcher import make_launcher
from train.launchers.task import run_worker
from train.options.config import TrainOptions


def options(**settings) -> TrainOptions:
    return TrainOptions(dataset="d", label="y", output="o", **settings)


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    monkeypatch.setattr("train.launchers.launcher.find_spec", lambda name: name)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"workers": 2}, "--workers is of use with --launcher only"),
        ({"launcher_options": (("master", "x"),)}, "--launcher-option is of use with --launcher only"),
        ({"launcher": "ray"}, "--launcher ray needs --workers"),
        ({"launcher": "ray", "workers": 2, "hosts": ("a:1", "b:1")}, "--launcher and --hosts do not go together"),
        ({"launcher": "ray", "workers": 2, "workers_per_host": 2}, "--launcher and --workers-per-host do not go"),
        ({"launcher": "spark", "workers": 2, "strategy": "parameter-server"}, "--strategy parameter-server do not go"),
        ({"launcher": "spark", "workers": 2, "strategy": "mirrored"}, "--strategy mirrored is one process"),
        ({"launcher": "ray", "workers": 2, "launcher_options": (("gpus", "1"), ("gpus", "2"))}, "is given twice"),
    ],
)
def test_options_that_contradict_each_other_are_refused(settings, words) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        plan_launch(options(**settings), ("run",), {})
    assert caught.value.next_step


def test_workers_of_a_cluster_are_watched_together() -> None:
    orders = plan_launch(options(launcher="spark", workers=3, elastic=True), ("run",), {"TF_CONFIG": "of another"})
    assert (orders.placement.num_workers, orders.placement.is_local, orders.max_restarts) == (3, True, 3)
    alone = plan_launch(options(launcher="ray", workers=1, strategy="mirrored"), ("run",), {})
    assert alone.placement.num_workers == 1


def test_a_run_may_go_on_elsewhere() -> None:
    one, other = options(workers_per_host=2), options(launcher="ray", workers=2, launcher_options=(("gpus", "1"),))
    assert run_identity(one, "f") == run_identity(other, "f")


def test_secrets_for_the_cluster_are_not_in_the_command_of_a_worker() -> None:
    typed = ("d", "--launcher=spark", "--workers", "2", "--launcher-option", "conf.spark.x.secret=s", "--epochs", "3")
    words = without_options(typed, "--launcher", "--workers", "--launcher-option")
    assert [*words] == ["d", "--epochs", "3"]


@pytest.mark.parametrize(
    ("launcher", "settings", "words"),
    [
        ("spark", {"master": "sc://host"}, "Spark Connect cannot run a training"),
        ("spark", {"mastr": "local"}, "has no option 'mastr'.*did you mean"),
        ("ray", {"address": "ray://host:10001"}, "a training does not run through Ray Client"),
        ("ray", {"address": "here"}, "'here' is no address of a head node"),
        ("ray", {"gpus": "many"}, "gpus=many is no number"),
    ],
)
def test_settings_that_no_cluster_takes_are_refused(launcher, settings, words) -> None:
    with pytest.raises(UsageError, match=f"(?i){words}") as caught:
        make_launcher(launcher, settings, 2)
    assert caught.value.next_step


@pytest.mark.full
def test_a_cluster_that_does_not_answer_is_named() -> None:
    (address,) = free_addresses(1)
    with pytest.raises(StorageError, match="there is no head node of Ray") as caught:
        make_launcher("ray", {"address": address}, 2)
    assert caught.value.state == "Nothing was trained"


def test_what_is_not_installed_is_named(monkeypatch) -> None:
    monkeypatch.setattr("train.launchers.launcher.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs the package ray") as caught:
        make_launcher("ray", {}, 2)
    assert "shardkit[ray]" in (caught.value.next_step or "")


@pytest.fixture
def gate():
    gate = Gate("127.0.0.1")
    yield gate
    gate.close()


@pytest.mark.full
def test_only_a_caller_with_the_key_is_heard(gate) -> None:
    with pytest.raises((AuthenticationError, EOFError, OSError)), call(gate.door._replace(key=b"guessed")):
        raise AssertionError
    with call(gate.door) as task:
        send(task, Report(index=1, address="host:1"))
        report, connection = gate.arrived.get(timeout=10)
        assert report.address == "host:1"
        connection.close()
    assert gate.arrived.empty()


def reports_of(gate: Gate, order: Order) -> tuple[list[Report], float]:
    """Returns what a task reports of a worker, and how long it took to end."""
    task = threading.Thread(target=run_worker, args=(gate.door, 1, "127.0.0.1"))
    task.start()
    first, connection = gate.arrived.get(timeout=10)
    assert first.address.startswith("127.0.0.1:")
    send(connection, order)
    reports = []
    started_s = time.monotonic()
    while not reports or reports[-1].code is None:
        reports.append(msgspec.json.decode(connection.recv_bytes(), type=Report))
        if b"stop me" in reports[-1].output:
            send(connection, Order(signal=9))
    task.join(10)
    connection.close()
    return reports, time.monotonic() - started_s


@pytest.mark.full
def test_a_host_that_does_not_see_the_run_folder_is_named(gate, tmp_path: Path) -> None:
    (report,), _ = reports_of(gate, Order(folder=str(tmp_path), proof="run/.lock"))
    assert report.code == UsageError.exit_code
    assert report.errors.startswith(b"error[SK-E200]: run: the host 127.0.0.1 does not see the folder of the run.")


@pytest.mark.full
def test_what_a_worker_says_and_how_it_ends_comes_back(gate, tmp_path: Path) -> None:
    (tmp_path / "proof").touch()
    says = "import os, sys; print(os.getcwd()); print('err', file=sys.stderr); sys.exit(3)"
    order = Order(command=("-c", says), folder=str(tmp_path), proof="proof")
    reports, _ = reports_of(gate, order)
    assert b"".join(r.output for r in reports) == f"{tmp_path}\n".encode()
    assert b"".join(r.errors for r in reports) == b"err\n"
    assert reports[-1].code == 3
    waits = "import time; print('stop me', flush=True); time.sleep(60)"
    reports, took_s = reports_of(gate, msgspec.structs.replace(order, command=("-c", waits)))
    assert (reports[-1].code, took_s < 30) == (-9, True)
