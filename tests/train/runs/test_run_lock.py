"""One command at a time trains in a run folder; what dead processes and hosts left is taken over."""

import os
import signal
import subprocess
import sys
import threading

import msgspec
import pyarrow as pa
import pytest

from shardkit.errors import ConflictError
from shardkit.features import arrow_schema, make_feature
from shardkit.runtime.owner import Owner, this_process
from shardkit.testing import write_dataset
from train.runs import run_lock as module
from train.runs.run_lock import LOCK_FILE, run_lock

FEATURES = (make_feature("n", "int64"), make_feature("y", "string"))
HOLDER = """
import sys
from pathlib import Path
from train.runs.run_lock import run_lock
with run_lock(Path(sys.argv[1]), print):
    print("held", flush=True)
    sys.stdin.read()
"""


def hold_elsewhere(folder):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], **pipes)
    assert process.stdout.readline() == "held\n"
    return process


def other_host(tmp_path):
    owner = Owner(host="node-7", machine="another", pid=12)
    (tmp_path / LOCK_FILE).write_bytes(msgspec.json.encode(owner))


@pytest.mark.full
def test_a_second_command_is_refused_with_host_and_process_of_the_first(tmp_path):
    process = hold_elsewhere(tmp_path)
    with pytest.raises(ConflictError, match=f"process {process.pid} on ") as caught, run_lock(tmp_path, pytest.fail):
        pass
    assert caught.value.exit_code == 4
    process.stdin.close()
    assert process.wait(30) == 0
    with run_lock(tmp_path, pytest.fail):
        assert (tmp_path / LOCK_FILE).stat().st_size
    assert (tmp_path / LOCK_FILE).stat().st_size == 0


@pytest.mark.full
def test_what_a_killed_command_held_is_free(tmp_path):
    process = hold_elsewhere(tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with run_lock(tmp_path, pytest.fail):
        pass


def test_a_host_that_went_long_ago_holds_nothing(tmp_path):
    other_host(tmp_path)
    os.utime(tmp_path / LOCK_FILE, (1e9, 1e9))
    with run_lock(tmp_path, pytest.fail):
        pass


def test_a_host_that_went_just_now_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "DEAD_S", 0.2)
    monkeypatch.setattr(module, "_LOOK_S", 0.01)
    other_host(tmp_path)
    said = []
    with run_lock(tmp_path, said.append):
        assert msgspec.json.decode((tmp_path / LOCK_FILE).read_bytes(), type=Owner) == this_process()
    assert "process 12 on node-7 was the last to train here" in said[0]


def test_a_host_that_lives_is_not_disturbed(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_LOOK_S", 0.01)
    other_host(tmp_path)
    stop = threading.Event()

    def beat(said):
        handle = os.open(tmp_path / LOCK_FILE, os.O_RDWR)
        os.utime(handle)
        os.close(handle)
        stop.set()

    # It shows that it lives after the other began to look.
    with pytest.raises(ConflictError, match="process 12 on node-7"), run_lock(tmp_path, beat):
        pass
    assert stop.is_set()


def test_the_time_is_renewed_while_it_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BEAT_S", 0.01)
    renewed = threading.Event()
    utime = os.utime
    monkeypatch.setattr(module.os, "utime", lambda *args: (utime(*args), renewed.set()))
    with run_lock(tmp_path, pytest.fail):
        assert renewed.wait(30)


@pytest.mark.full
def test_a_second_training_of_a_run_is_refused_and_the_first_goes_on(tmp_path):
    batch = pa.record_batch([pa.array(range(400)), pa.array(["u", "v"] * 200)], arrow_schema(FEATURES))
    write_dataset(tmp_path / "set", FEATURES, {"train": batch})
    command = [sys.executable, "-m", "shardkit", "train", str(tmp_path / "set"), "--label", "y", "--epochs", "2"]
    command += ["--global-batch-size", "50", "--output", str(tmp_path / "run")]
    (tmp_path / "run").mkdir()
    holder = hold_elsewhere(tmp_path / "run")
    second = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=False)
    assert second.returncode == 4, second.stderr
    assert f"another command trains in this folder in {tmp_path / 'run'}: process {holder.pid}" in second.stderr
    assert not (tmp_path / "run" / "train.json").exists()
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / LOCK_FILE).stat().st_size == 0
