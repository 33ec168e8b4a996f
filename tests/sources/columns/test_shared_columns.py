"""A file that shares no column with the others is refused: its rows would be nulls in all of theirs."""

import pytest

from shardkit.errors import UsageError
from shardkit.sources.columns.union_notes import check_shared


@pytest.mark.parametrize(
    "columns",
    [[("a", "b")], [("a", "b"), ("b", "c")], [("a", "b"), ("b", "c"), ("c", "d")], [("a",), ()], [(), ()]],
)
def test_files_that_share_columns_go_together(columns):
    check_shared([(f"{i}.csv", names) for i, names in enumerate(columns)])


@pytest.mark.parametrize(
    ("columns", "alone"),
    [([("a", "b"), ("c",)], "1.csv"), ([("a",), ("b",), ("a",)], "1.csv"), ([("z",), ("a", "b"), ("b",)], "0.csv")],
)
def test_the_one_that_shares_none_is_named(columns, alone):
    with pytest.raises(UsageError) as caught:
        check_shared([(f"{i}.csv", names) for i, names in enumerate(columns)])
    assert str(caught.value).startswith(f"{alone} shares no column with the other files")
    assert f"--exclude {alone}" in str(caught.value)


def test_groups_that_share_none_are_refused():
    files = [("X_train", ("a", "b")), ("y_train", ("y",)), ("X_test", ("a", "b")), ("y_test", ("y",))]
    with pytest.raises(UsageError, match=r"^y_train, y_test share no column with the other files: they have 'y'"):
        check_shared(files)
