"""The examples for Kubernetes and Slurm: what they would start, by the command's own parser."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from train.distribution.restart_policy import FINAL_CODES
from train.distribution.supervisor import GRACE_S

PLACEMENT = ROOT / "tests/support/training/placement.py"
SLURM = ROOT / "examples" / "slurm" / "train.sbatch"
KUBERNETES = ROOT / "examples" / "kubernetes" / "train.yaml"

# Runs the tasks of a step one after the other, each with the environment that Slurm gives it.
SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
code=0
for task in 0 1; do
    SLURM_STEP_ID=0 SLURM_PROCID=$task SLURM_NODEID=$task "$@" || code=$?
done
exit "$code"
"""


def script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def placement(*arguments: str) -> dict:
    done = subprocess.run(
        [sys.executable, str(PLACEMENT), *arguments],
        capture_output=True, text=True, timeout=120, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.fixture
def slurm(tmp_path):
    """Returns a function that runs the script as a job on two nodes, where `shardkit` is what it is given."""
    script(tmp_path / "srun", SRUN)
    script(tmp_path / "scontrol", '#!/usr/bin/env bash\necho "scontrol $*"\n')

    def run(shardkit: str) -> subprocess.CompletedProcess[str]:
        script(tmp_path / "shardkit", f"#!/usr/bin/env bash\n{shardkit}\n")
        job = {"JOB_ID": "41", "NTASKS": "2", "JOB_NODELIST": "gpu[07-08]", "TASKS_PER_NODE": "1(x2)", "PROCID": "0"}
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            ["bash", str(SLURM), "out/a b", "label", "runs/a b"], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=120, env=environment | {f"SLURM_{k}": v for k, v in job.items()},
        )  # fmt: skip

    return run


@pytest.mark.full
def test_slurm_starts_each_worker_once(slurm) -> None:
    done = slurm(f'exec "{sys.executable}" "{PLACEMENT}" "$@"')
    assert done.returncode == 0, done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    assert first["workers"] == second["workers"]
    assert [address.partition(":")[0] for address in first["workers"]] == ["gpu07", "gpu07", "gpu08", "gpu08"]
    assert [(p["first"], p["count"]) for p in (first, second)] == [(0, 2), (2, 2)]


@pytest.mark.full
def test_a_preempted_job_of_slurm_is_queued_again(slurm) -> None:
    assert slurm("exit 143").stdout == "scontrol requeue 41\n"
    for code in (0, 2, 5):
        done = slurm(f"exit {code}")
        assert (done.returncode, done.stdout) == (code, "")


@pytest.mark.full
def test_kubernetes_starts_each_worker_once() -> None:
    yaml = pytest.importorskip("yaml")
    service, job = yaml.safe_load_all(KUBERNETES.read_text())
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    spec, name = job["spec"], job["metadata"]["name"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert spec["completionMode"] == "Indexed"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": name}
    assert service["metadata"]["name"] == pod["subdomain"]

    assert container["command"][0] == "shardkit"
    placements = []
    for index in range(spec["completions"]):
        arguments = [a.replace("$(HOST_INDEX)", str(index)) for a in container["args"]]
        placements.append(placement(*container["command"][1:], *arguments))
    assert {p["count"] for p in placements} == {2}
    assert [p["first"] for p in placements] == [0, 2]
    workers = placements[1]["workers"]
    # The names that an indexed job and a service without an address give to its pods.
    hosts = [f"{name}-{i}.{pod['subdomain']}" for i in range(spec["parallelism"]) for _ in range(2)]
    assert [w.partition(":")[0] for w in workers] == hosts
    ports = {int(w.partition(":")[2]) for w in workers}
    assert ports == {p["containerPort"] for p in container["ports"]} == {p["port"] for p in service["spec"]["ports"]}


def test_kubernetes_gives_time_for_a_checkpoint_and_gives_up_where_we_do() -> None:
    yaml = pytest.importorskip("yaml")
    _, job = yaml.safe_load_all(KUBERNETES.read_text())
    assert job["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > GRACE_S
    fail, ignore = job["spec"]["podFailurePolicy"]["rules"]
    assert (fail["action"], ignore["action"]) == ("FailJob", "Ignore")
    assert set(fail["onExitCodes"]["values"]) == FINAL_CODES
