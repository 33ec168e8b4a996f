"""Conversions on Dataflow by Google's own client, against a small service of ours and a store that is real."""

from __future__ import annotations

import itertools
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import zipfile

import pytest

from shardkit.dataset.open import list_versions
from shardkit.errors import UsageError
from shardkit.storage import files as storage
from tests.support.engines.conversions import SETTINGS, TRACE, TRIED, shards_of

pytestmark = pytest.mark.full

pytest.importorskip("google.cloud.dataflow")
NUMBERS = itertools.count()
PLACE = ("--project", "my-project", "--region", "europe-west1")
IMAGE = ("--engine-option", "image=docker.example/shardkit:1")
JOB = "2026-11-23_00_00_00-1"
URL = f"https://console.cloud.google.com/dataflow/jobs/europe-west1/{JOB}?project=my-project"


class Bucket:
    """A folder of the store with raw files, and what converts them."""

    def __init__(self, gcs, service, folder):
        self.url = f"{gcs.url}/{next(NUMBERS)}"
        self.raw, self.out, self.temp = (f"{self.url}/{name}" for name in ("raw", "out", "tmp"))
        self.work = f"{self.temp}/shardkit"
        self.folder = folder
        self.service = service
        (folder / "a.csv").write_text("id,x\n" + "".join(f"{i},{i / 8}\n" for i in range(1000)))
        storage.put_file(folder / "a.csv", f"{self.raw}/a.csv")

    def command(self, *options, flags=(), poll="0.1"):
        own = [sys.executable, "-m", "shardkit", "convert", self.raw, self.out]
        told = ("--runner", "dataflow", *PLACE, "--temp-location", self.temp, "--engine-option", f"poll-seconds={poll}")
        endpoint = (f"--dataflow_endpoint={self.service.endpoint}", "--no_auth")
        return [*own, *told, *map(str, options), "--", *endpoint, *flags]

    @property
    def environment(self):
        kept = {k: v for k, v in os.environ.items() if k not in ("CI", "NO_COLOR", "COLUMNS", "TERM")}
        return {**kept, "XDG_CACHE_HOME": str(self.folder / "cache")}

    def run(self, *options, **more):
        return subprocess.run(
            self.command(*options, **more),
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
            env=self.environment,
            stdin=subprocess.DEVNULL,
        )

    def start(self, *options, **more):
        return subprocess.Popen(
            self.command(*options, **more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=self.environment,
            start_new_session=True,
        )

    def staged(self):
        found = [f.path for f in storage.expand_input(self.temp).files if not f.path.startswith(f"{self.work}/")]
        return {path.rsplit("/", 1)[-1]: path for path in found}


@pytest.fixture
def bucket(gcs, service, tmp_path):
    return Bucket(gcs, service, tmp_path)


def wait_until(is_so):
    deadline = time.monotonic() + 100
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def one_line(text):
    return " ".join(text.split())


@pytest.mark.slow
def test_what_is_staged_runs_and_gives_the_bytes_of_the_local_engine(bucket, service, inputs, clean, own_wheel):
    for path in inputs.iterdir():
        storage.put_file(path, f"{bucket.url}/many/{path.name}")
    bucket.raw = f"{bucket.url}/many"
    service.is_real = True
    result = bucket.run(*SETTINGS, "--engine-option", f"package={own_wheel}")
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
def test_the_job_is_what_was_asked_for_and_its_packages_lie_in_the_bucket(bucket, service, tmp_path):
    service.states = ["JOB_STATE_PENDING", "JOB_STATE_RUNNING", "JOB_STATE_FAILED"]
    options = ("max-workers=3", "labels=team=data", "public-ips=no", "service-account=w@p.iam.gserviceaccount.com")
    result = bucket.run(*(word for option in options for word in ("--engine-option", option)))
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
    lines = storage.read_bytes(staged["requirements.txt"]).decode().splitlines()
    assert "apache-beam==2.77.0" in lines
    assert any(line.startswith("gcsfs") for line in lines)
    assert any(line.startswith("isal==") for line in lines)
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
        ("CANCELLED", [], 5, "the job was cancelled in {url}"),
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
        (403, "PERMISSION_DENIED", 2, "Dataflow refused the job"),
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


def test_a_service_that_takes_calls_and_never_answers_is_told_of(bucket, service):
    process = bucket.start(*IMAGE, "--engine-option", "lost-minutes=0.05")
    wait_until(lambda: service.num_looks > 2)
    service.answers.clear()
    try:
        _, stderr = process.communicate(timeout=40)
    finally:
        service.answers.set()
    assert process.returncode == 5, stderr
    assert f"Dataflow does not answer any more in {URL}: the connection stands" in one_line(stderr)


def test_two_signals_at_once_cancel_the_job(bucket, service):
    process = bucket.start(*IMAGE)
    wait_until(lambda: service.num_looks > 2)
    service.answers.clear()
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.send_signal(signal.SIGTERM)
    service.answers.set()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 143, stderr
    assert service.cancelled == [JOB]
    assert f"the job {JOB} is being cancelled: {URL}" in one_line(stderr)


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


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_without_a_terminal_a_signal_cancels_the_job(bucket, service, number, code):
    process = bucket.start(*IMAGE)
    wait_until(lambda: service.num_looks > 2)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == code, stderr
    assert service.cancelled == [JOB]
    assert f"the job {JOB} was cancelled. Nothing was committed; run the same command again" in one_line(stderr)


def test_a_terminal_that_closes_leaves_the_job_running(bucket, service, tmp_path):
    process = bucket.start(*IMAGE)
    wait_until(lambda: service.num_looks > 2)
    process.send_signal(signal.SIGHUP)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 129, stderr
    assert service.cancelled == []
    assert f"the job {JOB} goes on" in stderr
    # Its workers read the plan whenever they begin.
    plans = list(tmp_path.rglob("plan-*.json"))
    again = bucket.run(*IMAGE)
    assert again.returncode == 4, again.stderr
    assert f"the same conversion is running already on Dataflow in {URL}" in one_line(again.stderr)
    assert len(plans) == 1
    assert list(tmp_path.rglob("plan-*.json")) == plans


def test_a_signal_in_the_midst_of_handing_over_says_that_the_job_may_run(bucket, service, tmp_path):
    service.is_open.clear()
    (tmp_path / "tmp").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path / "tmp"))
        process = bucket.start(*IMAGE)
    wait_until(lambda: service.num_submitted > 0)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    service.is_open.set()
    assert process.returncode == 143, stderr
    assert "the job was being handed over, so it may run all the same" in stderr
    assert list((tmp_path / "tmp").glob("shardkit-*")) == []


def in_terminal(bucket, *options):
    """Starts a conversion as somebody at a terminal does."""
    leader, follower = pty.openpty()

    def take_terminal():
        import fcntl
        import termios

        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        bucket.command(*IMAGE, *options),
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**bucket.environment, "TERM": "xterm", "COLUMNS": "200"},
        preexec_fn=take_terminal,
    )
    os.close(follower)
    return leader, process


def read_until(leader, is_so):
    """Returns what the terminal was told until something is there."""
    text, deadline = "", time.monotonic() + 100
    while not is_so(text):
        assert time.monotonic() < deadline, text
        if select.select([leader], [], [], 1)[0]:
            try:
                text += os.read(leader, 1 << 16).decode(errors="replace")
            except OSError as error:
                raise AssertionError(text) from error
    return text


def finish(leader, process):
    """Reads the rest, and returns it with the exit code."""
    text = ""
    while True:
        try:
            found = os.read(leader, 1 << 16)
        except OSError:
            break
        if not found:
            break
        text += found.decode(errors="replace")
    os.close(leader)
    return process.wait(60), text


def asked(bucket, service):
    leader, process = in_terminal(bucket)
    wait_until(lambda: service.num_looks > 2)
    os.write(leader, b"\x03")
    read_until(leader, lambda text: "Cancel it? [y/N] " in text)
    return leader, process


def test_ctrl_c_asks_and_yes_cancels_the_job(bucket, service):
    leader, process = asked(bucket, service)
    assert service.cancelled == []
    os.write(leader, b"y\n")
    code, text = finish(leader, process)
    assert code == 130, text
    assert service.cancelled == [JOB]
    assert f"the job {JOB} was cancelled. Nothing was committed" in one_line(text)


def test_a_second_ctrl_c_does_not_wait_for_the_end_of_the_job(bucket, service):
    service.is_slow_to_end = True
    leader, process = asked(bucket, service)
    os.write(leader, b"y\n")
    wait_until(lambda: service.cancelled == [JOB])
    os.write(leader, b"\x03")
    code, text = finish(leader, process)
    assert code == 130, text
    assert f"the job {JOB} is being cancelled: {URL}" in one_line(text)


@pytest.mark.parametrize("answer", [b"n\n", b"\n", b"\x03"])
def test_ctrl_c_asks_and_everything_else_leaves_it_running(bucket, service, answer):
    leader, process = asked(bucket, service)
    os.write(leader, answer)
    code, text = finish(leader, process)
    assert code == 130, text
    assert service.cancelled == []
    assert f"the job {JOB} goes on and commits the dataset by itself; look at it at {URL}" in one_line(text)
    assert "reading" not in text


def test_a_dry_run_shows_all_that_would_be_told_and_why(bucket, service):
    result = bucket.run("--dry-run")
    assert result.returncode == 0, result.stderr
    assert re.search(r"shardkit +a wheel of .+ the command runs from a checkout", result.stdout)
    assert re.search(r"requirements .*apache-beam==2.77.0", result.stdout)
    assert re.search(r"region +europe-west1 +as asked for", result.stdout)
    assert re.search(r"threads +2 +each holds a group", result.stdout)
    assert "--labels=shardkit-dataset=out" in result.stdout
    assert service.jobs == {}
    with pytest.raises(UsageError, match="no file matches"):
        bucket.staged()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--region", "r", "--temp-location", "gs://b/t"), "--runner dataflow needs --project"),
        (("--project", "p", "--temp-location", "gs://b/t"), "--runner dataflow needs --region"),
        (("--project", "p", "--region", "r"), "--runner dataflow needs --temp-location"),
        (("--project", "p", "--region", "r", "--temp-location", "t"), "is no folder of Google Cloud Storage"),
        ((*PLACE, "--temp-location", "gs://b/t", "--workers", "3"), "--workers means nothing on Dataflow"),
        ((*PLACE, "--temp-location", "gs://b/t", "--storage-options", "gs:project=x"), "do not reach the workers"),
        (
            (*PLACE, "--temp-location", "gs://b/t", "--work-dir", "/mnt/w"),
            "the --work-dir '/mnt/w' is out of",
        ),
        ((*PLACE, "--temp-location", "gs://b/t", "--engine-option", "region=x"), "--engine-option region is given"),
        ((*PLACE, "--temp-location", "gs://b/t", "--", "--temp_location=gs://x/t"), "--temp_location cannot be given"),
        ((*PLACE, "--temp-location", "gs://b/t", "--", "--setup_file=nowhere.py"), "names no file in nowhere.py"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_read(tmp_path, arguments, message):
    own = [sys.executable, "-m", "shardkit", "convert", "gs://b/raw", "gs://b/out", "--runner", "dataflow"]
    kept = {k: v for k, v in os.environ.items() if k not in ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_COMPUTE_REGION")}
    found = subprocess.run(
        [*own, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path, env=kept, timeout=60
    )
    assert found.returncode == 2, found.stderr
    assert message in one_line(found.stderr)


@pytest.mark.parametrize(
    ("place", "named"),
    [
        (("a.csv", "gs://b/out"), "the input 'a.csv'"),
        (("gs://b/raw", "/data/out"), "the destination '/data/out'"),
        (("postgresql://u:secret@h/d", "gs://b/out"), "the input 'postgresql://***@h/d'"),
    ],
)
def test_what_lies_on_this_machine_is_out_of_reach(tmp_path, place, named):
    (tmp_path / "a.csv").write_text("x\n1\n")
    own = [sys.executable, "-m", "shardkit", "convert", *place, "--runner", "dataflow", *PLACE]
    found = subprocess.run(
        [*own, "--temp-location", "gs://b/t"], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60
    )
    assert found.returncode == 2, found.stderr
    assert named in found.stderr
    assert "secret" not in found.stderr


@pytest.mark.parametrize("option", ["--project", "--region", "--temp-location"])
def test_options_of_dataflow_are_refused_elsewhere(tmp_path, option):
    (tmp_path / "a.csv").write_text("x\n1\n")
    own = [sys.executable, "-m", "shardkit", "convert", "a.csv", "out", option, "x"]
    for more in ((), ("--runner", "portable")):
        found = subprocess.run([*own, *more], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60)
        assert found.returncode == 2
        assert f"{option} is for --runner dataflow" in found.stderr
    assert not (tmp_path / "out").exists()
