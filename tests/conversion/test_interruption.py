"""Conversions that are cut off: nothing to be seen, and the same command finishes them with the same bytes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from shardkit.dataset.open import list_versions, open_dataset
from tests.support.campaign import in_campaign

pytestmark = [pytest.mark.slow, pytest.mark.full]


@pytest.fixture(scope="module")
def csv_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("input")
    rng = np.random.default_rng(0)
    for number in range(12):
        lines = [f"{i},{v:.4f},word{v * 1000:.0f}" for i, v in enumerate(rng.random(20_000))]
        (folder / f"{number:02d}.csv").write_text("\n".join(["id,x,word", *lines]) + "\n")
    return folder


def command(source, destination, *options):
    return [
        *(sys.executable, "-m", "shardkit", "convert", str(source), str(destination)),
        *("--split", "train=0.7", "--split", "test=0.3", "--num-shards", "40", *options),
    ]


def convert(source, destination, *options):
    return subprocess.run(command(source, destination, *options), check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def clean(tmp_path_factory, csv_files):
    """What an undisturbed conversion gives."""
    destination = tmp_path_factory.mktemp("clean") / "out"
    convert(csv_files, destination)
    return shards_of(destination)


def shards_of(destination):
    return {s.path: s.sha256 for s in open_dataset(str(destination)).shards}


def wait_for(process, condition):
    """Polls until the condition holds; the process must still run then."""
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, "it ended before it could be cut off"
        assert time.monotonic() < deadline
        time.sleep(0.005)


def start(source, destination, *options):
    return subprocess.Popen(
        command(source, destination, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


# One thread, threads of one process, and threads of several processes.
WORKERS = (1, 2, 6)

STAGES = {
    "first-run": lambda d: any(d.glob("work/*/spool/*.run")),
    "half-extracted": lambda d: len(list(d.glob("work/*/extract/*.msgpack"))) >= 3,
    "first-shard": lambda d: any(d.glob("data/*/*.gz")),
    "many-shards": lambda d: len(list(d.glob("data/*/*.gz"))) >= 30,
}


@pytest.mark.parametrize("workers", [WORKERS[-1], *in_campaign(*WORKERS[:-1])])
@pytest.mark.parametrize("stage", ["half-extracted", "many-shards", *in_campaign("first-run", "first-shard")])
def test_a_killed_conversion_shows_nothing_and_the_same_command_finishes_it(tmp_path, csv_files, clean, stage, workers):
    destination = tmp_path / "killed"
    process = start(csv_files, destination, "--workers", str(workers))
    wait_for(process, lambda: STAGES[stage](destination))
    children = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    psutil.wait_procs(children, timeout=10)
    assert list_versions(str(destination)) == []
    finished = {p: p.stat().st_mtime_ns for p in destination.glob("data/*/*.gz")}
    convert(csv_files, destination, "--workers", str(workers))
    assert shards_of(destination) == clean
    assert {p: p.stat().st_mtime_ns for p in finished} == finished, "finished shards were written again"
    assert not (destination / "work").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), *in_campaign((signal.SIGINT, 130))])
@pytest.mark.parametrize("workers", [6, *in_campaign(1, 2)])
def test_a_signal_ends_everything_within_a_second_with_a_sentence(tmp_path, csv_files, number, code, workers):
    destination = tmp_path / "out"
    process = start(csv_files, destination, "--workers", str(workers))
    wait_for(process, lambda: STAGES["first-run"](destination))
    children = psutil.Process(process.pid).children(recursive=True)
    sent = time.monotonic()
    process.send_signal(number)
    _, stderr = process.communicate(timeout=10)
    took = time.monotonic() - sent
    assert process.returncode == code
    assert b"run the same command again" in stderr
    assert b"Traceback" not in stderr
    _, alive = psutil.wait_procs(children, timeout=1)
    # Where process 1 reaps nobody's children, those that were killed stay as zombies.
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []
    assert took < 2, "twice the promise, for a busy machine"
    assert list_versions(str(destination)) == []


@pytest.mark.parametrize("workers", [1, 6])
def test_a_program_that_user_code_runs_ends_with_the_conversion(tmp_path, csv_files, workers):
    code = tmp_path / "slow.py"
    # The first call may be that of the planning.
    body = "    if next(calls):\n        subprocess.run(['sleep', '600'])\n    return rows\n"
    code.write_text("import itertools, subprocess\n\ncalls = itertools.count()\n\ndef slow(rows):\n" + body)
    process = start(csv_files, tmp_path / "out", "--workers", str(workers), "--map", f"{code}:slow")
    started = []

    def is_running():
        children = psutil.Process(process.pid).children(recursive=True)
        started[:] = [c for c in children if c.name() == "sleep"]
        return bool(started)

    wait_for(process, is_running)
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 143
    _, alive = psutil.wait_procs(started, timeout=10)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []


def test_a_killed_worker_costs_what_it_was_at_and_no_more(tmp_path, csv_files, clean):
    destination = tmp_path / "out"
    process = start(csv_files, destination, "--workers", "6")
    wait_for(process, lambda: STAGES["first-run"](destination))
    worker = next(
        c
        for c in psutil.Process(process.pid).children(recursive=True)
        if "shardkit.conversion.run.worker" in c.cmdline()
    )
    worker.kill()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert b"a worker process died; going on" in stderr
    assert shards_of(destination) == clean


@pytest.mark.parametrize("workers", [5, *in_campaign(*WORKERS)])
def test_workers_change_no_byte(tmp_path, csv_files, clean, workers):
    convert(csv_files, tmp_path / "out", "--workers", str(workers))
    assert shards_of(tmp_path / "out") == clean


def test_two_conversions_of_the_same_thing_do_not_disturb_each_other(tmp_path, csv_files):
    destination = tmp_path / "out"
    first = start(csv_files, destination)
    wait_for(first, lambda: any(destination.glob("work/*/plan-*.json")))
    second = subprocess.run(command(csv_files, destination), capture_output=True, text=True, check=False)
    # The first may have committed before the second looked, and keep its work folder still.
    if second.returncode == 0:
        assert "the dataset was complete already" in second.stderr
    else:
        assert second.returncode == 4
        assert "running already" in second.stderr or "there is a dataset already" in second.stderr
    first.communicate()
    assert first.returncode == 0
    assert len(shards_of(destination)) == 80


@pytest.mark.parametrize("workers", [2, *in_campaign(1, 6)])
def test_a_full_disk_says_where_and_leaves_nothing_to_see(tmp_path, csv_files, workers):
    mount = tmp_path / "small"
    mount.mkdir()
    size = sum(f.stat().st_size for f in Path(csv_files).iterdir())
    script = (
        f"mount -t tmpfs -o size={int(size * 1.2)} tmpfs {mount} && "
        f"{' '.join(command(csv_files, mount / 'out', '--workers', str(workers)))}; code=$?; "
        f"ls -R {mount}/out/manifests 2>/dev/null | wc -l >&2; exit $code"
    )
    probe = subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip("no user namespaces here")
    run = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 6, run.stderr
    assert "no space left" in run.stderr
    assert "Traceback" not in run.stderr
    assert str(mount) in run.stderr
    assert "free" in run.stderr
    assert "Nothing was committed" in run.stderr
    assert run.stderr.strip().endswith("0")


@pytest.mark.parametrize("workers", [2, *in_campaign(1, 6)])
def test_a_bad_row_ends_the_run_with_its_place_and_leaves_nothing(tmp_path, csv_files, workers):
    (tmp_path / "bad").mkdir()
    rows = [f"{i},{i / 8}" for i in range(50_000)]
    rows[40_000] = "x,1"
    (tmp_path / "bad" / "a.csv").write_text("\n".join(["id,x", *rows]) + "\n")
    schema = tmp_path / "schema.toml"
    schema.write_text('[features]\nid = "int64"\n')
    run = subprocess.run(
        command(tmp_path / "bad", tmp_path / "out", "--workers", str(workers), "--schema", str(schema)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 3
    assert "column 'id'" in run.stderr
    assert "a.csv, line 40002" in run.stderr
    assert "got 'x'" in run.stderr
    assert "Nothing was committed" in run.stderr
    assert "Traceback" not in run.stderr
    assert not (tmp_path / "out").exists()


def test_manifests_are_json_that_any_program_reads(tmp_path, csv_files):
    convert(csv_files, tmp_path / "out")
    manifest = json.loads((tmp_path / "out/manifests/00000001.json").read_text())
    assert manifest["format_version"] == 1
    assert [s["name"] for s in manifest["splits"]] == ["train", "test"]
    assert sum(s["num_examples"] for s in manifest["splits"]) == 240_000
