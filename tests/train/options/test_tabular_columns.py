"""Which columns a table can take, from their types and statistics."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from shardkit.features import arrow_schema, make_feature
from shardkit.statistics.collector import StatisticsCollector
from tests.support.training.manifests import AGE, CITY, PHOTO, PRICE, statistics
from train.options.labels import (
    listed_values,
)
from train.options.tabular_columns import choose_columns, wants_vocabulary


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


def test_a_reason_is_said_once_for_all_columns_of_it() -> None:
    features = tuple(msgspec.structs.replace(AGE, name=f"x{i}") for i in range(20_000))
    columns = choose_columns((*features, CITY), {"city": statistics(60, num_values=100)}, {})
    assert list(columns.left_out_by_reason()) == [
        ("'x0', 'x1', 'x2', 'x3', 'x4' and 19,995 more", "no statistics"),
        ("'city'", "most of its values occur once"),
    ]
