"""What the label's dtype and statistics say about the task, and how much each class counts in the loss. Pure."""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Mapping
from difflib import get_close_matches

from shardkit.dataset.manifest import FeatureStatistics
from shardkit.errors import UsageError
from shardkit.features import Feature
from shardkit.units import format_number
from train.options.config import ClassValue, LabelSpec, Task, TaskChoice

BALANCED = "balanced"


MAX_CLASSES = 10_000
MAX_INTEGER_CLASSES = 100
MIN_SUSPECT_CLASSES = 20
MAX_ODD_SHARE = 0.1
MAX_NAMES_SHOWN = 5


def choose_task(feature: Feature, statistics: FeatureStatistics | None, wanted: TaskChoice) -> Task:
    """Returns the task that a label asks for.

    Strings, bools, and integers with class names or at most `MAX_INTEGER_CLASSES` values are classes; other numbers
    are predicted as numbers.

    Raises:
        UsageError: If the label cannot be learned, or not in the way that was asked for.
    """
    if not feature.is_scalar or feature.dtype == "bytes":
        raise UsageError(
            f"the label {feature.name!r} is {feature.describe_type()}",
            why="a label is one string, number or truth value an example",
            next_step="Choose another --label; shardkit inspect DATASET shows the features",
        )
    is_integer = feature.dtype.startswith(("int", "uint"))
    can_be_classes = is_integer or feature.dtype in ("string", "bool")
    can_be_number = feature.dtype != "string" and feature.vocabulary is None
    if wanted == "classification" and not can_be_classes:
        raise UsageError(
            f"the label {feature.name!r} is {feature.dtype}",
            why="classes are strings, integers or truth values",
            next_step="Use --task regression, or choose another --label",
        )
    if wanted == "regression" and not can_be_number:
        raise UsageError(
            f"the label {feature.name!r} is {feature.describe_type()}",
            why="it is no number",
            next_step="Use --task classification, or choose another --label",
        )
    if wanted != "auto":
        return wanted
    if is_integer and feature.vocabulary is None and not _has_few_values(statistics):
        return "regression"
    return "classification" if can_be_classes else "regression"


def listed_values(statistics: FeatureStatistics | None) -> tuple[ClassValue, ...] | None:
    """Returns all distinct values of a feature, most frequent first, if its statistics list them all, else None."""
    if statistics is None or statistics.num_distinct is None or not statistics.num_distinct_is_exact:
        return None
    if statistics.vocabulary:
        return statistics.vocabulary
    # A manifest from before vocabularies lists the most frequent values only.
    values = tuple(t.value for t in statistics.top_values if t.value is not None)
    return values if len(values) == statistics.num_distinct else None


def classification_label(
    feature: Feature,
    values: Collection[ClassValue],
    statistics: Mapping[str, FeatureStatistics],
    seen: Collection[ClassValue] | None = None,
) -> LabelSpec:
    """Returns the label of a classification.

    Args:
        values: All values that occur in the splits of the run; ignored where the feature names its classes.
        statistics: Of the label, by the name of each split of the run.
        seen: Values that occur in the train split; None means all.

    Raises:
        UsageError: If there are fewer than two classes, or more than `MAX_CLASSES`.
    """
    if feature.vocabulary is not None:
        classes: tuple[ClassValue, ...] = tuple(range(len(feature.vocabulary)))
        names = feature.vocabulary
    else:
        classes = tuple(sorted(set(values)))
        names = tuple(str(c) for c in classes)
    if len(classes) < 2:
        raise UsageError(
            f"the label {feature.name!r} has {format_number(len(classes), 'distinct value')}",
            why="there is nothing to tell apart",
            next_step="Choose another --label, or --task regression for numbers",
        )
    if len(classes) > MAX_CLASSES:
        raise UsageError(
            f"the label {feature.name!r} has {len(classes):,} distinct values",
            why=f"a classification has at most {MAX_CLASSES:,} classes",
            next_step="Choose another label, or --task regression for numbers",
        )
    return LabelSpec(
        name=feature.name,
        task="classification",
        classes=classes,
        class_names=names,
        num_unlabelled={split: s.num_nulls for split, s in statistics.items()},
        unseen=() if seen is None else tuple(n for c, n in zip(classes, names, strict=True) if c not in set(seen)),
    )


def regression_label(feature: Feature, train_split: str, statistics: Mapping[str, FeatureStatistics]) -> LabelSpec:
    """Returns the label of a regression; NaN and infinite labels count as absent.

    Raises:
        UsageError: If the train split holds no finite value of the label.
    """
    own = statistics.get(train_split)
    if own is None or own.mean is None:
        raise UsageError(
            f"the label {feature.name!r} has no finite value in split {train_split!r}",
            next_step="Choose another --label or --train-split; shardkit inspect DATASET shows their statistics",
        )
    return LabelSpec(
        name=feature.name,
        task="regression",
        mean=float(own.mean),
        std=float(own.std or 1.0),
        num_unlabelled={split: s.num_nulls + s.num_nans + s.num_infs for split, s in statistics.items()},
    )


def notes_on_unlabelled(label: LabelSpec) -> list[str]:
    """Returns a note on each split where examples have no usable label."""
    kind = "" if label.task == "classification" else " that is a finite number"
    return [
        f"1 example of {split} has no label{kind}; it has weight 0"
        if count == 1
        else f"{count:,} examples of {split} have no label{kind}; they have weight 0"
        for split, count in label.num_unlabelled.items()
        if count
    ]


def note_on_unseen(label: LabelSpec) -> str | None:
    """Returns a note where the train split lacks classes, None otherwise."""
    if not label.unseen:
        return None
    shown = ", ".join(map(repr, label.unseen[:MAX_NAMES_SHOWN])) + (", ..." if label.unseen[MAX_NAMES_SHOWN:] else "")
    what = f"class {shown} is" if len(label.unseen) == 1 else f"{len(label.unseen)} classes are"
    return f"{what} never seen in the train split, so nothing will be recognised as such" + (
        "" if len(label.unseen) == 1 else f": {shown}"
    )


def note_on_classes(label: LabelSpec) -> str | None:
    """Returns a note where most classes are numbers written as text, None otherwise."""
    names = [c for c in label.classes if isinstance(c, str)]
    odd = [name for name in names if not _is_number(name)]
    if len(names) < MIN_SUSPECT_CLASSES or len(odd) > len(names) * MAX_ODD_SHARE:
        return None
    hint = f"; if {odd[0]!r} means that there is no value, convert again with --null-value {odd[0]}" if odd else ""
    return f"the {len(names)} classes of {label.name!r} look like numbers stored as text{hint}"


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _has_few_values(statistics: FeatureStatistics | None) -> bool:
    if statistics is None or statistics.num_distinct is None:
        return False
    return statistics.num_distinct_is_exact and statistics.num_distinct <= MAX_INTEGER_CLASSES


def choose_class_weights(
    wanted: str, label: LabelSpec, counts: Mapping[ClassValue, int] | None = None
) -> tuple[float, ...]:
    """Returns the weight of each class, in the order of the model's outputs.

    Args:
        wanted: `balanced`, or weights as `NAME=WEIGHT,...`; a class that is not named has weight 1. A name with a
            comma is in double quotes with its weight.
        counts: Examples of each class in the train split; for `balanced`, which gives all classes that it holds the
            same sum of weights, and the split the sum of its size.

    Raises:
        UsageError: If the label has no classes or not those that are named, or a weight is no positive number.
    """
    if label.task != "classification":
        raise UsageError(
            "--class-weights are for classes", why=f"{label.name!r} is predicted as a number", next_step="Leave it out"
        )
    if wanted == BALANCED:
        return _balanced(tuple((counts or {}).get(c, 0) for c in label.classes))
    weights = dict.fromkeys(label.class_names, 1.0)
    for part in next(csv.reader([wanted], skipinitialspace=True), []):
        name, equals, text = part.rpartition("=")
        if not equals:
            raise UsageError(f"--class-weights holds {part!r}", next_step=f"Write {BALANCED}, or pairs such as A=1,B=5")
        if name not in weights:
            near = get_close_matches(name, weights, n=1) or label.class_names[:5]
            raise UsageError(
                f"there is no class {name!r} to give a weight", next_step=f"Classes are such as {', '.join(near)}"
            )
        weights[name] = _positive(name, text)
    return tuple(weights.values())


def complete_counts(statistics: FeatureStatistics | None) -> dict[ClassValue, int] | None:
    """Returns how often each value occurs if the statistics count them all, else None."""
    if statistics is None or statistics.num_distinct is None or not statistics.num_distinct_is_exact:
        return None
    counts = {t.value: t.count for t in statistics.top_values if t.value is not None}
    return counts if len(counts) == statistics.num_distinct else None


def _balanced(counts: tuple[int, ...]) -> tuple[float, ...]:
    total, num_seen = sum(counts), sum(map(bool, counts))
    return tuple(total / (num_seen * n) if n else 1.0 for n in counts)


def _positive(name: str, text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not (0 < weight < math.inf):
        raise UsageError(
            f"the weight of class {name!r} is {text!r}",
            why="a weight is a positive number",
            next_step="Write it like --class-weights A=1,B=5",
        )
    return weight
