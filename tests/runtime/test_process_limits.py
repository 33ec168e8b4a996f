"""A process ends with the one that started it, and not because that one is the first of a container."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.full

PROGRAM = """
import os, sys
from shardkit.runtime.process_limits import die_with_parent
os.getppid = lambda: int(sys.argv[1])
die_with_parent(*map(int, sys.argv[2:]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot do that")
@pytest.mark.parametrize(("now", "expected", "code"), [(1, 1, 0), (1, 77, 1), (77, 77, 0)])
def test_a_process_ends_only_where_another_one_has_taken_it_over(now, expected, code):
    command = [sys.executable, "-c", PROGRAM, str(now), str(expected)]
    assert subprocess.run(command, check=False, env=os.environ).returncode == code
