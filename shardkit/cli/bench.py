"""`shardkit bench`: how fast a dataset is read on this machine, beside stock tf.data."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import click

from shardkit.cli.shell.command import ExampleCommand, print_document
from shardkit.cli.shell.option_types import FiniteRange, split_names
from shardkit.cli.shell.reading_bar import status_line

if TYPE_CHECKING:
    from shardkit.bench.run import Baseline
    from shardkit.dataset.open import Dataset

_STOPPED = "The measurement was stopped before the end; nothing was changed."


@click.command(
    cls=ExampleCommand,
    epilog="""
        shardkit bench out/flights
        shardkit bench out/flights --batch-size 256 --features carrier,distance --threads 4
        shardkit bench gs://bucket/flights --split train --seconds 5 --no-tfdata
        shardkit bench out/flights --json | jq .reader.examples_per_s
    """,
)
@click.argument("dataset")
@click.option("--split", metavar="NAME", help="Split to read. Default: train, else the largest.")
@click.option("--version", type=click.IntRange(min=1), help="Version of the dataset. Default: the newest.")
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    metavar="N",
    help="Examples of a batch. Default: 1024, fewer where examples are large or few.",
)
@click.option("--features", metavar="A,B,...", help="Decode these features only. Default: all.")
@click.option(
    "--threads",
    type=click.IntRange(min=1, max=256),
    metavar="N",
    help="Number of threads that read. Default: the number of cores.",
)
@click.option(
    "--seconds",
    type=FiniteRange(min=0.05, max=3600),
    default=1.0,
    show_default=True,
    help="Time of each of about ten measurements.",
)
@click.option("--no-shuffle", is_flag=True, help="Read in the stored order.")
@click.option("--no-tfdata", is_flag=True, help="Do not measure stock tf.data.")
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
    as_json: bool,
) -> None:
    """Measure how fast DATASET is read on this machine.

    This reader gives batches of NumPy columns, stock tf.data gives the same batches as parsed tensors. Both take turns
    in one process; what counts is the median of three measurements, each after a warm-up. Writes nothing.
    """
    import os

    from shardkit.bench.run import BenchOptions, run
    from train.distribution.signals import end_at_once

    options = BenchOptions(
        split=split,
        version=version,
        batch_size=batch_size,
        seconds=seconds,
        num_threads=threads or len(os.sched_getaffinity(0)),
        features=split_names(features),
        shuffle=not no_shuffle,
    )
    with end_at_once(lambda: _STOPPED), status_line() as tell:
        load = (lambda _: None) if no_tfdata else partial(_load_tfdata, tell)
        report = run(dataset, options, load_tfdata=load, tell=tell)
    if as_json:
        print_document(report)
        return
    from shardkit.cli.pages.bench_page import print_report

    print_report(report)


def _load_tfdata(tell: Callable[[str], None], dataset: Dataset) -> Baseline:
    """Returns stock tf.data, or why it cannot read this dataset here."""
    import importlib.util
    import os

    from shardkit.errors import StorageError, UsageError
    from train.distribution.environment import native_messages_hidden

    if importlib.util.find_spec("tensorflow") is None:
        return "TensorFlow is not installed; pip install 'shardkit[train]' adds it"
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
        return f"TensorFlow cannot be loaded ({why}); pip install 'shardkit[train]' installs one that fits"
    try:
        check_readable(dataset)
    except (UsageError, StorageError) as error:
        return error.what if error.why is None else f"{error.what}: {error.why}"
    return open_tfdata
