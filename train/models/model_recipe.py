"""What a model bundle is made from: a run records it, and makes the bundle again from it without the dataset."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TypeVar

import msgspec

from shardkit.dataset.manifest import FeatureStatistics
from shardkit.errors import DamageError, UsageError
from shardkit.features import Feature, Features
from train.options.tabular_columns import TabularColumns, Value

Part = TypeVar("Part")


class ModelRecipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model bundle is made from.

    Attributes:
        features: Those that the model reads, as the dataset declares them. For a user's function they are those that
            it was offered.
        label_feature: The label, likewise.
        columns: Of a tabular model: means, deviations and vocabularies.
        vocabulary: Of a model of tokens.
        statistics: Of the train split, where the model was made from them.
        model_file: File with the user's function; absolute.
    """

    features: Features
    label_feature: Feature
    columns: TabularColumns | None = None
    vocabulary: tuple[Value, ...] | None = None
    statistics: dict[str, FeatureStatistics] = {}
    model_file: str | None = None
    model_sha256: str | None = None


def recorded(part: Part | None) -> Part:
    """Returns a part of a recipe that its model cannot do without. Raises DamageError if it is not there."""
    if part is None:
        raise DamageError("the record of the run lacks what its model is made of", next_step="Train again")
    return part


def hash_model_file(path: Path) -> str:
    """Returns the SHA-256 of a model's file. Raises UsageError if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(
            "the file of the model cannot be read",
            where=str(path),
            why=(error.strerror or str(error)).lower(),
            next_step="Put it back, or say where it is with --model FILE.py:function",
        ) from error
