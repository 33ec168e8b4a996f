"""Threads that work for a generator, which may be dropped at any moment, and for a program, which may end at any.

Python's own pools serve neither. Its collector may end a generator at any moment, while the locks are held that the end
of such a pool needs. When the interpreter ends, the pools wait for all that was begun, however long it takes. And a
thread that is not waited for crashes the interpreter when it returns from compiled code after the end.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from time import monotonic
from typing import Any, NamedTuple, ParamSpec, TypeVar

from shardkit.runtime.process_limits import bytes_left, give_back_memory
from shardkit.units import MiB

P = ParamSpec("P")
T = TypeVar("T")

# How long the end of the interpreter waits. Only users' functions and a disk that hangs take longer.
_EXIT_S = 10.0
_EXIT_POLL_S = 0.005
# The stack of a thread, which is 8 MiB, and some more.
_THREAD_BYTES = 16 * MiB
# How long threads are waited for after a signal; requests to stores notice the end in half of that.
_INTERRUPT_S = 0.5


class _Task(NamedTuple):
    future: Future[Any]
    work: Callable[[], Any]


class _Work(NamedTuple):
    """What the threads of one pool share.

    Attributes:
        tasks: In the order in which they are begun; None after the last one.
        stop_event: Set when no more of them are wanted: those that were not begun are cancelled.
    """

    tasks: queue.SimpleQueue[_Task | None]
    stop_event: StopEvent


def start_thread(thread: threading.Thread) -> None:
    """Starts a thread. Raises MemoryError if the system gives no stack for it."""
    if _is_short():
        give_back_memory()
    if _is_short():
        # Without memory for its first steps a thread dies, and Python waits for its first step for ever.
        raise MemoryError("there is too little for one more thread")
    try:
        thread.start()
    except RuntimeError as error:
        raise MemoryError(str(error)) from error


def _is_short() -> bool:
    left = bytes_left()
    return left is not None and left < _THREAD_BYTES


class WorkerThreads(Executor):
    """A pool whose threads end when it is dropped, or shut down, without a lock. One thread at a time may submit.

    Where the system gives no stack for one more thread, those that there are do the tasks.

    Attributes:
        stop_event: Set when no more of the work is wanted.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._num_threads = num_threads
        self._name = name
        self._work = _Work(queue.SimpleQueue(), StopEvent())
        self._threads: list[threading.Thread] = []
        self.stop_event = self._work.stop_event
        self._is_shut = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Begins a task when a thread is free. Raises MemoryError if the system gives no stack for the first thread."""
        if self._is_shut:
            raise RuntimeError("the threads have ended")
        if len(self._threads) < self._num_threads:
            name = f"{self._name}_{len(self._threads)}"
            thread = threading.Thread(target=_run, args=(self._work,), name=name, daemon=True)
            try:
                start_thread(thread)
                self._threads.append(thread)
            except MemoryError:
                if not self._threads:
                    raise
                self._num_threads = len(self._threads)
        future: Future[T] = Future()
        self._work.tasks.put(_Task(future, lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads after all tasks, with `cancel_futures` after those that have begun; with `wait`, waits."""
        self._is_shut = True
        if cancel_futures:
            self.stop_event.set()
        self._work.tasks.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def end_within(self, seconds: float) -> None:
        """Ends the threads after the tasks that have begun, and waits for them at most some time."""
        self.shutdown(wait=False, cancel_futures=True)
        end = monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - monotonic()))

    def __del__(self) -> None:
        self.shutdown(wait=False, cancel_futures=True)


@contextmanager
def worker_threads(num_threads: int, name: str) -> Iterator[WorkerThreads]:
    """Yields threads that are waited for at the end.

    They are not where the generator around this is dropped or closed. After a signal they are waited for a moment only:
    a store may not answer them.

    Raises:
        SystemExit: When the interpreter ends, in a thread that still asks for what they do: it ends without a word.
    """
    threads = WorkerThreads(num_threads, name)
    is_waited_for = True
    try:
        yield threads
    except GeneratorExit:
        is_waited_for = False
        raise
    except KeyboardInterrupt:
        is_waited_for = False
        threads.end_within(_INTERRUPT_S)
        raise
    except Exception as error:
        if _is_exiting and threading.current_thread() is not threading.main_thread():
            raise SystemExit from error
        raise
    finally:
        threads.shutdown(wait=is_waited_for, cancel_futures=True)


# When the work of each thread that does any ends. Adding and removing takes no lock.
_BUSY: dict[threading.Thread, StopEvent] = {}


def _run(work: _Work) -> None:
    """Does the tasks of a pool until it ends."""
    end_with(work.stop_event)
    thread = threading.current_thread()
    while (task := work.tasks.get()) is not None:
        _BUSY[thread] = work.stop_event
        _do(task, work.stop_event)
        # Lets go of the task's values before the next task comes.
        del task
        del _BUSY[thread]
    work.tasks.put(None)


def _do(task: _Task, stop_event: StopEvent) -> None:
    future = task.future
    if _is_exiting or stop_event.is_set():
        future.cancel()
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = task.work()
    except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
        future.set_exception(error)
        # The error's traceback holds this frame, which would hold the error.
        del future, task
    else:
        future.set_result(result)


_is_exiting = False


def _end_all() -> None:
    """Ends the work of all threads before the interpreter ends: compiled code must be able to return into it."""
    global _is_exiting
    _is_exiting = True
    stop = time.monotonic() + _EXIT_S
    with suppress(KeyboardInterrupt):
        while (busy := list(_BUSY.values())) and time.monotonic() < stop:
            for stop_event in busy:
                stop_event.set()
            time.sleep(_EXIT_POLL_S)


atexit.register(_end_all)
# They are not in a forked process.
os.register_at_fork(after_in_child=_BUSY.clear)


class StopEvent:
    """An event that may be set anywhere: Python's collector sets it, in the midst of whatever a thread is doing.

    A `threading.Event` has a lock that this thread may hold when the collector runs in it. Here nothing is locked but
    inside of a queue that is made for that.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._is_set

    def set(self) -> None:
        """Sets the event, for good."""
        self._is_set = True
        self._wakes.put(None)

    def check(self) -> None:
        """Raises CancelledError if it was set."""
        if self._is_set:
            raise CancelledError

    def wait(self, timeout_s: float) -> bool:
        """Waits until it is set, at most some time, and returns whether it is."""
        stop = monotonic() + timeout_s
        while not self._is_set and (left := stop - monotonic()) > 0:
            try:
                self._wakes.get(timeout=left)
            except queue.Empty:
                break
            # Wakes the next thread that waits.
            self._wakes.put(None)
        return self._is_set


_NEVER = StopEvent()
_STOP_EVENT: ContextVar[StopEvent] = ContextVar("ending", default=_NEVER)


def end_with(stop_event: StopEvent) -> None:
    """From now on, makes each wait of this thread end soon after an event is set."""
    _STOP_EVENT.set(stop_event)


def current_stop_event() -> StopEvent:
    """Returns the event with which this thread's work ends; one that is never set for a thread outside of pools."""
    return _STOP_EVENT.get()
