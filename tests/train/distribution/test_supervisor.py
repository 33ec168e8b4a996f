"""The supervisor with real processes: stand-in workers that are killed, frozen, ended and asked to stop."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from train.distribution.held import scratch_folder

pytestmark = pytest.mark.full

OVERSEER = ROOT / "tests/support/training/overseer.py"
WAIT_S = 60


class Run:
    """A supervisor and its workers in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, mishaps=None, *, steps=20, step_s=0.02, workers=2, restarts=3, elastic=False, grace_s=20.0) -> None:
        (self.folder / "mishaps.json").write_text(json.dumps(mishaps or {}))
        settings = (steps, step_s, workers, restarts, elastic, grace_s)
        self.process = subprocess.Popen(
            [sys.executable, str(OVERSEER), str(self.folder), *map(str, settings)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CONFIG": "not ours"},
        )  # fmt: skip

    def finish(self) -> tuple[int, list[str], str]:
        """Returns the exit code, the sentences on stderr without their times, and stdout."""
        out, err = self.process.communicate(timeout=2 * WAIT_S)
        lines = err.splitlines()
        self.said_s = [float(line.split()[0]) for line in lines if line[:1].isdigit()]
        return self.process.returncode, [x.partition(" ")[2] if x[:1].isdigit() else x for x in lines], out

    def starts(self, worker: int) -> list[dict[str, Any]]:
        path = self.folder / f"starts-{worker}"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_start(self, worker: int, number: int = 1) -> int:
        """Returns the process of a worker's n-th start."""
        until(lambda: len(self.starts(worker)) >= number)
        return self.starts(worker)[number - 1]["pid"]

    def suffered_s(self) -> float:
        return float((self.folder / "suffered").read_text())


def until(is_so, limit_s: float = WAIT_S) -> None:
    end_s = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path)
    yield run
    if run.process.poll() is None:
        run.process.kill()
        run.process.communicate()


def test_workers_that_meet_no_mishap_end_well(run) -> None:
    run.start(workers=3)
    code, said, out = run.finish()
    assert (code, said) == (0, [])
    # The first worker is seen, the others are in files.
    assert out == "worker 0 begins at 0\nworker 0 is done\n"
    for worker in (1, 2):
        text = (run.folder / "workers" / f"{worker}.log").read_text()
        assert text == f"worker {worker} begins at 0\nworker {worker} is done\n"
    (start,) = run.starts(2)
    assert start["of"] == len(set(start["workers"])) == 3
    assert not start["resume"]
    # What it would say if it were stopped before it knew more.
    assert start["stopped"] == "Steps are kept"


def test_one_worker_has_no_cluster_and_is_restarted_too(run) -> None:
    run.start({"0-0": [7, "SIGKILL"]}, workers=1)
    code, said, _ = run.finish()
    assert code == 0
    assert said == [
        "worker 0 was killed by SIGKILL after step 7; restarting 1 worker from the last checkpoint, restart 1 of 3"
    ]
    assert [s["workers"] for s in run.starts(0)] == [[], []]


@pytest.mark.parametrize("worker", [0, 1])
def test_a_killed_worker_is_noticed_and_all_begin_at_the_last_checkpoint(run, worker) -> None:
    step = random.Random(worker).randrange(6, 19)
    run.start({f"0-{worker}": [step, "SIGKILL"]}, step_s=0.05)
    code, said, _ = run.finish()
    assert code == 0
    assert said == [
        f"worker {worker} was killed by SIGKILL after step {step}; "
        "restarting 2 workers from the last checkpoint, restart 1 of 3"
    ]
    assert run.said_s[0] - run.suffered_s() < 2
    for index in (0, 1):
        first, second = run.starts(index)
        assert second["resume"]
        assert not set(first["workers"]) & set(second["workers"])
    assert run.starts(worker)[1]["from"] == step // 5 * 5


@pytest.mark.slow
def test_a_stopped_worker_is_noticed_and_replaced(run) -> None:
    run.start({"0-1": [7, "SIGSTOP"]}, steps=40, step_s=0.05)
    code, said, _ = run.finish()
    assert code == 0
    assert len(said) == 1
    assert said[0].startswith("worker 1 was stopped for 8 s after step 7, during training; restarting 2 workers")
    assert run.said_s[0] - run.suffered_s() < 15


@pytest.mark.slow
def test_a_worker_that_hangs_is_noticed_by_what_its_phase_may_take(run) -> None:
    run.start({"0-1": [7, "busy"], "1-1": [12, "hang"]}, steps=40, step_s=0.05)
    code, said, _ = run.finish()
    assert code == 0
    assert said[0].startswith("worker 1 gave no sign of life for 1 s after step 7, during evaluation; restarting")
    # One hangs and the other waits for it; which one is which only they could say.
    assert said[1].startswith("workers 0, 1 gave no sign of life for 10 s after step 12, during training; restarting")
    assert run.said_s[1] - run.suffered_s() < 15


def test_more_restarts_than_allowed_end_the_run_with_what_to_do(run) -> None:
    run.start({f"{generation}-1": [7, "SIGKILL"] for generation in range(9)}, restarts=2)
    code, said, _ = run.finish()
    assert code == 5
    assert len(said) == 3
    assert said[-1].startswith("error[SK-E500]: worker 1 was killed by SIGKILL after step 7; 2 restarts were allowed.")
    assert "Steps are kept" in said[-1]
    assert len(run.starts(0)) == 3


def test_no_restart_where_none_is_allowed(run) -> None:
    run.start({"0-1": [7, "70"]}, restarts=0)
    code, said, _ = run.finish()
    assert code == 5
    assert "no restart is allowed" in said[-1]


def test_an_elastic_run_goes_on_with_fewer_workers(run) -> None:
    mishaps = {"0-2": [7, "SIGKILL"], "1-2": [7, "SIGKILL"], "2-1": [7, "SIGKILL"], "3-0": [9, "70"]}
    run.start(mishaps, workers=3, restarts=5, elastic=True)
    code, said, _ = run.finish()
    assert code == 0
    assert [line.split("; ")[1].split(" from")[0] for line in said] == [
        "restarting 3 workers", "going on with 2 workers", "going on with 1 worker", "restarting 1 worker",
    ]  # fmt: skip
    assert [s["of"] for s in run.starts(0)] == [3, 3, 2, 1, 1]


def test_a_wrong_request_is_not_tried_again_and_is_said_once(run) -> None:
    run.start({"0-1": [3, "2"]}, steps=1000)
    code, said, _ = run.finish()
    assert code == 2
    assert said == ["worker 1 says:", "error[SK-E200]: the label is wrong.", "  Use another --label."]
    assert len(run.starts(0)) == len(run.starts(1)) == 1


def test_another_exit_code_is_tried_again_and_names_the_log(run) -> None:
    run.start({"0-1": [3, "70"], "1-1": [8, "75"]})
    code, said, _ = run.finish()
    assert code == 0
    assert said[0].startswith("worker 1 ended with exit code 70 after step 3; restarting 2 workers")
    assert said[0].endswith(f"see {run.folder / 'workers' / '1.log'}")
    assert said[1].startswith("worker 1 lost another worker after step 8; restarting 2 workers")


def test_a_bug_that_comes_back_at_the_same_step_ends_the_run(run) -> None:
    run.start({"0-1": [3, "70"], "1-1": [3, "70"]}, steps=1000)
    code, said, _ = run.finish()
    assert code == 70
    assert said[0].startswith("worker 1 ended with exit code 70 after step 3; restarting 2 workers")
    assert said[1:] == [
        "worker 1 says:", "worker 1 begins at 0", "worker 1 ended with exit code 70 after step 3, where a worker did "
        "before; another start would end the same way",
    ]  # fmt: skip


def test_what_a_killed_supervisor_left_is_removed_by_the_next_one(run, tmp_path_factory, monkeypatch) -> None:
    place = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", None)  # Which it remembers.
    run.start(steps=100_000)
    run.wait_for_start(0)
    run.process.kill()
    run.process.communicate()
    (left,) = place.iterdir()
    with scratch_folder() as own:
        assert not left.exists()
        with scratch_folder() as other:
            assert own.exists()
            assert other != own
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_gives_the_workers_time_for_a_checkpoint(run, number, code) -> None:
    run.start(steps=100_000)
    pids = [run.wait_for_start(0), run.wait_for_start(1)]
    run.process.send_signal(number)
    assert run.finish()[:2] == (code, [])
    assert (run.folder / "checkpoint").exists()
    assert not any(map(is_alive, pids))


def test_a_worker_that_does_not_stop_is_ended_after_the_grace_period(run) -> None:
    run.start({"0-1": [0, "hang"]}, steps=100_000, grace_s=1.0)
    pids = [run.wait_for_start(0), run.wait_for_start(1)]
    until((run.folder / "suffered").exists)
    run.process.send_signal(signal.SIGTERM)
    assert run.finish()[:2] == (143, [])
    assert not any(map(is_alive, pids))


def test_a_first_worker_that_cannot_say_what_is_saved_is_spoken_for(run) -> None:
    run.start({"0-0": [0, "hang"]}, steps=100_000, grace_s=1.0)
    until((run.folder / "suffered").exists)
    run.process.send_signal(signal.SIGTERM)
    assert run.finish()[:2] == (143, ["terminated: Steps are kept"])


def test_a_second_signal_ends_at_once(run) -> None:
    run.start({"0-1": [0, "hang"]}, steps=100_000, grace_s=1000.0)
    pids = [run.wait_for_start(0), run.wait_for_start(1)]
    until((run.folder / "suffered").exists)
    run.process.send_signal(signal.SIGTERM)
    until(lambda: not is_alive(pids[0]))
    run.process.send_signal(signal.SIGTERM)
    assert run.finish()[0] == 143
    assert not any(map(is_alive, pids))


def test_a_signal_to_one_worker_stops_all(run) -> None:
    run.start(steps=100_000)
    pids = [run.wait_for_start(0), run.wait_for_start(1)]
    os.kill(pids[1], signal.SIGTERM)
    assert run.finish()[:2] == (143, [])
    assert (run.folder / "checkpoint").exists()


def test_no_worker_outlives_a_killed_supervisor(run) -> None:
    run.start({"0-1": [0, "SIGSTOP"]}, steps=100_000)
    pids = [run.wait_for_start(0), run.wait_for_start(1)]
    until((run.folder / "suffered").exists)
    run.process.kill()
    until(lambda: not any(map(is_alive, pids)), 5)


@pytest.mark.slow
def test_runs_killed_at_random_go_on_to_the_end(run) -> None:
    draw = random.Random(7)
    mishaps = {f"{g}-{draw.randrange(3)}": [draw.randrange(3, 60), "SIGKILL"] for g in range(8)}
    run.start(mishaps, steps=60, workers=3, restarts=20, step_s=0.01)
    code, said, _ = run.finish()
    assert code == 0
    assert all("was killed by SIGKILL after step" in line for line in said)
    for worker in range(3):
        for before, after in zip(run.starts(worker), run.starts(worker)[1:], strict=False):
            assert after["from"] >= before["from"]
