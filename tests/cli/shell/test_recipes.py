"""Recipe files: nothing that decides what is in a dataset is missing from them."""

import click

from shardkit.cli.convert import command
from shardkit.cli.shell.recipes import NOT_IN_A_RECIPE, options_of


def test_every_option_is_in_a_recipe_or_says_nothing_about_the_dataset():
    options = [p for p in command.params if isinstance(p, click.Option)]
    names = {max(o.opts, key=len).removeprefix("--") for o in options}
    # What a schema file says stands in the recipe's table of features.
    assert names - NOT_IN_A_RECIPE - {"schema"} == set(options_of({}))
    assert names >= NOT_IN_A_RECIPE - {"help"}
