"""Prism: its program is recognized and installed; it ends with the command, and only this machine reaches it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import time
import zipfile

import psutil
import pytest
from click.testing import CliRunner

from beam_pipelines.engines.engine import engine_for
from beam_pipelines.engines.prism_program import (
    PRISM,
    _copy_of_socket,
    beam_version,
    find_program,
    install,
    serve,
    version_of,
)
from beam_pipelines.engines.settings import EngineOptions
from shardkit.cli.convert import command
from shardkit.dataset.open import list_versions
from shardkit.errors import StorageError, UsageError
from shardkit.storage import files as storage
from tests.support.engines.conversions import convert, shards_of, start, wait_for
from tests.support.engines.native import processes_below
from tests.support.paths import ROOT
from tests.support.stores.servers import serve as serve_store
from tests.support.stores.servers import use

pytestmark = [pytest.mark.slow, pytest.mark.full]
ENGINE = ("--runner", "prism")
LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home in which nothing is installed."""
    monkeypatch.delenv(PRISM, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def program():
    """Returns Prism itself."""
    if (found := find_program(os.environ)) is None:
        pytest.skip("no program of Prism is installed")
    return found


def fake(path, version=None, script="exit 3"):
    """Writes a program that seems to be Prism."""
    path.write_text(f"#!/bin/sh\n# apache/beam_go_sdk:{version or beam_version()}unknown\n{script}\n")
    path.chmod(0o755)
    return path


def refusal(tmp_path, *options):
    found = CliRunner().invoke(command, [str(tmp_path / "gone.csv"), str(tmp_path / "out"), *ENGINE, *options])
    assert not (tmp_path / "out").exists()
    return found.exception


@pytest.mark.parametrize("kind", ["absent", "folder", "text", "empty", "other program", "not executable"])
def test_what_is_no_program_of_prism_is_refused_before_anything_is_read(tmp_path, home, kind):
    file = tmp_path / "file"
    {
        "absent": lambda: None,
        "folder": file.mkdir,
        "text": lambda: file.write_text("x"),
        "empty": file.touch,
        "other program": lambda: file.symlink_to("/bin/true"),
        "not executable": lambda: fake(file).chmod(0o644),
    }[kind]()
    error = refusal(tmp_path, "--engine-option", f"program={file}")
    assert isinstance(error, UsageError)
    assert str(error).startswith(
        f"there is no program of Prism at {file}" if kind in ("absent", "folder") else f"{file} is no program of Prism"
    )
    assert "shardkit engines install prism" in str(error)


def test_a_program_is_named_or_installed(tmp_path, home, monkeypatch):
    error = refusal(tmp_path)
    assert isinstance(error, UsageError)
    assert f"in {PRISM}" in str(error)
    assert find_program(os.environ) is None
    place = install(fake(tmp_path / "mine"))
    assert find_program(os.environ) == str(place)
    assert place.is_relative_to(home)
    assert engine_for(EngineOptions(runner="prism")).versions()[-1] == f"Prism {beam_version()}"
    monkeypatch.setenv(PRISM, "/named")
    assert find_program(os.environ) == "/named"


def test_a_zip_file_is_unpacked(tmp_path, home):
    with zipfile.ZipFile(tmp_path / "prism.zip", "w") as packed:
        packed.write(fake(tmp_path / "prism"), "apache_beam-prism")
    assert version_of(tmp_path / "prism.zip") == beam_version()
    place = install(tmp_path / "prism.zip")
    assert place.read_bytes() == (tmp_path / "prism").read_bytes()
    assert os.access(place, os.X_OK)
    assert list(place.parent.iterdir()) == [place]


@pytest.mark.parametrize(("version", "words"), [("2.1.0", "it is of Beam 2.1.0"), (None, "does not hold Beam's SDK")])
def test_another_version_or_program_is_not_installed(tmp_path, home, version, words):
    file = fake(tmp_path / "file", version) if version else tmp_path / "text"
    (tmp_path / "text").write_text("x")
    with pytest.raises(UsageError, match=words):
        install(file)
    assert list((home / "shardkit").iterdir()) == []


def test_go_builds_the_version_of_beam(tmp_path, home, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    content = f"apache/beam_go_sdk:{beam_version()}"
    go = tmp_path / "go"
    go.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/typed\necho {content} >"$GOBIN/prism"\n')
    go.chmod(0o755)
    assert version_of(install(None)) == beam_version()
    assert (tmp_path / "typed").read_text().endswith(f"/cmd/prism@v{beam_version()}\n")
    go.write_text("#!/bin/sh\necho first >&2\necho 'dial tcp: refused' >&2\nexit 1\n")
    with pytest.raises(StorageError, match=r"failed: dial tcp: refused\. Nothing was installed"):
        install(None)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match="Prism is built by Go, and there is none"):
        install(None)


def test_another_version_of_beam_is_noted(tmp_path, home, monkeypatch):
    monkeypatch.setenv(PRISM, str(fake(tmp_path / "old", "2.1.0")))
    (note,) = engine_for(EngineOptions(runner="prism")).check()
    assert note.startswith(f"Prism is of Beam 2.1.0, and Beam is {beam_version()}")


def test_a_flag_of_beam_that_would_leave_it_running_is_refused(tmp_path, home):
    error = refusal(tmp_path, "--", "--prism_location=/opt/prism")
    assert isinstance(error, UsageError)
    assert "Name the program with --engine-option program=FILE" in str(error)


def test_a_pool_of_workers_that_is_not_there_is_reported_before_anything_is_read(tmp_path, home, monkeypatch):
    monkeypatch.setenv(PRISM, str(fake(tmp_path / "prism")))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        pool = ("environment-type=EXTERNAL", f"environment-config={address}")
        error = refusal(tmp_path, *(word for text in pool for word in ("--engine-option", text)))
    assert isinstance(error, StorageError)
    assert str(error).startswith(f"there is no worker pool in {address}: Connection refused")


@pytest.mark.parametrize("program", ["/no/such/program", str(ROOT / "README.md")])
def test_a_program_of_workers_that_is_none_is_refused(tmp_path, home, monkeypatch, program):
    monkeypatch.setenv(PRISM, str(fake(tmp_path / "prism")))
    process = ("environment-type=PROCESS", f'environment-config={{"command": "{program}"}}')
    error = refusal(tmp_path, *(word for text in process for word in ("--engine-option", text)))
    assert isinstance(error, UsageError)
    assert str(error).startswith(f"{program} is no program that workers could run")


def test_a_program_that_ends_is_not_waited_for(tmp_path):
    began = time.monotonic()
    broken = fake(tmp_path / "prism", script="echo no room >&2; exit 3")
    with (
        pytest.raises(StorageError, match="Prism did not start: no room"),
        serve(str(broken), tmp_path, print),
    ):
        pass
    assert time.monotonic() - began < 5


def prism_of(process):
    """Returns the processes of Prism below a command."""
    found = []
    for each in processes_below(process):
        with contextlib.suppress(psutil.NoSuchProcess):
            # Before it becomes Prism it is Python, with the same words.
            if "--job_port" in each.cmdline() and "-c" not in each.cmdline():
                found.append(each)
    return found


def at_work(destination):
    return any(destination.glob("work/*/extract/*.msgpack"))


def assert_gone(found):
    _, alive = psutil.wait_procs(found, timeout=20)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []


def listeners(found):
    return [(p.pid, c) for p in found for c in p.net_connections("tcp") if c.status == psutil.CONN_LISTEN]


def test_it_gives_the_bytes_of_the_local_engine_is_seen_by_this_machine_only_and_ends(
    tmp_path, inputs, shouted, slowed, program
):
    process = start(inputs, tmp_path / "out", *slowed.option, *ENGINE)
    wait_for(process, lambda: at_work(tmp_path / "out"))
    found = processes_below(process)
    assert len(prism_of(process)) == 1
    assert len(listeners(found)) == 2, "the job service, and workers of this process"
    for pid, connection in listeners(found):
        with _copy_of_socket(pid, connection.fd) as copy:
            device = copy.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)
        assert connection.laddr.ip in LOOPBACK or device == b"lo\0"
    slowed.run()
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert list(shards_of(tmp_path / "out").values()) == shouted
    assert not (tmp_path / "out" / "work").exists()
    assert_gone(found)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_it_and_the_same_command_goes_on(tmp_path, inputs, shouted, slowed, program, number):
    process = start(inputs, tmp_path / "out", *slowed.option, *ENGINE)
    wait_for(process, lambda: at_work(tmp_path / "out"))
    found = processes_below(process)
    assert prism_of(process)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert_gone(found)
    slowed.run()
    result = convert(inputs, tmp_path / "out", *slowed.option, *ENGINE)
    assert result.returncode == 0, result.stderr
    assert list(shards_of(tmp_path / "out").values()) == shouted


def test_a_prism_that_dies_is_the_reason_and_the_same_command_goes_on(tmp_path, inputs, shouted, slowed, program):
    process = start(inputs, tmp_path / "out", *slowed.option, *ENGINE)
    wait_for(process, lambda: at_work(tmp_path / "out"))
    found = processes_below(process)
    prism_of(process)[0].kill()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 5, stderr
    assert "the engine prism ended with an error: Prism ended with SIGKILL; most often the system ran out of" in stderr
    assert "Nothing was committed" in stderr
    assert list_versions(str(tmp_path / "out")) == []
    assert_gone(found)
    slowed.run()
    result = convert(inputs, tmp_path / "out", *slowed.option, *ENGINE)
    assert result.returncode == 0, result.stderr
    assert list(shards_of(tmp_path / "out").values()) == shouted


def test_a_row_that_does_not_fit_is_named_and_prism_ends(tmp_path, program):
    (tmp_path / "a.csv").write_text("id,x\n1,2\nnine,3\n")
    (tmp_path / "schema.json").write_text('{"features": {"id": "int64", "x": "float64"}}')
    before = {p.pid for p in psutil.process_iter()}
    result = convert(tmp_path / "a.csv", tmp_path / "out", *ENGINE, "--schema", tmp_path / "schema.json")
    assert result.returncode == 3, result.stderr
    assert "nine" in result.stderr
    assert [p for p in psutil.process_iter() if p.pid not in before and p.name() == "prism"] == []


def test_records_that_it_keeps_in_memory_are_announced(tmp_path, inputs, clean, program, monkeypatch):
    with serve_store("moto", tmp_path) as server:
        use(server, monkeypatch)
        for path in inputs.iterdir():
            storage.put_file(path, f"{server.url}/in/{path.name}")
        result = convert(f"{server.url}/in", f"{server.url}/out", *ENGINE, "--work-dir", f"{server.url}/work")
        assert result.returncode == 0, result.stderr
        assert shards_of(f"{server.url}/out") == clean
        assert storage.list_files(f"{server.url}/work") == []
    said = re.search(r"note: workers share no disk, so the engine prism keeps all records in memory, .*", result.stderr)
    assert re.search(r"about 1\d\d MiB, and [\d.]+ GiB are free; with a --work-dir on a disk they lie there", said[0])
