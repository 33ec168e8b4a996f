"""What a test of the fast tier may not do: start a process, serve a port, import a framework, compute for long.

A test without the mark `full` or `campaign` is in the fast tier. The guard is on while such a test runs.
"""

import os
import sys
import time
from multiprocessing.process import BaseProcess

FRAMEWORKS = ("apache_beam", "jax", "keras", "tensorflow", "torch")

_STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec")
_is_on = False

CPU_LIMIT_S = float(os.environ.get("FAST_TEST_SECONDS") or "inf")
"""CPU time that one test may take, in seconds; CI sets it."""

# Seconds of `_reference_s` on the machine where the fast tier was measured. There no test took more than 0.3 s.
_REFERENCE_S = 0.007


class NotFastError(RuntimeError):
    """A test of the fast tier did what only the full tier may do."""

    def __init__(self, what):
        super().__init__(f"a test of the fast tier {what}: mark it with @pytest.mark.full")


class TookLongError(NotFastError):
    """A test of the fast tier took too much CPU time."""


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if _is_on and name in FRAMEWORKS:
            raise NotFastError(f"imports {name}")


def is_fast(item):
    """Returns whether a test is in the fast tier."""
    return not any(item.get_closest_marker(mark) for mark in ("full", "campaign"))


def install_guard():
    """Installs the guard in this process, switched off; Python cannot remove an audit hook."""
    sys.meta_path.insert(0, _Finder)
    sys.addaudithook(_refuse)
    start = BaseProcess.start

    def guarded(process):
        if _is_on:
            raise NotFastError("starts a process")
        start(process)

    BaseProcess.start = guarded


def switch_guard(is_on):
    """Switches the guard on or off."""
    global _is_on
    _is_on = is_on


def _refuse(event, arguments):
    if not _is_on:
        return
    if event in _STARTS:
        raise NotFastError("starts a process")
    if event == "socket.bind" and isinstance(arguments[1], tuple):
        raise NotFastError("binds a port")


def slowness():
    """Returns how many times slower this machine is than the one where the fast tier was measured; at least 1."""
    return max(1.0, min(_reference_s() for _ in range(3)) / _REFERENCE_S)


def check_cpu_seconds(seconds):
    """Fails a test of the fast tier that took too much CPU time.

    Raises:
        TookLongError: If it took more than `CPU_LIMIT_S`, multiplied by how slow the machine is at the moment.
    """
    if seconds > CPU_LIMIT_S and seconds > CPU_LIMIT_S * slowness():
        raise TookLongError(f"took {seconds:.2f} s of CPU, more than {CPU_LIMIT_S:g} s")


def _reference_s():
    start = time.process_time()
    sum(i * i for i in range(200_000))
    return time.process_time() - start
