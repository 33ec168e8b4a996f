"""Signals end a command whichever thread the system hands them to, and are the process's own again afterwards."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from shardkit.runtime.signals import heeded, signals_on_pipe


def run(program):
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.full
@pytest.mark.parametrize(("name", "word", "code"), [("SIGINT", "interrupted", 130), ("SIGHUP", "terminated", 129)])
def test_a_signal_that_another_thread_takes_ends_a_command_that_waits_for_it(name, word, code):
    done = run(f"""
        import signal, threading
        from shardkit.cli.stop_convert import end_at_signals_after_commit

        def work():
            signal.pthread_kill(threading.get_ident(), signal.{name})
            threading.Event().wait()

        with end_at_signals_after_commit(3):
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            thread.join()
    """)
    assert done.returncode == code
    assert done.stderr == f"{word}: Version 3 was committed before, and is whole.\n"


@pytest.mark.full
def test_a_signal_at_the_very_end_is_heeded():
    done = run("""
        import os, signal
        from shardkit.cli.stop_convert import end_at_signals_after_commit

        with end_at_signals_after_commit(3):
            os.kill(os.getpid(), signal.SIGTERM)
        print("went on")
    """)
    assert (done.returncode, done.stdout) == (143, "")


def test_numbers_arrive_and_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    with signals_on_pipe((signal.SIGTERM, signal.SIGHUP)) as pipe:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        assert {os.read(pipe, 1)[0], os.read(pipe, 1)[0]} == {signal.SIGHUP, signal.SIGTERM}
    assert os.read(pipe, 1) == b""
    os.close(pipe)
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.set_wakeup_fd(-1) == -1


def test_what_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert heeded((signal.SIGINT, signal.SIGHUP)) == (signal.SIGINT,)
    finally:
        signal.signal(signal.SIGHUP, before)
