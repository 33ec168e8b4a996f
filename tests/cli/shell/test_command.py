"""The shell around the commands: help, messages, exit codes, signals and closed pipes, in real processes."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from shardkit import errors
from shardkit.cli import main as cli_main
from shardkit.cli.shell.errors import explain
from shardkit.messages import visible

HEAVY = ("apache_beam", "keras", "numpy", "pandas", "pyarrow", "rich", "tensorflow", "fsspec", "msgspec")

DRIVER = """
import sys
from shardkit import cli
from shardkit.cli.shell.command import Entry
cli.COMMANDS["probe"] = Entry("probe", "A command of a test.")
sys.exit(cli.main())
"""

PROBE = """
import click
from shardkit.cli.shell.command import ExampleCommand

@click.command(cls=ExampleCommand, epilog='''
    shardkit probe --a-rather-long-option value --another-rather-long-option value
      --indented
''')
def command():
    "Does what a test needs."
"""


@pytest.fixture
def probe(tmp_path):
    """Returns a function that starts a process with one more command, whose body is the given source."""
    (tmp_path / "driver.py").write_text(DRIVER)

    def start(body="pass", *args, **settings):
        lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
        (tmp_path / "probe.py").write_text(PROBE + lines)
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, **settings}
        settings["env"] = {**os.environ, **settings.get("env", {})}
        return subprocess.Popen([sys.executable, str(tmp_path / "driver.py"), *(args or ("probe",))], **settings)

    return start


def finish(process):
    out, err = process.communicate(timeout=60)
    return process.returncode, out.decode(), err.decode()


def shardkit(*args, **settings):
    return subprocess.run(
        [sys.executable, "-m", "shardkit", *args], capture_output=True, text=True, timeout=60, **settings
    )


@pytest.mark.full
def test_help_names_every_command_and_loads_nothing_heavy():
    code = (
        "import sys; from shardkit.cli import main; rc = main(['--help']); "
        f"print('LOADED', [m for m in {HEAVY!r} if m in sys.modules]); sys.exit(rc)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0
    for name in ("convert", "inspect", "verify", "doctor", "clean", "train"):
        assert f"\n  {name} " in run.stdout
    assert "Examples:\n" in run.stdout
    assert run.stdout.rstrip().endswith("LOADED []")


@pytest.mark.full
def test_version_tells_what_a_bug_report_needs():
    run = shardkit("--version")
    assert run.returncode == 0
    assert run.stdout.splitlines()[0] == "shardkit 0.1.0"
    assert f"Python {sys.version.split()[0]}" in run.stdout
    import pyarrow

    assert f"pyarrow {pyarrow.__version__}" in run.stdout


@pytest.mark.full
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["convrt"], "There is no command 'convrt'. Did you mean 'convert'?"),
        (["zzz"], "There is no command 'zzz'."),
        (["--nope"], "No such option '--nope'."),
    ],
)
def test_wrong_command_lines_end_with_2_and_one_message(args, message):
    run = shardkit(*args)
    assert run.returncode == 2
    assert run.stdout == ""
    assert f"error[SK-E200]: {message}\n  Try shardkit --help\n" in run.stderr


@pytest.mark.full
def test_an_option_that_names_data_is_not_forgotten_for_the_next():
    run = shardkit("convert", "a", "b", "--labels", "x", "--labels", "y")
    assert run.returncode == 2
    assert "--labels is given twice, and takes one value." in run.stderr


@pytest.mark.full
def test_no_arguments_show_the_help():
    run = shardkit()
    assert run.returncode == 2
    assert "Commands:" in run.stderr


@pytest.mark.full
def test_long_examples_go_on_behind_a_backslash(probe):
    code, out, _ = finish(probe("pass", "probe", "--help", env={"COLUMNS": "40"}))
    assert code == 0
    assert (
        "Examples:\n"
        "  shardkit probe --a-rather-long-option value \\\n"
        "      --another-rather-long-option value\n"
        "    --indented\n"
    ) in out  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("kind", errors.ShardkitError.__subclasses__())
def test_every_error_has_its_code_and_its_sentences(probe, kind):
    body = f"""
from shardkit import errors
raise errors.{kind.__name__}("it broke", where="a.csv, row 7", why="expected int64, got 'x'",
    state="Nothing was written", next_step="Fix the row")
"""
    code, out, err = finish(probe(body))
    assert code == kind.exit_code
    assert out == ""
    assert err == (
        f"error[{kind.code}]: it broke in a.csv, row 7: expected int64, got 'x'.\n"
        "  Nothing was written.\n"
        "  Fix the row.\n"
    )  # fmt: skip


@pytest.mark.full
def test_long_paths_are_not_cut_when_piped(probe):
    path = "/data/" + "/".join(f"a-rather-long-folder-name-{i}" for i in range(40)) + "/rows.csv"
    body = f"from shardkit.errors import UsageError\nraise UsageError('cannot read', where={path!r})"
    code, _, err = finish(probe(body, env={"COLUMNS": "40"}))
    assert code == 2
    assert path in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 漢", "plain é 漢"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("two\nlines", r"two\nlines"),
        ("\udcff", r"\udcff"),
        ("\u202egpj.exe", r"\u202egpj.exe"),
    ],
)
def test_control_characters_do_not_reach_the_terminal(text, shown):
    assert visible(text) == shown
    explanation = explain(errors.BadInputError("bad name", where=text))
    assert explanation.lines == (f"bad name in {shown}.",)


@pytest.mark.full
@pytest.mark.parametrize(
    ("settings", "colored"), [({}, True), ({"NO_COLOR": "1"}, False)], ids=["terminal", "NO_COLOR"]
)
def test_color_only_on_a_terminal_that_wants_it(probe, settings, colored):
    ours, theirs = pty.openpty()
    process = probe("from shardkit.errors import UsageError\nraise UsageError('no')", stderr=theirs, env=settings)
    os.close(theirs)
    process.wait(timeout=60)
    text = os.read(ours, 4096).decode()
    os.close(ours)
    assert ("\x1b[" in text) == colored
    assert "no." in text


@pytest.mark.full
@pytest.mark.parametrize(
    ("args", "settings", "has_trace"),
    [
        (["probe"], {}, False),
        (["probe", "--debug"], {}, True),
        (["--debug", "probe"], {}, True),
        (["probe"], {"SHARDKIT_DEBUG": "1"}, True),
        (["probe"], {"SHARDKIT_DEBUG": "0"}, False),
    ],
)
def test_a_bug_is_called_one_and_shows_its_traceback_on_request(probe, args, settings, has_trace):
    code, out, err = finish(probe("{}['missing']", *args, env=settings))
    assert code == 70
    assert out == ""
    assert err.startswith("error[SK-E999]: this is a bug in shardkit: KeyError: 'missing'\n")
    assert ("Traceback (most recent call last)" in err) == has_trace
    assert ("{}['missing']" in err) == has_trace


@pytest.mark.parametrize(
    ("error", "exit_code", "message"),
    [
        (ModuleNotFoundError("no", name="tensorflow.python"), 2, "Run: pip install 'shardkit[train]'."),
        (ModuleNotFoundError("no", name="apache_beam"), 2, "Run: pip install 'shardkit[beam]'."),
        (ModuleNotFoundError("no", name="shardkit.gone"), 70, "this is a bug"),
        (OSError(28, "No space left on device", "/tmp/x"), 6, "no space left in /tmp/x."),
        (PermissionError(13, "Permission denied", "/x/y"), 2, "refused access in /x/y: permission denied."),
        (PermissionError(13, "Permission denied", b"/x/\xff"), 2, r"refused access in /x/\udcff: permission denied."),
        (MemoryError(), 6, "there is not enough memory"),
        (OSError(12, "Cannot allocate memory", "/x/module.py"), 6, "there is not enough memory"),
        (RuntimeError("can't start new thread"), 6, "there is not enough memory"),
        (OSError("without a file"), 70, "this is a bug"),
        (RuntimeError(), 70, "RuntimeError: no message"),
        (click.FileError("a.csv", "gone"), 2, "'a.csv': gone."),
        (click.Abort(), 130, "Stopped before the end."),
    ],
)
def test_other_exceptions(error, exit_code, message):
    explanation = explain(error)
    assert explanation.exit_code == exit_code
    assert message in "\n".join(explanation.lines)


WAIT = """
import threading
try:
    print("ready", flush=True)
    threading.Event().wait(60)
finally:
    print("cleaned up", flush=True)
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("number", "exit_code", "word"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "terminated"),
        (signal.SIGHUP, 129, "terminated"),
    ],
)
def test_signals_clean_up_and_end_with_a_sentence(probe, number, exit_code, word):
    process = probe(WAIT, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    code, out, err = finish(process)
    assert code == exit_code
    assert out == "cleaned up\n"
    assert err == f"{word}: Stopped before the end.\n"


@pytest.mark.full
def test_an_interrupted_command_can_say_what_to_do_next(probe):
    body = """
import threading
try:
    print("ready", flush=True)
    threading.Event().wait(60)
except KeyboardInterrupt as error:
    error.add_note("Run the same command again: it goes on where it stopped")
    raise
"""
    process = probe(body)
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    code, _, err = finish(process)
    assert code == 143
    assert err == "terminated: Run the same command again: it goes on where it stopped.\n"


@pytest.mark.full
def test_a_thread_that_never_returns_does_not_hold_the_process(probe):
    process = probe("import threading\nthreading.Thread(target=threading.Event().wait).start()\n" + WAIT)
    assert process.stdout.readline() == b"ready\n"
    start = time.monotonic()
    process.send_signal(signal.SIGTERM)
    code, _, err = finish(process)
    assert code == 143
    assert "terminated" in err
    assert time.monotonic() - start < 10


@pytest.mark.full
def test_an_ignored_hangup_stays_ignored(probe):
    body = """
import os, signal
print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)
os.kill(os.getpid(), signal.SIGHUP)
print("still here")
"""
    process = probe(body, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    assert finish(process)[:2] == (0, "True\nstill here\n")


@pytest.mark.full
@pytest.mark.parametrize(
    "body",
    [
        "for i in range(10**6): click.echo('x' * 100)",
        "for i in range(10**6): print('x' * 100)",
        "import rich.console\nconsole = rich.console.Console()\nfor i in range(10**6): console.print('x' * 100)",
        "print('x')\nimport sys\nsys.stdin.read()\nprint('y')",
    ],
    ids=["click", "print", "rich", "at the last flush"],
)
def test_a_reader_that_leaves_is_no_error(probe, body):
    process = probe(body, stdin=subprocess.PIPE)
    process.stdout.close()
    process.stdin.close()
    err = process.stderr.read().decode()
    assert process.wait(timeout=60) == 141
    assert err == ""


@pytest.mark.full
def test_another_broken_pipe_is_not_taken_for_a_reader_that_left(probe):
    code, _, err = finish(probe("import os\nr, w = os.pipe()\nos.close(r)\nos.write(w, b'x')"))
    assert code == 70
    assert "BrokenPipeError" in err


@pytest.mark.full
@pytest.mark.parametrize(("statement", "exit_code"), [("click.get_current_context().exit(1)", 1), ("exit(3)", 3)])
def test_a_command_may_choose_its_exit_code(probe, statement, exit_code):
    assert finish(probe(f"print('out')\n{statement}")) == (exit_code, "out\n", "")


@pytest.mark.full
def test_output_survives_an_encoding_that_lacks_a_letter(probe):
    code, out, err = finish(probe("print('\\u6f22')", env={"PYTHONIOENCODING": "ascii"}))
    assert (code, out, err) == (0, "\\u6f22\n", "")


@pytest.mark.full
def test_a_train_py_of_the_user_does_not_shadow_ours(tmp_path: Path):
    (tmp_path / "train.py").write_text("raise SystemExit('the wrong file was imported')")
    code = """
import runpy, sys
sys.argv = ["shardkit", "--version"]
try:
    runpy.run_module("shardkit", run_name="__main__")
finally:
    import train
    print("IMPORTED", train.__file__)
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0
    assert str(tmp_path) not in run.stdout.split("IMPORTED")[1]


@pytest.mark.full
def test_completion_for_the_shell():
    run = shardkit(env={**os.environ, "_SHARDKIT_COMPLETE": "bash_source"})
    assert run.returncode == 0
    assert "complete -o nosort -F" in run.stdout
    words = {**os.environ, "_SHARDKIT_COMPLETE": "bash_complete", "COMP_WORDS": "shardkit ver", "COMP_CWORD": "1"}
    assert "verify" in shardkit(env=words).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["inspect", ""], "DATASET is empty"),
        (["clean", " "], "DATASET is empty"),
        (["doctor", ""], "URL is empty"),
        (["convert", "a.csv", ""], "DESTINATION is empty"),
        (["convert", "a.csv", "", "out"], "INPUT is empty"),
        (["convert", "a.csv", "memory://x"], "DESTINATION lies in the memory of a process"),
        (["verify", "s3://NAME:PASSWORD@bucket/x"], "holds a name and a password"),
    ],
)
def test_what_names_no_place_is_refused(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert cli_main(arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "PASSWORD" not in said
    assert list(tmp_path.iterdir()) == []
