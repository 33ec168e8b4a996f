"""A conversion's process that dies is begun again once though it left no trace, and not for ever."""

import subprocess
import sys

import pytest

from shardkit.runtime.process_limits import EXIT_NO_MEMORY

pytestmark = pytest.mark.full

PROGRAM = """
import os, signal, sys
from pathlib import Path

from shardkit.cli.shell.supervise import supervised
from shardkit.cli.shell.supervised import announce_work_folder

folder, deaths, exit_code = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])


def run():
    with (folder / "starts").open("a") as file:
        file.write("x")
    announce_work_folder(folder)
    if (folder / "starts").stat().st_size <= deaths:
        os.kill(os.getpid(), signal.SIGKILL) if exit_code < 0 else os._exit(exit_code)
    return 0


sys.exit(supervised(run))
"""


@pytest.fixture
def supervise(tmp_path):
    """Runs a process that dies so many times, and tells how often it was started."""

    def run(deaths, exit_code=-1):
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(deaths), str(exit_code)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
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


def test_a_conversion_that_always_runs_out_of_memory_ends_with_the_code_of_memory(supervise):
    result, num_starts = supervise(1000, EXIT_NO_MEMORY)
    assert (result.returncode, num_starts) == (6, 2), result.stderr
    assert "--max-memory says how much a process may ask for" in result.stderr
    assert "or a larger --max-memory" in result.stderr
