"""Recipe files: nothing that decides what is in a dataset is missing from them."""

import re

import click
from click.testing import CliRunner

from shardkit.cli.convert import command
from shardkit.cli.shell.option_files import key_of
from shardkit.cli.shell.recipes import NOT_IN_A_RECIPE, options_of
from shardkit.conversion.request import HEADINGS
from shardkit.runtime.bounded import PLANNING_TIMES


def test_every_option_is_in_a_recipe_or_says_nothing_about_the_dataset():
    options = [p for p in command.params if isinstance(p, click.Option)]
    names = {max(o.opts, key=len).removeprefix("--") for o in options}
    # What a schema file says stands in the recipe's table of features.
    assert names - NOT_IN_A_RECIPE - {"schema"} == set(options_of({}))
    assert names >= NOT_IN_A_RECIPE - {"help"}


def test_help_tells_how_long_reading_and_planning_may_take():
    shown = " ".join(CliRunner().invoke(command, ["--help-all"]).output.split())
    assert PLANNING_TIMES == 10
    assert "each step of planning, may take ten times as long" in shown


def test_help_shows_what_people_use_and_help_all_the_rest():
    few, all_of_it = (CliRunner().invoke(command, [flag]) for flag in ("--help", "--help-all"))
    assert (few.exit_code, all_of_it.exit_code) == (0, 0)
    shown, known = (set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", r.output, re.MULTILINE)) for r in (few, all_of_it))
    assert 25 <= len(shown) <= 35
    assert "--help-all" in shown
    assert known == {f"--{key_of(p)}" for p in command.params if isinstance(p, click.Option)} | {"--help"}
    assert [h for h in HEADINGS if f"\n{h}:\n" not in all_of_it.output] == []
