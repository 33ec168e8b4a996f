"""`shardkit verify`: every byte re-read and compared with the manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardkit.cli.shell.command import ExampleCommand, print_document
from shardkit.cli.shell.option_types import SizeType
from shardkit.cli.shell.reading_bar import reading_bar

if TYPE_CHECKING:
    from shardkit.dataset.open import Dataset
    from shardkit.verify.report import VerifyReport

_SHOWN_PER_FILE = 10


@click.command(
    cls=ExampleCommand,
    epilog="""
        shardkit verify out/flights
        shardkit verify out/flights --split test
        shardkit verify out/photos --decode
        shardkit verify gs://bucket/flights --version 2 --json
    """,
)
@click.argument("dataset")
@click.option("--split", "splits", multiple=True, metavar="NAME", help="Only this split; repeat for more.")
@click.option("--version", type=click.IntRange(min=1), help="Version of the dataset. Default: the newest.")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Number of shards read at the same time. Default: the number of cores.",
)
@click.option(
    "--max-memory",
    type=SizeType(),
    metavar="SIZE",
    help="Memory that the process may use. Default: a quarter of the free memory, from 1GiB to 8GiB.",
)
@click.option("--decode", is_flag=True, help="Decode every image and audio file too.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON document.")
@click.pass_context
def command(
    ctx: click.Context,
    dataset: str,
    splits: tuple[str, ...],
    version: int | None,
    workers: int | None,
    max_memory: int | None,
    decode: bool,
    as_json: bool,
) -> None:
    """Re-read every byte of DATASET and compare it with its manifest.

    Checks sizes, SHA-256 and CRC32C of each shard, each block, each record's checksums, and that every record has the
    features of the manifest. Names each damage with its place and ends with exit code 1 if there is any. A block that
    needs more than --max-memory ends it with exit code 6. Changes nothing.
    """
    import os
    import time

    from shardkit.dataset.open import open_dataset
    from shardkit.runtime.process_limits import ask_for_memory_late, limit_memory

    ask_for_memory_late()
    from shardkit.verify.shards import verify_dataset

    limit_memory(max_memory)
    opened = open_dataset(dataset, version)
    started = time.monotonic()
    num_bytes = sum(s.num_bytes for s in opened.manifest.splits if not splits or s.name in splits)
    with reading_bar(num_bytes) as progress:
        report = verify_dataset(
            opened,
            splits=splits or None,
            progress=progress,
            num_threads=workers or len(os.sched_getaffinity(0)),
            decodes_media=decode,
        )
    seconds = time.monotonic() - started
    if as_json:
        _print_json(opened, report, seconds)
    else:
        is_indexed = opened.manifest.recipe.get("source") == "index"
        _print_report(opened, report, dataset, seconds, is_indexed=is_indexed, is_decoded=decode)
    if not report.is_whole:
        ctx.exit(1)


def _print_report(
    dataset: Dataset, report: VerifyReport, location: str, seconds: float, *, is_indexed: bool, is_decoded: bool
) -> None:
    from shardkit.messages import visible
    from shardkit.units import format_count, format_duration, format_number, format_size

    shown: dict[str, int] = {}
    for damage in report.damages:
        shown[damage.path] = shown.get(damage.path, 0) + 1
        if shown[damage.path] <= _SHOWN_PER_FILE:
            click.echo(f"damage: {visible(str(damage))}")
    num_hidden = report.num_damages - sum(min(n, _SHOWN_PER_FILE) for n in shown.values())
    if num_hidden:
        click.echo(f"and {format_count(num_hidden)} more; --json lists up to 100 of each file")
    if report.num_other_files:
        click.echo(f"note: {format_number(report.num_other_files, 'other file')} beside the shards; no harm")
    shards = format_number(report.num_shards, "shard")
    if report.is_whole:
        splits, examples = format_number(len(report.splits), "split"), format_number(report.num_examples, "example")
        done = "all decoded" if is_decoded else "every byte read"
        size, time = format_size(report.num_read_bytes), format_duration(seconds)
        click.echo(f"ok: {splits}, {shards}, {examples}, {size}, {done} in {time}")
        return
    num_whole = report.num_read_shards - report.num_damaged_shards
    rest = f"{format_count(num_whole)} of {shards} are whole" if report.num_read_shards else "no shard was read"
    click.echo(f"damaged: {format_number(report.num_damages, 'damage')}; {rest}")
    if report.num_undecodable:
        records = format_number(report.num_undecodable, "record")
        click.echo(f"{records} of these came so from the inputs: an image or a sound that does not decode.")
        if not is_indexed:
            click.echo("Next: convert again with --check-media and --on-bad-record skip or quarantine")
    if report.num_undecodable == report.num_damages:
        return
    if is_indexed:
        click.echo("Next: get these files again from where they came, or, if they are meant to differ: shardkit index")
        return
    _print_next_steps(dataset, report, location)


def _print_next_steps(dataset: Dataset, report: VerifyReport, location: str) -> None:
    from shardkit.dataset.append_info import appended_to
    from shardkit.dataset.open import give_up_command, give_up_step

    how = f"How it was made: shardkit inspect {location} --json"
    if (base := appended_to(dataset.manifest)) is not None:
        if report.num_read_shards:
            inputs = f"the inputs of version {base.version} and those that were appended"
            click.echo(f"Next: convert all of it again, {inputs}, with --overwrite.\n{how}")
        else:
            click.echo(f"Next: {give_up_step(location, dataset.version)}")
        return
    click.echo(
        "Next: run the same `shardkit convert` again with --overwrite; it keeps what is whole and writes the rest "
        f"anew.\n{how}"
    )
    if not report.num_read_shards:
        click.echo(f"Or give this version up: {give_up_command(location)}")


def _print_json(dataset: Dataset, report: VerifyReport, seconds: float) -> None:
    import msgspec

    from shardkit.storage import files as storage

    document = {
        "location": storage.redact(dataset.url),
        "is_whole": report.is_whole,
        **msgspec.to_builtins(report),
        "seconds": seconds,
    }
    print_document(document)
