"""`shardkit train --help`: every option once, under a heading that says what it is about."""

import re

import click
from click.testing import CliRunner

from shardkit.cli.shell.command import OTHER_OPTIONS
from shardkit.cli.train import command


def sections():
    """Returns the options of the help page by heading, as they are shown."""
    run = CliRunner().invoke(command, ["--help"], prog_name="shardkit train")
    assert run.exit_code == 0, run.output
    _, *parts = re.split(r"^(\S[^\n]*):\n", run.output.partition("\nExamples:")[0], flags=re.MULTILINE)
    found = dict(zip(parts[::2], parts[1::2], strict=True))
    return {heading: re.findall(r"^  (?:-\w, )?(--[a-z-]+)", text, re.MULTILINE) for heading, text in found.items()}


def test_every_option_stands_there_once_and_under_its_heading():
    shown = sections()
    assert list(shown) == [*command.headings, OTHER_OPTIONS]
    assert {heading: tuple(shown[heading]) for heading in command.headings} == command.headings
    options = {max(p.opts, key=len) for p in command.params if isinstance(p, click.Option)} | {"--help"}
    everything = [name for names in shown.values() for name in names]
    assert sorted(everything) == sorted(options)


def test_an_option_that_is_about_training_has_a_heading():
    assert sections()[OTHER_OPTIONS] == ["--config", "--set", "--storage-options", "--debug", "--help"]
