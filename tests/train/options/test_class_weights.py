"""Weights of classes: balanced by their examples, or as typed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.dataset.manifest import FeatureStatistics, TopValue
from shardkit.errors import UsageError
from shardkit.features import make_feature
from train.options.config import LabelSpec
from train.options.labels import choose_class_weights, classification_label, complete_counts, note_on_unseen


def label(*names: str) -> LabelSpec:
    return LabelSpec(name="y", task="classification", classes=names, class_names=names)


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=20).filter(any))
def test_balanced_classes_weigh_the_same_together_and_the_split_its_size(counts: list[int]) -> None:
    names = [f"c{i}" for i in range(len(counts))]
    weights = choose_class_weights("balanced", label(*names), dict(zip(names, counts, strict=True)))
    together = [w * n for w, n in zip(weights, counts, strict=True) if n]
    assert sum(together) == pytest.approx(sum(counts))
    assert together == pytest.approx([together[0]] * len(together))
    assert all(w > 0 for w in weights)


def test_weights_are_given_by_the_names_of_classes() -> None:
    assert choose_class_weights("b=5", label("a", "b")) == (1.0, 5.0)
    assert choose_class_weights("<=50K=0.5, >50K=2", label("<=50K", ">50K")) == (0.5, 2.0)
    assert choose_class_weights('"x, y=3",z=2', label("x, y", "z")) == (3.0, 2.0)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("balance", "holds 'balance'"),
        ("cta=2", "no class 'cta'.*such as cat"),
        ("cat=0", "weight of class 'cat' is '0'"),
        ("cat=-1", "positive number"),
        ("cat=nan", "positive number"),
        ("cat=inf", "positive number"),
        ("cat=much", "positive number"),
    ],
)
def test_weights_that_say_nothing_are_explained(wanted: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        choose_class_weights(wanted, label("cat", "dog"))


def test_a_number_has_no_class_weights() -> None:
    with pytest.raises(UsageError, match="are for classes"):
        choose_class_weights("balanced", LabelSpec(name="y", task="regression"))


def test_counts_are_known_only_if_all_of_them_are() -> None:
    top = (TopValue(value="a", count=3), TopValue(value="b", count=1))
    own = FeatureStatistics(count=4, num_nulls=0, num_values=4, num_distinct=2, top_values=top)
    assert complete_counts(own) == {"a": 3, "b": 1}
    more = FeatureStatistics(count=5, num_nulls=0, num_values=5, num_distinct=3, top_values=top)
    assert complete_counts(more) is None
    assert complete_counts(None) is None


def test_a_class_that_is_never_seen_is_named() -> None:
    city = make_feature("city", "string")
    spec = classification_label(city, {"a", "b", "c"}, {}, seen={"a", "c"})
    assert spec.unseen == ("b",)
    assert "class 'b' is never seen in the train split" in (note_on_unseen(spec) or "")
    named = make_feature("digit", "int64", vocabulary=("zero", "one", "two"))
    assert classification_label(named, (), {}, seen={1}).unseen == ("zero", "two")
    assert "2 classes are never seen" in (note_on_unseen(classification_label(named, (), {}, seen={1})) or "")
    assert note_on_unseen(classification_label(city, {"a", "b"}, {}, seen={"a", "b"})) is None
