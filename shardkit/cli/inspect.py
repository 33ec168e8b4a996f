"""`shardkit inspect`: a dataset as a page that a person reads, or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardkit.cli.shell.command import ExampleCommand, print_document

if TYPE_CHECKING:
    from shardkit.dataset.open import Dataset

_MAX_REJECTED = 100


@click.command(
    cls=ExampleCommand,
    epilog="""
        shardkit inspect out/flights
        shardkit inspect out/flights --shards
        shardkit inspect out/flights --examples 3 --split test
        shardkit inspect out/flights --rejected
        shardkit inspect out/flights --history
        shardkit inspect out/flights --recipe > recipe.toml
        shardkit inspect out/flights --reader tensorflow > read_flights.py
        shardkit inspect gs://bucket/flights --json | jq '.splits[].num_examples'
    """,
)
@click.argument("dataset")
@click.option("--shards", "with_shards", is_flag=True, help="List every shard instead of the features.")
@click.option(
    "--examples",
    "num_examples",
    type=click.IntRange(min=1),
    metavar="N",
    help="Show the first N examples of a split instead of the features.",
)
@click.option("--rejected", "with_rejected", is_flag=True, help="Show the quarantined rows instead.")
@click.option("--recipe", "with_recipe", is_flag=True, help="Print the recipe file that makes the dataset again.")
@click.option(
    "--reader",
    type=click.Choice(["tensorflow", "ray", "spark"]),
    help="Print Python code that reads a split with this library alone.",
)
@click.option("--split", metavar="NAME", help="Only this split.")
@click.option("--version", type=click.IntRange(min=1), help="Version of the dataset. Default: the newest.")
@click.option(
    "--history", "with_history", is_flag=True, help="List all versions instead, with their time, tool and inputs."
)
@click.option("--json", "as_json", is_flag=True, help="Print everything, shards too, as one JSON document.")
def command(
    dataset: str,
    with_shards: bool,
    num_examples: int | None,
    with_rejected: bool,
    with_recipe: bool,
    reader: str | None,
    split: str | None,
    version: int | None,
    with_history: bool,
    as_json: bool,
) -> None:
    """Show what DATASET holds: splits, shards, features and their statistics.

    Reads the manifest and the shard table; of the shards, only as much as --examples needs.
    """
    given = {"--history": with_history, "--recipe": with_recipe, "--reader": reader, "--rejected": with_rejected}
    asked = [name for name, is_given in given.items() if is_given]
    asked += ["--json"] if as_json and (with_recipe or reader) else []
    if len(asked) > 1:
        raise click.UsageError(f"{' and '.join(asked)} exclude each other")
    if with_history:
        from shardkit.cli.pages.history_page import show_history

        show_history(dataset, as_json=as_json)
        return
    from shardkit.dataset.open import open_dataset

    opened = open_dataset(dataset, version)
    if split is not None:
        opened.manifest.split(split)
    if with_recipe:
        from shardkit.cli.shell.recipes import render_recipe

        click.echo(render_recipe(opened.manifest), nl=False)
        return
    if reader is not None:
        from shardkit.cli.pages.reader_code import render_reader

        click.echo(render_reader(opened, split, reader), nl=False)
        return
    if with_rejected:
        _show_rejected(opened, as_json=as_json)
        return
    if as_json:
        print_document(make_document(opened, split, num_examples or 0))
        return
    from shardkit.cli.pages.inspect_page import print_page

    print_page(opened, split=split, with_shards=with_shards, num_examples=num_examples)


def _show_rejected(dataset: Dataset, *, as_json: bool) -> None:
    from shardkit.dataset.rejected_rows import encode_record, read_rejected
    from shardkit.errors import UsageError

    account = dataset.manifest.accounting
    if not account.rejected_files and (account.num_rejected or account.num_damaged_files):
        raise UsageError(
            "the rejected rows were counted, not kept",
            where=dataset.manifest.name,
            next_step="Convert with --on-bad-record quarantine to keep them",
        )
    if as_json:
        for record in read_rejected(dataset):
            click.echo(encode_record(record), nl=False)
        return
    if not account.rejected_files:
        click.echo("no rows were rejected")
        return
    from shardkit.cli.pages.inspect_page import print_rejected

    print_rejected(read_rejected(dataset), _MAX_REJECTED)


def make_document(dataset: Dataset, split: str | None, num_examples: int) -> dict[str, Any]:
    """Returns the content of a dataset as JSON values.

    Args:
        split: Leave out the others.
        num_examples: How many examples of the (first) split to include.
    """
    import msgspec

    from shardkit.cli.shell.formatting import json_value
    from shardkit.dataset.block_reader import first_examples
    from shardkit.storage import files as storage

    manifest = dataset.manifest
    splits = [s for s in manifest.splits if split in (None, s.name)]
    document: dict[str, Any] = msgspec.to_builtins(manifest)
    document["location"] = storage.redact(dataset.url)
    document["version"] = dataset.version
    document["splits"] = []
    for info in splits:
        shards = dataset.split_shards(info.name)
        smallest, largest = shards.size_range()
        document["splits"].append(
            {
                **msgspec.to_builtins(info),
                "max_shard_uncompressed_bytes": largest,
                "min_shard_uncompressed_bytes": smallest,
                "shards": [msgspec.to_builtins(s) for s in shards],
            }
        )
    if num_examples:
        chosen = first_examples(dataset, splits[0].name, num_examples)
        document["examples"] = [{name: json_value(value) for name, value in e.items()} for e in chosen]
    return document
