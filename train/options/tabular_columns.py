"""Which columns a tabular model takes, and their forms, from the statistics of the train split. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import msgspec

from shardkit.dataset.manifest import FeatureStatistics
from shardkit.features import Feature, Features

MAX_VOCABULARY = 10_000
MAX_INTEGER_CATEGORIES = 100
MIN_EXAMPLES_PER_CATEGORY = 20
MAX_ARRAY_VALUES = 4_096
MAX_UNREPEATED = 20  # Distinct strings that are looked up even if they hardly repeat.
MAX_DEVIATIONS = 8.0

NUM_SPECIAL = 2  # Index 0 of a category column is an absent value, 1 one that is not in the vocabulary.

_LISTED = 5

Value = str | int | bool
Vocabularies = Mapping[str, Sequence[Value]]


class NumericColumn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A column that enters as (value - mean) / std, at most `MAX_DEVIATIONS` away from 0.

    Attributes:
        width: Values an example.
        can_be_absent: Whether a further 0 or 1 says that the value is absent (it enters as the mean).
    """

    name: str
    mean: float
    std: float
    width: Annotated[int, msgspec.Meta(ge=1, le=MAX_ARRAY_VALUES)] = 1
    can_be_absent: bool = False


class CategoryColumn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A column that enters as an index: 0 absent, 1 unknown, then the vocabulary."""

    name: str
    vocabulary: tuple[Value, ...]

    @property
    def num_indices(self) -> int:
        """Size of the vocabulary with the two special indices."""
        return NUM_SPECIAL + len(self.vocabulary)


class TabularColumns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a tabular model takes in, and why it leaves features out."""

    numeric: tuple[NumericColumn, ...] = ()
    categories: tuple[CategoryColumn, ...] = ()
    left_out: dict[str, str] = {}

    @property
    def num_numeric(self) -> int:
        """Width of the numeric input."""
        return sum(c.width + c.can_be_absent for c in self.numeric)

    @property
    def names(self) -> tuple[str, ...]:
        """Features that are read, each once."""
        return tuple(dict.fromkeys([c.name for c in self.numeric] + [c.name for c in self.categories]))

    def left_out_by_reason(self) -> Iterator[tuple[str, str]]:
        """Yields each reason once, behind a list of its features that is cut if long."""
        for reason in dict.fromkeys(self.left_out.values()):
            names = [repr(name) for name, own in self.left_out.items() if own == reason]
            more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
            yield ", ".join(names[:_LISTED]) + more, reason


def choose_columns(
    features: Features, statistics: Mapping[str, FeatureStatistics], vocabularies: Vocabularies
) -> TabularColumns:
    """Returns the columns for a tabular model.

    Args:
        features: Candidates.
        statistics: Of the train split, by feature name.
        vocabularies: Values of the features that `wants_vocabulary` picks, most frequent first.
    """
    numeric: list[NumericColumn] = []
    categories: list[CategoryColumn] = []
    left_out: dict[str, str] = {}
    for feature in features:
        own = statistics.get(feature.name)
        if reason := reason_to_leave_out(feature, own):
            left_out[feature.name] = reason
            continue
        if feature.vocabulary is not None:
            vocabulary: tuple[Value, ...] = tuple(range(len(feature.vocabulary)))
            categories.append(CategoryColumn(name=feature.name, vocabulary=vocabulary))
        elif feature.name in vocabularies:
            vocabulary = tuple(vocabularies[feature.name][:MAX_VOCABULARY])
            categories.append(CategoryColumn(name=feature.name, vocabulary=vocabulary))
        if feature.dtype != "string" and feature.vocabulary is None and own is not None:
            numeric.append(_numeric_column(feature, own))
    return TabularColumns(numeric=tuple(numeric), categories=tuple(categories), left_out=left_out)


def wants_vocabulary(feature: Feature, statistics: FeatureStatistics | None) -> bool:
    """Whether a tabular model looks the values of a feature up: strings, and integers with few values.

    Such integers enter as numbers too. With fewer than `MIN_EXAMPLES_PER_CATEGORY` examples a value, a model would
    learn single examples by heart.
    """
    if statistics is None or reason_to_leave_out(feature, statistics) or feature.vocabulary is not None:
        return False
    if not feature.is_scalar or statistics.num_distinct is None:
        return False
    if feature.dtype == "string":
        return True
    is_integer = feature.dtype.startswith(("int", "uint"))
    most = min(MAX_INTEGER_CATEGORIES, statistics.count // MIN_EXAMPLES_PER_CATEGORY)
    return is_integer and statistics.num_distinct_is_exact and statistics.num_distinct <= most


def reason_to_leave_out(feature: Feature, statistics: FeatureStatistics | None) -> str | None:
    """Returns why a tabular model cannot take a feature, None if it can."""
    if statistics is None:
        return "no statistics"
    if not statistics.num_values:
        return "no value"
    if feature.num_values is None:
        return "a list of any length"
    if feature.dtype == "bytes":
        return "bytes"
    if feature.is_json:
        return "json"
    if feature.dtype == "string":
        if not feature.is_scalar:
            return "an array of strings"
        if statistics.num_distinct is None or statistics.num_distinct > MAX_VOCABULARY:
            return "more distinct values than a vocabulary holds"
        if not statistics.num_distinct_is_exact:
            return "too many distinct values to count exactly"
        is_mostly_new = statistics.num_distinct > MAX_UNREPEATED and statistics.num_distinct * 2 > statistics.num_values
        return "most of its values occur once" if is_mostly_new else None
    if feature.num_values > MAX_ARRAY_VALUES:
        return f"an array of more than {MAX_ARRAY_VALUES:,} values"
    return "no finite number" if statistics.mean is None else None


def _numeric_column(feature: Feature, statistics: FeatureStatistics) -> NumericColumn:
    return NumericColumn(
        name=feature.name,
        mean=float(statistics.mean or 0.0),
        std=float(statistics.std or 1.0),
        width=feature.num_values or 1,
        can_be_absent=feature.nullable or statistics.num_nans > 0,
    )
