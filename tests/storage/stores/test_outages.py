"""Stores that are away: for a while, which costs time only, or for good, which is told in a sentence and in time."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from shardkit.errors import StorageError, UsageError
from shardkit.storage import files as storage
from shardkit.storage.requests import DEADLINE_VARIABLE
from tests.support.stores.servers import AZURITE_KEY, free_port

OUTAGE_S = 3.0


def environment_of(protocol, port):
    """Where a client looks for a store at a port that nobody listens to."""
    address = f"http://127.0.0.1:{port}"
    return {
        "s3": {"AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "hidden-secret"},
        "gs": {"STORAGE_EMULATOR_HOST": address, "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"},
        "az": {
            "AZURE_STORAGE_CONNECTION_STRING": "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;"
            f"AccountKey={AZURITE_KEY};BlobEndpoint={address}/devstoreaccount1;"
        },
    }[protocol]


@pytest.mark.full
@pytest.mark.parametrize(("protocol", "backend"), [("s3", "s3fs"), ("gs", "gcsfs"), ("az", "adlfs")])
def test_a_store_that_nobody_serves_is_named_in_time(protocol, backend):
    pytest.importorskip(backend)
    settings = {**os.environ, **environment_of(protocol, free_port()), DEADLINE_VARIABLE: "2"}
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "shardkit", "inspect", f"{protocol}://bucket/set"],
        capture_output=True, text=True, check=False, env=settings,
    )  # fmt: skip
    assert time.monotonic() - start < 60
    assert done.returncode == 5
    assert f"the store does not answer in {protocol}://bucket/set" in done.stderr
    assert "Check the address" in done.stderr
    for unwanted in ("Traceback", "hidden-secret", AZURITE_KEY):
        assert unwanted not in done.stderr + done.stdout


def test_a_client_without_what_it_needs_is_no_missing_package(monkeypatch):
    # One that was made with an account is kept by its options, whatever the environment holds by now.
    pytest.importorskip("adlfs").AzureBlobFileSystem.clear_instance_cache()
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    with pytest.raises(UsageError, match="the client of az:// cannot be made") as caught:
        storage.exists("az://container/set")
    assert "environment" in str(caught.value)


@pytest.mark.parametrize("text", ["soon", "-1", "inf"])
def test_a_deadline_that_is_none_is_refused(monkeypatch, text):
    monkeypatch.setenv(DEADLINE_VARIABLE, text)
    with pytest.raises(UsageError, match=DEADLINE_VARIABLE):
        storage.exists("memory://anything")


def stop(process):
    process.send_signal(signal.SIGSTOP)
    # A thread of the server may answer until all of them have stopped.
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


@pytest.mark.full
def test_an_outage_costs_time_only(server, tmp_path):
    folder = f"{server.url}/{tmp_path.name}"
    storage.commit_exclusive(f"{folder}/before", b"1")
    local = tmp_path / "content"
    local.write_bytes(b"2")
    stop(server.process)
    resume = threading.Timer(OUTAGE_S, server.process.send_signal, [signal.SIGCONT])
    resume.start()
    start = time.monotonic()
    try:
        storage.put_file(local, f"{folder}/during")
        waited_s = time.monotonic() - start
        storage.commit_exclusive(f"{folder}/after", b"3")
    finally:
        resume.join()
    assert waited_s > OUTAGE_S / 2
    assert storage.list_names(folder) == ["after", "before", "during"]
    assert storage.read_bytes(f"{folder}/during") == b"2"


@pytest.mark.full
def test_a_store_that_stays_away_is_given_up_at_the_deadline(server, tmp_path, monkeypatch):
    path = f"{server.url}/{tmp_path.name}/a"
    storage.commit_exclusive(path, b"1")
    monkeypatch.setenv(DEADLINE_VARIABLE, "2")
    stop(server.process)
    start = time.monotonic()
    try:
        with pytest.raises(StorageError, match="the store does not answer"):
            storage.read_bytes(path)
        assert time.monotonic() - start < 30
    finally:
        server.process.send_signal(signal.SIGCONT)
    assert storage.read_bytes(path) == b"1"
