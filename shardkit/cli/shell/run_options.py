"""Shared parts of the commands for trained models: their options, and opening a run and a dataset."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import shardkit
from shardkit.errors import UsageError, missing_extra

if TYPE_CHECKING:
    from shardkit.reading.splits import Splits
    from train.runs.restore_model import RestoredModel

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


_OF_A_MODEL: tuple[Decorator, ...] = (
    click.option(
        "--at",
        default="newest",
        show_default=True,
        metavar="newest|best|STEP",
        help="Checkpoint to use: the newest, that of the best epoch by --monitor of the run, or that of a step.",
    ),
    click.option("--model", metavar="FILE.py:function", help="Place of the file of your own model, if it was moved."),
)
_WITH_A_DATASET: tuple[Decorator, ...] = (
    click.option(
        "--checkpoint",
        "run",
        required=True,
        metavar="RUN_FOLDER",
        help="Folder that shardkit train wrote: its --output.",
    ),
    *_OF_A_MODEL,
    click.option("--version", type=click.IntRange(min=1), help="Version of DATASET. Default: the newest."),
    click.option(
        "--split",
        metavar="NAME",
        help="Split to read. Default: test, else the split that the run validated on, else a split for validation.",
    ),
    click.option(
        "--global-batch-size", type=click.IntRange(min=1), help="Examples at a time. Default: as in training."
    ),
)


def model_options(*, reads_dataset: bool) -> Decorator:
    """Returns a decorator that adds the options which choose a trained model, and the examples that it is to read."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(_WITH_A_DATASET if reads_dataset else _OF_A_MODEL):
            function = option(function)
        return function

    return decorate


def check_trainer(*others: str) -> None:
    """Checks that TensorFlow, Keras and other packages of the extra `train` are there, or raises `UsageError`."""
    check_own_package("train")
    for package in ("tensorflow", "keras", *others):
        if importlib.util.find_spec(package) is None:
            raise missing_extra("train", package)


def load_trained_model(run: str, at: str, model: str | None) -> RestoredModel:
    """Returns the trained model of a run, and prints notes about it.

    Raises:
        UsageError: If there is none.
        DamageError: If it cannot be read.
    """
    from train.distribution.environment import import_quietly
    from train.runs.run_folder import RunFolder, read_trained

    folder = RunFolder(run)
    read_trained(folder)  # Says at once what TensorFlow needs not be waited for.
    import_quietly()
    from train.reporting.report import Reporter
    from train.runs.restore_model import restore_model

    restored = restore_model(folder, at, model)
    reporter = Reporter()
    for note in restored.notes:
        reporter.note(note)
    return restored


def open_split(dataset: str, split: str | None, run: str, version: int | None = None) -> tuple[Splits, str]:
    """Returns a dataset whose splits are read, and the name of the one that is wanted.

    Raises:
        UsageError: If there is no dataset, no such split, or no run.
    """
    from shardkit.reading.splits import open_splits
    from train.runs.dataset_check import choose_split
    from train.runs.run_folder import RunFolder, read_trained

    record, _ = read_trained(RunFolder(run))
    opened = open_splits(dataset, version)
    return opened, choose_split(opened.manifest, split, record.splits.validation)


def check_own_package(name: str) -> None:
    """Checks that importing a package of shardkit would not run a user's file of the same name.

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
