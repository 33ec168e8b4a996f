"""Commands of the command line, each in a process."""

import subprocess
import sys


def shardkit(*arguments, code=0):
    """Runs a command to its end, checks its exit code, and returns it with what it printed."""
    own = [sys.executable, "-m", "shardkit", *map(str, arguments)]
    found = subprocess.run(own, capture_output=True, text=True, check=False, timeout=120)
    assert found.returncode == code, found.stderr
    return found
