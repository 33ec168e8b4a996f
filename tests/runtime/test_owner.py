"""A process that holds something counts as dead when it has certainly ended."""

import os
import subprocess
import sys

import msgspec
import pytest

from shardkit.runtime.owner import is_dead, this_process


def of(pid):
    return msgspec.structs.replace(this_process(), pid=pid)


def test_a_process_at_work_and_one_of_another_machine_are_not_dead():
    assert not is_dead(this_process())
    # Higher than any number that Linux gives.
    assert is_dead(of(2**22 + 1))
    assert not is_dead(msgspec.structs.replace(of(2**22 + 1), machine="another"))


@pytest.mark.full
def test_a_process_that_ended_is_dead_before_its_parent_asks_for_its_exit_code():
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_dead(of(process.pid))
