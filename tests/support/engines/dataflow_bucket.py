"""A folder of a store with raw files, and the command that converts it on Dataflow."""

from __future__ import annotations

import itertools
import os
import pty
import select
import subprocess
import sys
import time

from shardkit.storage import files as storage

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
        base = ("--runner", "dataflow", *PLACE, "--temp-location", self.temp, "--engine-option", f"poll-seconds={poll}")
        endpoint = (f"--dataflow_endpoint={self.service.endpoint}", "--no_auth")
        return [*own, *base, *map(str, options), "--", *endpoint, *flags]

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


def wait_until(is_so):
    deadline = time.monotonic() + 100
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def one_line(text):
    return " ".join(text.split())


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
