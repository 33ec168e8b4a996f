"""Commands as processes of their own: closed and full streams, a locale of ASCII, no pandas."""

import os
import subprocess
import sys

import pytest

from shardkit.dataset.open import list_versions

pytestmark = pytest.mark.full


def run(folder, line, **environment):
    return subprocess.run(
        ["sh", "-c", line.replace("shardkit", f"'{sys.executable}' -P -m shardkit")],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_a_closed_stream_changes_neither_the_dataset_nor_the_exit_code(tmp_path, closed):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    done = run(tmp_path, f"shardkit convert a.csv out {closed}")
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
    assert list_versions(str(tmp_path / "out")) == [1]
    assert (tmp_path / "a.csv").read_text() == "a,b\n1,2\n"
    assert run(tmp_path, f"shardkit convert missing.csv other {closed}").returncode == 2


def test_a_full_stream_hides_nothing_that_the_command_did(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    assert run(tmp_path, "shardkit convert a.csv out 2>/dev/full").returncode == 0
    assert run(tmp_path, "shardkit convert missing.csv other 2>/dev/full").returncode == 2
    done = run(tmp_path, "shardkit convert a.csv full >/dev/full")
    assert done.returncode == 6
    assert b"no space left in standard output" in done.stderr
    assert b"a version that it committed stays" in done.stderr
    assert b"Traceback" not in done.stderr
    assert list_versions(str(tmp_path / "full")) == [1]
    for command in ("inspect out", "verify out", "--help"):
        done = run(tmp_path, f"shardkit {command} >/dev/full")
        assert (done.returncode, done.stderr.count(b"standard output"), b"Traceback" in done.stderr) == (6, 1, False)


def test_times_with_nanoseconds_are_shown_without_pandas(tmp_path):
    (tmp_path / "a.csv").write_text("at\n2024-01-01 00:00:00.123456789\n2024-01-01 00:00:00\n")
    dry = run(tmp_path, "shardkit convert a.csv out --dry-run")
    assert (dry.returncode, b"2024-01-01T00:00:00.123456789" in dry.stdout) == (0, True), dry.stderr
    assert run(tmp_path, "shardkit convert a.csv out").returncode == 0
    shown = run(tmp_path, "shardkit inspect out --examples 2")
    assert (shown.returncode, b"2024-01-01T00:00:00.123456789" in shown.stdout) == (0, True), shown.stderr


def test_names_are_utf_8_in_a_locale_of_ascii(tmp_path):
    (tmp_path / "größe.csv").write_text("länge,b\n1,2\n")
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run(tmp_path, "shardkit convert größe.csv öut", **ascii_only)
    assert done.returncode == 0, done.stderr
    assert list_versions(str(tmp_path / "öut")) == [1]
    shown = run(tmp_path, "shardkit inspect öut", **ascii_only)
    assert shown.returncode == 0, shown.stderr
    assert b"l\\xe4nge" in shown.stdout
    assert shown.stdout.isascii()


def test_an_interpreter_that_stays_with_ascii_is_not_started_for_ever(tmp_path):
    command = [sys.executable, "-X", "utf8=0", "-P", "-m", "shardkit", "--version"]
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(command, env=ascii_only, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_name_that_is_too_long_is_a_usage_error(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    done = run(tmp_path, f"shardkit convert a.csv {'x' * 256}")
    assert done.returncode == 2
    assert b"a name is too long" in done.stderr
