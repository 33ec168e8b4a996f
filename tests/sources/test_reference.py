"""The reference of inputs is true: its commands run as it says, and it names every option."""

import re

import pytest

from shardkit.cli import main
from shardkit.cli.convert import command
from shardkit.conversion.request import option_fields
from shardkit.sources.options import INPUTS
from tests.support.folders.parts import picture, write
from tests.support.paths import ROOT

REFERENCE = (ROOT / "shardkit" / "sources" / "README.md").read_text()


def commands():
    """Returns the arguments of each command of `shardkit`, and the exit code that stands below it."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```$", REFERENCE, flags=re.MULTILINE | re.DOTALL):
        for line, below in re.findall(r"^\$ shardkit (.*)\n(exit code \d+\n)?", block, flags=re.MULTILINE):
            found.append((line.partition(" ||")[0], int(below.split()[-1]) if below else 0))
    return found


@pytest.mark.full
def test_every_command_does_what_the_reference_says(tmp_path, monkeypatch, capsys):
    pytest.importorskip("av")
    from tests.support.files.video_makers import video

    write(tmp_path / "mixed/a.csv", "n,word\n1,a\n2,b\n")
    write(tmp_path / "mixed/b.jsonl", '{"n": 1}\n')
    for name in ("a", "b"):
        write(tmp_path / f"tables/{name}.csv", "n,word\n1,a\n2,b\n3,a\n")
    write(tmp_path / "banner.csv", "Export\nn,word\n1,a\n NA,b\n3,a\n")
    write(tmp_path / "lists.jsonl", '{"n": 1, "tags": ["a", "b"]}\n{"n": 2, "tags": []}\n')
    write(tmp_path / "points.libsvm", "1 1:0.5 3:2\n-1 2:1\n")
    write(tmp_path / "schema.toml", re.search(r"\$ cat schema.toml\n(.*?)\$", REFERENCE, flags=re.DOTALL).group(1))
    for index in range(2):
        write(tmp_path / f"pets/{index}.jpg", picture(index))
        write(tmp_path / f"pets/{index}.txt", "a caption\n")
    for index in range(2):
        write(tmp_path / f"films/{index}.mp4", video())
    monkeypatch.chdir(tmp_path)
    typed = commands()
    assert typed
    for line, code in typed:
        arguments = [word.strip("'") for word in line.split()]
        assert main([*arguments, "--workers", "1"]) == code, (line, capsys.readouterr().err)


def test_every_option_of_reading_is_named():
    options = [f"--{field.key}" for field in option_fields() if field.option.heading == INPUTS]
    assert [option for option in options if not re.search(rf"{option}\b(?!-)", REFERENCE)] == []


def test_every_option_that_is_named_exists():
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", REFERENCE)) - {"--decode"}
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert named - known == set()
