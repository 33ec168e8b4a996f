"""`shardkit evaluate`: how good a trained model is on a dataset."""

from __future__ import annotations

from typing import Any

import click

from shardkit.cli.shell.command import ExampleCommand, print_document
from shardkit.cli.shell.run_options import check_trainer, load_trained_model, model_options, open_split


@click.command(
    cls=ExampleCommand,
    epilog="""
        shardkit evaluate out/adult --checkpoint runs/adult
        shardkit evaluate out/adult --checkpoint runs/adult --split train --at best
        shardkit evaluate out/newer --checkpoint runs/adult --split test --json
        shardkit evaluate out/adult --checkpoint runs/mine --model moved/my_model.py:build
    """,
)
@click.argument("dataset")
@model_options(reads_dataset=True)
@click.option("--json", "as_json", is_flag=True, help="Print the metrics as one JSON document.")
def command(
    dataset: str,
    run: str,
    at: str,
    model: str | None,
    version: int | None,
    split: str | None,
    global_batch_size: int | None,
    as_json: bool,
) -> None:
    """Measure a trained model on DATASET, each example once.

    DATASET may be another than the one of the training if it has the same features; the model looks values up and
    scales them as it learned to.
    """
    check_trainer()
    opened, name = open_split(dataset, split, run, version)
    restored = load_trained_model(run, at, model)
    from shardkit.storage import files as storage
    from train.runs.evaluate import evaluate

    found = evaluate(restored, opened, name, global_batch_size or restored.record.global_batch_size)
    document = {
        "dataset": storage.redact(opened.dataset.url),
        "version": opened.dataset.version,
        "split": name,
        "num_examples": found.num_examples,
        "num_labelled": found.num_labelled,
        "checkpoint": restored.checkpoint,
        "step": restored.step,
        "metrics": found.metrics,
    }
    if as_json:
        print_document(document)
        return
    _print(document)


def _print(document: dict[str, Any]) -> None:
    from rich.console import Console

    from shardkit.cli.shell.tables import print_columns
    from shardkit.messages import visible
    from shardkit.units import format_number
    from train.reporting.report import format_metric

    console = Console(highlight=False, soft_wrap=True)
    num_examples, num_labelled = document["num_examples"], document["num_labelled"]
    without = num_examples - num_labelled
    console.print(
        visible(
            f"{document['split']}  {format_number(num_examples, 'example')}"
            + (f", {without:,} without a label" if without else "")
            + f"  checkpoint after step {document['step']:,}"
        ),
        markup=False,
    )
    rows = [(name, format_metric(name, value)) for name, value in document["metrics"].items()]
    print_columns(console, ("metric", "value"), rows, num_left=1)
