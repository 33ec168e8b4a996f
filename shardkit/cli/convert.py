"""`shardkit convert`: raw files to a dataset."""

from __future__ import annotations

from typing import Any

import click
import msgspec
from click.core import ParameterSource

from shardkit.cli.shell.engine_options import EngineCommand, chosen_engine, engine_help_option
from shardkit.cli.shell.recipes import recipe_option
from shardkit.cli.shell.request_options import click_options, headings_of
from shardkit.conversion.request import OTHER, RUN, option_fields, parse_request

_FIELDS = [f.typed_name for f in option_fields()]
_HEADINGS = headings_of(option_fields())
_HEADINGS = {**_HEADINGS, RUN: (*_HEADINGS[RUN], "--engine-help")}
del _HEADINGS[OTHER]


@click.command(
    cls=EngineCommand,
    params=[
        *click_options([name for name in _FIELDS if name != "recipe_path"]), recipe_option(), engine_help_option(),
    ],
    epilog="""
        shardkit convert 'data/*.csv' out/flights --split train=0.9 --split test=0.1
        shardkit convert events.jsonl.gz out/events --shard-size 64MiB --seed 7
        shardkit convert photos/ out/photos --format images --compression none
        shardkit convert table.parquet out/table --no-shuffle --num-shards 8
        shardkit convert headerless.csv out/ips --columns start,end,country --null-value NA
        shardkit convert 'data/*.csv' out/flights --append
        shardkit convert 'data/*.csv' out/flights --runner dask --workers 4
        shardkit convert data/ out/flights --runner flink --engine-option jar=flink.jar -- --flink_version=1.20
        shardkit convert gs://b/raw gs://b/flights --runner dataflow --project p --region r --temp-location gs://b/tmp"""
    " --engine-option image=IMAGE",
    headings=_HEADINGS,
    common=[f"--{f.key}" for f in option_fields() if f.option.is_common],
)  # fmt: skip
@click.argument("inputs", nargs=-1, metavar="INPUT...")
@click.argument("destination", metavar="DESTINATION")
@click.pass_context
def command(ctx: click.Context, /, inputs: tuple[str, ...], destination: str, **typed: Any) -> None:
    """Turn raw files into evenly sized TFRecord shards with a manifest.

    INPUT is a file, a folder or a quoted glob; .gz, .zst, .bz2 and .xz are read as they are, zip files and tars like
    folders; postgresql://USER@HOST/DATABASE is a server (extra: postgres). DESTINATION is the folder of the
    dataset, which --dry-run can do without. A conversion that was cut off goes on when the same command is run again.
    """
    if typed["num_shards"] is not None and ctx.get_parameter_source("shard_bytes") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--shard-size and --num-shards exclude each other.", ctx)
    from shardkit.cli.run_convert import convert
    from shardkit.runtime.process_limits import limit_memory

    if not inputs and not typed["dry_run"] and not typed["fetch_again"]:
        raise click.UsageError("Missing argument 'DESTINATION': the folder of the dataset.", ctx)
    if not inputs and not typed["fetch_again"]:
        from shardkit.cli.pages.convert_page import NO_DESTINATION

        inputs, destination = (destination,), NO_DESTINATION
    request = parse_request(typed, inputs, destination)
    if request.append:
        from shardkit.cli.shell.append_options import typed_options

        request = msgspec.structs.replace(request, typed=typed_options(ctx))
    limit_memory(request.max_memory)
    engine = chosen_engine(ctx, request.runner, request.engine_option)
    convert(request, request.workers, engine, is_dry_run=request.dry_run)
