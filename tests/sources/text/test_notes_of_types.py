"""Notes on columns whose values are numbers as people write them; the SQL that they give makes these numbers."""

import re

import pyarrow as pa
import pytest

from shardkit.cli import main
from shardkit.dataset.open import open_dataset
from shardkit.errors import DifferentSchemasError
from shardkit.messages import shown
from shardkit.sources.text.column_notes import (
    blank_note,
    check_points,
    column_notes,
    number_style_note,
    point_notes,
)
from shardkit.sources.text.type_inference import examine
from tests.support.in_process import read_rows

CASES = {
    "groups": (["1,000", "2", "-3,000.5", None], [1000.0, 2.0, -3000.5]),
    "decimal commas": (["1,5", "2", "-3,25"], [1.5, 2.0, -3.25]),
    "dollars": (["$1.50", "$1,000"], [1.5, 1000.0]),
    "euros": (["€ 7", "8 %"], [7.0, 8.0]),
    "blanks between thousands": (["1 200,50", "7", "12\u00a0000"], [1200.5, 7.0, 12000.0]),
    "apostrophes": (["1'200.50", "7"], [1200.5, 7.0]),
    "euros behind": (["200,50 €", "1.200,00 €"], [200.5, 1200.0]),
    "percents with commas": (["0,5 %", "12 %"], [0.5, 12.0]),
    "percents": (["12%", "3.5%"], [12.0, 3.5]),
}


@pytest.mark.parametrize("texts", [texts for texts, _ in CASES.values()], ids=CASES)
def test_a_note_names_the_column_and_an_example(texts):
    note = number_style_note("amount", pa.array(texts))
    assert note.startswith(f"column 'amount' is text because its values are written like {shown(texts[0])}; --select ")


@pytest.mark.parametrize(
    "texts",
    [
        ["007", "12"],
        ["1,2,3", "4,5"],
        ["a", "1,000"],
        ["12:30"],
        ["2024-01-02"],
        [None],
        [],
        ["+49 30 1"],
        ["030 123 456"],
        ["12 34"],
    ],
)
def test_other_texts_have_none(texts):
    assert number_style_note("amount", pa.array(texts, pa.string())) is None


@pytest.mark.parametrize(
    ("texts", "is_noted"),
    [(["1.1", "1.9", "1.10"], True), (["1.5", "2.50", "2.5"], True), (["1.10", "1.20"], False), (["1.0", "1"], False)],
)
def test_texts_of_one_number_are_noted(texts, is_noted):
    notes = column_notes({"release": pa.array(texts)}, {"release": examine(pa.array(texts), [])}, [])
    assert ["--cast release=string" in note for note in notes] == [True] * is_noted


def test_a_name_that_needs_quotes_gets_no_command():
    assert "; a --select that casts them makes numbers of them" in number_style_note("my sum", pa.array(["1,000"]))


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_the_option_that_a_note_gives_makes_numbers(tmp_path, capsys, case):
    texts, numbers = CASES[case]
    texts = [text for text in texts if text is not None]
    (tmp_path / "a.csv").write_text("id,amount\n" + "".join(f'{i},"{text}"\n' for i, text in enumerate(texts)))
    arguments = ["convert", str(tmp_path / "a.csv"), str(tmp_path / "out"), "--workers", "1", "--no-shuffle"]
    assert main([*arguments, "--dry-run"]) == 0
    printed = " ".join("".join(capsys.readouterr()).split())
    sql = re.search(r'--select "(.*?)" makes numbers', printed).group(1).replace(r"\$", "$")
    assert main([*arguments, "--select", sql]) == 0
    assert [row["amount"] for row in read_rows(open_dataset(str(tmp_path / "out")), "train")] == numbers


def test_values_behind_a_blank_get_a_note_that_takes_it_off():
    texts = {"a": pa.array([" x", " y", None]), "b": pa.array([" x", "y"]), "c": pa.array([" z", " z"])}
    note = blank_note(texts)
    assert note is not None
    assert "'a', 'c' begin with a blank" in note
    assert '--select "SELECT * REPLACE (trim(a) AS a, trim(c) AS c) FROM rows"' in note
    assert blank_note({"b": texts["b"]}) is None


@pytest.mark.parametrize(
    ("texts", "is_refused"),
    [
        (["1.234", "7"], True),
        (["-1.234.567", "12.000"], True),
        (["1.234", "1234"], False),
        (["0.123", "1.234"], False),
        (["1.5", "2.345"], False),
        (["7", "800"], False),
    ],
)
def test_points_that_may_stand_between_thousands_are_refused_beside_decimal_commas(texts, is_refused):
    columns = {"price": pa.array(["1,5", "2"]), "sold": pa.array(texts)}
    check_points(columns, ["sold"], "a.csv")
    if not is_refused:
        check_points(columns, [], "a.csv")
        return
    with pytest.raises(DifferentSchemasError) as caught:
        check_points(columns, [], "a.csv")
    assert caught.value.columns == ("sold",)
    assert len(list(point_notes(columns))) == 1
