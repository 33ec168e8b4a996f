"""Commands of the command line, each in a process."""

import subprocess
import sys


def run_shardkit(*arguments, **settings):
    """Runs a command to its end, with settings of `subprocess.run`, and returns it with what it printed."""
    own = [sys.executable, "-m", "shardkit", *map(str, arguments)]
    return subprocess.run(own, capture_output=True, text=True, check=False, **settings)


def shardkit(*arguments, code=0):
    """Runs a command to its end, checks its exit code, and returns it with what it printed."""
    found = run_shardkit(*arguments, timeout=120)
    assert found.returncode == code, found.stderr
    return found
