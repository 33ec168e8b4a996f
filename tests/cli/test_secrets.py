"""A secret that a user gives is neither shown, nor stored, nor on the command line of a process that is started."""

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from shardkit.cli import main
from shardkit.dataset.open import open_dataset
from tests.support.stores.servers import BUCKET, KINDS, serve

pytestmark = pytest.mark.full
CANARY = "canary-7f3a91"
# See proc_pid_stat(5) and linux/sched.h.
PF_FORKNOEXEC = 0x40


@pytest.fixture(scope="module")
def moto(tmp_path_factory):
    if KINDS["moto"].find() is None:
        pytest.skip(KINDS["moto"].install)
    with serve("moto", tmp_path_factory.mktemp("moto")) as server:
        yield server


class Watched:
    """A command, with the command lines of all processes that it started."""

    def __init__(self, arguments, environment, folder):
        self._process = psutil.Popen(
            [sys.executable, "-m", "shardkit", *map(str, arguments)],
            env={**os.environ, **environment}, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.lines = set()
        self._is_over = threading.Event()
        watcher = threading.Thread(target=self._watch)
        watcher.start()
        self.said, _ = self._process.communicate(timeout=300)
        self.code = self._process.returncode
        self._is_over.set()
        watcher.join()

    def _watch(self):
        while not self._is_over.wait(0.02):
            try:
                children = psutil.Process(self._process.pid).children(recursive=True)
            except psutil.Error:
                continue
            for child in children:
                with contextlib.suppress(psutil.Error, FileNotFoundError, ProcessLookupError):
                    if has_begun_a_program(child.pid):
                        self.lines.add(" ".join(child.cmdline()))


def has_begun_a_program(pid):
    """Whether a process is not one that was forked only: such a one shows the words that its parent was given."""
    flags = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6]
    return not int(flags) & PF_FORKNOEXEC


PATH = f"there?token={CANARY}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["convert", "a.csv", "out", "--map", f"f.py:f?token={CANARY}"], "--map f.py:f?token=*** names no function"),
        (["convert", "a.csv", "out", "--map", f"{PATH}:f"], "there?token=***: no such file"),
        (["convert", "a.csv", "out", "--tokenize", f"x={PATH}"], "there?token=***: no such file"),
        (["convert", "a.csv", "out", "--schema", PATH], "there?token=***: no such file"),
        (["convert", "a.csv", "out", "--labels", PATH], "no file matches"),
        (["convert", "a.csv", "out", "--recipe", PATH], "there?token=***"),
        (["convert", "a.csv", "out", "--split", f"train={PATH}"], "train=there?token=*** names no file"),
        (["convert", PATH, "out"], "no file matches 'there?token=***'"),
        (["plan", PATH], "no file matches 'there?token=***'"),
        (["inspect", PATH], "there?token=***"),
        (["verify", PATH], "there?token=***"),
        (["clean", PATH], "there?token=***"),
        (["index", PATH], "there?token=***"),
        (["export", PATH, "to"], "there?token=***"),
    ],
)
@pytest.mark.parametrize("debug", ["", "1"])
def test_no_message_shows_the_query_of_a_path(tmp_path, monkeypatch, capsys, arguments, said, debug):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHARDKIT_DEBUG", debug)
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    assert main(arguments) == 2
    shown = "".join(capsys.readouterr())
    assert said.lower() in shown.lower()
    assert CANARY not in shown


def test_no_manifest_and_no_result_shows_the_query_of_a_path(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    destination = f"set?token={CANARY}"
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / PATH).write_text("def f(row):\n    return row\n")
    for more in ((), ("--append",), ("--overwrite", "--tfds", "--compression", "none")):
        assert main(["convert", "a.csv", destination, "--map", f"{PATH}:f", *more]) == 0
    assert CANARY not in "".join(capsys.readouterr())
    for path in files_below(tmp_path / destination):
        assert CANARY.encode() not in path.read_bytes(), path
    recipe = open_dataset(tmp_path / destination).manifest.recipe
    assert recipe["transforms"]["map_path"] == f"{tmp_path}/there?token=***:f"


def files_below(folder):
    return [p for p in Path(folder).rglob("*") if p.is_file()]


def test_options_and_variables_with_secrets_are_kept_nowhere(moto, tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"{i % 97},{i % 2}\n" for i in range(3000)))
    environment = {
        **moto.environment,
        "AWS_SECRET_ACCESS_KEY": f"{CANARY}-key",
        "AWS_SESSION_TOKEN": f"{CANARY}-session",
        "PGPASSWORD": f"{CANARY}-database",
        "SHARDKIT_DEBUG": "1",  # It tells most.
    }
    options = ["--storage-options", "s3:key=motokey", "--storage-options", f"s3:secret={CANARY}-option"]
    options += [f"--storage-options=s3:token={CANARY}-token"]
    url = f"s3://{BUCKET}/secrets"
    runs = [
        (["convert", "a.csv", url, "--split", "train=0.8", "--split", "test=0.2", "--workers", "6"], 0),
        (["inspect", url, "--recipe"], 0),
        (["verify", url], 0),
        (["clean", url], 0),
        (["convert", "a.csv", url], 4),
        (["inspect", url, "--version", "9"], 2),
        (["inspect", f"{url}?X-Amz-Signature={CANARY}-signature"], None),
        (["inspect", f"s3://{CANARY}-user:{CANARY}-password@{BUCKET}/x"], None),
        (["inspect", f"https://user:{CANARY}-password@127.0.0.1:9/set?sig={CANARY}-sas"], None),
        (["convert", f"postgresql://user:{CANARY}-password@127.0.0.1:9/d", "out", "--table", "t"], None),
        (["train", url, "--label", "y", "--epochs", "1", "--workers-per-host", "2", "--output", "run"], 0),
    ]
    for arguments, code in runs:
        limit = {"SHARDKIT_STORAGE_DEADLINE": "1"} if code is None else {}
        run = Watched([*arguments, *options], environment | limit, tmp_path)
        assert run.code == code or (code is None and run.code not in (0, 70)), run.said
        assert CANARY not in run.said, run.said
        assert not any(CANARY in line for line in run.lines), run.lines
    assert len(files_below(tmp_path / "run")) > 5
    for path in files_below(tmp_path):
        assert CANARY not in path.name
        assert CANARY.encode() not in path.read_bytes(), path
