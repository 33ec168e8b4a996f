"""A conversion's process that dies is begun again once though it left no trace, and not for ever."""

import signal
import subprocess
import sys

import pyarrow as pa
import pyarrow.orc as orc
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
    assert "with a larger --max-memory, or with fewer --workers" in result.stderr


CRASH = """
import os, signal, sys

import shardkit.sources.columnar.orc as orc
from shardkit.cli import script

orc._batches = lambda *arguments: os.kill(os.getpid(), int(signal_number))
script()
"""


READS = (["convert", "rows.orc", "out"], ["convert", "rows.orc", "out", "--dry-run"], ["plan", "rows.orc"])


@pytest.mark.parametrize("arguments", READS)
@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGSEGV, 3), (signal.SIGABRT, 3), (signal.SIGKILL, 5)])
def test_a_reader_that_crashes_while_planning_is_named_with_its_file(tmp_path, number, exit_code, arguments):
    # Images are looked for in the first values of a column of bytes.
    orc.write_table(pa.table({"b": [b"\x89PNG", b"\xff"]}), str(tmp_path / "rows.orc"))
    program = CRASH.replace("signal_number", str(int(number)))
    command = [sys.executable, "-c", program, *arguments]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert result.returncode == exit_code, result.stderr
    assert "Nothing was committed" in result.stderr
    # The system kills a process of any file where its memory is short.
    is_named = f"the file cannot be read in rows.orc: its reader ended with {number.name}" in result.stderr
    assert is_named == (number != signal.SIGKILL)
