"""How much the examples of each class count in the loss. Pure."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from difflib import get_close_matches

from shardkit.dataset.manifest import FeatureStatistics
from shardkit.errors import UsageError
from train.options.config import ClassValue, LabelSpec

BALANCED = "balanced"


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
