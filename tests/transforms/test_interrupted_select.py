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


def test_results_and_errors_of_a_statement_come_back():
    connection = session()
    assert interruptible(lambda: connection.execute("SELECT 7").fetchall(), connection.interrupt) == [(7,)]
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0, connection.interrupt)
