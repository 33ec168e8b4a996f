"""Which files are found under which names, what they are, and which source reads them."""

from __future__ import annotations

import bz2
import gzip
from pathlib import PurePosixPath

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit import file_types
from shardkit.encoding.tfrecord import masked_crc32c
from shardkit.errors import BadInputError, UsageError
from shardkit.sources import choose_source, list_inputs, source_for
from shardkit.sources.base import SourceOptions
from shardkit.sources.listing import common_root
from shardkit.sources.registry import choose
from tests.support.files.listing_makers import parquet, png, write


def test_a_file_is_named_within_its_folder(tmp_path):
    listing = list_inputs([write(tmp_path, "x/a.csv")])
    assert [f.name for f in listing.files] == ["a.csv"]
    assert listing.root == str(tmp_path / "x")


def test_a_folder_is_the_root_of_its_files(tmp_path):
    write(tmp_path, "x/b/2.csv")
    write(tmp_path, "x/a.csv")
    listing = list_inputs([str(tmp_path / "x")])
    assert [f.name for f in listing.files] == ["a.csv", "b/2.csv"]
    assert listing.root == str(tmp_path / "x")


def test_several_inputs_share_their_parent(tmp_path):
    first, second = write(tmp_path, "x/1/a.csv"), write(tmp_path, "x/2/a.csv")
    for inputs in ([first, second], [str(tmp_path / "x/2"), first], [str(tmp_path / "x/1"), str(tmp_path / "x/2")]):
        listing = list_inputs(inputs)
        assert [f.name for f in listing.files] == ["1/a.csv", "2/a.csv"]
        assert listing.root == str(tmp_path / "x")


def test_a_glob_names_files_below_its_fixed_part(tmp_path):
    write(tmp_path, "x/1/a.csv")
    assert [f.name for f in list_inputs([str(tmp_path / "x/*/a.csv")]).files] == ["1/a.csv"]
    assert [f.name for f in list_inputs([str(tmp_path / "x/1/*.csv")]).files] == ["a.csv"]
    assert [f.name for f in list_inputs([str(tmp_path / "x/*")]).files] == ["1/a.csv"]


def test_names_do_not_depend_on_where_the_inputs_lie(tmp_path):
    names = []
    for place in ("here", "there/below"):
        write(tmp_path, f"{place}/a.csv")
        write(tmp_path, f"{place}/b/c.csv")
        names.append([f.name for f in list_inputs([str(tmp_path / place)]).files])
    assert names[0] == names[1]


def test_a_file_named_twice_is_read_once(tmp_path):
    path = write(tmp_path, "a.csv")
    listing = list_inputs([path, str(tmp_path / "*.csv")])
    assert len(listing.files) == 1
    assert listing.notes == ("a.csv was named twice and is read once",)


def test_empty_files_are_kept_and_noted(tmp_path):
    write(tmp_path, "a.csv")
    write(tmp_path, "b.csv", "")
    listing = list_inputs([str(tmp_path)])
    assert [f.name for f in listing.files] == ["a.csv", "b.csv"]
    assert listing.empty_notes == ("b.csv is empty: 0 rows",)
    source, options = source_for("csv"), SourceOptions()
    features = source.infer(listing.files, options)
    splits = source.split(listing.files, options)
    assert [f.name for f in features] == ["a", "b"]
    assert sum(p.batch.num_rows for s in splits for p in source.read(s, listing.files, features, options)) == 1


def test_many_notes_are_summed_up(tmp_path):
    for i in range(20):
        write(tmp_path, f"{i:02}.csv", "")
    notes = list_inputs([str(tmp_path)]).empty_notes
    assert len(notes) == 6
    assert "15 more" in notes[-1]


@pytest.mark.parametrize(
    ("pack", "expected"),
    [
        (gzip.compress, "gzip"),
        (bz2.compress, "bz2"),
        (lambda d: pa.compress(d, "zstd", asbytes=True), "zstd"),
        (bytes, None),
    ],
)
def test_compression_is_found_by_content(tmp_path, pack, expected):
    for name in ("a.csv", "b.csv.gz", "c"):
        write(tmp_path, name, pack(b"a,b\n1,2\n"))
    listing = list_inputs([str(tmp_path)])
    assert [f.compression for f in listing.files] == [expected] * 3
    assert choose_source(listing.files, SourceOptions()).format == "csv"


def test_text_that_begins_like_bz2_is_text(tmp_path):
    (file,) = list_inputs([write(tmp_path, "a.csv", "BZhang,b\n1,2\n")]).files
    assert file.compression is None


@pytest.mark.parametrize("inputs", [["nothing.csv"], ["*.csv"], ["empty"], []])
def test_inputs_that_name_nothing_are_refused(tmp_path, inputs):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError):
        list_inputs([str(tmp_path / i) for i in inputs])


def test_names_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "x").mkdir()
    with open(bytes(tmp_path / "x") + b"/\xff.csv", "wb") as out:
        out.write(b"a\n1\n")
    with pytest.raises(UsageError, match="not UTF-8") as caught:
        list_inputs([str(tmp_path / "x")])
    assert caught.value.where == f"{tmp_path}/x/\\xff.csv"
    tolerant = SourceOptions(tolerates_bad_rows=True)
    with pytest.raises(UsageError, match="not UTF-8"):
        list_inputs([str(tmp_path / "x")], tolerant)
    write(tmp_path, "x/a.csv")
    listing = list_inputs([str(tmp_path / "x")], tolerant)
    assert [f.name for f in listing.files] == ["a.csv"]
    assert [(file.name, reason) for file, reason in listing.damaged] == [("\\xff.csv", "the file name is not UTF-8")]
    excluded = list_inputs([str(tmp_path / "x")], SourceOptions(exclude=("[!a].csv",)))
    assert [f.name for f in excluded.files] == ["a.csv"]


def test_control_characters_in_names_are_escaped_in_messages(tmp_path):
    path = write(tmp_path, "a\x1b[31m\n.csv", "a,b\n1,2,3\n")
    files = list_inputs([path]).files
    source, options = source_for("csv"), SourceOptions()
    features = source.infer(files, options)
    with pytest.raises(BadInputError) as caught:
        list(source.read(source.split(files, options)[0], files, features, options))
    assert "\x1b" not in str(caught.value)
    assert "\\x1b" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", "a,b\n1,2\n", "csv"),
        ("a", "a\tb\n1\t2\n", "csv"),
        ("a.csv", '{"a": 1}\n{"a": 2}\n', "jsonl"),
        ("a.txt", '\ufeff\n {"a": 1}', "jsonl"),
        ("a.json", '[{"a": 1}]', "json"),
        ("a.csv", "PAR1,PAR2\n1,2\n", "csv"),
        ("a.csv", "{name},b\n1,2\n", "csv"),
        ("a.csv", "[1],b\n1,2\n", "csv"),
        ("a.csv", parquet(), "parquet"),
        ("x/a.dat", png(), "images"),
        ("a.csv", gzip.compress(b'{"a": 1}\n', mtime=0), "jsonl"),
    ],
)
def test_format_is_found_by_content(tmp_path, name, content, expected):
    files = list_inputs([write(tmp_path, name, content)]).files
    assert choose_source(files, SourceOptions()).format == expected


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"PK\x03\x04rest", "a ZIP archive"),
        (b"%PDF-1.4", "a PDF"),
        (bytes(range(256)) * 4, "a binary file"),
        (b"x" * 257 + b"ustar" + b"\0" * 100, "a tar archive"),
    ],
)
def test_what_is_not_read_is_named(tmp_path, content, part):
    files = list_inputs([write(tmp_path, "a.bin", content)]).files
    with pytest.raises(UsageError) as caught:
        choose_source(files, SourceOptions())
    assert part in str(caught.value)


def test_kinds_of_files_are_counted_with_the_option_for_each(tmp_path):
    write(tmp_path, "a.csv")
    write(tmp_path, "b.jsonl", '{"a": 1}\n')
    files = list_inputs([str(tmp_path)]).files
    with pytest.raises(UsageError) as caught:
        choose_source(files, SourceOptions())
    assert [line.split() for line in caught.value.table[1:]] == [
        ["CSV", "1", "8", "B", "a.csv", "--format", "csv"],
        ["JSON", "Lines", "1", "9", "B", "b.jsonl", "--format", "jsonl"],
    ]
    assert choose_source(files, SourceOptions(format="csv")).format == "csv"


def test_column_names_ask_for_csv(tmp_path):
    files = list_inputs([write(tmp_path, "a", '{"a": 1},2\n')]).files
    assert choose_source(files, SourceOptions(columns=("x", "y"))).format == "csv"


@given(st.lists(st.text("jpgG.", min_size=1).filter(lambda part: part not in (".", "..")), min_size=1).map("/".join))
def test_files_called_like_images(name):
    suffix = PurePosixPath(name).suffix.lower()
    assert file_types.has_image_suffix(name) == (suffix == ".jpg")


def test_an_unknown_format_names_those_there_are():
    with pytest.raises(UsageError, match="csv, tsv, jsonl, json, parquet, arrow"):
        source_for("xml")


@pytest.mark.parametrize(
    ("roots", "expected"),
    [
        (["/a/b"], "/a/b"),
        (["/a/b", "/a/c"], "/a"),
        (["/a/b", "/a/bc"], "/a"),
        (["/a", "/b"], "/"),
        (["s3://x/a", "s3://x/b"], "s3://x"),
        (["s3://x/a", "gs://x/a"], ""),
        (["s3://x/a", "s3://y/a"], ""),
    ],
)
def test_common_root(roots, expected):
    assert common_root(roots) == expected


def test_object_stores_are_listed_like_folders():
    import fsspec

    memory = fsspec.filesystem("memory")
    try:
        memory.pipe("/listing/x/1.csv", b"a,b\n1,x\n")
        memory.pipe("/listing/x/2.csv", gzip.compress(b"a,b\n2,y\n"))
        listing = list_inputs(["memory:///listing/x"])
        assert [(f.name, f.compression) for f in listing.files] == [("1.csv", None), ("2.csv", "gzip")]
        assert listing.root == "memory:///listing/x"
        source, options = choose_source(listing.files, SourceOptions()), SourceOptions()
        assert [f.dtype for f in source.infer(listing.files, options)] == ["int64", "string"]
        assert [s.file_start for s in source.split(listing.files, options)] == [0, 1]
    finally:
        memory.rm("/listing", recursive=True)


def tfrecord() -> bytes:
    payload = b"\x0a\x0b\x0a\x09\x0a\x01a\x12\x04\x1a\x02\x0a\x00"
    length = len(payload).to_bytes(8, "little")
    return length + masked_crc32c(length).to_bytes(4, "little") + payload + masked_crc32c(payload).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("a.csv", gzip.compress(b"a,b\n1,2\n", mtime=0), "is called .csv but is compressed with gzip"),
        ("a.csv.gz", "a,b\n1,2\n", "is called .gz but is not compressed"),
        ("a.csv", parquet(), "is called .csv but is Parquet"),
        ("a.jsonl", tfrecord(), "is called .jsonl but is TFRecord"),
        ("a.parquet", "a,b\n1,2\n", "is called .parquet but is text"),
        ("text.wav", "a,b\n1,2\n", "is called .wav but is text"),
    ],
)
def test_names_that_say_something_else_than_the_content_are_noted(tmp_path, name, content, fault):
    path = write(tmp_path, name, content)
    assert list_inputs([path]).notes == (f"{name} {fault}; its content counts",)
    assert list_inputs([path], SourceOptions(format="csv")).notes == ()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "a\0,b\n1,2\n"),
        ("a.csv", "a,b\n1,2\n".encode("utf-16")),
        ("a.csv.gz", gzip.compress(b"a,b\n1,2\n", mtime=0)),
        ("a.tfrecord", gzip.compress(b"x", mtime=0)),
        ("a.tfrecord", tfrecord()),
        ("a.parquet", parquet()),
        ("a.txt", "[]"),
    ],
)
def test_names_that_say_what_the_content_is_are_not_noted(tmp_path, name, content):
    assert list_inputs([write(tmp_path, name, content)]).notes == ()


def test_a_file_beside_its_compressed_copy_is_read_once(tmp_path):
    content = b"a,b\n1,2\n"
    for name, data in (("x.csv", content), ("x.csv.gz", gzip.compress(content)), ("y.csv.gz", gzip.compress(content))):
        (tmp_path / name).write_bytes(data)
    listing = list_inputs([str(tmp_path)])
    assert [file.name for file in listing.files] == ["x.csv", "y.csv.gz"]
    assert "x.csv.gz lies beside its unpacked file, which is read once" in listing.notes


@pytest.mark.parametrize(
    ("suffix", "data"), [("gz", gzip.compress(b"a,b\n1,2\n3,4\n", mtime=0)), ("bz2", b"BZh9"), ("gz", b"")]
)
def test_a_file_beside_another_that_is_called_like_its_copy_is_refused(tmp_path, suffix, data):
    (tmp_path / "x.csv").write_bytes(b"a,b\n1,2\n")
    (tmp_path / f"x.csv.{suffix}").write_bytes(data)
    with pytest.raises(UsageError, match=f"beside another .* x.csv.{suffix}") as caught:
        choose(list_inputs([str(tmp_path)]).files, SourceOptions())
    assert f"--exclude '*.{suffix}'" in str(caught.value)
    assert len(list_inputs([str(tmp_path)], SourceOptions(exclude=(f"*.{suffix}",))).files) == 1


def test_the_kinds_of_files_are_shown_before_a_compressed_file_beside_another_is_refused(tmp_path):
    write(tmp_path, "a.csv", "x,y\n1,2\n")
    write(tmp_path, "a.csv.gz", gzip.compress(b"x,y\n1,2\n3,4\n"))
    write(tmp_path, "b.jsonl", '{"x": 1}\n{"x": 2}\n')
    files = list_inputs([str(tmp_path)]).files
    with pytest.raises(UsageError, match="several kinds") as caught:
        choose(files, SourceOptions())
    assert "--format csv" in caught.value.table[1]
    assert "--exclude '*.gz'" in str(caught.value.next_step)
    assert choose(files, SourceOptions(format="jsonl")).source.format == "jsonl"
    with pytest.raises(UsageError, match=r"beside another .* a.csv.gz"):
        choose(files, SourceOptions(format="csv"))
    csv = SourceOptions(format="csv", exclude=("*.gz",))
    assert choose(list_inputs([str(tmp_path)], csv).files, csv).source.format == "csv"
