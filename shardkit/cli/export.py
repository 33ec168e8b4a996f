"""`shardkit export`: a trained model for use without shardkit."""

from __future__ import annotations

from pathlib import Path

import click

from shardkit.cli.shell.command import ExampleCommand
from shardkit.cli.shell.run_options import check_trainer, model_options


@click.command(
    cls=ExampleCommand,
    epilog="""
        shardkit export runs/adult models/adult
        shardkit export runs/adult models/best --at best
        shardkit export runs/adult models/adult --dataset out/newer --split test

        saved_model_cli show --dir models/adult/saved_model --all
    """,
)
@click.argument("run", metavar="RUN_FOLDER")
@click.argument("target", metavar="DIR")
@model_options(reads_dataset=False)
@click.option(
    "--dataset",
    metavar="DATASET",
    help="Compare outputs on examples of this dataset. Default: the one that the run was trained on.",
)
@click.option("--split", metavar="NAME", help="Split of that dataset. Default: test, else the one of validation.")
def command(run: str, target: str, at: str, model: str | None, dataset: str | None, split: str | None) -> None:
    """Write the model of RUN_FOLDER as a SavedModel and as a .keras file.

    The SavedModel takes raw examples, as the shards hold them, or (signature `features`) the values of features by
    name, and gives classes with their probabilities, or numbers: it looks values up, scales them and decodes images by
    itself. Both are loaded again and compared with the trained model on examples of the dataset before DIR appears;
    DIR/export.json describes them.
    """
    check_trainer()
    from train.distribution.environment import import_quietly
    from train.runs.run_folder import RunFolder, check_target, read_trained

    folder, place = RunFolder(run), export_place(target)
    check_target(place)
    read_trained(folder)
    import_quietly()
    from train.reporting.report import Reporter
    from train.runs.export import export_run

    export_run(folder, place, Reporter(), which=at, model=model, dataset=dataset, split=split)


def export_place(target: str) -> Path:
    """Returns the folder that a model is written to. Raises UsageError if it is not local."""
    from shardkit.errors import UsageError
    from shardkit.storage import files as storage

    place = storage.normalize(target)
    if not storage.is_local(place):
        raise UsageError(
            "a model is exported to a local folder",
            where=storage.redact(place),
            state="Nothing was written",
            next_step="Name a local folder, and copy it when it is there",
        )
    return storage.local_path(place)
