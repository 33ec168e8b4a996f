"""Tables whose columns stand between blanks or at fixed places: refused with a command that reads them."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from shardkit.errors import UsageError
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.csv.source import CsvSource
from shardkit.sources.registry import choose
from shardkit.sources.text.table_signs import has_fixed_widths, has_token_lines
from tests.support.commands import run_as_typed

NAMES = ("Alice", "Bob Jones", "Cy")
FIXED = "".join(f"{i:<6}{NAMES[i % 3]:<12}{i * 17.25:>9.2f}\n" for i in range(40))
ALIGNED = "".join(
    f'{i / 4 + 9:.1f}   {i % 8}   {i * 7:.1f}      {"?" if i == 9 else i}  70\t"ford torino {i}"\n' for i in range(40)
)
OF_R = '"a" "b"\n' + "".join(f'"{i}" {i} "x y{i}"\n' for i in range(20))
LOG = "".join(f"Nov  {i} 12:00:0{i} host sshd[{i}]: session opened for user {i * '*'}\n" for i in range(1, 10)) * 2
PROSE = "".join(f"It was the best of times number {i},  and {'so ' * (i % 5)}on it went.\n" for i in range(40))


def refusal(folder):
    files = list_inputs([str(folder)]).files
    with pytest.raises(UsageError) as caught:
        choose(files, SourceOptions()).source.settle(files, SourceOptions())
    return caught.value.next_step


@pytest.mark.full
@pytest.mark.parametrize("text", [FIXED, "ID    NAME            VALUE\n" + FIXED, ALIGNED])
def test_the_command_writes_the_columns(tmp_path, text):
    (tmp_path / "a.data").write_text(text)
    command = re.search("run  (.*)  and convert", refusal(tmp_path))[1]
    run_as_typed(command, tmp_path)
    made = pd.read_csv(tmp_path / "table.csv", header=None, dtype=str, keep_default_na=False)
    assert len(made) == text.count("\n")
    assert made.iloc[-1].tolist() == (["39", "Alice", "672.75"] if text is not ALIGNED else
                                      ["18.8", "7", "273.0", "39", "70", "ford torino 39"])  # fmt: skip


def test_two_rows_show_blanks_before_a_tab_without_a_header_too(tmp_path):
    (tmp_path / "a.data").write_text("".join(ALIGNED.splitlines(True)[:3]))
    files = list_inputs([str(tmp_path)]).files
    with pytest.raises(UsageError, match="blanks between its columns"):
        CsvSource().settle(files, SourceOptions(no_header=True))


def test_a_table_of_r_is_read_as_advised(tmp_path):
    (tmp_path / "a.txt").write_text(OF_R)
    assert "--delimiter ' ' --skip-lines 1 --columns row,a,b" in refusal(tmp_path)
    settings = SourceOptions(delimiter=" ", columns=("row", "a", "b"), skip_lines=1)
    assert [f.name for f in CsvSource().infer(list_inputs([str(tmp_path)]).files, settings)] == ["row", "a", "b"]


@pytest.mark.parametrize("text", [LOG, PROSE])
def test_logs_and_prose_have_no_fixed_widths(text):
    assert not has_fixed_widths(text.encode())


def test_lists_of_numbers_in_a_field_are_a_table(tmp_path):
    lists = "".join(f"{i}\t{' '.join(map(str, np.arange(5) + i))}\n" for i in range(40))
    (tmp_path / "a.tsv").write_text(lists)
    files = list_inputs([str(tmp_path)]).files
    assert CsvSource().settle(files, SourceOptions()).columns == ("column_1", "column_2")


WORDS = "EU NNP B-ORG\nrejects VBZ O\n\n"


def test_words_of_sentences_are_refused(tmp_path):
    (tmp_path / "a.tsv").write_text(WORDS.replace(" ", "\t") * 4)
    assert "Add --text-record paragraph to make each sentence a row, or --format csv" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("text", "are_words"),
    [
        (f"# text = A b\n{WORDS}" * 3, True),
        (WORDS * 2, False),
        ("a b\n\nc d\n\ne f\n\n" * 3, False),
        ("one line\nof prose here\n\n" * 3, False),
        ("alone\nword\n\n" * 3, False),
        ("09:00\t21.5\n10:00\t22.0\n\n" * 3, False),
        ("".join(f"word{i}\tWort{i}\n{'' if i % 2 else chr(10)}" for i in range(9)), False),
        ("", False),
    ],
)
def test_which_lines_are_words(text, are_words):
    assert has_token_lines(text.encode()) is are_words
