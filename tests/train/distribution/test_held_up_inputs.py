"""A run whose input gives no batch any more ends soon after a signal; one that goes on gets its time."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from train.distribution.signals import INPUT_GRACE_S, Stop

pytestmark = pytest.mark.full

RUN = """
import sys, threading, time
from train.distribution.signals import end_at_once

def batches():
    yield 1
    print("begun", flush=True)
    if sys.argv[1] == "hangs":
        threading.Event().wait()
    while True:
        time.sleep(0.05)
        yield 1

with end_at_once(lambda: "Nothing was lost") as stop, stop.heeded():
    asked_at = None
    for batch in stop.awaited(batches()):
        if stop.is_wanted:
            asked_at = asked_at or time.monotonic()
            if time.monotonic() > asked_at + float(sys.argv[2]):
                print("saved", flush=True)
                stop.end()
"""


def ended(kind: str, number: int, saves_after_s: float = 0.0) -> tuple[int, float, str, str]:
    """Returns the exit code of a run after a signal, the seconds that it took, and what it said."""
    command = [sys.executable, "-c", RUN, kind, str(saves_after_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        asked_at = time.monotonic()
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        return process.returncode, time.monotonic() - asked_at, out, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_input_that_hangs_holds_up_no_stop(number: int) -> None:
    code, took_s, out, err = ended("hangs", number)
    assert (code, out) == (128 + number, "")
    assert took_s < INPUT_GRACE_S + 5
    assert "Nothing was lost" in err


def test_an_input_that_goes_on_leaves_time_for_a_checkpoint() -> None:
    code, took_s, out, _ = ended("goes on", signal.SIGTERM, INPUT_GRACE_S + 1)
    assert (code, out) == (128 + signal.SIGTERM, "saved\n")
    assert took_s > INPUT_GRACE_S


def test_batches_are_passed_on() -> None:
    stop = Stop()
    assert list(stop.awaited(iter("abc"))) == ["a", "b", "c"]
    assert not stop.is_held_up(0.0)
