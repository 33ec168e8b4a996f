"""Types of all rows: the order of the rows and the place of an odd value do not matter, and no digit is lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.csv import heads
from shardkit.sources.csv.source import CsvSource
from tests.support.examples import draws
from tests.support.files.csv_makers import PROPERTY, write

VALUES = st.sampled_from((
    "", "1", "-7", "9007199254740993", "9223372036854775808", "0.5", "1.5e3", "1700000123.25", "nan", "inf", "nil",
    "NA", "007", "+5", "true", "2024-05-06", "2024-05-06 07:08:09", "2024-05-06 07:08:09.123456789", "2024-13-01",
    " 12 ",
))  # fmt: skip


def look(path, **options):
    """Returns the features of the rows of a file, notes on them, and the files and options for reading it."""
    files = list_inputs((str(path),), SourceOptions()).files
    options = SourceOptions(format="csv", has_header=True, **options)
    return CsvSource().infer(files, options), CsvSource().notes(files, options), files, options


@settings(PROPERTY, max_examples=draws(25))
@given(values=st.lists(VALUES, min_size=1, max_size=12), head=st.integers(1, 4), data=st.data())
def test_all_orders_of_the_rows_have_the_same_type_and_every_row_fits(tmp_path, values, head, data):
    mixed = data.draw(st.permutations(values))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heads, "HEAD_ROWS", head)
        heads._examine_head.cache_clear()
        heads.read_evidence.cache_clear()
        dtypes = set()
        for order, name in ((values, "a.csv"), (mixed, "b.csv")):
            text = "".join(f"{number},{value}\n" for number, value in enumerate(order))
            path = write(tmp_path, f"n,x\n{text}", name)
            found, _, files, options = look(path, types_of_all_rows=True)
            dtypes.add(found[1].dtype)
            (split,) = CsvSource().split(files, options)
            batches = list(CsvSource().read(split, files, found, options))
            assert sum(b.batch.num_rows for b in batches) == len(order)
            assert not any(b.rejected or b.num_rounded for b in batches)
        assert len(dtypes) == 1
    heads._examine_head.cache_clear()
    heads.read_evidence.cache_clear()


def rows_with(value, at, num_rows=11_000, usual="5"):
    return "id,x\n" + "".join(f"{n},{value if n == at else usual}\n" for n in range(num_rows))


@pytest.mark.parametrize(
    ("value", "usual", "dtype", "note"),
    [
        ("1700000123.25", "0.5", "float64", "'1700000123.25' in a.csv, line 10502; --cast x=float32 rounds it"),
        ("0.5", "5", "float32", "not int64 as in the first rows, because of '0.5'"),
        ("nil", "5", "string", "--null-value nil takes it for null, and --cast x=int64 makes it a bad row"),
        ("12:30", "2024-05-06", "string", "not date as in the first rows, because of '12:30' in a.csv, line 10502"),
        ("2024-05-06 07:08", "2024-05-06", "timestamp[us]", "--cast x=date makes it a bad row"),
        ("9223372036854775808", "5", "string", "not int64"),
    ],
)
def test_a_late_value_widens_the_type_and_a_note_names_it(tmp_path, value, usual, dtype, note):
    path = write(tmp_path, rows_with(value, 10_500, usual=usual))
    assert look(path)[0][1].dtype != dtype
    found, notes, *_ = look(path, types_of_all_rows=True)
    assert found[1].dtype == dtype
    assert any(note in text for text in notes)


def test_a_column_that_is_empty_in_the_first_rows_has_the_type_of_the_others(tmp_path):
    path = write(tmp_path, rows_with("7", 10_500, usual=""))
    assert look(path)[0][1].dtype == "int64"


def test_a_line_is_counted_behind_quoted_line_ends(tmp_path):
    text = 'id,t,x\n1,"a\nb\nc",5\n' + "".join(f"{n},d,5\n" for n in range(10_500)) + "9,d,nil\n"
    notes = look(write(tmp_path, text), types_of_all_rows=True)[1]
    assert any("'nil' in a.csv, line 10505" in note for note in notes)


def test_an_integer_that_float64_does_not_hold_is_counted_as_rounded_and_makes_text(tmp_path):
    path = write(tmp_path, rows_with("9007199254740993", 10_500, usual="0.5"))
    found, _, files, options = look(path)
    (split,) = CsvSource().split(files, options)
    assert sum(b.num_rounded.get("x", 0) for b in CsvSource().read(split, files, found, options)) == 1
    found, notes, *_ = look(path, types_of_all_rows=True)
    assert found[1].dtype == "string"
    assert any("--cast x=float32 rounds it" in note for note in notes)


def test_a_file_that_changes_the_type_of_a_column_is_named(tmp_path):
    write(tmp_path, "x,y\n1,0.5\n2,\n", "a.csv")
    write(tmp_path, "x,y\n3,1.5\n0.1234567,2\n", "b.csv")
    files = list_inputs((str(tmp_path),), SourceOptions()).files
    notes = CsvSource().notes(files, SourceOptions(format="csv", has_header=True))
    type_notes = [note for note in notes if "as in the first rows" in note]
    assert len(type_notes) == 1
    assert "column 'x' is float64, and not int64 as in the first rows, because of '0.1234567' in b.csv" in type_notes[0]
