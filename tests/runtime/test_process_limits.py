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


def test_the_limit_that_ends_first_is_the_one_that_is_named():
    program = (
        "import resource\n"
        "from shardkit.runtime.process_limits import describe_memory, larger_memory_step, limit_memory\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**30, resource.RLIM_INFINITY))\n"
        "for size in (2**31, 2**29): limit_memory(size); print(describe_memory(), larger_memory_step())"
    )
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert said.splitlines() == [
        "`ulimit -v` allows 1.00 GiB of address space a process "
        "Run the same command again with a larger limit, which `ulimit -v` shows",
        "--max-memory allows 512 MiB a process Run the same command again with a larger --max-memory",
    ]
