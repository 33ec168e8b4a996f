"""Beam's portable job service: workers in this process, and a pool of them in another virtual environment.

`SHARDKIT_WORKER_PYTHON` names the Python of an environment that has shardkit[beam] and no TensorFlow; `.ci/run` makes
one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardkit.dataset.open import list_versions
from tests.support.engines.conversions import convert, shards_of, start, wait_for
from tests.support.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.full]

PORTABLE = ("--runner", "portable")
WORKER_PYTHON = os.environ.get("SHARDKIT_WORKER_PYTHON")
needs_workers = pytest.mark.skipif(
    not WORKER_PYTHON, reason="SHARDKIT_WORKER_PYTHON names no environment for external workers"
)


def test_the_job_service_gives_the_bytes_of_the_local_engine(tmp_path, inputs, clean):
    result = convert(inputs, tmp_path / "out", *PORTABLE)
    assert result.returncode == 0, result.stderr
    assert shards_of(tmp_path / "out") == clean


def test_ctrl_c_ends_it_and_the_same_command_goes_on(tmp_path, inputs, clean):
    destination = tmp_path / "out"
    process = start(inputs, destination, *PORTABLE)
    wait_for(process, lambda: any(destination.glob("work/*/spool/*.run")))
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    assert "run the same command again" in stderr
    assert "Traceback" not in stderr
    result = convert(inputs, destination, *PORTABLE)
    assert result.returncode == 0, result.stderr
    assert shards_of(destination) == clean


@contextlib.contextmanager
def worker_pool(folder: Path, python: str, **environment: str):
    """Gives the address of a pool whose workers run another Python, as of another host."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # The pool starts the `python` of its PATH.
    path = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SHARDKIT_"))}
    with (folder / "pool.log").open("wb") as log:
        pool = subprocess.Popen(
            [python, "-m", "apache_beam.runners.worker.worker_pool_main", "--service_port", str(port)],
            cwd=folder,
            env={**inherited, "PATH": path, **environment},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 60
        while True:
            assert pool.poll() is None, (folder / "pool.log").read_text()
            assert time.monotonic() < deadline
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
        yield f"127.0.0.1:{port}", pool
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pool.pid, signal.SIGKILL)
        pool.wait()


def external(address: str) -> tuple[str, ...]:
    return (
        *PORTABLE,
        "--engine-option",
        "environment-type=EXTERNAL",
        "--engine-option",
        f"environment-config={address}",
    )


@needs_workers
def test_workers_of_another_environment_need_no_tensorflow(tmp_path, inputs, clean):
    assert WORKER_PYTHON is not None
    probe = "import importlib.util as u, shardkit; print(u.find_spec('tensorflow') is None, shardkit.__file__)"
    own = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    found = subprocess.run(
        [WORKER_PYTHON, "-c", probe], capture_output=True, text=True, check=True, cwd=tmp_path, env=own
    )
    without_tensorflow, place = found.stdout.split()
    assert without_tensorflow == "True"
    assert Path(place).is_relative_to(Path(WORKER_PYTHON).parent.parent)
    with worker_pool(tmp_path, WORKER_PYTHON) as (address, _):
        result = convert(inputs, tmp_path / "out", *external(address))
    assert result.returncode == 0, result.stderr
    assert shards_of(tmp_path / "out") == clean


def test_workers_with_another_shardkit_are_refused(tmp_path, inputs):
    shim = tmp_path / "shim"
    shim.mkdir()
    (shim / "sitecustomize.py").write_text("import shardkit._version\nshardkit._version.__version__ = '0.0.1'\n")
    root = ROOT
    paths = os.pathsep.join(map(str, (shim, root)))
    with worker_pool(tmp_path, sys.executable, PYTHONPATH=paths) as (address, _):
        result = convert(inputs, tmp_path / "out", *external(address))
    assert result.returncode == 2, result.stderr
    assert "has shardkit 0.0.1, and the command has" in result.stderr
    assert "Install shardkit" in result.stderr
    assert "Traceback" not in result.stderr
    assert list_versions(str(tmp_path / "out")) == []


def test_workers_without_shardkit_are_named(tmp_path, inputs):
    shim = tmp_path / "shim"
    shim.mkdir()
    (shim / "sitecustomize.py").write_text(
        "import sys\nsys.modules['beam_pipelines'] = sys.modules['shardkit'] = None\n"
    )
    with worker_pool(tmp_path, sys.executable, PYTHONPATH=str(shim)) as (address, _):
        result = convert(inputs, tmp_path / "out", *external(address))
    assert result.returncode == 2, result.stderr
    assert "the workers of portable have no shardkit" in result.stderr
    assert "Traceback" not in result.stderr


def test_workers_that_are_gone_are_not_waited_for_without_end(tmp_path, inputs, clean):
    destination = tmp_path / "out"
    with worker_pool(tmp_path, sys.executable, PYTHONPATH=str(ROOT)) as (address, pool):
        stall = ("--engine-option", "stall-minutes=0.5")
        process = start(inputs, destination, *external(address), *stall)
        wait_for(process, lambda: any(destination.glob("work/*/spool/*.run")))
        os.killpg(pool.pid, signal.SIGKILL)
        _, stderr = process.communicate(timeout=120)
    assert process.returncode == 5, stderr
    assert "finished parts are kept" in stderr
    assert "Traceback" not in stderr
    result = convert(inputs, destination)
    assert result.returncode == 0, result.stderr
    assert shards_of(destination) == clean
