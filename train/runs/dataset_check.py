"""Checks that a dataset holds the features that a trained model reads. Pure."""

from __future__ import annotations

from shardkit.dataset.manifest import Manifest
from shardkit.dataset.open import Dataset
from shardkit.errors import UsageError
from shardkit.features import Feature, Features
from shardkit.storage import files as storage
from train.options.choices import TEST_SPLIT, VALIDATION_SPLITS


def choose_split(manifest: Manifest, wanted: str | None, validated: str | None) -> str:
    """Returns the split to read.

    Args:
        manifest: Of the dataset.
        wanted: As typed; None leaves the choice to the names that there are.
        validated: Which the run validated on; it comes first where the dataset has it and no split for testing.

    Raises:
        UsageError: If there is no such split, it holds no examples, or none can be chosen.
    """
    sizes = {s.name: s.num_examples for s in manifest.splits}
    if wanted is None:
        preferred = (TEST_SPLIT, validated, *VALIDATION_SPLITS)
        wanted = next((s for s in preferred if s is not None and sizes.get(s)), None)
    if not any(sizes.values()):
        raise UsageError("the dataset holds no examples", next_step="Convert inputs that hold rows")
    if wanted is None and len(sizes) == 1:
        wanted = next(iter(sizes))
    if wanted is None:
        raise UsageError("no split is named", next_step=f"Choose one with --split: {', '.join(sizes)}")
    if not manifest.split(wanted).num_examples:
        raise UsageError(
            f"the split {wanted!r} holds no examples",
            next_step="Choose another with --split; shardkit inspect DATASET shows how many each holds",
        )
    return wanted


def check_dataset(wanted: Features, dataset: Dataset, split: str) -> None:
    """Checks that a dataset has the features that a model was trained on.

    Raises:
        UsageError: If one is missing, of another type, counts other classes, or lacks values where none were lacking;
            names the first.
    """
    manifest = dataset.manifest
    found = {f.name: f for f in manifest.features}
    where = storage.redact(dataset.url)
    for feature in wanted:
        own = found.get(feature.name)
        if own is None:
            raise UsageError(
                f"the dataset has no feature {feature.name!r}, which the model was trained on",
                where=where,
                why=f"it has {', '.join(found)}",
                next_step="Convert it with the columns of the dataset that the run was trained on",
            )
        if (why := _difference(feature, own)) is not None:
            raise UsageError(
                f"the feature {feature.name!r} differs from the one that the model was trained on",
                where=where,
                why=why,
                next_step="Convert it with the recipe of the dataset that the run was trained on: convert --recipe",
            )
        statistics = manifest.split(split).statistics.get(feature.name)
        if own.nullable and not feature.nullable and (statistics is None or statistics.num_nulls):
            raise UsageError(
                f"the feature {feature.name!r} lacks values in split {split!r}",
                where=where,
                why="the model was trained where every example has one",
                next_step="Leave those examples out with convert --drop-null, or train on examples that lack it too",
            )


def _difference(trained: Feature, own: Feature) -> str | None:
    if (trained.dtype, trained.shape) != (own.dtype, own.shape):
        return f"expected {trained.describe_type()}, found {own.describe_type()}"
    if trained.vocabulary != own.vocabulary:
        return "its numbers stand for other classes, or for the same in another order"
    return None
