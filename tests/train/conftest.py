"""Datasets for the trainer, and runs that are trained once, for everything that is done with them afterwards.

TensorFlow is imported in fixtures: tests of what needs none start without it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardkit.features import Features
from tests.support.training.tensorflow_writer import Row, write_dataset

WriteDataset = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> WriteDataset:
    """Returns `write_dataset` into a fresh folder."""

    def into(features: Features, splits: dict[str, list[Row]], **settings: Any) -> Path:
        return write_dataset(tmp_path / "dataset", features, splits, **settings)

    return into


@pytest.fixture
def labelled(write: WriteDataset) -> Path:
    """Returns a dataset that several workers learn."""
    from tests.support.training.workers import FEATURES, labelled_rows

    rows = labelled_rows(690)
    return write(FEATURES, {"train": rows[:600], "test": rows[600:]})


@pytest.fixture(scope="session")
def place(tmp_path_factory) -> Path:
    """Returns the folder of the dataset `data` and of the runs."""
    from tests.support.training.trained import TABLE, make_rows, save

    place = tmp_path_factory.mktemp("trained")
    save(place / "data", TABLE, {"train": make_rows(300), "test": make_rows(101, seed=1)})
    return place


@pytest.fixture(scope="session")
def classified(place):
    """Returns a run that tells `sides`."""
    from tests.support.training.trained import train

    return train(place / "data", place / "classified", label="sides", ignore=("id", "size"), checkpoint_every=4)


@pytest.fixture(scope="session")
def measured(place):
    """Returns a run that predicts `size`."""
    from tests.support.training.trained import train

    return train(place / "data", place / "measured", label="size", ignore=("id", "sides"))


@pytest.fixture(scope="session")
def own(place):
    """Returns a run of a model of the user's own."""
    from tests.support.training.trained import MODEL, train

    (place / "own.py").write_text(textwrap.dedent(MODEL))
    return train(place / "data", place / "own", label="sides", ignore=("id", "size"), model=f"{place}/own.py:build")


@pytest.fixture
def float32_again():
    """Has layers compute in float32 again after a test that changes their precision."""
    yield
    from train.optimization.precision import set_precision

    set_precision("float32")
