"""Ctrl-C while a command is still being loaded: one sentence and 130, whatever was being imported."""

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.full

# Sends the signal at the import of a module, by whichever of the processes that is.
SITE = """
import os, signal, sys

top = int(os.environ.setdefault("TOP", str(os.getpid())))

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == os.environ["AT"] and "SENT" not in os.environ:
            os.environ["SENT"] = "1"
            number = int(os.environ["NUMBER"])
            {"command": lambda: os.kill(top, number), "group": lambda: os.killpg(top, number)}[os.environ["TO"]]()

sys.meta_path.insert(0, Interrupting())
"""


@pytest.fixture
def interrupted(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SITE)
    (tmp_path / "a.csv").write_text("id\n1\n2\n")

    def run(at, to="command", number=signal.SIGINT, **more):
        return subprocess.run(
            [sys.executable, "-m", "shardkit", "convert", str(tmp_path / "a.csv"), str(tmp_path / "out")],
            capture_output=True,
            text=True,
            timeout=120,
            start_new_session=True,
            env={
                **{name: value for name, value in os.environ.items() if name not in ("TOP", "SENT")},
                "PYTHONPATH": str(tmp_path / "site"),
                "AT": at,
                "TO": to,
                "NUMBER": str(int(number)),
                **more,
            },
        )

    return run


@pytest.mark.parametrize("to", ["command", "group"])
@pytest.mark.parametrize(
    "module",
    [
        "typing",
        "click",
        "shardkit.cli.shell.supervise",
        "beam_pipelines",
        "beam_pipelines.engines.settings",
        "shardkit.cli.convert",
        "shardkit.cli.run_convert",
        "pyarrow",
        "numpy",
        "fsspec",
    ],
)
def test_an_interrupt_during_imports_is_one_sentence(interrupted, module, to):
    result = interrupted(module, to)
    assert result.returncode == 130, result.stderr
    assert result.stdout == ""
    assert result.stderr == "interrupted: Stopped before the end.\n"


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.parametrize("module", ["click", "beam_pipelines.engines.settings", "pyarrow"])
def test_other_signals_during_imports_are_one_sentence_too(interrupted, module, number, exit_code):
    result = interrupted(module, number=number)
    assert result.returncode == exit_code, result.stderr
    assert result.stderr == "terminated: Stopped before the end.\n"


@pytest.mark.parametrize("module", ["click", "pyarrow"])
def test_who_is_started_for_somebody_else_says_what_that_one_knows(interrupted, module):
    result = interrupted(module, number=signal.SIGTERM, SHARDKIT_STOPPED="The last checkpoint is after step 7")
    assert result.returncode == 143, result.stderr
    assert result.stderr == "terminated: The last checkpoint is after step 7\n"


def test_a_signal_behind_the_last_word_loses_neither_the_word_nor_the_exit_code():
    code = (
        "import signal, sys\nfrom shardkit.cli.shell.errors import Terminated\n"
        "from shardkit.cli.shell.supervise import supervised\n"
        "def run():\n    print('made it')\n    raise Terminated(signal.SIGTERM)\nsys.exit(supervised(run))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (143, "made it\n"), result.stderr
