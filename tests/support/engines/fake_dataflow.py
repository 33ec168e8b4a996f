"""A small Dataflow on loopback: takes jobs as the service does, looks at what was staged, and tells what it is told to.

Google's own client speaks to it. Nothing is run unless `is_real`: then the staged pipeline itself, in a process of its
own, by Beam's local runner.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from google.cloud import dataflow

from shardkit.storage import files as storage

_JOBS = re.compile(r"/v1b3/projects/([^/]+)/locations/([^/]+)/jobs(?:/([^/]+))?(?:/(messages|metrics))?")
_LABEL = re.compile(r"[a-z][a-z0-9_-]{0,62}=[a-z0-9_-]{0,63}")
_ENDED = ("JOB_STATE_DONE", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED", "JOB_STATE_DRAINED", "JOB_STATE_UPDATED")


TOKEN = "a-token-of-the-tests"


class Refused(Exception):
    """What the service answers instead of a job."""

    def __init__(self, code: int, status: str, message: str) -> None:
        super().__init__(message)
        self.code, self.status = code, status


class FakeDataflow:
    """The service.

    Attributes:
        states: What the next looks at a job see; the last one stays.
        counters: User metrics, by name: the tentative and the committed value.
        answers: Until it is set, no request is answered.
        is_slow_to_end: Whether a job that is cancelled goes on for long.
        refusal: What is answered to every job.
        cancelled: Ids of jobs whose end was asked for.
        authorizations: What requests brought to be let in by.
        num_looks, num_refused, num_submitted: How often somebody looked at a job, was refused, and handed one over.
        is_open: Until it is set, who hands a job over waits.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs: dict[str, dict[str, Any]] = {}
        self.states = ["JOB_STATE_RUNNING"]
        self.counters: dict[str, tuple[int | None, int | None]] = {}
        self.messages: list[str] = []
        self.is_down = False
        self.is_real = False
        self.is_slow_to_end = False
        self.refusal: Refused | None = None
        self.cancelled: list[str] = []
        self.num_looks = self.num_refused = self.num_submitted = 0
        self.answers = threading.Event()
        self.answers.set()
        self.is_open = threading.Event()
        self.is_open.set()
        self.authorizations: set[str | None] = set()
        self.endpoint = ""
        self._lock = threading.Lock()

    @property
    def job(self) -> dict[str, Any]:
        """The only job."""
        (found,) = self.jobs.values()
        return found

    def options_of(self, job: dict[str, Any]) -> dict[str, Any]:
        """Returns the options of Beam that a job holds."""
        return job["environment"]["sdkPipelineOptions"]["options"]

    def answer(self, method: str, path: str, body: Any) -> dict[str, Any]:
        """Returns the answer to a request."""
        if path == "/token":
            return {"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}
        self.answers.wait(60)
        if self.is_down:
            self.num_refused += 1
            raise Refused(503, "UNAVAILABLE", "the service is away")
        match = _JOBS.fullmatch(path)
        if match is None:
            raise Refused(404, "NOT_FOUND", f"{method} {path}")
        project, region, job_id, part = match.groups()
        with self._lock:
            if method == "POST":
                return self._create(project, region, body)
            if job_id is None:
                is_over = self.states[-1] in _ENDED
                return {"jobs": [] if is_over else list(self.jobs.values())}
            if method == "PUT":
                return self._update(job_id, body)
            if part == "messages":
                return {"jobMessages": [_message(i, text) for i, text in enumerate(self.messages)]}
            if part == "metrics":
                return {"metrics": [m for name, values in self.counters.items() for m in _metrics(name, values)]}
            self.num_looks += 1
            return {**self.jobs[job_id], "currentState": self._state()}

    def _create(self, project: str, region: str, job: dict[str, Any]) -> dict[str, Any]:
        self.num_submitted += 1
        self.is_open.wait(60)
        if self.refusal is not None:
            raise self.refusal
        if any(other["name"] == job["name"] for other in self.jobs.values()) and self.states[-1] not in _ENDED:
            raise Refused(409, "ALREADY_EXISTS", f"There is already an active job named {job['name']}.")
        check_job(job)
        job_id = f"2026-11-23_00_00_00-{len(self.jobs) + 1}"
        self.jobs[job_id] = {**job, "id": job_id, "projectId": project, "location": region}
        if self.is_real:
            self._execute(job)
        return {**self.jobs[job_id], "currentState": "JOB_STATE_PENDING"}

    def _update(self, job_id: str, body: dict[str, Any]) -> dict[str, Any]:
        assert body["requestedState"] == dataflow.JobState.JOB_STATE_CANCELLED
        self.cancelled.append(job_id)
        self.states = ["JOB_STATE_CANCELLING"] + ([] if self.is_slow_to_end else ["JOB_STATE_CANCELLED"])
        return self.jobs[job_id]

    def _state(self) -> str:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def _execute(self, job: dict[str, Any]) -> None:
        staged = self.folder / "pipeline.pb"
        staged.write_bytes(storage.read_bytes(self.options_of(job)["pipelineUrl"]))
        self.states = ["JOB_STATE_PENDING", "JOB_STATE_RUNNING"]

        def run() -> None:
            file = self.folder / "counters.json"
            script = Path(__file__).with_name("run_staged.py")
            done = subprocess.run(
                [sys.executable, str(script), str(staged), str(file)], capture_output=True, text=True, check=False
            )
            with self._lock:
                if done.returncode == 0:
                    self.counters = {name: (value, value) for name, value in json.loads(file.read_text()).items()}
                    self.states = ["JOB_STATE_RUNNING", "JOB_STATE_DONE"]
                else:
                    self.messages = [done.stderr]
                    self.states = ["JOB_STATE_FAILED"]

        threading.Thread(target=run, daemon=True).start()


def make_credentials(path: Path, token_url: str) -> Path:
    """Writes a key of a service account that gets its tokens from us, and returns its path."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    content = {
        "type": "service_account",
        "project_id": "my-project",
        "private_key_id": "1",
        "private_key": key.decode(),
        "client_email": "tests@my-project.iam.gserviceaccount.com",
        "token_uri": token_url,
    }
    path.write_text(json.dumps(content))
    return path


def check_job(job: dict[str, Any]) -> None:
    """Refuses what the service would refuse, or fail at later."""
    environment = job["environment"]
    options = environment["sdkPipelineOptions"]["options"]
    problems = []
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", job["name"]):
        problems.append(f"name {job['name']}")
    problems += [f"label {k}={v}" for k, v in job.get("labels", {}).items() if not _LABEL.fullmatch(f"{k}={v}")]
    if job["type"] != dataflow.JobType.JOB_TYPE_BATCH or "use_runner_v2" not in environment["experiments"]:
        problems.append("no batch job of runner v2")
    (pool,) = environment["workerPools"]
    if not pool["sdkHarnessContainerImages"] or not all(i["containerImage"] for i in pool["sdkHarnessContainerImages"]):
        problems.append("no image")
    packages = [p["location"].replace("storage.googleapis.com/", "gs://") for p in pool.get("packages", ())]
    problems += [f"not staged: {url}" for url in (*packages, options["pipelineUrl"]) if not storage.exists(url)]
    if problems:
        raise Refused(400, "INVALID_ARGUMENT", ", ".join(problems))


def _message(number: int, text: str) -> dict[str, Any]:
    return {
        "id": str(number),
        "time": f"2026-11-23T00:00:{number:02d}Z",
        "messageText": text,
        "messageImportance": "JOB_MESSAGE_ERROR",
    }


def _metrics(name: str, values: tuple[int | None, int | None]) -> list[dict[str, Any]]:
    contexts = ({"tentative": "true"}, {})
    return [
        {
            "name": {"origin": "user", "name": name, "context": {"namespace": "shardkit", "step": "s1", **context}},
            "scalar": value,
        }
        for context, value in zip(contexts, values, strict=True)
        if value is not None
    ]


@contextmanager
def serve_dataflow(folder: Path):
    """Yields a service that listens."""
    service = FakeDataflow(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(size)
            body = json.loads(raw) if raw.startswith(b"{") else None
            code: int = 200
            service.authorizations.add(self.headers.get("Authorization"))
            try:
                found = service.answer(self.command, urlsplit(self.path).path, body)
            except Refused as error:
                code = error.code
                found = {"error": {"code": code, "status": error.status, "message": str(error)}}
            content = json.dumps(found).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = handle_any

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    # Beam speaks HTTP with `localhost` only, and gRPC with all others.
    service.endpoint = f"http://localhost:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
