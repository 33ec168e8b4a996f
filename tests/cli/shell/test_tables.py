"""Tables on a terminal: nothing is cut, and no line is longer than the terminal is wide."""

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from shardkit.cli.shell.tables import print_columns

WORDS = st.text("abcäß", min_size=1, max_size=25)


def printed(headings, rows, width, *, is_terminal=True, **options):
    console = Console(file=io.StringIO(), width=width, force_terminal=is_terminal, color_system=None)
    print_columns(console, headings, rows, **options)
    return console.file.getvalue()


@given(st.data(), st.integers(60, 120), st.booleans())
def test_a_table_fits_and_is_whole(data, width, last_is_left):
    num_columns = data.draw(st.integers(1, 12))
    headings = [f"h{i}" for i in range(num_columns)]
    rows = data.draw(st.lists(st.lists(WORDS, min_size=num_columns, max_size=num_columns), min_size=1, max_size=4))
    if last_is_left:
        rows = [[*row[:-1], " ".join([row[-1]] * 9)] for row in rows]
    text = printed(headings, rows, width, last_is_left=last_is_left)
    assert max(map(len, text.splitlines())) <= width
    words = text.split()
    for row in [headings, *rows]:
        for cell in row[1:]:
            assert all(words.count(word) >= sum(word in r for r in rows) for word in cell.split())
    # Each block begins with the first column.
    blocks = [block.splitlines() for block in text.strip("\n").split("\n\n")]
    assert all(block[0].split()[0] == "h0" for block in blocks)


def test_what_does_not_fit_follows_below():
    rows = [("first", "1" * 30, "2" * 30), ("other", "3" * 30, "4" * 30)]
    assert printed(("name", "one", "two"), rows, 60, num_left=1).splitlines() == [
        "",
        f"name   {'one':>30}",
        f"first  {'1' * 30}",
        f"other  {'3' * 30}",
        "",
        f"name   {'two':>30}",
        f"first  {'2' * 30}",
        f"other  {'4' * 30}",
    ]


def test_a_text_in_the_last_column_is_wrapped():
    text = printed(("part", "why"), [("a", "one two three four five six")], 30, last_is_left=True)
    assert text.splitlines() == ["", "part  why", "a     one two three four five", "      six"]


def test_a_long_word_in_the_last_column_follows_below():
    rows = [["a" * 10, *"bbbbbbb", "c" * 25 + " c"]]
    text = printed([f"h{i}" for i in range(9)], rows, 60, last_is_left=True)
    assert max(map(len, text.splitlines())) <= 60


def test_a_file_gets_each_row_on_one_line():
    rows = [("first", "1" * 90, "2" * 90)]
    assert len(printed(("name", "one", "two"), rows, 80, is_terminal=False).splitlines()) == 3
