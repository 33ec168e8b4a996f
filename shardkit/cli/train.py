"""`shardkit train`: a dataset to a trained model."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import shardkit
from shardkit.cli.options import StepsType
from shardkit.cli.settings import settings_options
from shardkit.cli.shell import ExampleCommand
from shardkit.errors import UsageError, missing_extra

if TYPE_CHECKING:
    from train.request import Request
    from train.run_folder import RunFolder

MAX_SEED = 2**32 - 1


@click.command(
    cls=ExampleCommand,
    epilog="""
        shardkit train out/adult --label income --output runs/adult
        shardkit train out/adult --label income --epochs 10 --output runs/adult --resume
        shardkit train out/flights --label arr_delay --ignore dep_delay,arr_time --output runs/delay
        shardkit train out/photos --label label --model image --image-size 128 --output runs/photos
        shardkit train out/adult --label income --model my_model.py:build --output runs/mine
        shardkit train out/adult --label income --strategy mirrored --replicas 2 --output runs/two
        shardkit train out/adult --label income --output runs/adult --export models/adult
        shardkit train out/adult --config adult.toml --set epochs=10 --set features=age,education --dry-run
        shardkit train out/adult --label income --output runs/adult --profile-steps 10:20
    """,
)
@click.argument("dataset")
@click.option("--label", required=True, metavar="FEATURE", help="What to predict.")
@click.option("--output", required=True, metavar="FOLDER", help="For checkpoints, metrics and TensorBoard files.")
@click.option("--features", metavar="A,B,...", help="Learn from these only; all but the label if not given.")
@click.option("--ignore", metavar="A,B,...", help="Do not learn from these.")
@click.option(
    "--model",
    metavar="NAME",
    help="tabular, image or FILE.py:function; image if the dataset holds images, else tabular.",
)
@click.option(
    "--task",
    type=click.Choice(["auto", "classification", "regression"]),
    default="auto",
    show_default=True,
    help="Decided from the label's type unless given.",
)
@click.option("--epochs", type=click.IntRange(min=1), help="Passes over the train split; what suits the model.")
@click.option("--global-batch-size", type=click.IntRange(min=1), help="Examples a step, over all replicas.")
@click.option("--learning-rate", type=click.FloatRange(min=0, min_open=True), help="Its peak; what suits the model.")
@click.option(
    "--seed",
    type=click.IntRange(min=0, max=MAX_SEED),
    default=0,
    show_default=True,
    help="Of initial weights, order of examples and augmentation.",
)
@click.option(
    "--strategy",
    type=click.Choice(["auto", "single", "mirrored"]),
    default="auto",
    show_default=True,
    help="One device, or copies of the model on several; auto takes all GPUs.",
)
@click.option("--replicas", type=click.IntRange(min=1), help="Number of devices; virtual ones without a GPU.")
@click.option("--train-split", metavar="NAME", help="Split to learn from; train if there is one.")
@click.option(
    "--validation-split",
    metavar="NAME",
    help="The first of validation, test, valid and val that there is if not given.",
)
@click.option("--image-size", type=click.IntRange(min=8, max=4096), help="Height and width of images in pixels.")
@click.option(
    "--checkpoint-every", type=click.IntRange(min=1), metavar="STEPS", help="Also save between the ends of epochs."
)
@click.option(
    "--profile-steps",
    type=StepsType(),
    metavar="10:20",
    help="Record where the time of these steps goes, for TensorBoard's Profile page; counted from 0.",
)
@click.option("--dry-run", is_flag=True, help="Show steps, shares of the workers and memory, then stop.")
@settings_options()
@click.option("--export", metavar="DIR", help="Then write the model there, as shardkit export does.")
@click.option("--resume", is_flag=True, help="Go on from the newest checkpoint in the output folder.")
def command(dry_run: bool, **typed: Any) -> None:
    """Train a model on a dataset that `shardkit convert` made.

    Columns are normalised and looked up by the dataset's own statistics, images are resized and augmented. A run that
    was stopped goes on exactly where its last checkpoint stands when the same command is run with --resume.

    FILE.py:function is called as function(features, statistics, label_spec) and returns a Keras 3 model whose inputs
    have the names of features.
    """
    check_own_package("train")
    for package in ("tensorflow", "keras", "tensorboard"):
        if importlib.util.find_spec(package) is None:
            raise missing_extra("train", package)
    import msgspec

    from train.config import TrainOptions
    from train.environment import import_quietly
    from train.request import resolve
    from train.run_folder import RunFolder, check_target
    from train.signals import end_at_once

    names = {name: split_names(typed[name]) for name in ("features", "ignore")}
    typed |= {"command": ("shardkit", *sys.argv[1:])}
    options = msgspec.convert(typed | names | {"ignore": names["ignore"] or ()}, TrainOptions)
    folder = RunFolder(options.output)
    with end_at_once(folder.describe_stop):
        request = resolve(options)
        if options.export is not None:
            check_target(Path(options.export))
        if dry_run:
            show_plan(request, folder)
            return
        folder.open(resume=options.resume)
        import_quietly()
        from train.report import Reporter
        from train.run import run

        run(request, folder, Reporter())
        if options.export is not None:
            from train.export import export_run

            export_run(folder, Path(options.export), Reporter())


def show_plan(request: Request, folder: RunFolder) -> None:
    """Shows what a run would do, and writes nothing."""
    from train.environment import import_quietly

    import_quietly()
    from train.dry_run import dry_run
    from train.report import Reporter

    dry_run(request, folder, Reporter())


def split_names(text: str | None) -> tuple[str, ...] | None:
    """Returns the names in a comma-separated list, None if it was not given."""
    if text is None:
        return None
    return tuple(name.strip() for name in text.split(",") if name.strip())


def check_own_package(name: str) -> None:
    """Checks that importing a package of ours would not run a file of the user that has the same name.

    Raises:
        UsageError: If it would; names the file.
    """
    own = Path(shardkit.__file__).resolve().parent.parent / name / "__init__.py"
    spec = importlib.util.find_spec(name)
    found = Path(spec.origin).resolve() if spec is not None and spec.origin else None
    if found != own:
        raise UsageError(
            f"the name {name!r} stands for another module than shardkit's",
            where=str(found) if found else None,
            why=f"expected {own}",
            next_step="Rename that file or run from another folder",
        )
