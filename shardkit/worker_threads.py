"""Threads that work for a generator, which may be dropped at any moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

from shardkit.stored_blocks import end_with


class Workers(NamedTuple):
    """What does the work.

    Attributes:
        threads: Take the work.
        ending: Set when nobody wants any more of it.
    """

    threads: ThreadPoolExecutor
    ending: threading.Event


@contextmanager
def worker_threads(num_threads: int, name: str) -> Iterator[Workers]:
    """Yields threads that are waited for at the end, unless the generator around this is dropped or closed.

    It may then be Python's collector that ends the generator, in the midst of anything: of a thread that is begun, for
    one, with the very lock held that waiting for a thread takes. They end by themselves after what they are doing.
    """
    ending = threading.Event()
    threads = ThreadPoolExecutor(num_threads, name, initializer=end_with, initargs=(ending,))
    is_waited_for = True
    try:
        yield Workers(threads, ending)
    except GeneratorExit:
        is_waited_for = False
        raise
    finally:
        ending.set()
        threads.shutdown(wait=is_waited_for, cancel_futures=True)
