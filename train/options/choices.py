"""Choices that need neither TensorFlow nor data: splits and features. Pure."""

from __future__ import annotations

import msgspec

from shardkit.dataset.manifest import Manifest
from shardkit.errors import UsageError
from shardkit.features import Features

TEST_SPLIT = "test"
# The test split comes last: checkpoints are chosen by validation, so the split of validation is no test any more.
VALIDATION_SPLITS = ("validation", "valid", "val", "dev", "eval", TEST_SPLIT)


class Splits(msgspec.Struct, frozen=True, kw_only=True):
    """The splits that a run reads. `validation` is None where only train metrics can be given."""

    train: str
    validation: str | None


def choose_splits(manifest: Manifest, train_split: str | None, validation_split: str | None) -> Splits:
    """Returns the split to train on, and the first of `VALIDATION_SPLITS` that holds examples unless one is named.

    Raises:
        UsageError: If a named split does not exist, or none can be chosen.
    """
    sizes = {s.name: s.num_examples for s in manifest.splits}
    if not any(sizes.values()):
        raise UsageError(
            "the dataset holds no examples",
            next_step="Convert inputs that hold rows; shardkit inspect DATASET shows what became of those there were",
        )
    if train_split is None:
        if "train" not in sizes and len(sizes) != 1:
            raise UsageError(
                "the dataset has no split 'train'", next_step=f"Choose one with --train-split: {', '.join(sizes)}"
            )
        train_split = "train" if "train" in sizes else next(iter(sizes))
    if not manifest.split(train_split).num_examples:
        raise UsageError(
            f"the split {train_split!r} holds no examples",
            next_step="Choose another with --train-split; shardkit inspect DATASET shows how many each holds",
        )
    if validation_split is None:
        validation_split = next((s for s in VALIDATION_SPLITS if sizes.get(s) and s != train_split), None)
    elif not manifest.split(validation_split).num_examples:
        raise UsageError(
            f"the split {validation_split!r} holds no examples",
            next_step="Choose another with --validation-split; shardkit inspect DATASET shows how many each holds",
        )
    return Splits(train=train_split, validation=validation_split)


def choose_features(
    manifest: Manifest, label: str, wanted: tuple[str, ...] | None, ignored: tuple[str, ...]
) -> Features:
    """Returns the features to learn from, in the manifest's order, never the label.

    Raises:
        UsageError: If a name is no feature, if the label is among the wanted ones, or if nothing is left.
    """
    for name in (label, *(wanted or ()), *ignored):
        manifest.feature(name)
    if wanted is not None and label in wanted:
        raise UsageError(f"the label {label!r} is among --features", next_step="Take it out: it would be learned from")
    if both := sorted(set(wanted or ()) & set(ignored)):
        raise UsageError(f"{both[0]!r} is both in --features and in --ignore", next_step="Take it out of one of them")
    chosen = tuple(
        f
        for f in manifest.features
        if f.name != label and f.name not in ignored and (wanted is None or f.name in wanted)
    )
    if not chosen:
        raise UsageError(
            "there is no feature left to learn from",
            why=f"the label is {label!r}",
            next_step="Name fewer in --ignore, or convert the dataset with more columns",
        )
    return chosen
