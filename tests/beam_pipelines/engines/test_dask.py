"""What only Dask does: the cluster that it starts, and how many pieces it takes."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import time
import warnings

import pytest

from shardkit.conversion.steps import cut, write
from shardkit.errors import StorageError, UsageError
from tests.support.engines.conversions import convert

dask = pytest.importorskip("dask")
pytest.importorskip("distributed")
pytestmark = pytest.mark.slow

DASK = ("--runner", "dask", "--workers", 2)


def test_workers_that_do_not_start_are_reported(monkeypatch):
    from beam_pipelines.engines.dask_cluster import dask_cluster

    # A worker is a process that runs this program.
    monkeypatch.setattr("multiprocessing.spawn._python_exe", "/bin/false")
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "2s"}),
        pytest.raises(StorageError, match="the workers of Dask did not start"),
        dask_cluster(1),
    ):
        pass


@pytest.mark.full
def test_workers_of_our_cluster_log_nothing_beside_the_report(monkeypatch):
    from distributed import Client

    from beam_pipelines.engines.dask_cluster import dask_cluster

    monkeypatch.delenv("SHARDKIT_DEBUG", raising=False)
    with dask_cluster(2) as address, Client(address) as client:
        found = client.run(lambda: logging.getLogger().isEnabledFor(logging.CRITICAL))
    assert list(found.values()) == [False, False]


@pytest.mark.full
def test_a_cluster_beside_another_one_warns_of_nothing():
    from beam_pipelines.engines.dask_cluster import dask_cluster

    with socket.socket() as other:
        # Dask's usual port: somebody has it, be it another conversion.
        with contextlib.suppress(OSError):
            other.bind(("", 8787))
            other.listen()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with dask_cluster(1):
                pass
    assert [str(w.message) for w in caught if "in use" in str(w.message)] == []


@pytest.mark.full
@pytest.mark.campaign
def test_workers_of_our_cluster_ask_for_no_frames_of_other_threads():
    # In Python 3.11 that locks a worker for good, about once in ten conversions.
    from distributed import Client

    from beam_pipelines.engines.dask_cluster import dask_cluster

    def examined(dask_worker):
        return os.getpid(), "profile" in dask_worker.periodic_callbacks

    with dask_cluster(1) as address, Client(address) as client:
        ((first, asked),) = client.run(examined).values()
        assert not asked
        os.kill(first, signal.SIGKILL)
        deadline = time.monotonic() + 60
        found = {}
        while not found or first in [pid for pid, _ in found.values()]:
            assert time.monotonic() < deadline
            client.wait_for_workers(1)
            with contextlib.suppress(OSError):
                found = client.run(examined)
        assert [asked for _, asked in found.values()] == [False]


@pytest.mark.campaign
@pytest.mark.full
def test_a_row_that_kills_every_worker_is_left_out_and_shown(tmp_path, inputs):
    function = tmp_path / "functions.py"
    function.write_text(
        "import os, signal\nimport pyarrow.compute as pc\n\ndef crash(batch):\n"
        "    if pc.any(pc.equal(batch['id'], 37777)).as_py():\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n    return batch\n"
    )
    options = ("--map", f"{function}:crash", "--on-bad-record", "quarantine")
    result = convert(inputs, tmp_path / "out", *DASK, *options)
    assert result.returncode == 0, result.stderr
    assert "80,000 rows in, 79,999 examples out, 1 rejected" in result.stdout
    assert "Traceback" not in result.stderr


@pytest.mark.full
def test_more_pieces_than_a_scheduler_takes_are_refused_with_their_number():
    from beam_pipelines.engines.dask import _Tasks

    with pytest.raises(UsageError, match="400 parts of the inputs times 251 units of shards are over 100,000 pieces"):
        _Tasks(None, "plan").shuffled(cut, write, list(range(400)), [(0, number) for number in range(251)])
