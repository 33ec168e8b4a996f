"""A worker process of the local runner: Beam's worker without its log. It ends with the command.

The module also makes this process and the command lighter.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys

from shardkit.runtime.hidden_modules import hidden_modules, hide_pandas
from shardkit.runtime.process_limits import die_with_parent, let_replace
from shardkit.units import MiB

# Beam imports them where their packages are installed.
_BEAM_CLIENTS = (
    "apache_beam.io.aws.s3filesystem",
    "apache_beam.io.azure.blobstoragefilesystem",
    "apache_beam.io.gcp.bigquery",
    "apache_beam.io.gcp.gcsfilesystem",
    "apache_beam.io.hadoopfilesystem",
)
_GC_OBJECTS = 50_000

# The constants of <malloc.h>; see mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def worker_command() -> str:
    """Returns the shell command that starts a worker.

    `exec` makes it a child of the command itself; `-P` keeps the user's folder, where anything may lie, off the path.
    """
    return f"exec '{sys.executable}' -P -m beam_pipelines.worker"


def main() -> None:
    """Runs until the runner lets it go."""
    die_with_parent()
    let_replace()
    lighten_process()
    hide_pandas()
    return_freed_memory()
    # Ctrl-C reaches the whole group of processes; the command stops its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not os.environ.get("SHARDKIT_DEBUG"):
        logging.disable(logging.CRITICAL)
        # Beam prints the traceback of every failed step; the command shows the error itself.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    load_beam()
    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)


def lighten_process() -> None:
    """Makes the start of this process, which must be shardkit's, cheaper. Must be called before NumPy is imported.

    It turns off the threads of NumPy's linear algebra, which take 0.1 s of CPU time when they start, and have nothing
    to do here. It makes the search for cycles of objects rarer, which takes a tenth of the time of imports and of lists
    of many files, and finds little.
    """
    gc.set_threshold(_GC_OBJECTS, 20, 50)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def load_beam() -> None:
    """Imports Beam without its clients of cloud stores and databases, unless it was imported before.

    They take longer to import than the rest of Beam. shardkit reads and writes stores by itself. The clients can be
    imported later.
    """
    if "apache_beam" in sys.modules:
        return
    with hidden_modules(*_BEAM_CLIENTS):
        import apache_beam  # noqa: F401


def return_freed_memory() -> None:
    """Makes large blocks go back to the system when they are freed, where the C library is glibc.

    By default glibc raises its limit to the largest block that was ever freed. Then every thread's heap keeps the holes
    that such blocks leave, which are a third of the peak of a large conversion.
    """
    with contextlib.suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, 4 * MiB)
        library.mallopt(_M_TRIM_THRESHOLD, 16 * MiB)


if __name__ == "__main__":
    main()
