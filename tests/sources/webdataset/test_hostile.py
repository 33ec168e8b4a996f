"""WebDatasets that are damaged, hostile or incomplete."""

from __future__ import annotations

import gzip
import random
import tarfile

import numpy as np
import pytest

from shardkit.errors import BadInputError, DamagedFileError, ShardkitError
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions, row_identities
from shardkit.sources.files.tar_headers import TarHeaderError, is_header, parse_pax
from shardkit.sources.webdataset.samples import SeenKeys
from shardkit.sources.webdataset.source import WebDatasetSource
from tests.support.files.webdataset_makers import FORMATS, WEBDATASET, npy, pack, png, read, rows, write

TOLERANT = SourceOptions(format="webdataset", tolerates_bad_rows=True)


def rejected(batches):
    return [row for b in batches for row in b.rejected]


def pairs(num_samples, num_bytes=100):
    for i in range(num_samples):
        yield f"{i:06}.bin", bytes([i % 256]) * num_bytes
        yield f"{i:06}.cls", str(i).encode()


@pytest.mark.full
def test_a_cut_at_any_byte_is_found(tmp_path):
    content = pack(list(pairs(3, 600)), tarfile.PAX_FORMAT)
    end = len(content.rstrip(b"\0")) // 512 * 512 + 512
    features, _ = read(write(tmp_path, content))
    for length in range(1, end + 1024, 3):
        path = write(tmp_path, content[:length])
        with pytest.raises(DamagedFileError, match=r"end-of-archive|cut off|are left|a lone block"):
            read(path, features=features)
    _, batches = read(write(tmp_path, content[: end + 1024]), features=features)
    assert len(rows(batches)) == 3


def test_a_cut_in_a_compressed_archive_is_found(tmp_path):
    content = gzip.compress(pack(list(pairs(20, 600))))
    features, _ = read(write(tmp_path, content))
    for length in range(20, len(content), 17):
        with pytest.raises(DamagedFileError):
            read(write(tmp_path, content[:length]), features=features)
    whole = pack(list(pairs(20, 600)))
    with pytest.raises(DamagedFileError, match="end-of-archive"):
        read(write(tmp_path, gzip.compress(whole[: 512 * 20])), features=features)


def test_a_flip_in_any_header_is_found(tmp_path):
    content = pack(list(pairs(3)))
    features, expected = read(write(tmp_path, content))
    for byte in range(512):
        damaged = bytearray(content)
        damaged[1024 + byte] ^= 0x10
        path = write(tmp_path, bytes(damaged))
        if 148 <= byte < 156 and is_header(bytes(damaged[1024:1536])):
            # A digit of the checksum that became a space of the same meaning.
            assert rows(read(path, features=features)[1]) == rows(expected)
            continue
        with pytest.raises(DamagedFileError, match="byte 1,024"):
            read(path, features=features)


def test_bytes_behind_the_end_are_found(tmp_path):
    content = pack(list(pairs(2)))
    features, _ = read(write(tmp_path, content))
    for more in (b"x", content, bytes(5000) + b"\0x"):
        with pytest.raises(DamagedFileError, match="after the end of the archive"):
            read(write(tmp_path, content + more), features=features)
    with pytest.raises(DamagedFileError, match="lone block"):
        read(write(tmp_path, content[:1024] + bytes(512) + content[1024:]), features=features)


def test_zeros_are_an_empty_archive(tmp_path):
    path = write(tmp_path, bytes(1 << 20))
    (file,) = list_inputs([str(path)]).files
    assert WebDatasetSource().recognizes(bytes(4096), "a.tar")
    assert WebDatasetSource().notes((file,), WEBDATASET) == ("a.tar is an empty archive: 0 rows",)
    with pytest.raises(BadInputError, match="all archives are empty"):
        read(path)
    _, batches = read(path, write(tmp_path, pack(list(pairs(2))), "b.tar"))
    assert len(rows(batches)) == 2


def claiming(num_bytes, content=b"x"):
    header = bytearray(pack([("1.bin", content)])[:512])
    header[124:136] = b"\x80" + num_bytes.to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


@pytest.mark.parametrize("packed", [bytes, gzip.compress])
def test_a_header_that_claims_a_terabyte(tmp_path, packed):
    good = pack([("0.bin", b"x")])
    features, _ = read(write(tmp_path, good))
    hostile = good[:1024] + claiming(1 << 40) + b"x" * 5000
    for options in (WEBDATASET, TOLERANT):
        with pytest.raises(DamagedFileError, match=r"1 TiB|cut off"):
            read(write(tmp_path, packed(hostile)), features=features, options=options)
    with pytest.raises(DamagedFileError):
        read(write(tmp_path, packed(good[:1024] + claiming(2**80) + b"x" * 5000)), features=features)


def test_an_extended_header_that_claims_a_gigabyte(tmp_path):
    good = pack([("0.bin", b"x")])
    features, _ = read(write(tmp_path, good))
    header = bytearray(claiming(1 << 30))
    header[156:157] = b"x"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    with pytest.raises(DamagedFileError, match=r"extended header claims 1\.00 GiB"):
        read(write(tmp_path, good[:1024] + bytes(header) + b"x" * 5000), features=features)


@pytest.mark.parametrize(
    "data", [b"5 a=b", b"0 a=b\n", b"99 a=b\n", b"6 a=b\nx", b"06 a=b\n", b"6 ab1\n", b"6 =ab\n", b"-6 a=\n"]
)
def test_extended_headers_must_add_up(data):
    with pytest.raises(TarHeaderError):
        parse_pax(data)


def special(type_, name="2.bin"):
    info = tarfile.TarInfo(name)
    info.type = type_
    info.linkname = "/etc/passwd"
    return info


HOSTILE = {
    "symbolic link": [(special(tarfile.SYMTYPE), None)],
    "hard link": [(special(tarfile.LNKTYPE), None)],
    "character device": [(special(tarfile.CHRTYPE), None)],
    "block device": [(special(tarfile.BLKTYPE), None)],
    "FIFO": [(special(tarfile.FIFOTYPE), None)],
    "sparse": [(special(tarfile.GNUTYPE_SPARSE), b"")],
    "unknown type": [(special(b"Z"), b"x")],
    "leads out": [("../2.bin", b"x")],
    "leads out of the archive": [("x/../../2.bin", b"x")],
    "unsafe member name: it leads out": [("..\\2.bin", b"x")],
    "absolute": [("/etc/2.bin", b"x")],
    "is absolute": [("C:/2.bin", b"x")],
    "twice": [("2.bin", b"x"), ("2.bin", b"y")],
    "appears twice": [("0.bin", b"x")],
    "no extension": [("two", b"x")],
    "is no column": [("2.bin", b"x"), ("2.more", b"x")],
    "that a record may have": [("2.bin", b"x" * 100_000)],
}


@pytest.mark.parametrize("reason", HOSTILE)
def test_a_hostile_member_costs_its_sample(tmp_path, reason):
    options = {"format": "webdataset", "max_record_bytes": 50_000}
    good = [("0.bin", b"x"), ("1.bin", b"y")]
    features, _ = read(write(tmp_path, pack(good)))
    path = write(tmp_path, pack([*good, *HOSTILE[reason], ("3.bin", b"z")], tarfile.GNU_FORMAT))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadInputError, match=reason) as caught:
        read(path, features=features, options=SourceOptions(**options))
    assert not isinstance(caught.value, DamagedFileError)
    assert "row 3" in str(caught.value)
    _, batches = read(path, features=features, options=SourceOptions(**options, tolerates_bad_rows=True))
    assert [r["__key__"] for r in rows(batches)] == ["0", "1", "3"]
    (bad,) = rejected(batches)
    assert reason in bad.reason
    assert (bad.first_byte, bad.file_index) == (2048, 0)
    assert bad.raw == path.read_bytes()[2048:][: len(bad.raw)]
    assert len(bad.raw) >= 512
    (file,) = list_inputs([str(path)], WEBDATASET).files
    assert np.concatenate([b.identities for b in batches]).tolist() == row_identities(file, 0, 0, 4)[[0, 1, 3]].tolist()
    assert sorted(tmp_path.rglob("*")) == before


def test_half_a_pair_is_named(tmp_path):
    members = [*pairs(5), ("9.bin", b"x"), *((f"z{name}", data) for name, data in pairs(5))]
    path = write(tmp_path, pack(members))
    with pytest.raises(BadInputError, match="group '9' is incomplete: it has no 'cls'"):
        read(path)
    _, batches = read(path, options=TOLERANT)
    assert (len(rows(batches)), len(rejected(batches))) == (10, 1)


def test_a_name_with_a_nul_is_refused(tmp_path):
    features, _ = read(write(tmp_path, pack([("0.bin", b"x")])))
    info = tarfile.TarInfo("1.bin")
    info.pax_headers = {"path": "1\0.bin"}
    with pytest.raises(BadInputError, match="NUL"):
        read(write(tmp_path, pack([("0.bin", b"x"), (info, b"x")], tarfile.PAX_FORMAT)), features=features)


def test_names_that_are_not_utf8_are_refused(tmp_path):
    features, _ = read(write(tmp_path, pack([("0.bin", b"x")])))
    content = pack([("0.bin", b"x"), ("\udcff.bin", b"x")], tarfile.GNU_FORMAT)
    with pytest.raises(BadInputError, match="not UTF-8"):
        read(write(tmp_path, content), features=features)


@pytest.mark.parametrize(
    ("extension", "good", "bad", "reason"),
    [
        ("png", png(), b"<html>404</html>", "HTML"),
        ("png", png(), png()[:40], "cut off"),
        ("cls", b"1", b"x", "expected int64, got 'x'"),
        ("cls", b"1", b"99999999999999999999", "int64"),
        ("txt", b"x", b"ab\xff", "not UTF-8 at byte 2"),
        ("json", b'{"a": 1}', b'{"a": "x"}', "json"),
        ("json", b'{"a": 1}', b'{"a": 1', "json"),
        ("json", b'{"a": 1}', b"", "nothing"),
        ("json", b'{"a": 1}', b'{"a": 1, "a": 2}', "twice"),
        ("json", b'{"a": 1}', b'{"b": 1}', "json"),
        ("json", b'{"a": {"b": 1}}', b'{"a":' * 200 + b"1" + b"}" * 200, "nesting"),
        ("json", b"[1]", b"[1", "JSON"),
        ("npy", npy(np.ones(2)), npy(np.ones(3)), "shape"),
        ("npy", npy(np.ones(2)), npy(np.ones(2))[:-1], "15 bytes"),
        ("txt.gz", gzip.compress(b"x", mtime=0), gzip.compress(b"x", mtime=0)[:-1], "cut off"),
    ],
)
def test_a_value_that_does_not_fit_costs_its_sample(tmp_path, extension, good, bad, reason):
    features, _ = read(write(tmp_path, pack([(f"0.{extension}", good)])))
    members = [(f"{i}.{extension}", bad if i in (3, 5) else good) for i in range(8)]
    path = write(tmp_path, pack(members))
    with pytest.raises(BadInputError, match=r"sample '3' \(row 4\)") as caught:
        read(path, features=features)
    assert reason in str(caught.value)
    _, batches = read(path, features=features, options=TOLERANT)
    assert [r["__key__"] for r in rows(batches)] == ["0", "1", "2", "4", "6", "7"]
    assert [r.position for r in rejected(batches)] == ["sample '3', row 4", "sample '5', row 6"]
    assert len(set(np.concatenate([b.identities for b in batches]).tolist())) == 6


def test_too_many_pixels_are_named_with_the_flag(tmp_path):
    path = write(tmp_path, pack([("0.png", png())]))
    features, _ = read(path)
    with pytest.raises(BadInputError, match="--max-pixels"):
        read(path, features=features, options=SourceOptions(format="webdataset", max_pixels=5))


def test_a_bomb_inside_of_a_sample_is_refused(tmp_path):
    options = SourceOptions(format="webdataset", max_record_bytes=1 << 20)
    features, _ = read(write(tmp_path, pack([("0.txt.gz", gzip.compress(b"x"))])), options=options)
    bomb = gzip.compress(bytes(50 << 20))
    with pytest.raises(BadInputError, match="--max-record-bytes"):
        read(write(tmp_path, pack([("0.txt.gz", bomb)])), features=features, options=options)


@pytest.mark.full
def test_a_key_that_returns_late_is_found():
    seen = SeenKeys()
    assert not any(seen.add(str(i)) for i in range(200_000))
    assert all(seen.add(str(i)) for i in range(0, 200_000, 997))


def mutate(content, random_, kind):
    data = bytearray(content)
    at = random_.randrange(len(data))
    if kind == 0:
        data[at] ^= 1 << random_.randrange(8)
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        data[at : at + random_.randrange(1, 600)] = b""
    elif kind == 3:
        data[at:at] = random_.randbytes(random_.randrange(1, 600))
    elif kind == 4:
        start = random_.randrange(0, len(data), 512)
        data[start : start + 512] = bytes(512)
    else:
        start = at // 512 * 512
        data[start + random_.randrange(257)] = random_.randrange(256)
        field = data[start + 148 : start + 156]
        data[start + 148 : start + 156] = b" " * 8
        total = sum(data[start : start + 512])
        data[start + 148 : start + 156] = b"%06o\0 " % total if len(field) == 8 else field
    return bytes(data)


def fuzz(folder, num_mutations, seed):
    """Returns how many mutations were refused, how many rejected rows, and how many changed nothing that shows."""
    random_ = random.Random(seed)
    seeds = [pack(list(pairs(6, 300)), form) for form in FORMATS.values()]
    seeds.append(pack([("n" * 120 + f"{i}.bin", b"x" * i) for i in range(6)], tarfile.GNU_FORMAT))
    counts = {"refused": 0, "rejected": 0, "unseen": 0}
    for _ in range(num_mutations):
        content = random_.choice(seeds)
        features, _ = read(write(folder, content))
        kind = random_.randrange(6)
        path = write(folder, mutate(content, random_, kind))
        for options in (WEBDATASET, TOLERANT):
            try:
                _, batches = read(path, features=features, options=options)
            except ShardkitError as error:
                counts["refused"] += options is TOLERANT and bool(str(error))
                continue
            num_found = sum(b.batch.num_rows + len(b.rejected) for b in batches)
            # A header that was changed together with its checksum may merge two samples or part one.
            assert num_found == 6 if kind != 5 else num_found >= 4, "rows are lost"
            counts["rejected" if any(b.rejected for b in batches) else "unseen"] += options is TOLERANT
    return counts


@pytest.mark.full
def test_mutations_end_in_an_error_or_in_all_rows(tmp_path):
    counts = fuzz(tmp_path, 150, seed=1)
    assert sum(counts.values()) == 150
    assert counts["refused"] > 50
