"""Prints what `shardkit train ARGUMENTS` would start here, as JSON: placement.py train ARGUMENTS."""

import os
import sys

import click
import msgspec

from shardkit.cli.train import command, read_options
from train.distribution.launch import plan_launch


def main() -> None:
    assert sys.argv[1] == "train"
    with command.make_context("train", sys.argv[2:]) as context:
        typed = {name: value for name, value in context.params.items() if name != "dry_run"}
        options = read_options(typed)
    orders = plan_launch(options, ("run",), os.environ)
    click.echo(msgspec.json.encode(None if orders is None else orders.placement))


main()
