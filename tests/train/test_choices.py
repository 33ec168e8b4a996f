"""What is decided from names, dtypes and statistics alone."""

from __future__ import annotations

import hashlib

import msgspec
import pyarrow as pa
import pytest

from shardkit.dataset.documents import Accounting
from shardkit.dataset.manifest import Created, FeatureStatistics, Manifest, ShardTableInfo, SplitInfo, TopValue
from shardkit.errors import UsageError
from shardkit.features import Feature, arrow_schema, make_feature
from shardkit.statistics.collector import StatisticsCollector
from train.options.choices import choose_features, choose_splits
from train.options.labels import (
    choose_task,
    classification_label,
    listed_values,
    note_on_classes,
    notes_on_unlabelled,
    regression_label,
)
from train.options.tabular_columns import choose_columns, wants_vocabulary
from train.runs.dataset_check import choose_split

AGE = make_feature("age", "int64")
CITY = make_feature("city", "string", nullable=True)
PRICE = make_feature("price", "float64")
PHOTO = make_feature("photo", "bytes", media_type="image/jpeg")


def statistics(
    num_distinct: int | None = None, *, exact: bool = True, listed: int = 0, **settings: object
) -> FeatureStatistics:
    top = tuple(TopValue(value=f"v{i}", count=10 - i) for i in range(listed))
    known = {"count": 100, "num_nulls": 0, "num_values": 100, **settings}
    return FeatureStatistics(num_distinct=num_distinct, num_distinct_is_exact=exact, top_values=top, **known)  # type: ignore[arg-type]


def manifest(splits: dict[str, int], features: tuple[Feature, ...] = (AGE, CITY, PRICE)) -> Manifest:
    infos = tuple(
        SplitInfo(name=n, num_shards=1, num_examples=size, num_bytes=1, num_uncompressed_bytes=1)
        for n, size in splits.items()
    )
    return Manifest(
        format_version=1, name="d", fingerprint="f", compression="gzip", features=features, splits=infos, recipe={},
        created=Created(at="", commit_id="", inputs=(), tool_versions={}),
        accounting=Accounting(num_rows=0, num_examples=0),
        shard_table=ShardTableInfo(path="t", num_rows=0, sha256=hashlib.sha256().hexdigest()),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("splits", "expected"),
    [
        ({"train": 9, "test": 1}, ("train", "test")),
        ({"train": 9, "test": 1, "validation": 1}, ("train", "validation")),
        ({"train": 9, "test": 0, "val": 1}, ("train", "val")),
        ({"train": 9, "test": 1, "val": 1}, ("train", "val")),
        ({"train": 9, "holdout": 1}, ("train", None)),
        ({"everything": 9}, ("everything", None)),
        ({"test": 9}, ("test", None)),
    ],
)
def test_splits_are_found_by_name(splits: dict[str, int], expected: tuple[str, str | None]) -> None:
    found = choose_splits(manifest(splits), None, None)
    assert (found.train, found.validation) == expected


@pytest.mark.parametrize(
    ("splits", "validated", "expected"),
    [
        ({"train": 9, "test": 1, "val": 1}, "val", "test"),
        ({"train": 9, "test": 0, "val": 1}, "val", "val"),
        ({"train": 9, "holdout": 1}, "holdout", "holdout"),
        ({"train": 9, "dev": 1}, None, "dev"),
    ],
)
def test_a_trained_model_is_tested_on_what_it_was_not_chosen_by(
    splits: dict[str, int], validated: str | None, expected: str
) -> None:
    assert choose_split(manifest(splits), None, validated) == expected


def test_splits_that_are_not_there_are_named() -> None:
    with pytest.raises(UsageError, match="--train-split: a, b"):
        choose_splits(manifest({"a": 1, "b": 1}), None, None)
    with pytest.raises(UsageError, match="It has: train, test"):
        choose_splits(manifest({"train": 1, "test": 1}), None, "tset")
    with pytest.raises(UsageError, match="holds no examples"):
        choose_splits(manifest({"train": 1, "test": 0}), None, "test")


def test_a_dataset_without_examples_is_not_asked_for_another_split() -> None:
    for splits in ({}, {"train": 0, "test": 0}):
        with pytest.raises(UsageError, match="the dataset holds no examples"):
            choose_splits(manifest(splits), None, None)
        for wanted in (None, "train"):
            with pytest.raises(UsageError, match="the dataset holds no examples"):
                choose_split(manifest(splits), wanted, None)


def test_the_label_is_never_learned_from() -> None:
    data = manifest({"train": 1})
    assert [f.name for f in choose_features(data, "price", None, ())] == ["age", "city"]
    assert [f.name for f in choose_features(data, "price", ("city",), ())] == ["city"]
    assert [f.name for f in choose_features(data, "price", None, ("city",))] == ["age"]
    with pytest.raises(UsageError, match="among --features"):
        choose_features(data, "price", ("price", "age"), ())
    with pytest.raises(UsageError, match="no feature 'cty'"):
        choose_features(data, "price", ("cty",), ())
    with pytest.raises(UsageError, match="both"):
        choose_features(data, "price", ("age",), ("age",))
    with pytest.raises(UsageError, match="no feature left"):
        choose_features(data, "price", None, ("age", "city"))


@pytest.mark.parametrize(
    ("feature", "own", "expected"),
    [
        (CITY, statistics(2), "classification"),
        (make_feature("b", "bool"), statistics(2), "classification"),
        (AGE, statistics(100), "classification"),
        (AGE, statistics(101), "regression"),
        (AGE, statistics(50, exact=False), "regression"),
        (make_feature("digit", "int64", vocabulary=("a", "b")), statistics(101), "classification"),
        (PRICE, statistics(), "regression"),
        (make_feature("when", "timestamp[us]"), statistics(), "regression"),
        (make_feature("cost", "decimal(9,2)"), statistics(), "regression"),
    ],
)
def test_the_task_follows_from_the_label(feature: Feature, own: FeatureStatistics, expected: str) -> None:
    assert choose_task(feature, own, "auto") == expected


def test_a_task_that_does_not_fit_the_label_is_refused() -> None:
    with pytest.raises(UsageError, match="it is no number"):
        choose_task(CITY, statistics(2), "regression")
    with pytest.raises(UsageError, match="classes are strings"):
        choose_task(PRICE, statistics(), "classification")
    with pytest.raises(UsageError, match="one string, number or truth value"):
        choose_task(make_feature("words", "string", (None,)), statistics(), "auto")
    assert choose_task(AGE, statistics(5), "regression") == "regression"


def test_classes_stand_in_order_whatever_their_frequency() -> None:
    label = classification_label(CITY, ("b", "a", "b", "c"), {"train": statistics(3, num_nulls=4)})
    assert label.classes == ("a", "b", "c")
    assert label.num_outputs == 3
    assert label.num_unlabelled == {"train": 4}
    with pytest.raises(UsageError, match="1 distinct"):
        classification_label(CITY, ("a",), {})
    with pytest.raises(UsageError, match="at most 10,000"):
        classification_label(AGE, tuple(range(10_001)), {})


def test_numbers_stored_as_text_are_pointed_out() -> None:
    delays = [str(i) for i in range(30)]
    suspicious = classification_label(CITY, (*delays, "NA"), {})
    assert "--null-value NA" in (note_on_classes(suspicious) or "")
    assert note_on_classes(classification_label(CITY, delays[:5], {})) is None
    assert note_on_classes(classification_label(CITY, [f"n{i}" for i in range(30)], {})) is None


def test_named_classes_keep_their_indices() -> None:
    label = classification_label(make_feature("digit", "int64", vocabulary=("zero", "one")), (), {})
    assert label.classes == (0, 1)
    assert label.class_names == ("zero", "one")


def test_a_regression_counts_what_is_no_number_as_unlabelled() -> None:
    label = regression_label(
        PRICE, "train", {"train": statistics(mean=3.0, std=0.0, num_nans=2, num_infs=1, num_nulls=4)}
    )
    assert (label.mean, label.std) == (3.0, 1.0)
    assert label.num_unlabelled == {"train": 7}
    assert notes_on_unlabelled(label) == [
        "7 examples of train have no label that is a finite number; they have weight 0"
    ]
    one = msgspec.structs.replace(label, num_unlabelled={"train": 1, "test": 0})
    assert notes_on_unlabelled(one) == ["1 example of train has no label that is a finite number; it has weight 0"]
    with pytest.raises(UsageError, match="no finite value"):
        regression_label(PRICE, "train", {"train": statistics()})


def test_values_are_listed_only_if_all_of_them_are() -> None:
    assert listed_values(statistics(2, listed=2)) == ("v0", "v1")
    assert listed_values(statistics(30, listed=20)) is None
    assert listed_values(statistics(2, listed=2, exact=False)) is None
    assert listed_values(None) is None


def test_a_vocabulary_in_the_manifest_lists_all_values_of_a_column() -> None:
    words = pa.array([f"w{n % 300:03}" for n in range(4_000)])
    collector = StatisticsCollector((CITY,))
    collector.update(pa.record_batch([words], schema=arrow_schema((CITY,))))
    own = collector.finish()["city"]
    values = listed_values(own)
    # Most frequent first, ties by value: the first 100 occur once more than the others.
    assert values == tuple(f"w{n:03}" for n in range(300))
    assert wants_vocabulary(CITY, own)
    columns = choose_columns((CITY,), {"city": own}, {"city": values})
    assert columns.categories[0].num_indices == 302


def test_strings_of_which_most_occur_once_are_left_out() -> None:
    own = {"city": statistics(60, num_values=100)}
    assert not wants_vocabulary(CITY, own["city"])
    assert choose_columns((CITY,), own, {}).left_out == {"city": "most of its values occur once"}
    assert wants_vocabulary(CITY, statistics(50, num_values=100))


def test_columns_that_a_table_cannot_take_are_named_with_the_reason() -> None:
    features = (
        AGE,
        CITY,
        PRICE,
        PHOTO,
        make_feature("essay", "string"),
        make_feature("tags", "string", (None,)),
        make_feature("vector", "float32", (3,)),
        make_feature("empty", "float32", nullable=True),
    )
    own = {
        "age": statistics(5, mean=40.0, std=10.0),
        "city": statistics(3),
        "price": statistics(mean=1.0, std=2.0),
        "photo": statistics(),
        "essay": statistics(20_000, exact=False),
        "tags": statistics(3),
        "vector": statistics(mean=0.0, std=1.0),
        "empty": statistics(num_values=0),
    }
    assert [f.name for f in features if wants_vocabulary(f, own[f.name])] == ["age", "city"]
    columns = choose_columns(features, own, {"age": (40, 41), "city": ("a", "b", "c")})
    assert [c.name for c in columns.numeric] == ["age", "price", "vector"]
    assert [c.name for c in columns.categories] == ["age", "city"]
    assert columns.num_numeric == 5
    assert set(columns.left_out) == {"photo", "essay", "tags", "empty"}
    assert columns.names == ("age", "price", "vector", "city")
