"""Lines of CSV files that are no data: hints of Excel, lines before the header, comments."""

import csv
import gzip
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import BadInputError, NoRowsError, UsageError
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.csv.source import CsvSource
from shardkit.sources.files.transcoding import UncommentedStream, with_text_options
from tests.support.files.csv_makers import write

TABLE = "id,x\n" + "".join(f"{i},{i / 4}\n" for i in range(200))


def rows_of(path, source=None, **options):
    settings = SourceOptions(has_header=True, **options)
    files = with_text_options(list_inputs([str(path)]).files, settings)
    source = source or CsvSource()
    features = source.infer(files, settings)
    parts = [part for split in source.split(files, settings) for part in source.read(split, files, features, settings)]
    return [row for part in parts for row in part.batch.to_pylist()]


@pytest.mark.parametrize("hint", ["sep=;\n", "SEP=;\r\n", "\ufeffsep=;\n"])
def test_the_hint_of_excel_names_the_delimiter_and_is_no_header(tmp_path, hint):
    path = write(tmp_path, hint + "a;b\n1;2\n3;4\n")
    assert rows_of(path) == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]


@pytest.mark.parametrize("text", ["sep=;\n", "\ufeffsep=,\r\n\r\n"])
def test_a_file_of_the_hint_alone_has_no_rows(tmp_path, text):
    with pytest.raises(NoRowsError):
        rows_of(write(tmp_path, text))


def test_an_option_wins_over_the_hint(tmp_path):
    assert rows_of(write(tmp_path, "sep=;\na,b\n1,2\n"), delimiter=",") == [{"a": 1, "b": 2}]


@pytest.mark.parametrize("pack", [str.encode, lambda text: gzip.compress(text.encode())])
@pytest.mark.parametrize("block_bytes", [64, 100_000])
def test_first_lines_and_comments_are_left_out(tmp_path, pack, block_bytes):
    lines = TABLE.splitlines(keepends=True)
    lines = ["A title, with commas\n", '"open quote\n', *lines[:50], "# paused, here\n", *lines[50:], "# end"]
    path = tmp_path / "a.csv"
    path.write_bytes(pack("".join(lines)))
    rows = rows_of(path, CsvSource(split_bytes=500, batch_bytes=block_bytes), skip_lines=2, comment="#")
    assert rows == [{"id": i, "x": i / 4} for i in range(200)]


def test_lines_keep_their_numbers(tmp_path):
    path = write(tmp_path, "title\n\nid,x\n# one\n1,2\n# two\n3\n")
    with pytest.raises(BadInputError, match="line 7"):
        rows_of(path, skip_lines=2, comment="#")


def test_a_header_may_begin_like_the_remarks_above_it(tmp_path):
    text = "##format=1\n##source=x\n#CHROM\tPOS\n" + "".join(f"chr1\t{i}\n" for i in range(20))
    path = tmp_path / "a.tsv"
    path.write_text(text)
    with pytest.raises(UsageError, match="--comment '##'") as raised:
        rows_of(path)
    assert "below 2 lines" in str(raised.value)
    assert rows_of(path, comment="##") == [{"#CHROM": "chr1", "POS": i} for i in range(20)]


@pytest.mark.parametrize("comment", ["", "#" * 9, "#\n", "\n", '"', "é"])
def test_what_cannot_begin_a_comment(comment):
    with pytest.raises(UsageError, match="cannot begin comments"):
        with_text_options((), SourceOptions(comment=comment))


@given(
    st.lists(st.tuples(st.integers(0, 9), st.text('a#,\n\r" ', max_size=6)), max_size=20),
    st.lists(st.integers(0, 19), max_size=5),
    st.sampled_from(["\n", "\r\n"]),
    st.integers(1, 40),
)
def test_no_row_is_taken_for_a_comment(rows, places, line_end, num_bytes):
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator=line_end)
    written = 0
    for index, row in enumerate(rows):
        for _ in range(places.count(index)):
            text.write(f"#comment{line_end}")
            written += 1
        writer.writerow(row)
    stream = UncommentedStream(io.BytesIO(text.getvalue().encode()), 0, "#")
    pieces = b"".join(iter(lambda: stream.read(num_bytes), b"")).decode()
    assert pieces.count("#comment") == 0
    found = [row for row in csv.reader(io.StringIO(pieces, newline="")) if row]
    assert found == [[str(number), word] for number, word in rows]
    assert len(pieces) == len(text.getvalue()) - written * len("#comment")


@pytest.mark.parametrize("written", ["NA", " NA", "NA  ", "   NA "])
def test_blanks_around_a_null(tmp_path, written):
    path = write(tmp_path, f"n,word\n1,a\n{written},{written}\n")
    assert rows_of(path, null_values=("NA",))[1] == {"n": None, "word": None}


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize(("title", "number"), [("Export\n", 1), ("Export\n\nUnit: m\n", 3), ('"Two\nlines"\n\n', 3)])
def test_lines_above_a_table_are_named_with_the_option(tmp_path, title, number, delimiter):
    table = "id,x\n1,2\n3,4\n5,6\n".replace(",", delimiter)
    path = write(tmp_path, title + table)
    with pytest.raises(UsageError, match=rf"a table of 2 fields stands below .* in a\.csv.*--skip-lines {number}"):
        rows_of(path)
    assert len(rows_of(path, skip_lines=number)) == 3


@pytest.mark.parametrize(
    "content", ["a\n1\n2\n3\n4\n", "name\nx y\nz, w\nv\n", "a,b\n1\n2\n3\n4\n", "a\tb\n1\tx, y\n2\tz, w\n3\tv, u\n"]
)
def test_other_lines_are_no_titles(tmp_path, content):
    CsvSource().infer(list_inputs([str(write(tmp_path, content))]).files, SourceOptions(has_header=True))
