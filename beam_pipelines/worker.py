"""A worker process of the local runner: Beam's own, without its log, and never longer alive than the command."""

from __future__ import annotations

import logging
import os
import signal
import sys

from beam_pipelines.imports import lighten_process
from beam_pipelines.memory import return_freed_memory
from shardkit.runtime.process_limits import die_with_parent, let_replace


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
    return_freed_memory()
    # Ctrl-C reaches the whole group of processes; the command stops its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not os.environ.get("SHARDKIT_DEBUG"):
        logging.disable(logging.CRITICAL)
        # Beam prints the traceback of every failed step; the command shows the error itself.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)


if __name__ == "__main__":
    main()
