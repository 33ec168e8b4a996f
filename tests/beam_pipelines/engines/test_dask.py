"""A Dask cluster gives the bytes of the local engine, whatever becomes of its workers."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
import warnings

import psutil
import pytest

from shardkit.dataset.open import list_versions
from shardkit.errors import StorageError
from tests.support.campaign import in_campaign
from tests.support.engines.conversions import convert, dask_workers, shards_of, start, wait_for

dask = pytest.importorskip("dask")
pytest.importorskip("distributed")
pytestmark = pytest.mark.slow

DASK = ("--runner", "dask", "--workers", 2)
MOMENTS = {
    "in a split": lambda d: any(d.glob("work/*/spool/*.run")) and not any(d.glob("data/*/*.gz")),
    "after a shard was written": lambda d: any(d.glob("data/*/*.gz")),
}


@pytest.mark.full
def test_it_gives_the_bytes_of_the_local_engine(tmp_path, inputs, clean):
    result = convert(inputs, tmp_path / "out", *DASK)
    assert result.returncode == 0, result.stderr
    assert shards_of(tmp_path / "out") == clean
    assert "80,000 rows in, 80,000 examples out" in result.stdout
    assert "distributed" not in result.stderr
    assert not (tmp_path / "out" / "work").exists()


@pytest.mark.full
@pytest.mark.campaign
def test_a_first_pass_over_the_rows_gives_the_bytes_of_the_local_engine(tmp_path, inputs):
    options = ("--dedup-by", "word", "--stratify", "word")
    found = {}
    for name, engine in {"dask": DASK, "local": ()}.items():
        result = convert(inputs, tmp_path / name, *options, *engine)
        assert result.returncode == 0, result.stderr
        assert "duplicates" in result.stdout
        found[name] = shards_of(tmp_path / name)
    assert found["dask"] == found["local"]


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


@pytest.mark.full
@pytest.mark.parametrize("way", ["file", *in_campaign("option")])
def test_a_cluster_that_runs_already_does_the_work(tmp_path, inputs, clean, way):
    from beam_pipelines.engines.dask_cluster import dask_cluster

    with dask_cluster(2) as address:
        (tmp_path / "scheduler.json").write_text(json.dumps({"address": address}))
        named = {
            "option": ("--engine-option", f"address={address}"),
            "file": ("--", f"--dask_scheduler_file={tmp_path / 'scheduler.json'}"),
        }[way]
        process = start(inputs, tmp_path / "out", *DASK, *named)
        wait_for(process, lambda: MOMENTS["in a split"](tmp_path / "out"))
        assert not list(dask_workers(process)), "a cluster of its own was started beside the one that was named"
        _, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stderr
    assert shards_of(tmp_path / "out") == clean


@contextlib.contextmanager
def processes_of_a_cluster(folder):
    """Starts a scheduler and a worker as somebody would by hand; yields the address, and the scheduler."""
    file = folder / "scheduler.json"
    quiet = {"DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False"}
    with contextlib.ExitStack() as stack:

        def start_process(*arguments):
            process = subprocess.Popen(
                [sys.executable, "-m", "dask", *arguments, "--no-dashboard"],
                env={**os.environ, **quiet},
                cwd=folder,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        scheduler = start_process(
            "scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file)
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while not file.exists() or not file.read_bytes().endswith(b"}"):
            assert scheduler.poll() is None
            assert time.monotonic() < deadline
        address = json.loads(file.read_bytes())["address"]
        start_process("worker", address, "--nthreads", "1", "--no-nanny", "--host", "127.0.0.1")
        yield address, scheduler


@pytest.mark.full
def test_a_scheduler_that_dies_ends_the_command_and_finished_parts_are_kept(tmp_path, inputs, clean):
    with processes_of_a_cluster(tmp_path) as (address, scheduler):
        process = start(inputs, tmp_path / "out", *DASK, "--engine-option", f"address={address}")
        wait_for(process, lambda: MOMENTS["in a split"](tmp_path / "out"))
        scheduler.kill()
        _, stderr = process.communicate(timeout=200)
    assert process.returncode == 5, stderr
    assert "finished parts are kept" in stderr
    assert "Traceback" not in stderr
    assert list_versions(str(tmp_path / "out")) == []
    result = convert(inputs, tmp_path / "out")
    assert result.returncode == 0, result.stderr
    assert shards_of(tmp_path / "out") == clean


@pytest.mark.full
@pytest.mark.parametrize("moment", ["in a split", *in_campaign("after a shard was written")])
def test_killed_workers_change_no_byte(tmp_path, inputs, clean, moment):
    destination = tmp_path / "out"
    process = start(inputs, destination, *DASK)
    wait_for(process, lambda: MOMENTS[moment](destination))
    victim = next(dask_workers(process))
    victim.kill()
    stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stderr
    assert shards_of(destination) == clean
    assert "80,000 rows in, 80,000 examples out" in stdout
    assert "Traceback" not in stderr


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
def test_a_row_that_does_not_fit_is_named_as_ever(tmp_path, inputs):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("id,x\n" + "".join(f"{i},{i / 8}\n" for i in range(100)))
    (tmp_path / "in" / "b.csv").write_text("id,x\n1,2\n" + "nine,3\n")
    (tmp_path / "schema.json").write_text('{"features": {"id": "int64", "x": "float64"}}')
    result = convert(tmp_path / "in", tmp_path / "out", *DASK, "--schema", tmp_path / "schema.json")
    assert result.returncode == 3, result.stderr
    assert "b.csv" in result.stderr
    assert "Traceback" not in result.stderr
    assert list_versions(str(tmp_path / "out")) == []


@pytest.mark.full
def test_ctrl_c_leaves_no_process_and_the_same_command_goes_on(tmp_path, inputs, clean):
    destination = tmp_path / "out"
    process = start(inputs, destination, *DASK)
    wait_for(process, lambda: MOMENTS["in a split"](destination))
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "run the same command again" in stderr
    _, alive = psutil.wait_procs(children, timeout=5)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []
    result = convert(inputs, destination)
    assert result.returncode == 0, result.stderr
    assert shards_of(destination) == clean


@pytest.mark.full
def test_a_killed_command_takes_its_cluster_along(tmp_path, inputs):
    process = start(inputs, tmp_path / "out", *DASK)
    wait_for(process, lambda: len(list(dask_workers(process))) == 2)
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    _, alive = psutil.wait_procs(children, timeout=20)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []
