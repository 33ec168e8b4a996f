"""`shardkit convert`: raw files to a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from shardkit.cli.shell.engine_options import EngineCommand, chosen_engine, engine_options
from shardkit.cli.shell.input_options import READING_HEADING, READING_OPTIONS, WORK_DIR, source_options
from shardkit.cli.shell.option_types import NumberRange, SizeType, SplitType, split_names
from shardkit.cli.shell.recipes import read_recipe

if TYPE_CHECKING:
    from beam_pipelines.engines.settings import RunnerName
    from shardkit.conversion.prepare import ConvertOptions
    from shardkit.conversion.rows.bad_rows import BadRowPolicy
    from shardkit.encoding.codec import Compression, CompressionLevel
    from shardkit.transforms.options import ImageFormat


@click.command(
    cls=EngineCommand,
    params=[*READING_OPTIONS, WORK_DIR],
    epilog="""
        shardkit convert 'data/*.csv' out/flights --split train=0.9 --split test=0.1
        shardkit convert events.jsonl.gz out/events --shard-size 64MiB --seed 7
        shardkit convert photos/ out/photos --format images --compression none
        shardkit convert table.parquet out/table --no-shuffle --num-shards 8
        shardkit convert headerless.csv out/ips --columns start,end,country --null-value NA
        shardkit convert 'data/*.csv' out/flights --append
        shardkit convert 'data/*.csv' out/flights --runner dask --workers 4
        shardkit convert data/ out/flights --runner flink --engine-option jar=flink.jar -- --flink_version=1.20
        shardkit convert gs://b/raw gs://b/flights --runner dataflow --project p --region r --temp-location gs://b/tmp
    """,
    headings={
        **READING_HEADING,
        "Rows and columns": (
            "--select", "--map", "--cast", "--rename", "--drop-null", "--unicode-form", "--lower", "--tokenize",
            "--image-size", "--image-format", "--image-quality", "--apply-exif", "--dedup", "--dedup-by",
        ),
        "Splits and shards": (
            "--split", "--group-by", "--split-column", "--stratify", "--shuffle", "--seed", "--shard-size",
            "--num-shards", "--compression", "--compression-level", "--tfds",
        ),
        "Bad input": ("--on-bad-record", "--max-bad", "--max-row-seconds", "--allow-empty"),
        "What runs the conversion": (
            "--workers", "--max-memory", "--work-dir", "--runner", "--engine-option", "--engine-help", "--project",
            "--region", "--temp-location",
        ),
    },
)  # fmt: skip
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.argument("destination")
@click.option(
    "--recipe",
    "recipe_path",
    metavar="FILE",
    is_eager=True,
    callback=read_recipe,
    help="TOML file of options, as 'shardkit inspect --recipe' prints it; options given here win.",
)
@click.option("--cast", multiple=True, metavar="COLUMN=TYPE", help="Make a column another type; repeat for more.")
@click.option("--rename", multiple=True, metavar="OLD=NEW", help="Give a column another name; repeat for more.")
@click.option("--drop-null", metavar="A,B,...", help="Leave out rows that lack one of these columns; '*' means any.")
@click.option(
    "--map", "map_reference", metavar="FILE.py:FUNCTION", help="Your own function from Arrow batch to Arrow batch."
)
@click.option(
    "--select", metavar="SQL", help='Row-wise SQL, such as "SELECT a, b*2 AS c FROM rows WHERE a > 0" (extra: sql).'
)
@click.option("--unicode-form", multiple=True, metavar="COLUMN=FORM", help="NFC, NFD, NFKC or NFKD of a text column.")
@click.option("--lower", metavar="A,B,...", help="Text columns in lower case.")
@click.option(
    "--tokenize",
    multiple=True,
    metavar="COLUMN=tokenizer.json",
    help="Token ids in place of a text column, by the tokenizers library (extra: text).",
)
@click.option("--image-size", metavar="N|HxW", help="Resize all images to this height and width.")
@click.option("--image-format", type=click.Choice(["jpeg", "png"]), help="Store all images as this.")
@click.option("--image-quality", type=click.IntRange(1, 100), help="Of JPEG; 90 if not given.")
@click.option(
    "--apply-exif/--keep-exif",
    default=True,
    show_default=True,
    help="Turn images that are written anew upright, as their EXIF data says.",
)
@click.option(
    "--split",
    "splits",
    type=SplitType(),
    multiple=True,
    metavar="NAME=FRACTION",
    help="A split and its share of the rows; repeat for more. One split 'train' if not given.",
)
@click.option("--group-by", metavar="A,B,...", help="Rows that are equal in these columns fall into one split.")
@click.option(
    "--split-column",
    metavar="COLUMN",
    help="Column that names each row's split: train, validation or test, or those given by --split NAME.",
)
@click.option(
    "--stratify",
    metavar="COLUMN",
    help="Divide the rows of every value of this column over the splits by their fractions, to the row.",
)
@click.option("--dedup", is_flag=True, help="Leave out rows that are equal to an earlier row, over all inputs; exact.")
@click.option("--dedup-by", metavar="A,B,...", help="The same, comparing only these columns.")
@click.option(
    "--shard-size", type=SizeType(), default="128MiB", show_default=True, help="Wanted size of a shard on disk."
)
@click.option("--num-shards", type=click.IntRange(min=1), help="Shards of each split, instead of --shard-size.")
@click.option("--shuffle/--no-shuffle", default=True, help="Random order by --seed (default), or that of the inputs.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order and of the splits.")
@click.option(
    "--compression",
    type=click.Choice(["gzip", "none"]),
    default="gzip",
    show_default=True,
    help="gzip that can seek, or plain TFRecords with an index of their records.",
)
@click.option(
    "--compression-level",
    type=click.Choice(["fast", "balanced", "small"]),
    show_default="balanced",
    help="'fast' is up to 5 % larger and hardly faster, 'small' up to 26 % smaller, compressed 5 to 9 times as long.",
)
@click.option(
    "--on-bad-record",
    type=click.Choice(["fail", "skip", "quarantine"]),
    default="fail",
    show_default=True,
    help="End at the first row that does not fit; or leave such rows out and count them; or keep them beside the "
    "shards too, where 'shardkit inspect --rejected' shows them.",
)
@click.option("--allow-empty", is_flag=True, help="Make a dataset without examples if there are no rows.")
@click.option(
    "--max-bad",
    metavar="N|P%",
    help="End without a dataset if more rows are left out, as 100 or 0.1%, or if a file is rejected whole whose rows "
    "nobody can count.",
)
@click.option(
    "--max-row-seconds",
    type=NumberRange(min=0.1),
    default=60.0,
    show_default=True,
    help="A row on which reading or a transformation takes longer does not fit.",
)
@click.option("--tfds", is_flag=True, help="Also write what tfds.builder_from_directory needs; uncompressed only.")
@click.option(
    "--workers", type=click.IntRange(min=1), help="Parts worked on at the same time; the number of cores if not given."
)
@click.option(
    "--max-memory",
    type=SizeType(),
    metavar="SIZE",
    help="What a process may ask for; nine tenths of what is free, 2GiB at least, if not given.",
)
@engine_options()
@click.option("--dry-run", is_flag=True, help="Show what would be done and the disk space it needs, and end.")
@click.option("--overwrite", is_flag=True, help="Make the next version of a dataset that is there already.")
@click.option(
    "--append",
    is_flag=True,
    help="Add the files that a dataset does not have yet: its next version keeps all shards and gets more beside them, "
    "by the recipe that it holds.",
)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    inputs: tuple[str, ...],
    destination: str,
    recipe_path: str | None,
    cast: tuple[str, ...],
    rename: tuple[str, ...],
    drop_null: str | None,
    map_reference: str | None,
    select: str | None,
    unicode_form: tuple[str, ...],
    lower: str | None,
    tokenize: tuple[str, ...],
    image_size: str | None,
    image_format: ImageFormat | None,
    image_quality: int | None,
    apply_exif: bool,
    splits: tuple[tuple[str, float | None], ...],
    group_by: str | None,
    split_column: str | None,
    stratify: str | None,
    dedup: bool,
    dedup_by: str | None,
    shard_size: int,
    num_shards: int | None,
    shuffle: bool,
    seed: int,
    compression: Compression,
    compression_level: CompressionLevel | None,
    on_bad_record: BadRowPolicy,
    allow_empty: bool,
    max_bad: str | None,
    max_row_seconds: float,
    tfds: bool,
    workers: int | None,
    max_memory: int | None,
    dry_run: bool,
    overwrite: bool,
    append: bool,
    work_dir: str | None,
    runner: RunnerName,
    engine_option: tuple[str, ...],
    project: str | None,
    region: str | None,
    temp_location: str | None,
    **reading: Any,
) -> None:
    """Turn raw files into evenly sized TFRecord shards with a manifest.

    INPUT is a file, a folder or a quoted glob; .gz, .zst and .bz2 are read as they are, zip files and tars like
    folders; postgresql://USER@HOST/DATABASE is a server (extra: postgres). DESTINATION is the folder of the
    dataset. A conversion that was cut off goes on when the same command is run again.
    """
    if num_shards is not None and ctx.get_parameter_source("shard_size") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--shard-size and --num-shards exclude each other.", ctx)
    from shardkit.cli.run_convert import convert
    from shardkit.conversion.prepare import ConvertOptions
    from shardkit.runtime.process_limits import limit_memory
    from shardkit.transforms.options import options_from_texts

    options: ConvertOptions = ConvertOptions(
        inputs=inputs,
        destination=destination,
        source=source_options(reading),
        schema_path=reading["schema_path"],
        recipe_path=recipe_path,
        splits=splits,
        shuffle=shuffle,
        seed=seed,
        shard_bytes=shard_size,
        num_shards=num_shards,
        compression=compression,
        compression_level=compression_level,
        tfds=tfds,
        on_bad_record=on_bad_record,
        max_bad=max_bad,
        allow_empty=allow_empty,
        dedup=split_names(dedup_by) if dedup_by is not None else () if dedup else None,
        group_by=split_names(group_by) or (),
        split_column=split_column,
        stratify=stratify,
        transforms=options_from_texts(
            select=select,
            map_reference=map_reference,
            drop_null=split_names(drop_null) or (),
            rename=rename,
            cast=cast,
            lower=split_names(lower) or (),
            unicode_form=unicode_form,
            tokenize=tokenize,
            image_size=image_size,
            image_format=image_format,
            image_quality=image_quality,
            apply_exif=apply_exif,
        ),
        overwrite=overwrite,
        append=append,
        work_dir=work_dir,
        max_row_seconds=max_row_seconds,
    )
    if append:
        from shardkit.cli.shell.append_options import held_options

        options = held_options(ctx, options)
    limit_memory(max_memory)
    convert(options, workers, chosen_engine(ctx, runner, engine_option), is_dry_run=dry_run)
