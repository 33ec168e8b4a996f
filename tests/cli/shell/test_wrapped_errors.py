"""In a terminal of 80 columns the commands and options that an error gives stay whole, so that they can be pasted."""

import os
import pty
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.full, pytest.mark.fresh_start]


def error_in_a_terminal(folder, *options):
    """Returns the lines that `convert` prints of an error in a terminal of 80 columns."""
    main, terminal = pty.openpty()
    command = [sys.executable, "-m", "shardkit", "convert", str(folder), str(folder.parent / "out"), *options]
    with open(main, "rb", buffering=0) as reader:
        result = subprocess.run(
            command,
            stdout=subprocess.DEVNULL,
            stderr=terminal,
            env=os.environ | {"COLUMNS": "80", "NO_COLOR": "1"},
            check=False,
        )
        os.close(terminal)
        text = reader.read(1 << 16).decode()
    assert result.returncode == 2
    return text.replace("\r\n", "\n").splitlines()


def test_a_command_is_a_line(tmp_path):
    folder = tmp_path / "a folder with a long name"
    folder.mkdir()
    for name in ("en", "de"):
        (folder / f"train.{name}").write_text("a line\nanother\na third\n")
    lines = error_in_a_terminal(folder)
    assert sum("paste " in line and "mkdir pasted" in line and ">pasted/" in line for line in lines) == 1
    assert [line for line in lines if "pasted" not in line and len(line) > 80] == []


def test_options_stay_together(tmp_path):
    folder = tmp_path / "in"
    for name in ("train", "test", "holdout one", "holdout two"):
        (folder / name).mkdir(parents=True)
        (folder / name / "a.csv").write_text("a,b\n1,2\n")
    lines = error_in_a_terminal(folder)
    assert any("--exclude 'holdout one/*' --exclude 'holdout two/*'" in line for line in lines), lines
