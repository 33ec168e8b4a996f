"""Prints what `shardkit train ARGUMENTS` would start here, as JSON: placement.py train ARGUMENTS."""

import os
import sys

import click
import msgspec

from shardkit.cli.train import command, split_names
from train.config import TrainOptions
from train.launch import plan_launch


def main() -> None:
    assert sys.argv[1] == "train"
    with command.make_context("train", sys.argv[2:]) as context:
        typed = dict(context.params)
        names = {name: split_names(typed[name]) for name in ("features", "ignore", "hosts")}
        options = msgspec.convert(typed | names | {"ignore": names["ignore"] or ()}, TrainOptions)
    orders = plan_launch(options, ("run",), os.environ)
    click.echo(msgspec.json.encode(None if orders is None else orders.placement))


main()
