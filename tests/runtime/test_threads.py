"""Pools of threads where the system gives no stack for one more."""

import threading

import pytest

from shardkit.runtime.threads import worker_threads


def deny_from(monkeypatch, first):
    """Lets the system refuse the thread of that number and all behind it."""
    started = []
    start = threading.Thread.start

    def refuse(thread):
        if len(started) >= first:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)


@pytest.mark.parametrize("num_started", [1, 2])
def test_the_threads_that_there_are_do_all_tasks(monkeypatch, num_started):
    deny_from(monkeypatch, num_started)
    with worker_threads(4, "few") as threads:
        assert list(threads.map(lambda n: n**2, range(50))) == [n**2 for n in range(50)]


def test_a_pool_without_any_thread_is_an_error_of_memory(monkeypatch):
    deny_from(monkeypatch, 0)
    with worker_threads(4, "none") as threads, pytest.raises(MemoryError):
        threads.submit(print)


def test_no_thread_begins_where_it_would_find_no_memory(monkeypatch):
    monkeypatch.setattr("shardkit.runtime.threads.bytes_left", lambda: 2**20)
    with worker_threads(4, "none") as threads, pytest.raises(MemoryError):
        threads.submit(print)
