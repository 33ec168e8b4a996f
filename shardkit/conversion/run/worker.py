"""A worker process of the local engine: it calls steps of a conversion on threads, until the command lets it go."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from functools import cached_property
from multiprocessing.connection import Connection
from typing import Any

from shardkit.runtime.hidden_modules import hide_pandas
from shardkit.runtime.process_limits import (
    ask_for_memory_late,
    die_with_parent,
    let_replace,
    lighten_process,
    return_freed_memory,
)


def main() -> None:
    """Serves the command's ends of the connections that the command line names."""
    die_with_parent()
    let_replace()
    lighten_process()
    ask_for_memory_late()
    hide_pandas()
    return_freed_memory()
    # Ctrl-C reaches the whole group of processes; the command stops its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from shardkit.conversion.steps import open_plan

    plan_path, *descriptors = sys.argv[1:]
    worker = _Worker(lambda: open_plan(plan_path, len(descriptors)))
    threads = [threading.Thread(target=worker.serve, args=(Connection(int(number)),)) for number in descriptors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class _Worker:
    def __init__(self, open_plan: Callable[[], Any]) -> None:
        self._open_plan = open_plan
        self._lock = threading.Lock()

    @cached_property
    def _opened(self) -> Any:
        return self._open_plan()

    def serve(self, connection: Connection) -> None:
        """Answers each (step, item) with (whether it went well, its result or its error in words)."""
        while True:
            try:
                step, item = connection.recv()
            except EOFError:
                return
            try:
                with self._lock:
                    opened = self._opened
                answer = (True, step(opened, item))
            except BaseException as error:  # noqa: BLE001 - the command raises it; the file of failures tells all
                answer = (False, f"{type(error).__name__}: {error}")
            connection.send(answer)


if __name__ == "__main__":
    main()
