"""Which files are data: kinds are counted, and what accompanies data is passed over in one note."""

import pytest

from shardkit.errors import UsageError
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.inventory import note_on_passed_over
from shardkit.sources.registry import choose
from tests.support.files.listing_makers import parquet, png, write

PDF = b"%PDF-1.4\n1 0 obj\n"
RUBBISH = b"\x00\x05\x16\x07rubbish"


def chosen(folder, files, **options):
    """Returns the format, and the names of the files that are passed over."""
    for name, content in files.items():
        write(folder, name, content)
    choice = choose(list_inputs([str(folder)]).files, SourceOptions(**options))
    return choice.source.format, [file.name for file in choice.passed_over]


@pytest.mark.parametrize(
    "name", ["Thumbs.db", "a/thumbs.db", "desktop.ini", "_SUCCESS", "README", "LICENSE", "a.png.md5", "b.sha256"]
)  # fmt: skip
@pytest.mark.parametrize(("data", "format"), [({"a/1.png": png()}, "images"), ({"x.csv": b"a,b\n1,2\n"}, "csv")])
def test_what_accompanies_data_is_passed_over(tmp_path, name, data, format):
    content = b"" if name == "_SUCCESS" else b"About\n" if name.isupper() or name.endswith("md") else RUBBISH
    assert chosen(tmp_path, {**data, name: content}) == (format, [name])


def test_a_file_of_the_kind_of_the_data_is_data(tmp_path):
    assert chosen(tmp_path, {"a.csv": b"a,b\n1,2\n", "_b.csv": b"a,b\n3,4\n"}) == ("csv", [])


def test_summaries_of_parquet_are_no_data(tmp_path):
    files = {"part-0.parquet": parquet(), "_metadata": parquet(), "_common_metadata": parquet()}
    assert chosen(tmp_path, files) == ("parquet", ["_common_metadata", "_metadata"])


def test_names_alone_pass_over_nothing(tmp_path):
    assert chosen(tmp_path, {"README": b"one\ntwo\n", "_notes.txt": b"three\n"}) == ("text", [])


def test_a_format_takes_its_kind_only(tmp_path):
    files = {"a/1.png": png(), "a/2.png": b"no image", "notes.txt": b"one\n", "x.csv": b"a,b\n1,2\n", "b.pdf": PDF}
    # The damaged image stays, so that the conversion names it.
    assert chosen(tmp_path, files, format="images") == ("images", ["b.pdf", "notes.txt", "x.csv"])
    assert chosen(tmp_path, {}, format="csv") == ("csv", ["a/1.png", "a/2.png", "b.pdf", "notes.txt"])


def test_a_format_that_no_content_shows_takes_all(tmp_path):
    assert chosen(tmp_path, {"a.csv": b"a,b\n1,2\n"}, format="text") == ("text", [])


def test_every_kind_is_counted_at_once(tmp_path):
    files = {f"{i}.png": png() for i in range(3)} | {"b.pdf": PDF, "c.csv": b"a,b\n1,2\n"}
    with pytest.raises(UsageError) as caught:
        chosen(tmp_path, files)
    lines = [" ".join(line.split()) for line in caught.value.table]
    assert lines[0] == "kind files size example taken by"
    assert lines[1].startswith("images 3 ")
    assert lines[1].endswith("0.png --format images")
    assert "a PDF 1 17 B b.pdf no option" in lines
    assert all(len(line) <= 78 for line in caught.value.table)
    assert "--labels" in str(caught.value)


@pytest.mark.parametrize(
    ("number", "note"),
    [
        (0, ()),
        (1, ("1 file is passed over: 0.db",)),
        (5, ("5 files are passed over: 0.db, 1.db, 2.db and 2 more",)),
    ],
)
def test_one_note_counts_them(tmp_path, number, note):
    for index in range(number):
        write(tmp_path, f"{index}.db", RUBBISH)
    assert note_on_passed_over(list_inputs([str(tmp_path)]).files if number else ()) == note


def test_a_format_that_no_file_has_is_refused_with_a_table(tmp_path):
    write(tmp_path, "a.csv", "x,y\n1,2\n")
    files = list_inputs([str(tmp_path)]).files
    with pytest.raises(UsageError, match="none of the files is of the format parquet") as raised:
        choose(files, SourceOptions(format="parquet"))
    assert any("--format csv" in line for line in raised.value.table)


def test_checksums_of_files_are_passed_over(tmp_path):
    for name in ("corpus.txt", "corpus.txt.md5", "SHA256SUMS", "more.sha1"):
        write(tmp_path, name, "one line\n")
    chosen = choose(list_inputs([str(tmp_path)]).files, SourceOptions())
    assert {file.name for file in chosen.passed_over} == {"corpus.txt.md5", "SHA256SUMS", "more.sha1"}


@pytest.mark.parametrize("name", ["readme", "Readme.html", "README.json", "License.csv", "CHANGELOG", "changelog.rtf"])
@pytest.mark.parametrize("options", [{}, {"no_header": True}, {"delimiter": "\t"}])
def test_documents_beside_data_are_no_data_whatever_is_asked(tmp_path, name, options):
    files = {"messages": b"ham\thello there\nspam\tyou won\n" * 3, name: b'{"about": "the\tdata, and more"}\n'}
    assert chosen(tmp_path, files, **options) == ("csv", [name])
