"""Steps that do several pieces of work at the same time in one process.

The heavy work releases the interpreter's lock, so threads use all cores, as processes do, but import everything once
only. A free thread takes the next piece, so uneven pieces leave no core idle.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows


class ThreadedDoFn(beam.DoFn):
    """A step whose `work` runs on threads; its results leave when the bundle ends.

    For steps whose elements and results are small, and whose windows do not matter.

    Args:
        num_threads: Pieces of work at the same time. 0 does each in the thread of the engine and gives its results at
            once: Dask's runner drops what leaves at the end of a bundle.
    """

    def __init__(self, num_threads: int = 1) -> None:
        self._num_threads = num_threads

    def work(self, element: Any) -> Iterator[Any]:
        """Yields the results of one element; must be safe to run on several threads."""
        raise NotImplementedError

    def start_bundle(self) -> None:
        """Starts the threads, which sleep until there is work."""
        self._results: list[Future[list[Any]]] = []
        self._failed = threading.Event()
        if self._num_threads:
            self._pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="shardkit")

    def process(self, element: Any) -> Iterable[Any]:
        """Hands one element to the threads, or returns its results."""
        if not self._num_threads:
            return self.work(element)
        self._results.append(self._pool.submit(self._work_unless_failed, element))
        return ()

    def finish_bundle(self) -> Iterator[Any]:
        """Yields all results, or raises the error of the first piece of work that failed."""
        if self._num_threads:
            self._pool.shutdown()
        failures = [error for result in self._results if (error := result.exception()) is not None]
        if failures:
            raise failures[0]
        for result in self._results:
            for value in result.result():
                yield _in_global_window(value)

    def _work_unless_failed(self, element: Any) -> list[Any]:
        if self._failed.is_set():
            return []
        try:
            return list(self.work(element))
        except BaseException:
            self._failed.set()
            raise


def _in_global_window(value: Any) -> Any:
    if isinstance(value, beam.pvalue.TaggedOutput):
        return beam.pvalue.TaggedOutput(value.tag, GlobalWindows.windowed_value(value.value))
    return GlobalWindows.windowed_value(value)
