"""A signal ends a statement of --select at once, and is no error of the statement."""

import os
import signal
import threading
import time

import pytest

from shardkit.runtime.interruptible import interruptible
from shardkit.transforms.duckdb_session import session

SLOW = "SELECT sum(a.range * b.range % 7) FROM range(10000000) a, range(1000000) b"


class Stopped(KeyboardInterrupt):
    pass


@pytest.mark.full
def test_a_signal_ends_a_statement(request):
    def stop(number, frame):
        raise Stopped

    before = signal.signal(signal.SIGUSR1, stop)
    request.addfinalizer(lambda: signal.signal(signal.SIGUSR1, before))
    begun, connection = threading.Event(), session()

    def query():
        begun.set()
        return connection.execute(SLOW).fetchall()

    def send():
        begun.wait(30)
        os.kill(os.getpid(), signal.SIGUSR1)

    threading.Thread(target=send).start()
    start = time.monotonic()
    with pytest.raises(Stopped):
        interruptible(query, connection.interrupt)
    assert time.monotonic() - start < 10


@pytest.mark.full
def test_a_call_that_heeds_a_late_cancellation_alone_is_ended(request):
    def stop(number, frame):
        raise Stopped

    before = signal.signal(signal.SIGUSR1, stop)
    request.addfinalizer(lambda: signal.signal(signal.SIGUSR1, before))
    begun, ended, cancellations = threading.Event(), threading.Event(), []

    def cancel():
        cancellations.append(None)
        if len(cancellations) == 15:
            ended.set()

    def call():
        begun.set()
        ended.wait(60)

    def send():
        begun.wait(30)
        os.kill(os.getpid(), signal.SIGUSR1)

    threading.Thread(target=send).start()
    with pytest.raises(Stopped):
        interruptible(call, cancel)
    assert ended.wait(30)


def test_results_and_errors_of_a_statement_come_back():
    connection = session()
    assert interruptible(lambda: connection.execute("SELECT 7").fetchall(), connection.interrupt) == [(7,)]
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0, connection.interrupt)
