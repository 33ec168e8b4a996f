"""`shardkit predict`: the predictions of a trained model for each example of a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardkit.cli.shell.command import ExampleCommand
from shardkit.cli.shell.option_types import split_names
from shardkit.cli.shell.run_options import check_trainer, load_trained_model, model_options, open_split

if TYPE_CHECKING:
    from shardkit.features import Features

FILE_ENDINGS = (".parquet", ".csv", ".jsonl")


@click.command(
    cls=ExampleCommand,
    epilog="""
        shardkit predict out/adult --checkpoint runs/adult predictions.parquet
        shardkit predict out/newer --checkpoint runs/adult --split train --keep age,income predictions.csv
        shardkit predict out/photos --checkpoint runs/photos --at best --keep filename predictions.jsonl
        shardkit predict out/adult --checkpoint runs/adult --keep age out/predicted
    """,
)
@click.argument("dataset")
@click.argument("output")
@model_options(reads_dataset=True)
@click.option("--keep", metavar="A,B,...", help="Copy these features beside the predictions.")
def command(
    dataset: str,
    output: str,
    run: str,
    at: str,
    model: str | None,
    version: int | None,
    split: str | None,
    keep: str | None,
    global_batch_size: int | None,
) -> None:
    """Write what a trained model says about each example of DATASET to OUTPUT, a row an example, in the stored order.

    OUTPUT is a file that ends with .parquet, .csv or .jsonl, or else a dataset of shardkit. Its columns are the kept
    features, `prediction` (a class, or a number), and for classes `probability` and, of up to 20 of them,
    `probability_CLASS`. OUTPUT appears when it is whole, and never takes the place of anything.
    """
    check_trainer()
    opened, name = open_split(dataset, split, run, version)
    check_free(output)
    restored = load_trained_model(run, at, model)
    from shardkit.exporting.tables import check_rows_file, write_rows
    from shardkit.reading.row_files import record_batch
    from train.runs.predict import kept_features, predicted_features, predictions

    predicted = predicted_features(restored)
    kept = kept_features(opened.manifest, split_names(keep) or (), predicted)
    features = (*kept, *predicted)
    size = global_batch_size or restored.record.global_batch_size
    batches = (record_batch(b, features) for b in predictions(restored, opened, name, kept, size))
    if is_file(output):
        path = Path(output)
        check_rows_file(path, features)
        num_rows = write_rows(path, features, batches)
        _tell(num_rows, name, output)
        return
    import tempfile

    with tempfile.TemporaryDirectory(prefix="shardkit-predict-") as folder:
        path = Path(folder) / f"{name}.parquet"
        num_rows = write_rows(path, features, batches)
        convert_rows(path, features, name, output)
    _tell(num_rows, name, output)


def _tell(num_rows: int, split: str, output: str) -> None:
    from shardkit.messages import visible
    from shardkit.storage import files as storage
    from shardkit.units import format_number

    found = format_number(num_rows, "prediction")
    click.echo(visible(f"{found} of split {split} in {storage.redact(output)}"), err=True)


def is_file(output: str) -> bool:
    """Whether predictions become one file, not a dataset."""
    return output.endswith(FILE_ENDINGS)


def check_free(output: str) -> None:
    """Checks that something can be written there, before the model is read.

    Raises:
        ConflictError: If there is something.
        UsageError: If it is a file that is not local.
    """
    from shardkit.dataset.open import list_versions
    from shardkit.errors import UsageError, place_is_taken
    from shardkit.storage import files as storage

    if is_file(output) and not storage.is_local(output):
        raise UsageError(
            "a file of predictions must be local",
            where=storage.redact(output),
            next_step="Name a local file and copy it, or a dataset, whose name has no such ending",
        )
    if Path(output).exists() if is_file(output) else list_versions(output):
        raise place_is_taken(output)


def convert_rows(path: Path, features: Features, split: str, destination: str) -> None:
    """Makes a dataset of one split from a Parquet file, in the order of its rows.

    Raises:
        click.exceptions.Exit: With the exit code of the conversion, which says itself what is wrong.
    """
    import subprocess
    import sys

    import tomli_w

    from shardkit.cli.shell.recipes import declaration

    schema = path.with_name("schema.toml")
    schema.write_text(tomli_w.dumps({"features": {f.name: declaration(f) for f in features}}))
    # A separate process: an engine beside TensorFlow takes half a GiB more, and its workers are forked.
    arguments = ["convert", str(path), destination, "--no-shuffle", "--split", f"{split}=1", "--schema", str(schema)]
    # Its report on rows and columns is of no use here, unless it is an error.
    found = subprocess.run([sys.executable, "-P", "-m", "shardkit", *arguments], capture_output=True, check=False)
    if found.returncode:
        click.echo(found.stderr, err=True, nl=False)
        # A signal's number is negative.
        raise click.exceptions.Exit(found.returncode if found.returncode > 0 else 128 - found.returncode)
