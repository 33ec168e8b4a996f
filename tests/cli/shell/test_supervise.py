"""A conversion's process that dies is begun again once though it left no trace, and not for ever."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.full

PROGRAM = """
import os, signal, sys
from pathlib import Path

from shardkit.cli.shell.supervise import supervised
from shardkit.cli.shell.supervised import announce_work_folder

folder, deaths = Path(sys.argv[1]), int(sys.argv[2])


def run():
    with (folder / "starts").open("a") as file:
        file.write("x")
    announce_work_folder(folder)
    if (folder / "starts").stat().st_size <= deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return 0


sys.exit(supervised(run))
"""


@pytest.fixture
def supervise(tmp_path):
    """Runs a process that dies so many times, and tells how often it was started."""

    def run(deaths):
        result = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path), str(deaths)], capture_output=True, text=True, timeout=60
        )
        return result, len((tmp_path / "starts").read_text())

    return run


def test_a_death_before_any_trace_of_work_is_no_end(supervise):
    result, num_starts = supervise(1)
    assert (result.returncode, num_starts) == (0, 2), result.stderr
    assert "note: the conversion ended with SIGKILL; going on" in result.stderr


def test_deaths_without_end_and_trace_are_given_up_with_a_sentence(supervise):
    result, num_starts = supervise(1000)
    assert (result.returncode, num_starts) == (5, 2), result.stderr
    assert "most often the system ran out of memory" in result.stderr
    assert "Nothing was committed" in result.stderr
