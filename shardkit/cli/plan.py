"""`shardkit plan`: the needs of a conversion, and whether it can work, before anything is read in full."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from shardkit.cli.shell.command import ExampleCommand, print_document
from shardkit.cli.shell.option_types import FiniteRange, SizeType
from shardkit.cli.shell.request_options import INPUT_OPTIONS, click_options, headings_of
from shardkit.conversion.engines import ENGINES, WORKER_MEMORY_BYTES, EngineFacts
from shardkit.conversion.request import option_fields, parse_request
from shardkit.sources.options import INPUTS
from shardkit.units import GiB

if TYPE_CHECKING:
    from shardkit.conversion.option_forms import SplitShare
    from shardkit.conversion.request import ConvertRequest
    from shardkit.forecast.values import Setting, Workload, WorkPlace

EXIT_CANNOT_WORK = 2
_IMAGINED = ("--num-files", "--row-size", "--features", "--expansion", "--ratio", "--whole-files")
_FROM_CONVERT = (
    *INPUT_OPTIONS, "runner", "workers", "work_dir", "splits", "shard_bytes", "num_shards", "compression", "shuffle",
)  # fmt: skip
_INPUTS = {INPUTS: headings_of([f for f in option_fields() if f.typed_name in INPUT_OPTIONS])[INPUTS]}
_MACHINES = " and ".join(name for name, engine in ENGINES.items() if engine.is_one_machine)
_MEMORIES = "".join(
    f", {engine.worker_memory_bytes // GiB}GiB for {name}"
    for name, engine in ENGINES.items()
    if engine.worker_memory_bytes != WORKER_MEMORY_BYTES
)


@click.command(
    cls=ExampleCommand,
    params=click_options(
        _FROM_CONVERT,
        splits="A split and its share of the rows; repeat for more.",
        compression="Compression of the shards.",
        shuffle="Shuffle the rows, or keep the order of the inputs.",
        runner="Engine that would run the conversion.",
        workers="Number of parts that are worked on at the same time; for dataflow, of machines. Default: the cores.",
    ),
    epilog="""
        shardkit plan 'data/*.csv' --split train=0.9 --split test=0.1
        shardkit plan headerless.csv --columns start,end,country --null-value NA
        shardkit plan --input-size 1TB --num-files 1000 --runner flink --workers 64
        shardkit plan --input-size 1PB --datasets 4096 --runner dataflow --store gs
        shardkit plan --input-size 1TB --runner flink --workers 64 --store s3 --work-dir s3://bucket/work
        shardkit plan --input-size 1EB --json
    """,
    headings={
        **_INPUTS,
        "Inputs that are not there yet": ("--input-size", *_IMAGINED),
        "What runs the conversion": ("--runner", "--workers", "--worker-memory", "--disk", "--store", "--work-dir"),
        "The conversion": (
            "--split", "--shard-size", "--num-shards", "--compression", "--shuffle", "--datasets",
        ),
    },
)  # fmt: skip
@click.argument("inputs", nargs=-1, metavar="[INPUT]...")
@click.option(
    "--input-size",
    type=SizeType(),
    metavar="SIZE",
    help="Size of all inputs, such as 1TB, where there are no files yet.",
)
@click.option("--num-files", type=click.IntRange(min=1), help="Number of input files. Default: one a GB.")
@click.option("--row-size", type=SizeType(), default="1KB", show_default=True, help="Mean size of a row in the inputs.")
@click.option("--features", type=click.IntRange(min=1), default=20, show_default=True, help="Number of columns.")
@click.option(
    "--expansion",
    type=FiniteRange(min=0.01, max=100),
    default=1.0,
    show_default=True,
    help="Bytes of an example for each byte of its row in the inputs: 0.5 for numbers in CSV, 4 for gzip.",
)
@click.option(
    "--ratio",
    type=FiniteRange(min=0.5, max=1000),
    default=2.0,
    show_default=True,
    help="Factor by which gzip shrinks the shards; 'shardkit inspect' shows it.",
)
@click.option("--whole-files", is_flag=True, help="Files are read whole, as compressed ones are.")
@click.option(
    "--worker-memory",
    type=SizeType(),
    metavar="SIZE",
    help=f"Memory of a worker; for {_MACHINES} of the whole machine. "
    f"Default: {WORKER_MEMORY_BYTES // GiB}GiB{_MEMORIES}.",
)
@click.option(
    "--disk",
    type=SizeType(),
    metavar="SIZE",
    help=f"Free disk space of a worker; for {_MACHINES} of the whole machine. Default: not checked.",
)
@click.option(
    "--store",
    type=click.Choice(["local", "s3", "gs", "az"]),
    default="local",
    show_default=True,
    help="Store of the dataset.",
)
@click.option(
    "--datasets",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of conversions that share the inputs; the plan is of one of them.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON document.")
@click.pass_context
def command(
    ctx: click.Context, /, inputs: tuple[str, ...], input_size: int | None, as_json: bool, **typed: Any
) -> None:
    """Tell what converting INPUT would need, and whether it can work: shards, memory, disk, requests.

    Lists files and reads a few rows of them, and writes nothing; or takes sizes instead of files, with --input-size.
    Ends with 2 if a limit would be passed, and says what to set instead.
    """
    if bool(inputs) == (input_size is not None):
        raise click.UsageError("Name INPUT files, or --input-size instead of them.", ctx)
    if input_size is None:
        _refuse(ctx, _IMAGINED, "stands for what is measured of INPUT files, and is for --input-size")
    else:
        is_read = [name for name in _INPUTS[INPUTS] if name != "--max-record-size"]
        _refuse(ctx, is_read, "says how INPUT files are read, and --input-size needs none")
    from shardkit.cli.pages.plan_page import describe_limits, make_document, print_forecast

    request = parse_request({name: typed[name] for name in _FROM_CONVERT})
    setting = _setting(request, typed)
    workload = _measured(inputs, typed) if input_size is None else _imagined(input_size, request.splits, typed)
    if as_json:
        print_document(make_document(workload, setting))
    else:
        print_forecast(workload, setting)
    if describe_limits(workload, setting):
        ctx.exit(EXIT_CANNOT_WORK)


def _setting(request: ConvertRequest, typed: Mapping[str, Any]) -> Setting:
    from shardkit.forecast.values import Setting

    assert request.shard_bytes is not None  # It has a default.
    return Setting(
        engine=request.runner,
        num_workers=request.workers or len(os.sched_getaffinity(0)),
        worker_memory_bytes=typed["worker_memory"] or _worker_memory(ENGINES[request.runner]),
        disk_bytes=typed["disk"],
        shard_bytes=request.shard_bytes,
        num_shards=request.num_shards,
        compression=request.compression,
        shuffle=request.shuffle,
        store=typed["store"],
        work_place=_work_place(request.work_dir),
        num_datasets=typed["datasets"],
        max_row_bytes=request.source.max_record_bytes,
    )


def _measured(inputs: tuple[str, ...], typed: Mapping[str, Any]) -> Workload:
    from shardkit.cli.shell.supervised import announce_open_files
    from shardkit.forecast.measure import measure_inputs
    from shardkit.runtime.bounded import steps_bounded

    # Other options say nothing about the rows.
    read = {name: typed[name] for name in (*INPUT_OPTIONS, "splits", "shuffle", "compression")}
    request = parse_request(read, inputs)
    # The process above names the file whose reader, compiled code, does not survive it. No option bounds a step here.
    with steps_bounded(request.max_row_seconds, lambda step: None, announce_open_files):
        return measure_inputs(request)


def _refuse(ctx: click.Context, names: Collection[str], why: str) -> None:
    for option in ctx.command.params:
        name = max(option.opts, key=len)
        if name in names and ctx.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{name} {why}.", ctx)


def _work_place(work_dir: str | None) -> WorkPlace:
    if work_dir is None:
        return "default"
    from shardkit.storage import files as storage

    named = storage.normalize(work_dir)
    if storage.is_local(named):
        return "folder"
    storage.protocol_of(named)  # Web servers are only read.
    return "store"


def _imagined(num_bytes: int, splits: tuple[SplitShare, ...], typed: Mapping[str, Any]) -> Workload:
    from fractions import Fraction

    from shardkit.conversion.option_forms import parse_shares
    from shardkit.forecast.values import Workload

    num_rows = max(1, num_bytes // typed["row_size"])
    framed = max(num_rows, int(num_bytes * Fraction(typed["expansion"])))
    return Workload(
        num_bytes=num_bytes,
        num_files=min(typed["num_files"] or max(1, num_bytes // 10**9), num_bytes),
        num_rows=num_rows,
        num_framed_bytes=framed,
        ratio=typed["ratio"],
        max_record_bytes=-(-framed // num_rows),
        max_row_bytes=typed["row_size"],
        num_features=typed["features"],
        is_cut=not typed["whole_files"],
        shares=parse_shares(splits),
    )


def _worker_memory(engine: EngineFacts) -> int:
    if engine.is_one_machine:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return engine.worker_memory_bytes
