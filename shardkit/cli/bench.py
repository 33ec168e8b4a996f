"""`shardkit bench`: how fast a dataset is read here, beside stock tf.data, and how many accelerators that feeds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import click

from shardkit.cli.shell.command import ExampleCommand
from shardkit.cli.shell.option_types import FiniteRange

if TYPE_CHECKING:
    from shardkit.bench.run import Baseline, Report
    from shardkit.dataset.open import Dataset

_STOPPED = "The measurement was stopped before the end; nothing was changed."


@click.command(
    cls=ExampleCommand,
    epilog="""
        shardkit bench out/flights
        shardkit bench out/flights --batch-size 256 --features carrier,distance --threads 4
        shardkit bench out/photos --step-time 0.224 --accelerators 4
        shardkit bench gs://bucket/flights --split train --seconds 5 --no-tfdata
        shardkit bench out/flights --json | jq .reader.examples_per_s
    """,
)
@click.argument("dataset")
@click.option("--split", metavar="NAME", help="Split to read; train if there is one, else the largest.")
@click.option("--version", type=click.IntRange(min=1), help="An older version; the newest if not given.")
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    metavar="N",
    help="Examples of a batch; 1024 if not given, fewer where examples are large or few.",
)
@click.option("--features", metavar="A,B,...", help="Decode these only; all if not given.")
@click.option(
    "--threads",
    type=click.IntRange(min=1, max=256),
    metavar="N",
    help="Threads that read; the number of cores if not given.",
)
@click.option(
    "--seconds",
    type=FiniteRange(min=0.05, max=3600),
    default=1.0,
    show_default=True,
    help="Time of each measurement; there are about ten.",
)
@click.option("--no-shuffle", is_flag=True, help="Read in the stored order.")
@click.option("--no-tfdata", is_flag=True, help="Leave stock tf.data out.")
@click.option(
    "--step-time",
    type=FiniteRange(min=0.001, max=3600),
    metavar="SECONDS",
    help="Also feed accelerators whose steps take so long, and measure how busy they are.",
)
@click.option(
    "--accelerators",
    type=click.IntRange(min=1, max=1024),
    metavar="N",
    help="How many to feed; 1, 2, 4, 8 if not given, until less than 90 % of the time is busy.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON document.")
def command(
    dataset: str,
    split: str | None,
    version: int | None,
    batch_size: int | None,
    features: str | None,
    threads: int | None,
    seconds: float,
    no_shuffle: bool,
    no_tfdata: bool,
    step_time: float | None,
    accelerators: int | None,
    as_json: bool,
) -> None:
    """Measure how fast DATASET is read on this machine, where the time goes, and how many accelerators that feeds.

    This reader gives batches of NumPy columns, stock tf.data gives the same batches as parsed tensors. Both take turns
    in one process; what counts is the median of three measurements, each after a warm-up. Writes nothing.
    """
    import os

    if accelerators is not None and step_time is None:
        raise click.UsageError("--accelerators needs --step-time, the seconds that one step of an accelerator takes.")

    from shardkit.bench.run import BenchOptions, run
    from train.distribution.signals import end_at_once

    options = BenchOptions(
        split=split,
        version=version,
        batch_size=batch_size,
        seconds=seconds,
        num_threads=threads or len(os.sched_getaffinity(0)),
        features=_names(features),
        shuffle=not no_shuffle,
        step_time_s=step_time,
        num_accelerators=accelerators,
    )
    with end_at_once(lambda: _STOPPED), _telling() as tell:
        report = run(dataset, options, load_tfdata=_no_tfdata if no_tfdata else partial(_load_tfdata, tell), tell=tell)
    if as_json:
        _print_json(report)
        return
    from shardkit.cli.pages.bench_page import print_report

    print_report(report)


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


def _no_tfdata(dataset: Dataset) -> Baseline:
    from shardkit.bench.run import Baseline

    return Baseline()


def _load_tfdata(tell: Callable[[str], None], dataset: Dataset) -> Baseline:
    """Returns stock tf.data, or why it cannot read this dataset here."""
    import importlib.util
    import os

    from shardkit.bench.run import Baseline
    from shardkit.errors import StorageError, UsageError
    from train.distribution.environment import native_messages_hidden

    if importlib.util.find_spec("tensorflow") is None:
        return Baseline(why_not="TensorFlow is not installed; pip install 'shardkit[train]' adds it")
    tell("loading TensorFlow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        with native_messages_hidden():
            import tensorflow as tf

            from shardkit.adapters.tfdata_bench import check_readable, open_tfdata

            # Here it loads its GPU libraries, which it also comments on.
            tf.config.list_physical_devices()
    except Exception as error:  # noqa: BLE001 - a broken installation raises whatever it does
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        return Baseline(
            why_not=f"TensorFlow cannot be loaded ({why}); pip install 'shardkit[train]' installs one that fits"
        )
    try:
        check_readable(dataset)
    except (UsageError, StorageError) as error:
        return Baseline(why_not=error.what if error.why is None else f"{error.what}: {error.why}")
    return Baseline(open=open_tfdata)


@contextmanager
def _telling() -> Iterator[Callable[[str], None]]:
    """Gives a function that shows the progress on a terminal, on one line of stderr that is removed at the end."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return

    def tell(text: str) -> None:
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)

    try:
        yield tell
    finally:
        tell("")


def _print_json(report: Report) -> None:
    import msgspec

    document = msgspec.to_builtins(report)
    document["fed"] = [{**msgspec.to_builtins(fed), "share_busy": fed.share_busy} for fed in report.fed]
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
