"""Classes of values, and where their rows go, as it is found out over all input splits."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.conversion.option_forms import SplitShare
from shardkit.conversion.splits import stratify
from shardkit.conversion.splits.stratify import StrataWriter, StratumPositions, classes_of, mark_strata, merge_classes
from shardkit.errors import StorageError
from shardkit.features import Feature, stored_as
from shardkit.sources.base import RowBatch
from tests.support.examples import draws

KEYS = Feature(name="c", dtype="string", stored_as=stored_as("string"), nullable=True)


def plan_of(folder, fractions, num_splits, seed=0, dedup=None):
    """Returns what of a plan counts here."""
    shares = tuple(SplitShare(name=f"s{i}", fraction=f) for i, f in enumerate(fractions))
    return SimpleNamespace(
        work_dir=str(folder),
        work_path=lambda *parts: folder.joinpath(*parts),
        recipe=SimpleNamespace(seed=seed, stratify="c", splits=shares, dedup=dedup, sample=None),
        row_features=(KEYS,),
        input_splits=tuple(SimpleNamespace(index=i) for i in range(num_splits)),
    )


def batch_of(values, identities):
    batch = pa.record_batch([pa.array(values, pa.string())], names=["c"])
    return RowBatch(batch, np.array(identities, dtype=np.uint64), 0)


def split_assignment(folder, rows, dealt, fractions, *, num_splits, counting=None, seed=0):
    """Returns the split of each row, by its identity, when rows are dealt to input splits as given."""
    plan = plan_of(folder, fractions, num_splits, seed)
    identities = [[i for i, split in enumerate(dealt) if split == s] for s in range(num_splits)]
    for index, own in enumerate(identities):
        writer = StrataWriter(plan, index)
        for first in range(0, len(own), 7):
            part = own[first : first + 7]
            writer.add(batch_of([rows[i] for i in part], part))
        writer.store()
    mark_strata(plan, [len(own) for own in identities], list(range(num_splits)) if counting is None else counting)
    found = {}
    for index, own in enumerate(identities):
        positions = StratumPositions(plan, index)
        taken = [positions.take(min(5, len(own) - first)) for first in range(0, len(own), 5)]
        found.update(zip(own, np.concatenate([np.empty(0, np.int64), *taken]).tolist(), strict=True))
    return [found[i] for i in range(len(rows))]


values = st.lists(st.sampled_from(["a", "b", "c", "d", None]) | st.text(max_size=3), min_size=1, max_size=120)


@given(values, st.randoms(use_true_random=False), st.sampled_from([[0.5, 0.5], [0.7, 0.2, 0.1]]), st.integers(1, 40))
@settings(max_examples=draws(60), deadline=None)
def test_it_does_not_matter_how_rows_are_dealt_to_input_splits(tmp_path_factory, rows, random, fractions, max_rows):
    folder = tmp_path_factory.mktemp("strata")
    together = split_assignment(folder, rows, [0] * len(rows), fractions, num_splits=1)
    dealt = [random.randrange(3) for _ in rows]
    with pytest.MonkeyPatch.context() as patch:
        # So few rows at a time that classes are cut into ranges of keys.
        patch.setattr(stratify, "_MARKED_ROWS", max_rows)
        assert split_assignment(folder, rows, dealt, fractions, num_splits=3) == together
    for value, count in Counter(rows).items():
        own = Counter(p for p, v in zip(together, rows, strict=True) if v == value)
        assert all(abs(own[p] - f * count) < 1 for p, f in enumerate(fractions))
    totals = Counter(together)
    assert all(abs(totals[p] - f * len(rows)) < 1 for p, f in enumerate(fractions))


def test_the_seed_decides_which_rows(tmp_path):
    rows = ["a"] * 300 + ["b"] * 100
    first, second = (split_assignment(tmp_path, rows, [0] * 400, [0.5, 0.5], num_splits=1, seed=s) for s in (1, 2))
    assert first != second
    assert split_assignment(tmp_path, rows, [0] * 400, [0.5, 0.5], num_splits=1, seed=1) == first
    # Of rows that stand next to each other neither all nor every second.
    assert 100 < sum(first[i] == first[i + 1] for i in range(299)) < 200


def test_rows_of_input_splits_that_do_not_count_do_not_matter(tmp_path):
    rows = ["a"] * 200 + ["b"] * 40
    dealt = [i % 2 for i in range(240)]
    found = split_assignment(tmp_path, rows, dealt, [0.9, 0.1], num_splits=2, counting=[1])
    counted = Counter((v, p) for v, p, s in zip(rows, found, dealt, strict=True) if s == 1)
    assert counted == {("a", 0): 90, ("a", 1): 10, ("b", 0): 18, ("b", 1): 2}


def test_no_rows_at_all(tmp_path):
    assert split_assignment(tmp_path, [], [], [0.5, 0.5], num_splits=2) == []


def test_other_rows_than_in_the_first_pass_are_an_error(tmp_path):
    split_assignment(tmp_path, ["a"] * 10, [0] * 10, [0.5, 0.5], num_splits=1)
    plan = plan_of(tmp_path, [0.5, 0.5], 1)
    with pytest.raises(StorageError, match="other rows"):
        StratumPositions(plan, 0).take(11)


@pytest.mark.parametrize(
    ("dtype", "column", "expected"),
    [
        ("string", pa.array(["a", "b", None, "a", "", None]), 4),
        ("bytes", pa.array([b"a", b"", None, b"a"]), 3),
        ("int64", pa.array([1, 2, 1, None]), 3),
        ("bool", pa.array([True, False, None, True]), 3),
        ("float32", pa.array([0.0, -0.0, 1.5, float("nan"), -float("nan"), None], pa.float32()), 4),
        ("float64", pa.array([-0.0, 0.0, float("nan"), None, float("nan"), None], pa.float64()), 3),
        ("float16", pa.array(np.array([0.0, -0.0, 1.5], np.float16)), 2),
        ("date", pa.array([1, 2, 1], pa.date32()), 2),
        ("timestamp[us]", pa.array([1, None, 1], pa.timestamp("us")), 2),
        ("decimal(5,2)", pa.array([None, 1, 1], pa.decimal128(5, 2)), 2),
    ],
)
def test_equal_values_are_one_class_whatever_batch_they_are_in(dtype, column, expected):
    feature = Feature(name="c", dtype=dtype, stored_as=stored_as(dtype), nullable=True)
    batch = pa.record_batch([column], names=["c"])
    whole = classes_of(batch, feature, 3)
    digests = [tuple(d) for d in whole.digests[whole.codes].tolist()]
    assert len(set(digests)) == expected
    alone = [classes_of(batch.slice(i, 1), feature, 3) for i in range(len(column))]
    assert [tuple(c.digests[c.codes][0].tolist()) for c in alone] == digests


def test_lists_are_classes_too():
    feature = Feature(name="c", dtype="int64", stored_as="int64_list", shape=(None,), nullable=True)
    column = pa.array([[1, 2], [2, 1], [1, 2], [], None, [1]], pa.list_(pa.int64()))
    found = classes_of(pa.record_batch([column], names=["c"]), feature, 0)
    merged, (positions,) = merge_classes([found.digests])
    codes = positions[found.codes]
    # A missing list and an empty one are stored alike.
    assert codes[0] == codes[2]
    assert len(set(codes.tolist())) == len(merged) == 4 + (codes[3] != codes[4])
