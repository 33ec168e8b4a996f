"""Conversions on Dataflow by Google's own client, against a small service of ours and a store that is real."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile

import pytest

from shardkit._version import __version__
from shardkit.dataset.open import list_versions
from shardkit.errors import UsageError
from shardkit.storage import files as storage
from tests.support.campaign import in_campaign
from tests.support.engines.conversions import SETTINGS, TRACE, TRIED, shards_of
from tests.support.engines.dataflow_bucket import IMAGE, JOB, URL, finish, in_terminal, one_line, read_until, wait_until

pytestmark = pytest.mark.full

pytest.importorskip("google.cloud.dataflow")


@pytest.mark.slow
def test_what_is_staged_runs_and_gives_the_bytes_of_the_local_engine(bucket, service, inputs, clean, own_wheel):
    for path in inputs.iterdir():
        storage.put_file(path, f"{bucket.url}/many/{path.name}")
    bucket.raw = f"{bucket.url}/many"
    service.is_real = True
    result = bucket.run(*SETTINGS, flags=(f"--extra_package={own_wheel}",))
    assert result.returncode == 0, result.stderr
    assert "80,000 rows in, 80,000 examples out" in result.stdout
    assert f"Dataflow runs it as job {JOB}: {URL}" in result.stderr
    assert shards_of(bucket.out) == clean
    assert service.counters["num_rows"] == (80_000, 80_000)
    assert service.counters["num_framed_bytes"] == service.counters["num_planned_bytes"]
    # All of it goes through the shuffle, and what lies at the border of two units twice.
    assert service.counters["num_carried_bytes"] > service.counters["num_planned_bytes"]
    assert storage.list_files(bucket.work) == []
    assert len(service.counters) <= 12
    verified = subprocess.run(
        [sys.executable, "-m", "shardkit", "verify", bucket.out], capture_output=True, text=True, check=False
    )
    assert verified.returncode == 0, verified.stderr


@pytest.mark.slow
def test_the_job_is_what_was_asked_for_and_its_packages_lie_in_the_bucket(bucket, service, own_wheel, tmp_path):
    service.states = ["JOB_STATE_PENDING", "JOB_STATE_RUNNING", "JOB_STATE_FAILED"]
    own_lines = f"shardkit[gcs]=={__version__}\nisal==1.8.0\n"
    file = tmp_path / "mine.txt"
    file.write_text(own_lines)
    packages = (f"--extra_package={own_wheel}", "--requirements_file", str(file), "--requirements_cache=skip")
    options = (
        "max-workers=3",
        "labels=team=data",
        "public-ips=no",
        "service-account=w@p.iam.gserviceaccount.com",
    )
    result = bucket.run(*(word for option in options for word in ("--engine-option", option)), flags=packages)
    assert result.returncode == 5, result.stderr
    job = service.job
    assert (job["projectId"], job["location"]) == ("my-project", "europe-west1")
    assert re.fullmatch(r"shardkit-out-[0-9a-f]{8}-[0-9a-f]{12}", job["name"])
    assert job["labels"] == {
        "shardkit-command": "convert",
        "shardkit-dataset": "out",
        "shardkit-version": "0-1-0",
        "team": "data",
    }
    environment = job["environment"]
    assert environment["serviceAccountEmail"] == "w@p.iam.gserviceaccount.com"
    (pool,) = environment["workerPools"]
    assert (pool["machineType"], pool["diskSizeGb"], pool["numThreadsPerWorker"]) == ("n2-standard-4", 100, 2)
    assert pool["autoscalingSettings"] == {"algorithm": 2, "maxNumWorkers": 3}
    assert pool["ipConfiguration"] == 2
    (image,) = pool["sdkHarnessContainerImages"]
    assert image["containerImage"].endswith("/beam_python3.11_sdk:2.77.0")
    assert service.options_of(job)["save_main_session"] is False
    staged = bucket.staged()
    assert {p["name"] for p in pool["packages"]} == set(staged) - {"pipeline.pb"}
    (wheel,) = (name for name in staged if name.endswith(".whl"))
    assert storage.read_bytes(staged["extra_packages.txt"]).decode().split() == [wheel]
    assert storage.read_bytes(staged["requirements.txt"]).decode() == own_lines
    # What workers would install is imported from there, and nothing of this checkout.
    (tmp_path / wheel).write_bytes(storage.read_bytes(staged[wheel]))
    zipfile.ZipFile(tmp_path / wheel).extractall(tmp_path / "site")
    code = "import beam_pipelines.convert as c, shardkit._kernel as k; print(c.__file__, k.__file__)"
    own = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    found = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); {code}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=own,
    )
    assert found.returncode == 0, found.stderr
    assert all(path.startswith(str(tmp_path / "site")) for path in found.stdout.split())


def test_an_image_needs_no_packages(bucket, service):
    service.states = ["JOB_STATE_CANCELLED"]
    assert bucket.run(*IMAGE).returncode == 5
    (pool,) = service.job["environment"]["workerPools"]
    assert [i["containerImage"] for i in pool["sdkHarnessContainerImages"]] == ["docker.example/shardkit:1"]
    assert set(bucket.staged()) == {"pipeline.pb", "submission_environment_dependencies.txt"}


@pytest.mark.parametrize(
    ("state", "messages", "code", "expected"),
    [
        ("FAILED", [TRACE, TRIED], 3, "a.csv, line 3: expected 2 fields, got 1"),
        ("FAILED", ["Traceback:\nValueError: odd\n", TRIED], 5, "the job failed in {url}: ValueError: odd"),
        *in_campaign(("CANCELLED", [], 5, "the job was cancelled in {url}")),
    ],
)
def test_a_job_that_ends_otherwise_ends_the_command_with_its_reason(bucket, service, state, messages, code, expected):
    service.states = ["JOB_STATE_PENDING", "JOB_STATE_RUNNING", f"JOB_STATE_{state}"]
    service.messages = messages
    result = bucket.run(*IMAGE)
    assert result.returncode == code, result.stderr
    said = one_line(result.stderr)
    assert expected.format(url=URL) in said
    assert URL in said
    assert "Nothing was committed" in said
    assert "Traceback" not in said
    assert list_versions(bucket.out) == []


def test_what_beam_refuses_is_said_in_its_words(bucket, service):
    result = bucket.run(*IMAGE, flags=("--disk_size_gb=many",))
    assert result.returncode == 2, result.stderr
    assert "Beam refuses the options of the job" in result.stderr
    assert "--disk_size_gb: invalid int value: 'many'" in one_line(result.stderr)
    assert "usage:" not in result.stderr
    assert service.jobs == {}


def test_a_job_that_says_that_it_is_done_is_not_believed_without_a_dataset(bucket, service):
    service.states = ["JOB_STATE_DONE"]
    result = bucket.run(*IMAGE)
    assert result.returncode == 5, result.stderr
    assert f"the job is done, and there is no dataset in {URL}" in one_line(result.stderr)


def test_without_credentials_nothing_is_handed_over(bucket, service, tmp_path):
    hidden = ("GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG", "GAE_ENV")
    kept = {k: v for k, v in bucket.environment.items() if k not in hidden}
    command = [word for word in bucket.command(*IMAGE) if word != "--no_auth"]
    found = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=100, env={**kept, "HOME": str(tmp_path)}
    )
    assert found.returncode == 2, found.stderr
    assert "there are no credentials for Google Cloud" in found.stderr
    assert "gcloud auth application-default login" in found.stderr
    assert service.jobs == {}


# In a forked process gRPC's first handshake fails at times, and is tried again for 15 s.
@pytest.mark.fresh_start
def test_credentials_are_those_that_google_finds(bucket, service, tmp_path):
    from tests.support.engines.fake_dataflow import TOKEN, make_credentials

    service.states = ["JOB_STATE_DRAINED"]
    key = make_credentials(tmp_path / "key.json", f"{service.endpoint}/token")
    found = subprocess.run(
        [word for word in bucket.command(*IMAGE) if word != "--no_auth"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**bucket.environment, "GOOGLE_APPLICATION_CREDENTIALS": str(key)},
    )
    assert found.returncode == 5, found.stderr
    assert "the job was drained" in found.stderr
    assert service.authorizations == {None, f"Bearer {TOKEN}"}
    assert TOKEN not in found.stderr + found.stdout


@pytest.mark.parametrize(
    ("code", "status", "exit_code", "expected"),
    [
        (409, "ALREADY_EXISTS", 4, "running already on Dataflow"),
        *in_campaign((403, "PERMISSION_DENIED", 2, "Dataflow refused the job")),
    ],
)
def test_a_job_that_is_not_taken_is_explained(bucket, service, code, status, exit_code, expected):
    from tests.support.engines.fake_dataflow import Refused

    service.refusal = Refused(code, status, "for a reason")
    result = bucket.run(*IMAGE)
    assert result.returncode == exit_code, result.stderr
    assert expected in result.stderr
    assert "for a reason" in result.stderr
    assert "Traceback" not in result.stderr


def test_what_the_workers_counted_is_shown_as_of_any_conversion(bucket, service):
    service.counters = {"num_rows": (250, 100), "num_input_bytes": (2500, 1000)}
    leader, process = in_terminal(bucket)
    seen = read_until(leader, lambda text: "250 rows" in text)
    assert "waiting for workers" not in seen.rpartition("\r")[2]
    assert re.search(r"reading .*2\d %", seen)
    service.counters = {
        "num_rows": (1000, 1000),
        "num_input_bytes": (10265, 10265),
        "num_planned_bytes": (None, 46872),
        "num_written_rows": (600, 500),
        "num_framed_bytes": (28000, 23000),
    }
    assert re.search(r"writing .*59 %", read_until(leader, lambda text: "600 rows" in text))
    service.states = ["JOB_STATE_FAILED"]
    read_until(leader, lambda text: "the job failed" in text)
    finish(leader, process)


def test_a_service_that_takes_calls_and_never_answers_is_reported(bucket, service):
    process = bucket.start(*IMAGE, "--engine-option", "lost-minutes=0.05")
    wait_until(lambda: service.num_looks > 2)
    service.answers.clear()
    try:
        _, stderr = process.communicate(timeout=40)
    finally:
        service.answers.set()
    assert process.returncode == 5, stderr
    assert f"Dataflow does not answer any more in {URL}: the connection stands" in one_line(stderr)


def test_an_outage_passes_and_a_long_one_leaves_the_job_running(bucket, service):
    process = bucket.start(*IMAGE, "--engine-option", "lost-minutes=0.05")
    wait_until(lambda: service.num_looks > 2)
    service.is_down = True
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 5, stderr
    said = one_line(stderr)
    assert f"Dataflow does not answer any more in {URL}" in said
    assert "The job goes on without this command" in said
    assert service.cancelled == []


def test_a_job_of_which_nothing_is_known_is_not_waited_for_without_end(bucket, service):
    service.states = ["JOB_STATE_PENDING", "JOB_STATE_UNKNOWN"]
    result = bucket.run(*IMAGE, "--engine-option", "lost-minutes=0.02")
    assert result.returncode == 5
    text = one_line(result.stderr)
    assert "Dataflow does not know what becomes of the job in https://console.cloud.google.com/dataflow/jobs/" in text
    assert "its state has been unknown for 0.02 minutes" in text


def test_a_short_outage_is_not_even_mentioned(bucket, service):
    process = bucket.start(*IMAGE)
    wait_until(lambda: service.num_looks > 2)
    service.is_down = True
    before = service.num_refused
    wait_until(lambda: service.num_refused > before + 2)
    service.is_down, service.states = False, ["JOB_STATE_DRAINED"]
    _, stderr = process.communicate(timeout=60)
    assert "the job was drained" in stderr
    assert "answer" not in stderr


def test_a_job_that_stands_still_is_cancelled(bucket, service):
    result = bucket.run(*IMAGE, "--engine-option", "stall-minutes=0.02")
    assert result.returncode == 5, result.stderr
    assert "the job stood still and was cancelled" in result.stderr
    assert service.cancelled == [JOB]


def test_a_dry_run_shows_all_settings_of_the_job_and_why(bucket, service, tmp_path):
    refused = bucket.run("--dry-run")
    assert refused.returncode == 2
    assert "no option says how the workers of Dataflow get shardkit" in one_line(refused.stderr)
    wheel = tmp_path / "shardkit.whl"
    wheel.touch()
    result = bucket.run("--dry-run", flags=(f"--extra_package={wheel}",))
    assert result.returncode == 0, result.stderr
    assert f"--extra_package={wheel}" in result.stdout
    assert re.search(r"region +europe-west1 +as asked for", result.stdout)
    assert re.search(r"threads +2 +each holds a group", result.stdout)
    assert "--labels=shardkit-dataset=out" in result.stdout
    assert service.jobs == {}
    with pytest.raises(UsageError, match="no file matches"):
        bucket.staged()
