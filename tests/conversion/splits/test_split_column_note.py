"""The note on a column that may name the split of each row."""

import pytest

from shardkit.conversion.prepare import prepare
from shardkit.conversion.request import ConvertRequest

ROWS = "x1,1,train\nx2,0,test\n"


def notes_on(tmp_path, name, **options):
    (tmp_path / "a.csv").write_text(f"text,label,{name}\n{ROWS}")
    request = ConvertRequest(inputs=(str(tmp_path / "a.csv"),), destination=str(tmp_path / "out"), **options)
    return [note for note in prepare(request).notes if "--split-column" in note]


@pytest.mark.parametrize("name", ["split", "Usage", "data_split"])
def test_a_column_that_may_name_splits_is_noted(tmp_path, name):
    (note,) = notes_on(tmp_path, name)
    assert note == f"column {name!r} may name the split of each row; --split-column {name} divides the rows by it"


def test_other_names_and_divided_rows_have_no_note(tmp_path):
    assert notes_on(tmp_path, "splitter") == []
    assert notes_on(tmp_path, "split", split_column="split") == []
