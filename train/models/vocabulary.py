"""Values of features whose statistics do not list them all, counted in one pass over the label and those columns.

The pass reads shards in their stored order and stops after a fixed number of examples, so it finds the same values
every time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from shardkit.adapters.tfdata import load_split
from shardkit.dataset.open import Dataset
from shardkit.features import Features
from train.options.tabular_columns import MAX_VOCABULARY, Value

NUM_SCANNED_EXAMPLES = 1_000_000
_BATCH_SIZE = 4_096


def scan_values(dataset: Dataset, split: str, features: Features) -> Mapping[str, Sequence[Value]]:
    """Returns the values of features in the first examples by name, most frequent first, ties by value."""
    counters = count_values(dataset, split, features, NUM_SCANNED_EXAMPLES)
    return {name: _ordered(counter) for name, counter in counters.items()}


def count_values(
    dataset: Dataset, split: str, features: Features, num_examples: int | None = None
) -> dict[str, Counter[Value]]:
    """Returns how often each value occurs, by name of the feature; absent values are not counted.

    Args:
        features: Strings, integers or truth values, one value an example.
        num_examples: How many examples to look at; None means all.
    """
    if not features:
        return {}
    batches = load_split(dataset, split, batch_size=_BATCH_SIZE, features=features, with_presence=True)
    if num_examples is not None:
        batches = batches.take(-(-num_examples // _BATCH_SIZE))
    counters: dict[str, Counter[Any]] = {f.name: Counter() for f in features}
    for values, present in batches.as_numpy_iterator():
        for name, counter in counters.items():
            column = values[name][present[name]] if name in present else values[name]
            counter.update(column.tolist())
    return {name: Counter({_as_text(v): n for v, n in counter.items()}) for name, counter in counters.items()}


def _ordered(counter: Counter[Value]) -> tuple[Value, ...]:
    order = sorted(counter.items(), key=lambda item: (-item[1], item[0]))
    return tuple(value for value, _ in order[: MAX_VOCABULARY + 1])


def _as_text(value: Any) -> Value:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
