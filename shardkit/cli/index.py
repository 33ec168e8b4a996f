"""`shardkit index`: TFRecord files that others wrote become a dataset where they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardkit.cli.shell.command import ExampleCommand
from shardkit.cli.shell.reading_bar import reading_bar
from shardkit.cli.shell.request_options import click_options

if TYPE_CHECKING:
    from rich.console import Console

    from shardkit.indexing.open import Indexed


class _SplitGlob(click.ParamType[tuple[str, str]]):
    """A split and the files that it is made of, such as `test=part-9*`."""

    name = "split"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Returns name and glob."""
        if isinstance(value, tuple):
            return value
        name, sign, glob = str(value).partition("=")
        if not sign or not glob:
            self.fail(f"{value!r} names no files; write it like test='*-test-*'", param, ctx)
        return name, glob


@click.command(
    cls=ExampleCommand,
    params=click_options(
        ("max_record_bytes", "max_expansion", "workers"),
        max_record_bytes="Refuse larger records.",
        max_expansion="Refuse gzip files that grow by a larger factor and beyond 64 MiB.",
        workers="Number of files read at the same time. Default: the number of cores.",
    ),
    epilog="""
        shardkit index tensorflow_datasets/mnist/3.0.1
        shardkit index 'imagenet/*-of-*'
        shardkit index logs/ --split train='2024-*' --split test='2025-*'
        shardkit index gs://bucket/records --workers 16
    """,
)
@click.argument("inputs", nargs=-1, required=True, metavar="FOLDER|FILE|GLOB...")
@click.option(
    "--split",
    "splits",
    type=_SplitGlob(),
    multiple=True,
    metavar="NAME=GLOB",
    help="Put files of this name or path into this split; repeat for more. Other files go by their names: "
    "train-00000-of-00005, NAME-test.tfrecord-00000-of-00005, validation/a.tfrecord; all else is split 'train'.",
)
def command(
    inputs: tuple[str, ...],
    splits: tuple[tuple[str, str], ...],
    max_record_bytes: int,
    max_expansion: int,
    workers: int | None,
) -> None:
    """Make TFRecord files that others wrote a dataset, without rewriting them.

    Reads every file once and writes manifests/ into the folder that all of them lie below: features, splits,
    statistics, checksums, and where the blocks of records start. Then everything that reads a dataset reads them. Plain
    and gzip files of tf.train.Example; never changes a file. Run it again when files were added or changed: that makes
    the next version.
    """
    import os
    import time

    from rich.console import Console

    from shardkit.indexing.listing import IndexOptions
    from shardkit.indexing.open import index_tfrecords, list_for_index

    options = IndexOptions(splits=splits, max_record_bytes=max_record_bytes, max_expansion=max_expansion)
    started = time.monotonic()
    listed = list_for_index(inputs, options)
    num_bytes = sum(f.num_bytes for f in listed.files)
    with reading_bar(num_bytes) as progress:
        made = index_tfrecords(
            inputs,
            listed,
            options,
            num_threads=min(workers or len(os.sched_getaffinity(0)), len(listed.files)),
            progress=progress,
        )
    seconds = time.monotonic() - started
    _show_notes(Console(stderr=True, highlight=False), made)
    _show(Console(highlight=False), made, seconds)


def _show_notes(console: Console, made: Indexed) -> None:
    from shardkit.cli.pages.convert_page import show_note

    for note in made.notes:
        show_note(console, note)


def _show(console: Console, made: Indexed, seconds: float) -> None:
    import shlex

    from shardkit.cli.pages.phases import rate_text
    from shardkit.cli.shell.tables import print_columns
    from shardkit.messages import visible
    from shardkit.storage import files as storage
    from shardkit.units import format_count, format_duration, format_number, format_size

    dataset = made.dataset
    manifest = dataset.manifest
    rows = []
    for split in manifest.splits:
        blocks = len(dataset.split_shards(split.name).block_examples()[1])
        sizes = map(format_size, (split.num_bytes, split.num_uncompressed_bytes))
        counts = map(format_count, (split.num_shards, split.num_examples))
        rows.append((visible(split.name), *counts, *sizes, format_count(blocks)))
    headings = ("split", "files", "examples", "size", "uncompressed", "blocks")
    print_columns(console, headings, rows, num_left=1)
    num_bytes = sum(s.num_bytes for s in manifest.splits)
    url = visible(storage.redact(dataset.url))
    features = format_number(len(manifest.features), "feature")
    took = f"{format_duration(seconds)} ({rate_text(num_bytes / max(seconds, 1e-6))})"
    if made.is_new:
        text = f"{features}; version {dataset.version} of {url} in {took}; no file was changed"
    else:
        text = f"nothing to do: version {dataset.version} of {url} is of these very files, all of them read in {took}"
    console.print(text, soft_wrap=True, markup=False)
    console.print(f"Next: shardkit inspect {shlex.quote(url)}", soft_wrap=True, markup=False)
