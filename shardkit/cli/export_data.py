"""`shardkit export-data`: a dataset in the format of another tool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardkit.cli.shell.command import ExampleCommand
from shardkit.cli.shell.option_types import SizeType, split_names
from shardkit.cli.shell.reading_bar import reading_bar
from shardkit.exporting.options import FILE_BYTES, FORMATS, ExportRequest, format_named
from shardkit.units import MiB

if TYPE_CHECKING:
    from shardkit.exporting.run import Exported


@click.command(
    cls=ExampleCommand,
    epilog="""
        shardkit export-data out/flights export/flights --to parquet
        shardkit export-data out/flights export/csv --to csv --split train --columns carrier,distance
        shardkit export-data out/photos export/photos --to webdataset --rows-per-file 10000
        shardkit export-data s3://bucket/photos s3://bucket/mds --to mds --workers 16
    """,
)
@click.argument("dataset")
@click.argument("target", metavar="FOLDER")
@click.option("--to", "format", type=click.Choice(list(FORMATS)), required=True, help="The format of the files.")
@click.option("--split", "splits", multiple=True, metavar="NAME", help="Only this split; repeat for more.")
@click.option("--columns", metavar="A,B,...", help="Write only these features, in this order. Default: all.")
@click.option("--version", type=click.IntRange(min=1), help="Version of DATASET. Default: the newest.")
@click.option(
    "--rows-per-file", type=click.IntRange(min=1), metavar="N", help="Most rows of a file, instead of --file-size."
)
@click.option(
    "--file-size",
    "file_bytes",
    type=SizeType(),
    default=f"{FILE_BYTES // MiB}MiB",
    show_default=True,
    metavar="SIZE",
    help="Approximate size of the records of a file before compression.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Number of files written at the same time. Default: the number of cores.",
)
@click.option("--overwrite", is_flag=True, help="Remove the files of another export that is in FOLDER.")
def command(
    dataset: str,
    target: str,
    format: str,
    splits: tuple[str, ...],
    columns: str | None,
    version: int | None,
    rows_per_file: int | None,
    file_bytes: int,
    workers: int | None,
    overwrite: bool,
) -> None:
    """Write the rows of DATASET to files in FOLDER that another tool reads, in their stored order.

    A format that cannot hold a column exactly is refused before anything is written. Files of a split differ by at most
    one row and appear whole: run a command that was stopped again, and it goes on where it was. FOLDER/export.json says
    what the files hold, with the names of classes. The same dataset and options give the same bytes.
    """
    import os

    from shardkit.exporting.run import Export
    from shardkit.reading.splits import open_splits

    request = ExportRequest(format, splits, split_names(columns), rows_per_file, max(1, file_bytes))
    export = Export(open_splits(dataset, version), target, request, overwrite=overwrite)
    with reading_bar(export.num_bytes) as progress:
        done = export.write(num_threads=workers or len(os.sched_getaffinity(0)), progress=progress)
    _print_page(target, done)


def _print_page(target: str, done: Exported) -> None:
    from rich.console import Console

    from shardkit.cli.shell.tables import print_columns
    from shardkit.messages import visible
    from shardkit.storage import files as storage
    from shardkit.units import format_count, format_number, format_size

    console = Console(highlight=False)
    rows = [
        (visible(split), *map(format_count, (len(files), sum(f.num_rows for f in files))),
         format_size(sum(f.num_bytes for f in files)))
        for split, files in done.files.items()
    ]  # fmt: skip
    print_columns(console, ("split", "files", "rows", "size"), rows, num_left=1)
    format = format_named(done.plan.format)
    if done.num_kept:
        click.echo(f"\nkept: {format_number(done.num_kept, 'file')} that were there already")
    if format.notes:
        click.echo(f"\n{click.wrap_text(f'note: {format.notes}', 80)}")
    first = done.plan.splits[0]
    folder = visible(storage.redact(target).rstrip("/"))
    click.echo(f"\nIn Python:\n\n{format.snippet(folder, first.name, first.num_files)}")
