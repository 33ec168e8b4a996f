"""Keywords of a call say what the options of the command say."""

import re
import subprocess
import sys

import pytest

from shardkit.conversion.memory.keywords import check_for_rows, request_of
from shardkit.conversion.request import parse_request
from shardkit.errors import UsageError
from tests.support import typed_options
from tests.support.paths import ROOT


def test_keywords_are_the_options_of_the_command():
    found = request_of(
        {
            "split": {"train": 0.9, "test": "10%"}, "shard_size": "64MiB", "shuffle": False, "seed": 7,
            "cast": {"x": "float32"}, "group_by": ["a", "b"], "null_value": "NA", "dedup": True, "map": "f.py:g",
            "limit": 5, "separator": 3, "format": None,
        },
        ("a.csv",),
        "out",
    )  # fmt: skip
    typed = {
        "splits": ("train=0.9", "test=10%"), "shard_bytes": 64 * 2**20, "shuffle": False, "seed": 7,
        "cast": ("x=float32",), "group_by": "a,b", "null_values": ("NA",), "dedup_all": True, "map_path": "f.py:g",
        "limit": 5, "separator": "3",
    }  # fmt: skip
    assert found == parse_request(typed, ("a.csv",), "out")
    assert request_of({"split": ["a=0.5", "b=0.5"]}, (), "o") == request_of({"split": {"a": 0.5, "b": 0.5}}, (), "o")
    for rate in (2, 2.0):
        assert request_of({"video": "frames", "video_fps": rate}, (), "o").source.video_fps == 2
    for size, expected in ((224, (224, 224)), ((240, 320), (240, 320)), ("240x320", (240, 320))):
        assert request_of({"image_size": size}, (), "o").transforms.image_size == expected


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shard_sise": "1MiB"}, "Did you mean 'shard_size'?"),
        ({"runner": "dask"}, "there is no option 'runner'"),
        ({"shuffle": "no"}, "shuffle is True or False"),
        ({"num_shards": 0}, "num_shards is at least 1, and not 0"),
        ({"seed": float("nan")}, "seed is"),
        ({"shard_size": "big"}, "'big' is not a size"),
        ({"compression": "zip"}, "an option cannot be used"),
        ({"cast": "x"}, "--cast x is not"),
        ({"columns": ["a,b", "c"]}, "columns holds 'a,b', which ',' cuts in two"),
    ],
)
def test_wrong_keywords_are_named(options, said):
    with pytest.raises(UsageError) as caught:
        request_of(options, ("a.csv",), "out")
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["format", "include", "delimiter", "audio", "fetch_again"])
def test_options_of_files_are_refused_for_rows(name):
    with pytest.raises(UsageError, match=f"{name} is for files, and these are rows"):
        check_for_rows({name: "x"})
    check_for_rows({name: None, "seed": 1, "drop_columns": "a"})


def test_the_types_of_the_keywords_are_those_of_the_options():
    assert typed_options.FILE.read_text() == typed_options.make_text(), "run python -m tests.support.typed_options"


PROGRAM = """
from pathlib import Path
from typing import Unpack

import shardkit
from shardkit.reading.splits import Splits

def make(path: Path, **options: Unpack[shardkit.ConvertOptions]) -> Splits:
    return shardkit.convert(path, "out", workers=2, **options)

make(Path("a.csv"), split={"train": 0.9, "test": "10%"}, shard_size="64MiB", image_size=(240, 320), delimiter=";")
shardkit.convert([{"a": 1}], Path("out"), num_shards=2, cast={"a": "float32"}, compression="none")
with shardkit.Writer("out", group_by=["a"], seed=7, schema=Path("s.json")) as writer:
    writer.write({"a": 1})
shardkit.convert("a.csv", "out", shard_sise="1MiB")
shardkit.convert("a.csv", "out", shuffle="no")
shardkit.convert("a.csv", "out", compression="zip")
shardkit.Writer("out", num_shards="2")
shardkit.Writer("out", delimiter=";")
make(Path("a.csv"), split=0.9)
"""


# The other modules take a minute.
SETTINGS = """
[mypy]
strict = true
[mypy-shardkit.*]
follow_imports = skip
[mypy-shardkit,shardkit.conversion.memory.typed_options,shardkit.conversion.memory.writer]
follow_imports = silent
"""


@pytest.mark.full
def test_a_type_checker_finds_wrong_keywords(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    command = [sys.executable, "-m", "mypy", "program.py"]
    found = subprocess.run(command, cwd=tmp_path, env={"MYPYPATH": str(ROOT)}, capture_output=True, text=True)
    lines = PROGRAM.splitlines()
    wrong = [lines[int(number) - 1] for number in re.findall(r"program.py:(\d+): error", found.stdout)]
    assert wrong == lines[-6:], found.stdout
