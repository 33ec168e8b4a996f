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
KUBERNETES = ROOT / "examples" / "kubernetes"
EXAMPLES = ("train.yaml", "jobset.yaml", "trainjob.yaml")

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


def documents(name: str) -> dict[str, dict]:
    """Returns the documents of an example, by kind."""
    yaml = pytest.importorskip("yaml")
    return {found["kind"]: found for found in yaml.safe_load_all((KUBERNETES / name).read_text())}


def job_of(name: str) -> tuple[dict, str, dict]:
    """Returns the job that an example makes, how its pods are called, and the container that trains."""
    found = documents(name)
    if "Job" in found:
        job, subdomain = found["Job"], found["Service"]["metadata"]["name"]
        spec, called = job["spec"], job["metadata"]["name"]
        assert spec["template"]["spec"]["subdomain"] == subdomain
    else:
        owner = found.get("TrainingRuntime", found.get("JobSet"))
        job_set = owner["spec"] if owner["kind"] == "JobSet" else owner["spec"]["template"]["spec"]
        (replicated,) = job_set["replicatedJobs"]
        spec, subdomain = replicated["template"]["spec"], found.get("TrainJob", owner)["metadata"]["name"]
        assert job_set["network"] == {"enableDNSHostnames": True, "publishNotReadyAddresses": True}
        called = f"{subdomain}-{replicated['name']}-0"
    (container,) = spec["template"]["spec"]["containers"]
    if "TrainJob" in found:
        trainer = found["TrainJob"]["spec"]["trainer"]
        container |= {key: trainer[key] for key in ("image", "command", "args")}
        spec |= {"completions": trainer["numNodes"], "parallelism": trainer["numNodes"]}
    return spec, f"{called}-{{}}.{subdomain}", container


@pytest.mark.full
@pytest.mark.parametrize("name", EXAMPLES)
def test_kubernetes_starts_each_worker_once(name: str) -> None:
    spec, called, container = job_of(name)
    assert spec["completionMode"] == "Indexed"
    assert container["command"][0] == "shardkit"
    placements = []
    for index in range(spec["completions"]):
        arguments = [a.replace("$(HOST_INDEX)", str(index)) for a in container["args"]]
        placements.append(placement(*container["command"][1:], *arguments))
    assert {p["count"] for p in placements} == {2}
    assert [p["first"] for p in placements] == [0, 2]
    workers = placements[1]["workers"]
    # The names that an indexed job and a service without an address give to its pods.
    hosts = [called.format(i) for i in range(spec["parallelism"]) for _ in range(2)]
    assert [w.partition(":")[0] for w in workers] == hosts
    assert {int(w.partition(":")[2]) for w in workers} == {p["containerPort"] for p in container["ports"]}


def test_the_service_of_a_job_leads_to_its_pods() -> None:
    found = documents("train.yaml")
    service, (container,) = found["Service"], found["Job"]["spec"]["template"]["spec"]["containers"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": found["Job"]["metadata"]["name"]}
    assert {p["containerPort"] for p in container["ports"]} == {p["port"] for p in service["spec"]["ports"]}


@pytest.mark.parametrize("name", EXAMPLES)
def test_kubernetes_gives_time_for_a_checkpoint_and_gives_up_where_we_do(name: str) -> None:
    spec, _, container = job_of(name)
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > GRACE_S
    fail, ignore = spec["podFailurePolicy"]["rules"]
    assert (fail["action"], ignore["action"]) == ("FailJob", "Ignore")
    assert fail["onExitCodes"]["containerName"] == container["name"]
    assert set(fail["onExitCodes"]["values"]) == FINAL_CODES


def test_a_runtime_of_kubeflow_says_what_its_trainer_replaces() -> None:
    found = documents("trainjob.yaml")
    runtime, job = found["TrainingRuntime"], found["TrainJob"]
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert replicated["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert replicated["template"]["spec"]["template"]["spec"]["containers"][0]["name"] == "node", "as Kubeflow wants it"
    assert (
        job["spec"]["runtimeRef"] | {"name": runtime["metadata"]["name"], "kind": runtime["kind"]}
        == (job["spec"]["runtimeRef"])
    )


def lost_in(document: object, known: object, place: str = "") -> list[str]:
    """Returns the parts of a document that a schema does not know."""
    if isinstance(document, dict) and isinstance(known, dict):
        return [lost for key, part in document.items() for lost in lost_in(part, known.get(key), f"{place}.{key}")]
    if isinstance(document, list) and isinstance(known, list) and len(document) == len(known):
        return [lost for i, part in enumerate(document) for lost in lost_in(part, known[i], f"{place}[{i}]")]
    return [] if document == known else [place]


@pytest.mark.full
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_published_schemas_know_every_field(name: str) -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models")
    schemas = {
        "Service": models.IoK8sApiCoreV1Service,
        "Job": models.IoK8sApiBatchV1Job,
        "JobSet": models.JobsetV1alpha2JobSet,
        "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
        "TrainJob": models.TrainerV1alpha1TrainJob,
    }
    for kind, document in documents(name).items():
        assert lost_in(document, schemas[kind].from_dict(document).to_dict()) == []
        document["spec"]["comletions"] = 2
        assert lost_in(document, schemas[kind].from_dict(document).to_dict()) == [".spec.comletions"]
