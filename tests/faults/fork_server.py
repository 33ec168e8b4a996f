"""Starts conversions by forking a process that has imported everything: 0.3 s each instead of 2 s.

Run as a program it is that process. It imports once, starts no thread, and takes one request a line. A watcher between
it and each conversion tells how that ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LIMIT_S = 90.0
_PRELOADED = (
    "shardkit.cli", "shardkit.cli.convert", "shardkit.cli.run_convert", "shardkit.cli.shell.supervise", "pyarrow.csv",
    "shardkit.sources.csv.source", "beam_pipelines.engines.local", "tests.faults.injection", "tenacity",
    "s3fs", "gcsfs", "adlfs", "azure.storage.blob.aio",
)  # fmt: skip


class Ended(NamedTuple):
    """How a conversion ended: its exit code, negative for a signal, and what it said."""

    code: int
    said: str


class Hung(Exception):
    """A conversion that did not end in time, and was killed."""


class Conversion:
    """One that was started."""

    def __init__(self, folder: Path, channel: int) -> None:
        self._folder = folder
        self._channel = channel
        self._text = b""
        self.pid = int(self._line(LIMIT_S))

    def signal(self, number: int) -> None:
        """Sends a signal to its first process; it may be gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def signal_all(self, number: int) -> None:
        """Sends a signal to all of its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        """Returns whether it ends within some time."""
        return bool(select.select([self._channel], [], [], timeout_s)[0])

    def end(self, limit_s: float = LIMIT_S) -> Ended:
        """Waits for the end of all of its processes.

        Raises:
            Hung: If it takes too long.
        """
        try:
            code = int(self._line(limit_s))
            self._wait_for_others(limit_s)
        finally:
            self.signal_all(signal.SIGKILL)
            os.close(self._channel)
        return Ended(code, (self._folder / "output").read_text(errors="replace"))

    def _wait_for_others(self, limit_s: float) -> None:
        end = time.monotonic() + limit_s
        while is_group_alive(self.pid):
            if time.monotonic() > end:
                raise Hung(f"processes are left after {limit_s:.0f} s")
            time.sleep(0.002)

    def _line(self, limit_s: float) -> bytes:
        end = time.monotonic() + limit_s
        while b"\n" not in self._text:
            if not select.select([self._channel], [], [], max(0.0, end - time.monotonic()))[0]:
                self.signal_all(signal.SIGKILL)
                raise Hung(f"no end within {limit_s:.0f} s: {(self._folder / 'output').read_text()[-500:]}")
            found = os.read(self._channel, 100)
            if not found:
                raise Hung("the watcher is gone")
            self._text += found
        line, _, self._text = self._text.partition(b"\n")
        return line


class ForkServer:
    """Starts conversions; for any number of threads."""

    def __enter__(self) -> ForkServer:
        self._lock = threading.Lock()
        self._number = 0
        self._folder = Path(tempfile.mkdtemp(prefix="fork-server."))
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.fork_server"],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
        return self

    def __exit__(self, *unused: object) -> None:
        self._tell({})
        self._process.wait()
        subprocess.run(["rm", "-rf", str(self._folder)], check=True)

    def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> Conversion:
        """Starts `shardkit` with arguments, in a process group of its own."""
        with self._lock:
            self._number += 1
            folder = self._folder / str(self._number)
        folder.mkdir()
        os.mkfifo(folder / "channel")
        channel = os.open(folder / "channel", os.O_RDONLY | os.O_NONBLOCK)
        # Kept open by this end, too, so that it never reads as ended before it was begun.
        holder = os.open(folder / "channel", os.O_WRONLY)
        path = os.pathsep.join(filter(None, [str(HERE / "inject"), str(ROOT), os.environ.get("PYTHONPATH", "")]))
        full = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **environment}
        with self._lock:
            self._tell({"arguments": list(arguments), "environment": full, "folder": str(folder)})
        try:
            return Conversion(folder, channel)
        finally:
            os.close(holder)

    def run(self, arguments: Sequence[str], environment: Mapping[str, str]) -> Ended:
        """Runs `shardkit` with arguments to its end."""
        return self.start(arguments, environment).end()

    def _tell(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()


def is_group_alive(group: int) -> bool:
    """Returns whether a process of a group runs; those that nobody reaps do not."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            return True
    return False


def main() -> None:
    """Serves until it is told nothing more."""
    from beam_pipelines.worker import lighten_process

    lighten_process()
    for name in _PRELOADED:
        with contextlib.suppress(ModuleNotFoundError):
            __import__(name)
    assert threading.active_count() == 1, "threads do not survive a fork"
    # Nobody waits for watchers.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if not request:
            break
        if os.fork() == 0:
            _watch(request)


def _watch(request: dict[str, Any]) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    channel = os.open(f"{request['folder']}/channel", os.O_WRONLY)
    ready, begin = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(channel)
        os.setsid()
        os.write(begin, b"1")
        _convert(request)
    os.read(ready, 1)
    os.write(channel, f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    os.write(channel, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _convert(request: dict[str, Any]) -> NoReturn:
    code: Any = 70
    try:
        os.environ.clear()
        os.environ.update(request["environment"])
        nothing = os.open(os.devnull, os.O_RDONLY)
        output = os.open(f"{request['folder']}/output", os.O_WRONLY | os.O_CREAT, 0o666)
        for old, new in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(old, new)
        from shardkit.cli import script
        from tests.faults.injection import install

        install()
        sys.argv = ["shardkit", *request["arguments"]]
        script()
    except SystemExit as end:
        code = end.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    main()
