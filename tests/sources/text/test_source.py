"""Plain text: the rows are what Python's own splitting gives; what is no text is named by file, line and byte."""

from __future__ import annotations

import gzip
import random
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardkit.errors import BadInputError, DamagedFileError, ShardkitError
from shardkit.features import make_feature
from shardkit.sources.text.source import TextSource
from shardkit.sources.text.table_signs import looks_like_table
from shardkit.testing.reading import Reading
from tests.support.examples import draws
from tests.support.files.source_makers import read_all, write_file
from tests.support.paths import DATA

PROPERTY = settings(max_examples=draws(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(folder: Path, content: str | bytes, name: str = "a.txt") -> Path:
    return write_file(folder, content, name)


def read(*paths: Path, source: TextSource | None = None, **options) -> Reading:
    return read_all(source or TextSource(), *paths, **options)


def lines_of(content: bytes) -> list[bytes]:
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return [x for x in (*(line.removesuffix(b"\r") for line in lines[:-1]), lines[-1]) if x]


def paragraphs_of(content: bytes) -> list[bytes]:
    content = re.sub(rb"\A(\r?\n)+", b"", content.removeprefix(b"\xef\xbb\xbf"))
    parts = re.split(rb"\n(?:\r?\n)+", content)
    parts[:-1] = [part.removesuffix(b"\r") for part in parts[:-1]]
    last = parts[-1]
    parts[-1] = last[:-1].removesuffix(b"\r") if last.endswith(b"\n") else last
    return [part for part in parts if part]


def test_lines(tmp_path):
    text = "one\r\n\r\ntwo \n\n\x0bthree\x0c\x85\u2028still three\rand on\nlast"
    found = read(write(tmp_path, text))
    assert found.columns["text"] == ["one", "two ", "\x0bthree\x0c\x85\u2028still three\rand on", "last"]
    assert found.features == (make_feature("text", "string", media_type="text"),)
    note = "empty lines are no rows: 2 of the first 6 of a.txt; --text-record paragraph reads what they part as rows"
    assert found.notes == (note,)


def test_paragraphs(tmp_path):
    text = "\n\none\r\ntwo\r\n\r\n\r\n  \nthree\n\n\nfour"
    assert read(write(tmp_path, text), text_record="paragraph").columns["text"] == ["one\r\ntwo", "  \nthree", "four"]


def test_files(tmp_path):
    write(tmp_path, "\ufeffa\r\nb\n\n", "x/1.txt")
    write(tmp_path, gzip.compress("zwölf".encode()), "x/2.txt.gz")
    write(tmp_path, "", "x/3.txt")
    found = read(tmp_path / "x", text_record="file")
    assert found.rows == [{"text": "a\r\nb\n\n", "filename": "1.txt"}, {"text": "zwölf", "filename": "2.txt.gz"}]
    assert read(tmp_path / "x" / "2.txt.gz", text_record="file").identities == found.identities[1:]


def test_many_files_are_cut_into_splits(tmp_path):
    for number in range(600):
        write(tmp_path, f"text {number}", f"x/{number:04}.txt")
    found = read(tmp_path / "x", text_record="file")
    assert len(found.splits) == 3
    assert found.columns["text"] == [f"text {number}" for number in range(600)]
    assert len(set(found.identities)) == 600


PIECES = st.lists(st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\r", b"a", b"bc d", "é€".encode(), b" ", b"\n\r\n"]))


@PROPERTY
@given(
    pieces=PIECES,
    has_mark=st.booleans(),
    split_bytes=st.integers(1, 60),
    block_bytes=st.integers(1, 200),
    record=st.sampled_from(["line", "paragraph"]),
)
def test_any_cut_gives_the_same_rows(tmp_path, pieces, has_mark, split_bytes, block_bytes, record):
    content = b"\xef\xbb\xbf" * has_mark + b"".join(pieces) + b"x"
    path = write(tmp_path, content)
    found = read(path, text_record=record, source=TextSource(split_bytes=split_bytes, batch_bytes=block_bytes))
    expected = lines_of(content) if record == "line" else paragraphs_of(content)
    assert [t.encode() for t in found.columns["text"]] == expected
    assert len(set(found.identities)) == len(expected)
    assert sum(s.num_bytes for s in found.splits) == len(content)
    again = read(path, text_record=record, source=TextSource(split_bytes=split_bytes, batch_bytes=77))
    assert again.identities == found.identities


BAD = [
    (b"good\nb\xe4d\nfine\n", "the text is not UTF-8 in a.txt, line 2: not UTF-8 at byte 6", 6),
    (b"good\n\nb\0d\nfine\n", "a NUL byte is in the text in a.txt, line 3: at byte 1 of it", 6),
    (b"good\n" + 50 * b"long" + b"\nfine\n", "a text is too long in a.txt, line 2: it has more than the 100 B", 5),
    (b"good\n" + 5000 * b"long" + b"\nfine\n", "a text is too long in a.txt, line 2: it has more than the 100 B", 5),
]


@pytest.mark.parametrize(("content", "message", "first_byte"), BAD)
@pytest.mark.parametrize("record", ["line", "paragraph"])
def test_bad_rows_end_the_conversion_or_are_rejected(tmp_path, content, message, first_byte, record):
    if record == "paragraph":
        content = content.replace(b"\n", b"\n\n")
        message = re.sub(r"line (\d)", lambda m: f"line {2 * int(m[1]) - 1}", message)
        message = re.sub(r"at byte 6$", "at byte 7", message)
    path = write(tmp_path, content)
    source = TextSource(batch_bytes=100)
    with pytest.raises(BadInputError, match=re.escape(message)):
        read(path, source=source, max_record_bytes=100, text_record=record)
    found = read(path, source=source, max_record_bytes=100, text_record=record, tolerates_bad_rows=True)
    assert found.columns["text"] == ["good", "fine"]
    (rejected,) = found.rejected
    start = content.index(rejected.raw)
    assert rejected.first_byte == start
    assert rejected.position == f"line {content[:start].count(10) + 1}"
    whole = read(write(tmp_path, b"good\nsome\nfine\n".replace(b"\n", b"\n\n" if record == "paragraph" else b"\n")))
    assert found.identities == [whole.identities[0], whole.identities[2]]


def test_a_bad_file_among_files_is_one_rejected_row(tmp_path):
    write(tmp_path, "good", "x/1.txt")
    write(tmp_path, b"b\xe4d", "x/2.txt")
    write(tmp_path, gzip.compress(b"cut off" * 100)[:-20], "x/3.txt")
    write(tmp_path, 300 * "long", "x/4.txt")
    write(tmp_path, gzip.compress(3000 * b"long"), "x/5.txt")
    write(tmp_path, "text".encode("utf-16"), "x/6.txt")
    write(tmp_path, "fine", "x/7.txt")
    for name in ("2", "3", "4", "5", "6"):
        with pytest.raises(BadInputError, match=f"{name}.txt"):
            read(tmp_path / "x" / f"{name}.txt", text_record="file", max_record_bytes=1000)
    features = (make_feature("text", "string"), make_feature("filename", "string"))
    found = read(tmp_path / "x", text_record="file", features=features, max_record_bytes=1000, tolerates_bad_rows=True)
    assert found.columns["text"] == ["good", "fine"]
    assert sorted(r.file_index for r in found.rejected) == [1, 2, 3, 4, 5]
    assert found.identities[0] == read(tmp_path / "x" / "1.txt", text_record="file").identities[0]


def test_line_numbers_count_what_lies_before_the_split(tmp_path):
    content = b"".join(b"line %d\n\n" % i for i in range(1000)) + b"b\xe4d\n"
    with pytest.raises(BadInputError, match=f"line 2001: not UTF-8 at byte {len(content) - 3}"):
        read(write(tmp_path, content), source=TextSource(split_bytes=500, batch_bytes=100))


@pytest.mark.parametrize("record", ["line", "paragraph", "file"])
@pytest.mark.parametrize("name", ["utf-16", "utf-32"])
@pytest.mark.parametrize("tolerates_bad_rows", [True, False])
def test_other_encodings_are_named(tmp_path, record, name, tolerates_bad_rows):
    path = write(tmp_path, "text\n".encode(name))
    with pytest.raises(DamagedFileError, match=f"the text is {name.upper()}, not UTF-8.*--encoding.*{name}"):
        read(path, text_record=record, tolerates_bad_rows=tolerates_bad_rows)


def test_a_schema_may_ask_for_numbers(tmp_path):
    features = (make_feature("text", "int64"),)
    path = write(tmp_path, "1\ntwo\n3\n")
    with pytest.raises(BadInputError, match=r"column 'text' does not fit in a.txt, line 2: expected int64, got 'two'"):
        read(path, features=features)
    found = read(path, features=features, tolerates_bad_rows=True)
    assert found.columns["text"] == [1, 3]
    assert [(r.position, r.raw) for r in found.rejected] == [("line 2", b"two")]


def test_empty_files_have_no_rows(tmp_path):
    assert read(write(tmp_path, "", "x/1.txt"), write(tmp_path, "a", "x/2.txt")).columns["text"] == ["a"]
    with pytest.raises(BadInputError, match="all input files are empty"):
        read(tmp_path / "x" / "1.txt")
    assert read(write(tmp_path, "\r\n\n")).columns["text"] == []


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", b"Some prose, with commas.\nAnd more, of course.\n", True),
        ("a.TXT.gz", b"words", True),
        ("sub.txt/a", b"words", True),
        ("a.tsv", b"words\nmore", False),
        (".txt", b"words", True),
        ("a.txt", b"a,b\n1,2\n", False),
        ("a.csv", b"words", False),
        ("A.TSV.gz", b"words", False),
        ("log", b"one line\nand one more\n", True),
        ("a.txt", b"\x1b[31mred\x1b[0m\n", True),
        ("a.txt", b"a\tb\n1\t2\n", False),
        ("a.txt", b'{"a": 1}\n', False),
        ("a.txt", b"\x89PNG\r\n\x1a\n", False),
        ("a.txt", b"PAR1\x15\x04", False),
        ("a.txt", b"PK\x03\x04", False),
        ("a.txt", "Text".encode("utf-16"), True),
    ],
)
def test_recognizes(name, content, expected):
    assert TextSource().recognizes(content, name) is expected


def test_a_table_read_as_text_is_noted(tmp_path):
    path = write(tmp_path, "a;b\n1;2\n")
    assert looks_like_table(b"a;b\n1;2\n")
    assert any("--format csv" in note for note in read(path).notes)


def test_memory_stays_small_for_a_line_without_end(tmp_path):
    path = write(tmp_path, b"x" * 3_000_000 + b"\nend\n")
    found = read(path, max_record_bytes=10_000, tolerates_bad_rows=True, source=TextSource(batch_bytes=4096))
    assert found.columns["text"] == ["end"]
    assert [(len(r.raw) <= 20_000, r.first_byte) for r in found.rejected] == [(True, 0)]


@pytest.mark.full
def test_mutations_never_lose_rows(tmp_path):
    rng = random.Random(7)
    seeds = [b"one\ntwo\r\n\r\nthree\n" * 5, "größe\nsüß\n\n".encode() * 8, gzip.compress(b"a\nb\n\nc\n" * 20)]
    for _ in range(300):
        check_mutation(tmp_path, rng, seeds)


def check_mutation(folder: Path, rng: random.Random, seeds: list[bytes]) -> str:
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(data))
        choice = rng.random()
        if choice < 0.5:
            data[place] = rng.randrange(256)
        elif choice < 0.75:
            del data[place : place + rng.randint(1, 9)]
        else:
            data[place:place] = rng.choice([b"\n", b"\r", b"\0", b"\xff", b"\n\n", b"\xef\xbb\xbf", b"x" * 90])
        data = data or bytearray(b"x")
    path = write(folder, bytes(data))
    record = rng.choice(["line", "paragraph"])
    source = TextSource(split_bytes=rng.choice([None, 20]), batch_bytes=rng.choice([64, 1000]))
    try:
        found = read(path, text_record=record, source=source, max_record_bytes=80, tolerates_bad_rows=True)
    except ShardkitError:
        return "refused"
    if data.startswith(b"\x1f\x8b"):
        return "read"
    expected = (lines_of if record == "line" else paragraphs_of)(bytes(data))
    assert len(found.rows) + len(found.rejected) == len(expected)
    assert [t.encode() for t in found.columns["text"]] == [t for t in expected if is_good(t)]
    return "read"


def is_good(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in text and len(text) <= 80


@pytest.mark.data
@pytest.mark.skipif(not DATA.is_dir(), reason="the real data sets are not there")
@pytest.mark.parametrize("record", ["line", "paragraph"])
def test_real_text(record):
    path = DATA / "text" / "tinyshakespeare" / "input.txt"
    found = read(path, text_record=record, source=TextSource(split_bytes=100_000))
    expected = (lines_of if record == "line" else paragraphs_of)(path.read_bytes())
    assert [t.encode() for t in found.columns["text"]] == expected
    assert len(found.splits) > 5


def test_backspaces_that_underline_are_text(tmp_path):
    found = read(write(tmp_path, "N\bNA\bAM\bME\bE\n_\bls\n"))
    assert found.columns["text"] == ["N\bNA\bAM\bME\bE", "_\bls"]
