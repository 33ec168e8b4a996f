"""The program of Prism: where it is, how it gets there, and a run of it that this machine alone reaches."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path

import psutil

from shardkit.clusters.addresses import CONNECT_S, UNTOUCHED
from shardkit.errors import StorageError, UsageError
from shardkit.runtime.signals import signal_name

PRISM = "SHARDKIT_PRISM"
_MODULE = "github.com/apache/beam/sdks/v2/go/cmd/prism"
# Go's part of Beam names itself so in all that it sends; a program of Prism holds these words.
_VERSION = re.compile(rb"apache/beam_go_sdk:(\d+\.\d+\.\d+)")
_INSTALL = "Run: shardkit engines install prism"
# The same on all processors; see pidfd_getfd(2).
_PIDFD_GETFD = 438
# Becomes the program that it is given, which then ends with the process that started it, however that ends.
_BELOW = """
import os, sys
from shardkit.runtime.process_limits import die_with_parent
die_with_parent(int(sys.argv[1]))
os.execv(sys.argv[2], sys.argv[2:])
"""


def beam_version() -> str:
    """Returns the version of Beam that is installed, without an import of it."""
    return metadata.version("apache-beam")


def find_program(environment: Mapping[str, str]) -> str | None:
    """Returns the program that the environment names, or that was installed; None if there is none."""
    if named := environment.get(PRISM):
        return named
    with suppress(metadata.PackageNotFoundError):
        installed = _place(environment)
        return str(installed) if installed.is_file() else None
    return None


def find_obstacle(program: str | None) -> UsageError | None:
    """Returns why a program cannot be run, None if it can."""
    if program is None or not Path(program).is_file():
        return UsageError(
            "there is no program of Prism" + ("" if program is None else f" at {program}"),
            why="it is no part of Beam's Python package, and shardkit downloads nothing without being asked",
            state=UNTOUCHED,
            next_step=f"{_INSTALL}. Or name it with --engine-option program=FILE, or in {PRISM}",
        )
    why = None
    if version_of(program) is None:
        why = "it does not hold Beam's SDK for Go"
    elif not zipfile.is_zipfile(program) and not os.access(program, os.X_OK):
        why = "it is neither a zip file nor may it be run"
    if why is None:
        return None
    return UsageError(f"{program} is no program of Prism", why=why, state=UNTOUCHED, next_step=_INSTALL)


def version_of(program: str | Path) -> str | None:
    """Returns the version of Beam that a program of Prism, or a zip file of it, was made of; None if it is none."""
    with suppress(OSError, ValueError, zipfile.BadZipFile, IndexError):
        if zipfile.is_zipfile(program):
            with zipfile.ZipFile(program) as packed:
                return _version_in(packed.read(packed.namelist()[0]))
        with Path(program).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _version_in(content)
    return None


def _version_in(content: bytes | mmap.mmap) -> str | None:
    found = _VERSION.search(content)
    return None if found is None else bytes(found[1]).decode()


def note_on_version(program: str) -> tuple[str, ...]:
    """Returns a note where the program is of another version than Beam."""
    found, wanted = version_of(program), beam_version()
    return () if found == wanted else (f"Prism is of Beam {found}, and Beam is {wanted}. If the job fails: {_INSTALL}",)


def install(program: Path | None) -> Path:
    """Puts the program of the version of Beam that is installed where `find_program` finds it; returns its place.

    Args:
        program: A file of it, or a zip file; None lets Go download and build it.

    Raises:
        UsageError: If there is no Go, or the file is none of Prism, or of another version.
        StorageError: If Go fails.
    """
    place, version = _place(os.environ), beam_version()
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".prism-") as folder:
        made = _built(version, Path(folder)) if program is None else Path(_unpacked(str(program), Path(folder)))
        if (found := version_of(made)) != version:
            raise UsageError(
                f"{program or made} is no program of Prism {version}",
                why="it does not hold Beam's SDK for Go" if found is None else f"it is of Beam {found}",
                next_step="Name another file, or leave --program out: Go then builds it",
            )
        whole = Path(folder, "whole")
        shutil.copyfile(made, whole)
        whole.chmod(0o755)
        whole.replace(place)
    return place


@contextmanager
def serve(program: str, folder: Path, say: Callable[[str], None]) -> Iterator[str]:
    """Runs Prism below this process while the block lasts, and yields the address of its job service.

    Args:
        program: Of Prism, or a zip file of it.
        folder: For its log, and for the program from a zip file.

    Raises:
        StorageError: If it does not start, or ended during the block.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = ("--job_port", str(port), "--serve_http=false", "--log_kind=text", "--log_level=warn")
    command = [sys.executable, "-P", "-c", _BELOW, str(os.getpid()), _unpacked(program, folder), *own]
    log = folder / "prism.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        if not _is_for_this_machine(process, port, log):
            say("note: while it runs, other machines of the network reach Prism: this system does not let it be hidden")
        try:
            yield f"localhost:{port}"
        except StorageError as error:
            if (code := process.poll()) is not None:
                end = f"exit code {code}" if code >= 0 else signal_name(-code)
                hint = "; most often the system ran out of memory" if code == -signal.SIGKILL else ""
                error.why = f"Prism ended with {end}{hint}"
            raise
    finally:
        with suppress(psutil.Error):
            for worker in psutil.Process(process.pid).children(recursive=True):
                worker.kill()
        process.kill()
        process.wait()


def _place(environment: Mapping[str, str]) -> Path:
    data = Path(environment.get("XDG_DATA_HOME", ""))
    base = data if data.is_absolute() else Path.home() / ".local/share"
    return base / "shardkit" / f"prism-{beam_version()}"


def _built(version: str, folder: Path) -> Path:
    if shutil.which("go") is None:
        raise UsageError(
            "Prism is built by Go, and there is none",
            why="no program go is on the path",
            next_step="Install Go, or name a file of Prism, or its zip file from Beam's release, with --program FILE",
        )
    command = ["go", "install", f"{_MODULE}@v{version}"]
    done = subprocess.run(
        command, env={**os.environ, "GOBIN": str(folder)}, capture_output=True, text=True, check=False, cwd=folder
    )
    if done.returncode:
        raise StorageError(
            f"{' '.join(command)} failed",
            why=(done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1],
            state="Nothing was installed",
            next_step="See whether Go reaches its proxy for modules, or name a file with --program FILE",
        )
    return folder / "prism"


def _unpacked(program: str, folder: Path) -> str:
    if not zipfile.is_zipfile(program):
        return program
    target = folder / "prism"
    with zipfile.ZipFile(program) as packed, packed.open(packed.namelist()[0]) as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink)
    target.chmod(0o755)
    return str(target)


def _is_for_this_machine(process: subprocess.Popen[bytes], port: int, log: Path) -> bool:
    """Waits until Prism listens, and ties its socket, which is that of all interfaces, to the one of this machine."""
    deadline = time.monotonic() + CONNECT_S
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(psutil.Error):
            for connection in psutil.Process(process.pid).net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                    return _tie_to_loopback(process.pid, connection.fd)
        time.sleep(0.005)
    words = log.read_text(errors="replace").strip().splitlines()
    raise StorageError(
        "Prism did not start",
        why=words[-1][:500] if words else f"it does not listen after {CONNECT_S:.0f} seconds",
        state="Nothing was committed",
        next_step="See whether the program can be run here",
    )


def _tie_to_loopback(pid: int, descriptor: int) -> bool:
    try:
        with _copy_of_socket(pid, descriptor) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
    except (AttributeError, OSError, ValueError):
        return False
    return True


def _copy_of_socket(pid: int, descriptor: int) -> socket.socket:
    of_process = os.pidfd_open(pid)
    try:
        return socket.socket(fileno=ctypes.CDLL(None).syscall(_PIDFD_GETFD, of_process, descriptor, 0))
    finally:
        os.close(of_process)
