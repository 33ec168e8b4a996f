"""Commands of the command line, each in a process."""

import os
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


def run_as_typed(line, folder):
    """Runs a line of a shell in a folder, where `python` is the one of the tests."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    subprocess.run(["bash", "-c", line], cwd=folder, env={**os.environ, "PATH": path}, check=True)
