"""Rows that no process survives: a crash, a loop without end, memory without end. They cost themselves, not the run."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from shardkit.dataset.block_reader import first_examples
from shardkit.dataset.open import list_versions, open_dataset
from tests.support.campaign import in_campaign

pytestmark = [pytest.mark.slow, pytest.mark.full]

NUM_ROWS, POISON = 60_000, 41_234
FUNCTIONS = """
import os, signal, sys
import pyarrow.compute as pc

def has_poison(batch):
    return pc.any(pc.equal(batch.column("id"), POISON)).as_py()

def crash(batch):
    if has_poison(batch):
        os.kill(os.getpid(), signal.SIGSEGV)
    return batch

def leave(batch):
    if has_poison(batch):
        os._exit(0)
    return batch

def leave_with_an_interrupt(batch):
    if has_poison(batch):
        raise KeyboardInterrupt
    return batch

def loop(batch):
    while has_poison(batch):
        pass
    return batch

def loop_holding_the_interpreter(batch):
    import re
    if has_poison(batch):
        re.match("(a|a)*b", "a" * 60)
    return batch

def eat(batch):
    eaten = []
    while has_poison(batch):
        eaten.append(bytearray(64 << 20))
    return batch

def once(batch):
    path = os.environ["ONCE"]
    if batch.num_rows and not os.path.exists(path):
        open(path, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return batch
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    for number in range(3):
        rows = range(number * NUM_ROWS // 3, (number + 1) * NUM_ROWS // 3)
        (folder / f"{number}.csv").write_text("id,x\n" + "".join(f"{i},{i / 8}\n" for i in rows))
    functions = tmp_path_factory.mktemp("functions") / "functions.py"
    functions.write_text(FUNCTIONS.replace("POISON", str(POISON)))
    return folder, functions


def command(source, destination, *options):
    return [sys.executable, "-m", "shardkit", "convert", str(source), str(destination), *map(str, options)]


def convert(source, destination, *options, **environment):
    return subprocess.run(
        command(source, destination, *options),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, **environment},
    )


def shards_of(destination):
    return [(s.num_examples, s.sha256) for s in open_dataset(str(destination)).shards]


@pytest.mark.parametrize("workers", [6, *in_campaign(1, 2)])
def test_a_row_that_crashes_is_left_out_and_shown(tmp_path, inputs, workers):
    folder, functions = inputs
    options = ("--map", f"{functions}:crash", "--on-bad-record", "quarantine", "--workers", workers)
    result = convert(folder, tmp_path / "out", *options)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    assert f"{NUM_ROWS:,} rows in, {NUM_ROWS - 1:,} examples out, 1 rejected" in result.stdout
    shown = subprocess.run(
        [sys.executable, "-m", "shardkit", "inspect", str(tmp_path / "out"), "--rejected", "--json"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "SIGSEGV" in shown
    assert "2.csv" in shown
    assert f"row {POISON - 2 * NUM_ROWS // 3 + 1}" in shown
    again = convert(folder, tmp_path / "again", "--select", f"SELECT * FROM rows WHERE id <> {POISON}")
    assert again.returncode == 0, again.stderr
    assert ids_of(tmp_path / "out") == ids_of(tmp_path / "again")


def ids_of(destination):
    return sorted(e["id"] for e in first_examples(open_dataset(str(destination)), "train", NUM_ROWS))


@pytest.mark.parametrize("workers", [2, *in_campaign(1, 6)])
@pytest.mark.parametrize(
    ("function", "how"),
    [("leave", "ended with exit code 0"), *in_campaign(("leave_with_an_interrupt", "KeyboardInterrupt"))],
)
def test_a_row_that_ends_its_process_as_if_all_were_well_is_left_out(tmp_path, inputs, function, how, workers):
    folder, functions = inputs
    options = ("--map", f"{functions}:{function}", "--on-bad-record", "skip", "--workers", workers)
    result = convert(folder, tmp_path / "out", *options)
    assert result.returncode == 0, result.stderr
    assert f"{NUM_ROWS:,} rows in, {NUM_ROWS - 1:,} examples out, 1 rejected" in result.stdout
    assert how in result.stderr


@pytest.mark.parametrize(
    ("function", "how"),
    [("loop_holding_the_interpreter", "longer than 3 s"), *in_campaign(("eat", ""), ("loop", "longer than 3 s"))],
)
def test_a_row_without_end_is_left_out(tmp_path, inputs, function, how):
    folder, functions = inputs
    options = ("--map", f"{functions}:{function}", "--on-bad-record", "skip", "--max-row-seconds", 3)
    result = convert(folder, tmp_path / "out", *options, "--max-memory", "2GiB")
    assert result.returncode == 0, result.stderr
    assert f"{NUM_ROWS:,} rows in, {NUM_ROWS - 1:,} examples out, 1 rejected" in result.stdout
    assert how in result.stderr
    assert "2.csv" in result.stderr


KEEPING = """
import builtins

import pyarrow as pa
import pyarrow.compute as pc

def keep(batch):
    # What is taken is never given back, and every other row needs some too.
    kept = builtins.__dict__.setdefault("kept", [])
    while pc.any(pc.equal(batch.column("id"), POISON)).as_py():
        kept.append(bytearray(16 << 20))
    beside = [bytearray(1 << 20) for _ in range(100)]
    return batch

def vast(batch):
    # Asks for far more than there is, in one piece, for one row in a thousand.
    ids = batch.column("id").to_numpy()
    return batch if (ids % 1_000 != 1).all() else pa.allocate_buffer(1 << 46)
"""
NUM_WIDE_ROWS = 4_000


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Inputs of several parts, which are worked at at the same time."""
    folder = tmp_path_factory.mktemp("parts")
    for number in range(4):
        rows = range(number * NUM_WIDE_ROWS // 4, (number + 1) * NUM_WIDE_ROWS // 4)
        (folder / f"{number}.csv").write_text("id,x\n" + "".join(f"{i},{'x' * 9_000}\n" for i in rows))
    functions = tmp_path_factory.mktemp("functions") / "functions.py"
    functions.write_text(KEEPING.replace("POISON", "1234"))
    return folder, functions


@pytest.mark.parametrize(("policy", "workers"), in_campaign(("skip", 2), ("fail", 2), ("quarantine", 6)))
def test_memory_that_a_row_eats_costs_no_other_row(tmp_path, parts, policy, workers):
    folder, functions = parts
    options = ("--map", f"{functions}:keep", "--on-bad-record", policy, "--workers", workers, "--max-memory", "1GiB")
    result = convert(folder, tmp_path / "out", *options)
    assert "Traceback" not in result.stderr
    assert "1.csv, row 235" in result.stderr
    assert "ran out of memory" in result.stderr
    assert "--max-memory" in result.stderr
    if policy == "fail":
        assert result.returncode == 3, result.stderr
        assert not (tmp_path / "out").exists()
        return
    assert result.returncode == 0, result.stderr
    assert f"{NUM_WIDE_ROWS:,} rows in, {NUM_WIDE_ROWS - 1:,} examples out, 1 rejected" in result.stdout
    found = first_examples(open_dataset(str(tmp_path / "out")), "train", NUM_WIDE_ROWS)
    assert sorted(e["id"] for e in found) == [i for i in range(NUM_WIDE_ROWS) if i != 1234]


def test_rows_that_ask_for_too_much_at_once_are_bad_rows_and_cost_no_process(tmp_path, parts):
    folder, functions = parts
    options = ("--map", f"{functions}:vast", "--on-bad-record", "skip", "--workers", 2, "--max-memory", "1GiB")
    result = convert(folder, tmp_path / "out", *options)
    assert result.returncode == 0, result.stderr
    assert "4,000 rows in, 3,996 examples out, 4 rejected" in result.stdout
    assert "MemoryError" in result.stderr
    assert "going on" not in result.stderr


def test_by_default_the_row_is_named_and_nothing_is_left(tmp_path, inputs):
    folder, functions = inputs
    result = convert(folder, tmp_path / "out", "--map", f"{functions}:crash")
    assert result.returncode == 3
    assert f"2.csv, row {POISON - 2 * NUM_ROWS // 3 + 1}" in result.stderr
    assert "SIGSEGV" in result.stderr
    assert "--on-bad-record" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.campaign
def test_the_first_pass_of_dedup_survives_it_too(tmp_path, inputs):
    folder, functions = inputs
    options = ("--map", f"{functions}:crash", "--on-bad-record", "skip", "--dedup")
    result = convert(folder, tmp_path / "out", *options)
    assert result.returncode == 0, result.stderr
    assert f"{NUM_ROWS:,} rows in, {NUM_ROWS - 1:,} examples out, 1 rejected" in result.stdout


@pytest.mark.campaign
def test_a_process_that_died_of_something_else_costs_no_row(tmp_path, inputs):
    folder, functions = inputs
    clean = convert(folder, tmp_path / "clean", "--map", f"{functions}:once", ONCE=str(functions))
    assert clean.returncode == 0, clean.stderr
    result = convert(folder, tmp_path / "out", "--map", f"{functions}:once", ONCE=str(tmp_path / "once"))
    assert result.returncode == 0, result.stderr
    assert "SIGKILL" in result.stderr
    assert shards_of(tmp_path / "out") == shards_of(tmp_path / "clean")


READER = '''
import os
import signal
from dataclasses import dataclass

from shardkit.sources.media.image_source import ImageSource


@dataclass(frozen=True)
class CrashingSource:
    """Images whose reader does not survive a file whose name holds "poison"."""

    format: str = "crashing"

    def recognizes(self, head, name):
        return name.endswith(".png")

    def infer(self, files, options):
        return ImageSource(format="images").infer(files, options)

    def notes(self, files, options):
        return ()

    def split(self, files, options):
        return ImageSource(format="images").split(files, options)

    def read(self, split, files, features, options):
        if any("poison" in f.name for f in files[split.file_start : split.file_stop]):
            os.kill(os.getpid(), signal.SIGSEGV)
        yield from ImageSource(format="images").read(split, files, features, options)
'''


@pytest.fixture
def crashing_reader(tmp_path):
    site = tmp_path / "site"
    info = site / "crashing-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: crashing\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[shardkit.sources]\ncrashing = crashing:CrashingSource\n")
    (site / "crashing.py").write_text(READER)
    return {"PYTHONPATH": str(site)}


@pytest.mark.parametrize("policy", ["quarantine", *in_campaign("fail")])
def test_a_file_that_its_reader_does_not_survive_is_one_bad_row(tmp_path, crashing_reader, policy):
    from PIL import Image

    (tmp_path / "images").mkdir()
    for number in range(20):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / "images" / f"{number}.png")
    Image.new("RGB", (4, 4)).save(tmp_path / "images" / "poison.png")
    options = ("--format", "crashing", "--on-bad-record", policy)
    result = convert(tmp_path / "images", tmp_path / "out", *options, **crashing_reader)
    assert "poison.png" in result.stderr
    assert "SIGSEGV" in result.stderr
    if policy == "fail":
        assert result.returncode == 3
        assert not (tmp_path / "out").exists()
    else:
        assert result.returncode == 0, result.stderr
        assert "21 rows in, 20 examples out, 1 rejected" in result.stdout


def test_a_file_of_many_rows_that_its_reader_does_not_survive_is_damaged(tmp_path, crashing_reader):
    from PIL import Image

    (tmp_path / "images").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "images" / "poison.png")
    options = ("--format", "crashing", "--on-bad-record", "fail")
    result = convert(tmp_path / "images", tmp_path / "out", *options, **crashing_reader)
    assert result.returncode == 3
    assert "its reader ended with SIGSEGV" in result.stderr


def test_the_processes_below_die_with_the_command(tmp_path, inputs):
    folder, functions = inputs
    options = ("--map", f"{functions}:loop", "--max-row-seconds", 1000)
    process = subprocess.Popen(
        command(folder, tmp_path / "out", *options), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while not any((tmp_path / "out").glob("work/*/attempts/*")):
        assert process.poll() is None
        assert time.monotonic() < deadline
    below = psutil.Process(process.pid).children(recursive=True)
    assert below
    process.send_signal(signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(below, timeout=10)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []
    assert list_versions(str(tmp_path / "out")) == []


def test_a_crash_while_planning_is_reported(tmp_path):
    functions = tmp_path / "functions.py"
    functions.write_text("import os\nos.abort()\n")
    (tmp_path / "a.csv").write_text("id\n1\n")
    result = convert(tmp_path / "a.csv", tmp_path / "out", "--map", f"{functions}:any")
    assert result.returncode == 5
    assert "SIGABRT" in result.stderr
    assert "Nothing was committed" in result.stderr


def test_the_limit_is_in_the_recipe_but_not_in_the_fingerprint(tmp_path, inputs):
    folder, _ = inputs
    for name, seconds in (("a", 5), ("b", 7)):
        assert convert(folder, tmp_path / name, "--max-row-seconds", seconds).returncode == 0
    manifests = [json.loads((tmp_path / n / "manifests/00000001.json").read_text()) for n in "ab"]
    assert manifests[0]["fingerprint"] == manifests[1]["fingerprint"]
    assert [m["recipe"]["max_row_seconds"] for m in manifests] == [5, 7]
