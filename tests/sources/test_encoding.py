"""Text in other encodings reads as the same text in UTF-8 does; bytes that are none of the encoding are named."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import random
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardkit.errors import DamagedFileError, UsageError
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.csv.source import CsvSource
from shardkit.sources.files.streams import open_stream, read_exactly, read_head
from shardkit.sources.files.transcoding import TranscodedStream, find_encoding, with_text_options
from shardkit.sources.json.lines_source import JsonLinesSource
from shardkit.sources.text.source import TextSource
from tests.support.examples import draws
from tests.support.paths import DATA

PROPERTY = settings(max_examples=draws(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

ENCODINGS = ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be", "utf-7", "gb18030"]
MARKS = {
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
}
NARROW = {
    "latin-1": "Größe, café\n",
    "cp1252": "“Größe” 5 €\n",
    "shift_jis": "表示, 日本語\n",
    "koi8-r": "Русский текст\n",
    "big5": "中文字\n",
    "iso2022_jp": "日本語 abc\n",
    "euc_kr": "한국어\n",
}


def listed(path: Path, content: bytes, encoding: str | None):
    path.write_bytes(content)
    return with_text_options(list_inputs([str(path)]).files, SourceOptions(encoding=encoding))


def read_table(source, files, **options) -> tuple[dict[str, str], list[dict]]:
    chosen = SourceOptions(**options)
    features = source.infer(files, chosen)
    source.notes(files, chosen)
    splits = source.split(files, chosen)
    batches = [part.batch for split in splits for part in source.read(split, files, features, chosen)]
    return {f.name: f.describe_type() for f in features}, pa.Table.from_batches(batches).to_pylist()


@PROPERTY
@given(text=st.text(st.characters(codec="utf-8")), encoding=st.sampled_from(ENCODINGS), sizes=st.randoms())
def test_any_text_survives_in_any_pieces(text, encoding, sizes):
    raw = io.BytesIO(text.encode(encoding))

    class Dribble:
        def read(self, num_bytes: int) -> bytes:
            return raw.read(min(num_bytes, sizes.randint(1, 5)))

    stream = TranscodedStream(Dribble(), encoding, "a.txt")
    found = b""
    while piece := stream.read(sizes.randint(1, 7)):
        found += piece
    assert found == text.encode()
    assert stream.read(1) == b""


@pytest.mark.full
@pytest.mark.parametrize("encoding", [*ENCODINGS, *NARROW])
@pytest.mark.parametrize("is_compressed", [False, True])
def test_csv_json_and_text(tmp_path, encoding, is_compressed):
    word = NARROW.get(encoding, "Größe 表示 😀\n").strip()
    pack = gzip.compress if is_compressed else bytes
    table = "".join(f'{i},"{word}, {i}\n{word}"\n' for i in range(3000))
    files = listed(tmp_path / "a.csv", pack(f"number,word\n{table}".encode(encoding)), encoding)
    types, rows = read_table(CsvSource(split_bytes=10_000, batch_bytes=3000), files)
    assert types == {"number": "int64", "word": "string"}
    assert rows == [{"number": i, "word": f"{word}, {i}\n{word}"} for i in range(3000)]
    lines = "".join(f'{{"number": {i}, "word": "{word}"}}\n' for i in range(50_000))
    files = listed(tmp_path / "a.jsonl", pack(lines.encode(encoding)), encoding)
    _, rows = read_table(JsonLinesSource(split_bytes=10_000), files)
    assert rows == [{"number": i, "word": word} for i in range(50_000)]
    text = "".join(f"{word} {i}\r\n" for i in range(3000))
    files = listed(tmp_path / "a.txt", pack(text.encode(encoding)), encoding)
    _, rows = read_table(TextSource(split_bytes=10_000, batch_bytes=1000), files)
    assert rows == [{"text": f"{word} {i}"} for i in range(3000)]
    _, rows = read_table(TextSource(), files, text_record="file")
    assert rows == [{"text": text, "filename": "a.txt"}]


def test_marks_are_honoured(tmp_path):
    for mark, encoding in ((codecs.BOM_UTF16_BE, "utf-16-be"), (codecs.BOM_UTF16_LE, "utf-16-le")):
        content = mark + "a,b\n1,ü\n".encode(encoding)
        for name in ("utf-16", encoding):
            _, rows = read_table(CsvSource(), listed(tmp_path / "a.csv", content, name))
            assert rows == [{"a": 1, "b": "ü"}]
    content = codecs.BOM_UTF32_BE + "ü\n".encode("utf-32-be")
    assert read_table(TextSource(), listed(tmp_path / "a.txt", content, "utf-32"))[1] == [{"text": "ü"}]


@pytest.mark.parametrize(
    ("encoding", "content", "position"),
    [
        ("cp1252", b"abc\x81def\n", 3),
        ("shift_jis", b"ab\x82\xa0\xff\n", 4),
        ("ascii", b"ab\xe4\n", 2),
        ("utf-16-le", "ab".encode("utf-16-le") + b"\x00\xd8a\x00", 4),
        ("utf-16", "ab".encode("utf-16") + b"c", 6),
        ("utf-32-le", "ab".encode("utf-32-le") + b"\x00\x00\x11\x00", 8),
        ("utf-7", b"ab+2AA-", 2),
        ("gb18030", b"ab\x81", 2),
    ],
)
@pytest.mark.parametrize("num_before", [0, 200_000])
@pytest.mark.parametrize("tolerates_bad_rows", [True, False])
def test_bytes_of_no_text_are_named(tmp_path, encoding, content, position, num_before, tolerates_bad_rows):
    before = ("x" * 9 + "\n").encode("utf-16-le" if encoding == "utf-16" else encoding)
    mark = codecs.BOM_UTF16_LE if encoding == "utf-16" else b""
    files = listed(tmp_path / "a.txt", mark + before * num_before + content.removeprefix(mark), encoding)
    at = len(before) * num_before + position
    with pytest.raises(DamagedFileError, match=rf"the text is not \S+ in a.txt: not \S+ at byte {at} .*--encoding"):
        read_table(TextSource(), files, tolerates_bad_rows=tolerates_bad_rows)


@pytest.mark.parametrize("source", [CsvSource(), JsonLinesSource(), TextSource()])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_without_the_option_the_option_is_named(tmp_path, source, encoding):
    files = listed(tmp_path / "a.txt", '{"a": 1}\n'.encode(encoding), None)
    with pytest.raises(DamagedFileError, match=f"{encoding.upper()}, not UTF-8 in a.txt.*--encoding"):
        read_table(source, files)


@pytest.mark.parametrize("source", [CsvSource(), JsonLinesSource(), TextSource()])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("num_lines", [1, 20_000])
def test_utf16_without_a_mark_is_known_by_its_zeros(tmp_path, source, encoding, num_lines):
    files = listed(tmp_path / "a.txt", ('{"a": 1}\n' * num_lines).encode(encoding), None)
    with pytest.raises(DamagedFileError, match=f"like UTF-16 without a byte order mark.*--encoding {encoding}"):
        read_table(source, files)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_a_byte_order_is_not_guessed(tmp_path, encoding):
    files = listed(tmp_path / "a.txt", "text\n".encode(f"{encoding}-le"), encoding)
    with pytest.raises(DamagedFileError, match=f"byte order mark.*--encoding {encoding}-le or {encoding}-be"):
        read_table(TextSource(), files)


def test_utf8_stays_utf8(tmp_path):
    files = listed(tmp_path / "a.txt", "ü\n".encode(), "UTF8")
    assert files[0].encoding is None
    assert find_encoding("Latin-1") == find_encoding("iso-8859-1") == "iso8859-1"


@pytest.mark.parametrize("name", ["nope", "rot13", "base64", "idna", "punycode", "undefined", "unicode_escape", "a\0b"])
def test_what_is_no_encoding_is_refused(name):
    with pytest.raises(UsageError, match="is not a text encoding"):
        find_encoding(name)


def test_streams_start_where_they_are_asked_to(tmp_path):
    files = listed(tmp_path / "a.txt", "äöüabc".encode("latin-1"), "latin-1")
    assert read_head(files[0], 4) == "äö".encode()
    with open_stream(files[0], 6) as stream:
        assert read_exactly(stream, 100) == b"abc"


def test_memory_is_bounded():
    class Endless:
        position = 0

        def read(self, num_bytes: int) -> bytes:
            self.position += num_bytes
            return (b"+" + b"A" * (num_bytes - 1)) if self.position == num_bytes else b"A" * num_bytes

    raw = Endless()
    with pytest.raises(DamagedFileError, match="does not end"):
        read_exactly(TranscodedStream(raw, "utf-7", "a.txt"), 1 << 40)
    assert raw.position < 16 << 20


def test_mutations_are_read_or_named(tmp_path):
    rng = random.Random(11)
    for _ in range(300):
        check_mutation(tmp_path, rng)


def check_mutation(folder: Path, rng: random.Random) -> str:
    encoding = rng.choice([*ENCODINGS, *NARROW])
    data = bytearray((NARROW.get(encoding, "Größe 表示 😀\n") * 9).encode(encoding))
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    if rng.random() < 0.3:
        del data[rng.randrange(1, len(data)) :]
    has_order = encoding not in MARKS or bytes(data).startswith(MARKS[encoding])
    try:
        expected = bytes(data).decode(encoding).encode() if has_order else None
    except (UnicodeDecodeError, UnicodeEncodeError):
        expected = None
    file = listed(folder / "a.txt", bytes(data), encoding)[0]
    try:
        with open_stream(file) as stream:
            found = read_exactly(stream, 1 << 20)
    except DamagedFileError:
        assert expected is None
        return "refused"
    assert found == expected
    return "read"


@pytest.mark.data
@pytest.mark.skipif(not DATA.is_dir(), reason="the real data sets are not there")
def test_real_files():
    quijote = DATA / "text" / "don-quijote" / "2000-8.txt"
    files = with_text_options(list_inputs([str(quijote)]).files, SourceOptions(encoding="latin-1"))
    _, rows = read_table(TextSource(), files)
    lines = [line.removesuffix("\r") for line in quijote.read_bytes().decode("latin-1").split("\n")]
    assert [row["text"] for row in rows] == [line for line in lines if line]
    examples = DATA / "csv-dirty" / "csvkit-examples"
    for name, encoding in (("test_utf16_big", "utf-16"), ("test_utf16_little", "utf-16"), ("test_latin1", "latin-1")):
        path = examples / f"{name}.csv"
        _, rows = read_table(
            CsvSource(), with_text_options(list_inputs([str(path)]).files, SourceOptions(encoding=encoding))
        )
        expected = list(csv.DictReader(io.StringIO(path.read_bytes().decode(encoding))))
        assert [{k: str(v) for k, v in row.items()} for row in rows] == expected
