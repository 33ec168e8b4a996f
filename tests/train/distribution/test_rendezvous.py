"""Workers that meet as processes, and the ways in which they do not."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from shardkit.errors import StorageError, UsageError
from tests.support.campaign import in_campaign
from tests.support.paths import ROOT
from train.distribution.cluster import Cluster
from train.distribution.exit_codes import PEER_LOST_CODES
from train.distribution.held import HeldPorts
from train.distribution.rendezvous import meet

GUEST = ROOT / "tests/support/training/guest.py"


@pytest.fixture
def ports():
    with HeldPorts(3) as held:
        yield held


@pytest.fixture
def guest():
    processes = []

    def start(addresses, index, *, identity=None, timeout_s=60, more=()) -> subprocess.Popen[str]:
        config = Cluster(workers=tuple(addresses), index=index).tf_config()
        arguments = (config, json.dumps(identity or {"--seed": "0"}), timeout_s, *more)
        process = subprocess.Popen(
            [sys.executable, str(GUEST), *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_one_worker_meets_nobody() -> None:
    assert meet(Cluster(), {}) == {}


@pytest.mark.full
def test_all_meet_whoever_comes_first(ports, guest) -> None:
    processes = [guest(ports.addresses, i) for i in (2, 0)]
    time.sleep(0.3)
    processes.append(guest(ports.addresses, 1))
    assert [finish(p) for p in processes] == [(0, "met 0 1\n", ""), (0, "met 1 2\n", ""), (0, "met 0 2\n", "")]


@pytest.mark.full
def test_callers_that_say_nothing_are_not_talked_about(ports, guest) -> None:
    addresses = ports.addresses[:2]
    host, _, port = addresses[0].rpartition(":")
    first = guest(addresses, 0)
    deadline, probes = time.monotonic() + 60, []
    while len(probes) < 3:
        assert time.monotonic() < deadline
        with contextlib.suppress(ConnectionRefusedError):
            probes.append(socket.create_connection((host, int(port)), timeout=5))
            # The greeting says that it is a worker that listens, and no longer the holder of its port.
            assert probes[-1].recv(1)
    second = guest(addresses, 1)
    for process in (first, second):
        code, _, err = finish(process)
        assert (code, err) == (0, "")
    for probe in probes:
        probe.close()


@pytest.mark.full
def test_one_that_begins_anew_is_met(ports, guest) -> None:
    first = guest(ports.addresses, 0)
    lost = guest(ports.addresses, 1)
    wait_for_listener(ports.addresses[1])
    lost.kill()
    lost.wait()
    # The last one may come once the new one has called: with the lost one all would have met, which TensorFlow notices.
    others = [guest(ports.addresses, 1)]
    wait_for_listener(ports.addresses[1])
    others.append(guest(ports.addresses, 2))
    assert [(code, err) for code, _, err in map(finish, (first, *others))] == [(0, "")] * 3


@pytest.mark.full
def test_the_address_that_is_missing_is_named(ports, guest) -> None:
    addresses = ports.addresses
    processes = [guest(addresses, i, timeout_s=3) for i in (0, 1)]
    for process in processes:
        code, out, err = finish(process)
        assert (code, out) == (StorageError.exit_code, "")
        assert f"missing: worker 2 at {addresses[2]} (nothing listens there)" in err
        assert addresses[0] not in err
        assert addresses[1] not in err


@pytest.mark.full
@pytest.mark.parametrize(
    ("answer", "words"), [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "another program answers"), (b"", "does not answer")]
)
def test_what_else_answers_is_not_taken_for_a_worker(ports, answer, words) -> None:
    addresses = ports.addresses[:2]
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", int(addresses[1].rpartition(":")[2])))
        other.listen()
        if answer:
            answering(other, answer)
        with pytest.raises(StorageError, match=words):
            meet(Cluster(workers=addresses, index=0), {}, 6)


def answering(listener: socket.socket, answer: bytes) -> None:
    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()


@pytest.mark.full
def test_a_name_that_is_not_known_is_named() -> None:
    with HeldPorts(1) as held, pytest.raises(StorageError, match=r"worker 1 at no-such-host\.invalid:5000"):
        meet(Cluster(workers=(*held.addresses, "no-such-host.invalid:5000"), index=0), {}, 3)


@pytest.mark.full
@pytest.mark.parametrize("shares", [False, True])
def test_a_port_in_use_is_named(ports, shares) -> None:
    address = ports.addresses[0]
    port = int(address.rpartition(":")[2])
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares:  # As TensorFlow's own server does, so that a second one would share it in silence.
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        with pytest.raises(UsageError, match=f"port {port} of this host is in use"):
            meet(Cluster(workers=ports.addresses, index=0), {}, 3)


@pytest.mark.full
def test_workers_of_different_runs_report_what_differs(ports, guest) -> None:
    addresses = ports.addresses[:2]
    first = guest(addresses, 0, identity={"--seed": "0", "--learning-rate": "0.1"})
    second = guest(addresses, 1, identity={"--seed": "0", "--learning-rate": "0.2"})
    (code_1, _, err_1), (code_2, _, err_2) = finish(first), finish(second)
    assert (code_1, code_2) == (2, 2), err_1 + err_2
    assert "worker 1 trains something else: its --learning-rate is 0.2, here it is 0.1." in err_1
    assert "worker 0 trains something else: its --learning-rate is 0.1, here it is 0.2." in err_2


@pytest.mark.full
def test_clusters_of_different_sizes_are_refused(ports, guest) -> None:
    first, second = guest(ports.addresses, 0), guest(ports.addresses[:2], 1)
    (code_1, _, err_1), (code_2, _, err_2) = finish(first), finish(second)
    assert (code_1, code_2) == (2, 2), err_1 + err_2
    assert "worker 1 is one of 2 workers, and this is one of 3." in err_1


@pytest.mark.full
def test_a_wrong_index_is_named(ports, guest) -> None:
    """Two hosts with one --host-index: the second listens where the first one believes worker 1 to be."""
    a, b, _ = ports.addresses
    first, second = guest((a, b), 0), guest((b, a), 0)
    (code_1, _, err_1), (code_2, _, err_2) = finish(first), finish(second)
    assert (code_1, code_2) == (2, 2), err_1 + err_2
    assert "--host-index" in err_1
    assert "--host-index" in err_2


def wait_for_listener(address: str) -> None:
    host, _, port = address.rpartition(":")
    end_s = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            assert time.monotonic() < end_s
            time.sleep(0.02)


@pytest.mark.full
@pytest.mark.slow
def test_tensorflow_takes_the_ports_over(ports, guest) -> None:
    addresses = ports.addresses[:2]
    for _ in range(2):  # The second run finds the ports as a first one left them.
        processes = [guest(addresses, i, more=(120,)) for i in range(2)]
        for i, process in enumerate(processes):
            code, out, err = finish(process)
            assert (code, out) == (0, f"met {1 - i}\nsum 1.0 True\n"), err


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("survivor", [0, *in_campaign(1)])
def test_one_lost_before_tensorflow_starts_is_named(ports, guest, survivor) -> None:
    addresses, lost = ports.addresses[:2], 1 - survivor
    first = guest(addresses, survivor, more=(12,))
    second = guest(addresses, lost, more=(60, 1000))
    assert second.stdout.readline() == f"met {survivor}\n"
    second.send_signal(signal.SIGKILL)
    code, _, err = finish(first)
    assert code in PEER_LOST_CODES, err
    assert f"nothing listens at worker {lost} at {addresses[lost]}" in err


@pytest.mark.full
@pytest.mark.slow
def test_one_that_begins_anew_while_tensorflow_starts_is_noticed(ports, guest) -> None:
    addresses = ports.addresses[:2]
    first = guest(addresses, 0, more=(100,))
    second = guest(addresses, 1, more=(100, 1000))
    assert second.stdout.readline() == "met 0\n"
    second.kill()
    second.wait()
    again = guest(addresses, 1, timeout_s=100)
    code, _, err = finish(first)
    assert code in PEER_LOST_CODES, err
    assert f"worker 1 at {addresses[1]} was lost and begins anew" in err
    assert again.poll() is None
