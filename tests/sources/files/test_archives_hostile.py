"""Archives that are damaged, hostile or lie."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import tarfile
import tracemalloc
import zipfile
import zlib

import pytest

from shardkit.errors import BadInputError, DamagedFileError, ShardkitError, UnsafeInputError, UsageError
from shardkit.sources import choose_source, list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.files.streams import open_raw, read_head
from shardkit.sources.files.whole_files import read_whole_files
from tests.support.files.archive_makers import (
    EXPECTED,
    PACKERS,
    TABLES,
    MiB,
    content_of,
    directory_entry,
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

UNSAFE = ["../x.csv", "x/../../y.csv", "/etc/x.csv", "C:/x.csv", "x/..", "..\\x.csv", "\\\\x\\y.csv"]


@pytest.mark.parametrize("unsafe", UNSAFE)
def test_unsafe_names_are_refused(tmp_path, unsafe):
    for name, pack in PACKERS.items():
        path = write_file(tmp_path, pack([("a.csv", b"a\n1\n"), (unsafe, b"a\n1\n"), ("b.csv", b"a\n1\n")]), name)
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(UnsafeInputError, match="unsafe member name"):
            list_inputs([str(path)])
        assert sorted(tmp_path.rglob("*")) == before


def test_a_name_with_a_nul_is_refused(tmp_path):
    content = zip_of([("aXb.csv", b"a\n1\n")]).replace(b"aXb.csv", b"a\0b.csv")
    with pytest.raises(BadInputError, match="NUL"):
        list_inputs([str(write_file(tmp_path, content, "a.zip"))])


@pytest.mark.parametrize("type_", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(tmp_path, type_):
    info = tarfile.TarInfo("link.csv")
    info.type, info.linkname = type_, "/etc/passwd"
    with pytest.raises(BadInputError, match="link"):
        list_inputs([str(write_file(tmp_path, tar_of([("a.csv", b"a\n1\n"), (info, b"")]), "a.tar"))])
    info = zipfile.ZipInfo("link.csv")
    info.external_attr = 0o120777 << 16
    with pytest.raises(BadInputError, match="symbolic link"):
        list_inputs([str(write_file(tmp_path, zip_of([("a.csv", b"a\n1\n"), (info, b"/etc/passwd")]), "a.zip"))])


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", PACKERS)
def test_names_that_come_twice_are_refused(tmp_path, name):
    path = write_file(tmp_path, PACKERS[name]([("a.csv", b"a\n1\n"), ("a.csv", b"a\n2\n")]), name)
    with pytest.raises(BadInputError, match=r"'a\.csv' 2 times"):
        list_inputs([str(path)])


def test_encrypted_members_are_refused(tmp_path):
    content = patched(zip_of(TABLES), 8, "<H", 1)
    with pytest.raises(BadInputError, match="encrypted"):
        list_inputs([str(write_file(tmp_path, content, "a.zip"))])


@pytest.mark.parametrize(("method", "word"), [(zipfile.ZIP_BZIP2, "bzip2"), (zipfile.ZIP_LZMA, "LZMA")])
def test_unknown_methods_are_named(tmp_path, method, word):
    with pytest.raises(BadInputError, match=word):
        list_inputs([str(write_file(tmp_path, zip_of(TABLES, method), "a.zip"))])


def test_overlapping_members_are_refused(tmp_path):
    content = zip_of([("a.csv", b"a\n1\n" * 100), ("b.csv", b"a\n1\n" * 100)])
    second = content.index(b"PK\x01\x02", directory_entry(content) + 4)
    with pytest.raises(UnsafeInputError, match="overlap"):
        list_inputs([str(write_file(tmp_path, patched(content, 42, "<I", 5, second), "a.zip"))])


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
        list_inputs([str(write_file(tmp_path, content, "a.zip"))])


@pytest.mark.parametrize("value", [1, 11, 13, 60 * MiB])
def test_a_member_of_another_size_than_stated_is_damaged(tmp_path, value):
    content = patched(zip_of(TABLES[:1]), 24, "<I", value)
    (file,) = list_inputs([str(write_file(tmp_path, content, "a.zip"))]).files
    with pytest.raises(DamagedFileError, match=r"x/b\.csv|b\.csv"):
        content_of(file)
    with pytest.raises(DamagedFileError):
        open_raw(file)


@pytest.mark.parametrize("name", PACKERS)
def test_a_cut_archive_is_found(tmp_path, name):
    content = PACKERS[name](TABLES)
    # Behind the mark that ends a plain tar there are zeros only.
    end = len(content.rstrip(b"\0")) + 1000 if name == "a.tar" else len(content)
    for length in range(600, min(end, len(content)), 37):
        path = write_file(tmp_path, content[:length], name)
        with pytest.raises(DamagedFileError):
            rows_of(list_inputs([str(path)], SourceOptions(format="csv")).files, SourceOptions(format="csv"))


@pytest.mark.parametrize(("name", "at"), [("a.zip", 0), ("a.tar", 3)])
def test_a_damaged_start_is_no_other_format(tmp_path, name, at):
    content = bytearray(PACKERS[name](TABLES))
    content[at] ^= 1
    with pytest.raises(DamagedFileError):
        rows_of(list_inputs([str(write_file(tmp_path, bytes(content), name))]).files, SourceOptions(format="csv"))


def test_bytes_behind_a_zip_are_found(tmp_path):
    with pytest.raises(BadInputError, match="5 bytes behind its end"):
        list_inputs([str(write_file(tmp_path, zip_of(TABLES) + b"extra", "a.zip"))])
    with pytest.raises(BadInputError, match="not where it should be"):
        list_inputs([str(write_file(tmp_path, zip_of([]) + zip_of(TABLES), "a.zip"))])


@pytest.mark.parametrize("name", ["a.zip", "stored.zip"])
def test_a_flip_in_a_member_is_found(tmp_path, name):
    content = PACKERS[name]([("a.csv", b"a,b\n" + b"1,x\n" * 500)])
    start = 30 + len("a.csv")
    for at in range(start, directory_entry(content), 7):
        damaged = bytearray(content)
        damaged[at] ^= 4
        (file,) = list_inputs([str(write_file(tmp_path, bytes(damaged), name))]).files
        with pytest.raises(DamagedFileError):
            content_of(file)


def test_damaged_archives_are_listed_where_that_is_tolerated(tmp_path):
    write_file(tmp_path, b"a,b\n0,q\n", "a.csv")
    write_file(tmp_path, zip_of(TABLES)[:-5], "b.zip")
    with pytest.raises(DamagedFileError):
        list_inputs([str(tmp_path)])
    listing = list_inputs([str(tmp_path)], SourceOptions(tolerates_bad_rows=True))
    assert [f.name for f in listing.files] == ["a.csv"]
    ((file, reason),) = listing.damaged
    assert file.name == "b.zip"
    assert "cut off" in reason


def test_an_archive_that_changes_is_an_error(tmp_path):
    path = write_file(tmp_path, zip_of(TABLES), "a.zip")
    files = list_inputs([str(path)]).files
    source, options = choose_source(files, SourceOptions()), SourceOptions()
    features = source.infer(files, options)
    splits = source.split(files, options)
    path.write_bytes(zip_of([*TABLES, ("more.csv", b"a,b\n9,9\n")]))
    with pytest.raises(BadInputError, match="changed during conversion"):
        list(source.read(splits[0], files, features, options))
    image = write_file(tmp_path, zip_of([("a/1.png", png())]), "b.zip")
    files = list_inputs([str(image)]).files
    image.write_bytes(zip_of([("a/1.png", png()), ("a/2.png", png())]))
    with pytest.raises(BadInputError, match="changed during conversion"):
        read_whole_files(files)


ZEROS = bytes(100 * MiB)


@pytest.mark.full
@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, zstd, lzma.compress], ids=["gzip", "bz2", "zstd", "xz"])
def test_a_compressed_bomb_is_refused_while_it_is_read(tmp_path, pack):
    path = write_file(tmp_path, pack(ZEROS), "a.csv.x")
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


@pytest.mark.full
def test_bombs_in_archives_are_refused(tmp_path):
    members = [("a.csv", ZEROS), ("b.csv", b"a\n1\n")]
    for name in ("a.zip", "a.tar.gz", "a.tar.zst"):
        path = write_file(tmp_path, PACKERS[name](members), name)
        with pytest.raises(DamagedFileError, match="--max-expansion"):
            list_inputs([str(path)])
        files = list_inputs([str(path)], SourceOptions(max_expansion=10_000_000)).files
        assert sorted(f.num_bytes for f in files) == [4, len(ZEROS)]


def test_too_many_members_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("shardkit.sources.files.archives.MAX_MEMBERS", 10)
    members = [(f"{i}.csv", b"a\n1\n") for i in range(11)]
    for name in ("a.zip", "a.tar", "a.tgz"):
        with pytest.raises(BadInputError, match=r"the 10 (members )?that are read"):
            list_inputs([str(write_file(tmp_path, PACKERS[name](members), name))])


def test_a_large_file_that_is_read_in_any_order_is_not_held(tmp_path, monkeypatch):
    monkeypatch.setattr("shardkit.sources.files.streams._MAX_HELD_BYTES", 10)
    path = write_file(tmp_path, zip_of([("a.parquet", parquet(0))]), "a.zip")
    (file,) = list_inputs([str(path)]).files
    with pytest.raises(UsageError, match="too large to be read inside of its archive"):
        open_raw(file)


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
        path = write_file(folder, mutated, name)
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


@pytest.mark.full
def test_mutations_end_in_an_error_or_in_all_rows(tmp_path):
    counts = fuzz(tmp_path, 200, seed=2)
    assert sum(counts.values()) == 200
    assert counts["refused"] > 100


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, zstd, lzma.compress], ids=["gzip", "bz2", "zstd", "xz"])
def test_bytes_behind_a_compressed_table_are_found_and_zeros_are_not(tmp_path, pack):
    table = b"a,b\n" + b"1,x\n" * 1000
    sound = write_file(tmp_path, pack(table) + (b"" if pack is zstd else bytes(1000)), "sound/a.csv")
    rows, _ = rows_of(list_inputs([str(sound)]).files)
    assert len(rows) == 1000
    damaged = write_file(tmp_path, pack(table) + b"garbage", "damaged/a.csv")
    with pytest.raises(DamagedFileError, match="is cut off or damaged"):
        rows_of(list_inputs([str(damaged)]).files)


def test_a_dictionary_that_memory_does_not_hold_is_no_damage(tmp_path):
    header = bytearray(lzma.compress(b"a,b\n1,2\n", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 2**20}]))
    # The size of the dictionary is a byte of the header of the block, with a checksum behind it.
    assert header[16] == 16
    header[16] = 36
    header[20:24] = zlib.crc32(header[12:20]).to_bytes(4, "little")
    with pytest.raises(DamagedFileError, match="its dictionary takes more than 256 MiB"):
        rows_of(list_inputs([str(write_file(tmp_path, bytes(header), "a.csv.xz"))]).files)


def test_a_member_that_cannot_be_opened_does_not_hide_the_others(tmp_path):
    content = bytearray(zip_of([("a.csv", b"x\n" + b"1\n" * 99), ("b.csv", b"x\n2\n")]))
    content[40] ^= 0x55
    tolerant = SourceOptions(tolerates_bad_rows=True)
    files = list_inputs([str(write_file(tmp_path, bytes(content), "a.zip"))], tolerant).files
    assert choose_source(files, tolerant).format == "csv"
    with pytest.raises(DamagedFileError):
        choose_source(files, SourceOptions())


def test_an_archive_that_is_refused_is_named_even_if_nothing_is_left(tmp_path):
    tolerant = SourceOptions(tolerates_bad_rows=True)
    hostile = write_file(tmp_path, tar_of([("x/b.csv", b"a\n1\n"), ("../c.csv", b"a\n1\n")]), "in/a.tar")
    with pytest.raises(UnsafeInputError, match="leads out of the archive"):
        list_inputs([str(hostile)], tolerant)
    write_file(tmp_path, b"a\n1\n", "in/b.csv")
    listing = list_inputs([str(tmp_path / "in")], tolerant)
    assert [f.name for f in listing.files] == ["b.csv"]
    assert "leads out of the archive" in listing.damaged[0][1]
