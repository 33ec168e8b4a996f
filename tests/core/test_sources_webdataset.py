"""WebDataset shards against `tarfile`, and every damage that a tar can have."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from shardkit.errors import BadInputError, DamagedFileError, ShardkitError, UsageError
from shardkit.features import make_feature
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions, row_identities
from shardkit.sources.tar_headers import TarHeaderError, is_header, parse_pax
from shardkit.sources.webdataset_files import WebDatasetSource
from shardkit.sources.webdataset_samples import SeenKeys, cut_name

WEBDATASET = SourceOptions(format="webdataset")
TOLERANT = SourceOptions(format="webdataset", tolerates_bad_rows=True)
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
DATA = Path(__file__).parents[3] / "shared" / "data"


def pack(members, form=tarfile.USTAR_FORMAT):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name, data in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            if isinstance(data, bytes):
                info.size = len(data)
            tar.addfile(info, io.BytesIO(data) if isinstance(data, bytes) else None)
    return buffer.getvalue()


def write(folder, content, name="a.tar"):
    path = folder / name
    path.write_bytes(content)
    return path


def read(*paths, options=WEBDATASET, features=None, batch_bytes=4 << 20):
    files = list_inputs([str(p) for p in paths], options).files
    source = WebDatasetSource(batch_bytes=batch_bytes)
    features = features or source.infer(files, options)
    batches = [b for split in source.split(files, options) for b in source.read(split, files, features, options)]
    return features, batches


def rows(batches):
    return [row for b in batches for row in b.batch.to_pylist()]


def rejected(batches):
    return [row for b in batches for row in b.rejected]


def pairs(num_samples, num_bytes=100):
    for i in range(num_samples):
        yield f"{i:06}.bin", bytes([i % 256]) * num_bytes
        yield f"{i:06}.cls", str(i).encode()


def by_tarfile(path):
    # The rule of the webdataset package, told by Python's own reader.
    found = {}
    with tarfile.open(path) as tar:
        for member in tar:
            if member.isfile():
                folder, _, base = member.name.rpartition("/")
                stem, _, extension = base.partition(".")
                found.setdefault(f"{folder}/{stem}".lstrip("/"), {})[extension] = tar.extractfile(member).read()
    return found


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("packed", [bytes, gzip.compress, lambda d: pa.compress(d, "zstd", asbytes=True)])
def test_samples_are_those_that_tarfile_finds(tmp_path, form, packed):
    members = [(f"{'deep/' * 30}x{i}.{e}", f"{i}{e}".encode() * i) for i in range(50) for e in ("bin", "seg.dat")]
    plain = write(tmp_path, pack(members, FORMATS[form]), "plain.tar")
    expected = by_tarfile(plain)
    _, batches = read(write(tmp_path, packed(plain.read_bytes()), "a"), batch_bytes=500)
    assert len(batches) > 5
    assert {r["__key__"]: {k: v for k, v in r.items() if k != "__key__"} for r in rows(batches)} == expected


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8", exclude_characters="\0/.\\", exclude_categories=["Cc"]), min_size=1),
            st.binary(max_size=2000),
        ),
        min_size=1,
        max_size=20,
        unique_by=lambda pair: pair[0],
    ),
    st.sampled_from(["gnu", "pax"]),
    st.integers(1, 4000),
)
@settings(deadline=None, max_examples=50)
def test_any_keys_and_any_content_come_back(tmp_path_factory, samples, form, batch_bytes):
    path = write(tmp_path_factory.mktemp("tar"), pack([(f"{k}.bin", v) for k, v in samples], FORMATS[form]))
    _, batches = read(path, batch_bytes=batch_bytes)
    assert [(r["__key__"], r["bin"]) for r in rows(batches)] == samples
    identities = np.concatenate([b.identities for b in batches])
    (file,) = list_inputs([str(path)], WEBDATASET).files
    assert identities.tolist() == row_identities(file, 0, 0, len(samples)).tolist()


def png(color=0):
    buffer = io.BytesIO()
    Image.new("L", (3, 2), color).save(buffer, "PNG")
    return buffer.getvalue()


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def test_every_extension_becomes_what_it_says(tmp_path):
    arrays = [np.arange(6, dtype=">f4").reshape(2, 3), np.asfortranarray(np.ones((2, 3), "f4"))]
    members = []
    for i, array in enumerate(arrays):
        fields = {"a": {"b": i, "c": "x"}, "d": [1.5, 2], "e": None if i else 7}
        members += [
            (f"{i}.PNG", png(i)),
            (f"{i}.cls", f" {i}\n".encode()),
            (f"{i}.index", b"12"),
            (f"{i}.txt", "grüß\n".encode()),
            (f"{i}.json", json.dumps(fields, indent=2).encode()),
            (f"{i}.npy", npy(array)),
            (f"{i}.vec.npy", npy(np.arange(i + 1))),
            (f"{i}.num.npy", npy(np.int16(i))),
            (f"{i}.wav", b"RIFF"),
            (f"{i}.mp3", b"ID3"),
            (f"{i}.caption.txt.gz", gzip.compress(b"small")),
            (f"{i}.other", b"\0\xff"),
        ]
    features, batches = read(write(tmp_path, pack(members)))
    assert {f.name: f.describe_type() for f in features} == {
        "__key__": "string",
        "png": "bytes image/png",
        "cls": "int64",
        "index": "int64",
        "txt": "string",
        "json/a/b": "int64",
        "json/a/c": "string",
        "json/d": "float32[*]",
        "json/e": "int64",
        "npy": "float32[2][3]",
        "vec.npy": "int64[*]",
        "num.npy": "int16",
        "wav": "bytes audio/wav",
        "mp3": "bytes audio/mpeg",
        "caption.txt.gz": "string",
        "other": "bytes",
    }
    first, second = rows(batches)
    assert first["png"] == png(0)
    assert (first["cls"], second["cls"], first["index"]) == (0, 1, 12)
    assert (first["txt"], first["caption.txt.gz"]) == ("grüß\n", "small")
    assert (first["json/a/b"], second["json/a/b"], first["json/a/c"], second["json/e"]) == (0, 1, "x", None)
    assert first["json/d"] == [1.5, 2.0]
    assert (first["npy"], second["npy"]) == ([0, 1, 2, 3, 4, 5], [1] * 6)
    assert (first["vec.npy"], second["vec.npy"], second["num.npy"]) == ([0], [0, 1], 1)
    assert first["other"] == b"\0\xff"


@pytest.mark.parametrize(
    ("contents", "dtype"),
    [
        ([b'{"a": 1}', b'{"b": 1}'], "string application/json"),
        ([b'{"a": 1}', b'{"a": "x"}'], "string application/json"),
        ([b"[1]", b"[2]"], "string application/json"),
        ([b'{"a": 1, "a": 2}', b'{"a": 1}'], "string application/json"),
    ],
)
def test_json_that_does_not_agree_is_text(tmp_path, contents, dtype):
    path = write(tmp_path, pack([(f"{i}.json", c) for i, c in enumerate(contents)]))
    if b'"a": 2}' in contents[0]:
        contents = contents[1:] * 2
        path = write(tmp_path, pack([("0.json", b'{"a": 1, "a": 2}'), ("1.json", b'{"a": 1}')]))
        assert read(path)[0][1].describe_type() == dtype
        return
    features, batches = read(path)
    assert features[1].describe_type() == dtype
    assert [r["json"].encode() for r in rows(batches)] == contents


def test_classes_that_are_no_integers_are_text(tmp_path):
    features, _ = read(write(tmp_path, pack([("1.cls", b"cat"), ("2.cls", b"7")])))
    assert features[1].dtype == "string"
    features, _ = read(write(tmp_path, pack([("1.cls", b"007")])))
    assert features[1].dtype == "string"


def test_arrays_of_several_shapes_or_kinds_stay_bytes(tmp_path):
    one, other = npy(np.ones((1, 2))), npy(np.ones((2, 2)))
    features, batches = read(write(tmp_path, pack([("1.npy", one), ("2.npy", other)])))
    assert features[1].describe_type() == "bytes application/x-npy"
    assert [r["npy"] for r in rows(batches)] == [one, other]
    assert read(write(tmp_path, pack([("1.npy", npy(np.array(["text"])))])))[0][1].dtype == "bytes"


def test_pickles_are_refused(tmp_path):
    content = npy(np.array([None, {}], dtype=object))
    with pytest.raises(UsageError, match="pickled"):
        read(write(tmp_path, pack([("1.npy", content)])))
    good = npy(np.zeros(2))
    features, _ = read(write(tmp_path, pack([("1.npy", good)])))
    with pytest.raises(BadInputError, match="pickled"):
        read(write(tmp_path, pack([("1.npy", good), ("2.npy", content)])), features=features)


def test_an_array_that_claims_too_much_takes_no_memory(tmp_path):
    good = npy(np.zeros(3))
    features, _ = read(write(tmp_path, pack([("1.npy", good)])))
    lying = good.replace(b"(3,), }        ", b"(300000000000,)}")[: len(good)].replace(b"00,)}", b"0,), }")
    with pytest.raises(BadInputError, match="sample '2'"):
        read(write(tmp_path, pack([("1.npy", good), ("2.npy", lying)])), features=features)


def test_a_schema_may_ask_for_other_types(tmp_path):
    path = write(tmp_path, pack([("1.cls", b"1\n"), ("1.name", b"cat\n"), ("1.txt", b"2.5")]))
    features = (
        make_feature("cls", "string"),
        make_feature("name", "int64", vocabulary=("dog", "cat")),
        make_feature("txt", "float32"),
    )
    _, batches = read(path, features=features)
    assert rows(batches) == [{"cls": "1\n", "name": 1, "txt": 2.5}]


def test_an_extension_of_some_files_is_nullable(tmp_path):
    first = write(tmp_path, pack([("1.bin", b"x"), ("1.cls", b"1")]), "1.tar")
    second = write(tmp_path, pack([("2.bin", b"y")]), "2.tar")
    features, batches = read(first, second)
    assert [(f.name, f.nullable) for f in features] == [("__key__", False), ("bin", False), ("cls", True)]
    assert [r["cls"] for r in rows(batches)] == [1, None]


def test_hidden_members_documents_and_folders_are_passed_over(tmp_path):
    folder = tarfile.TarInfo("x/")
    folder.type = tarfile.DIRTYPE
    members = [(folder, None), ("README", b"text"), ("x/._1.bin", b"junk"), ("./x/1.bin", b"x"), (".DS_Store", b"junk")]
    _, batches = read(write(tmp_path, pack(members)))
    assert rows(batches) == [{"__key__": "x/1", "bin": b"x"}]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a/b.c/d.e.F", ("a/b.c/d", "e.f")),
        ("a.jpg", ("a", "jpg")),
        ("a", None),
        (".hidden", None),
        ("a.", None),
        ("a.b/c", None),
    ],
)
def test_names_are_cut_at_the_first_dot(name, expected):
    assert cut_name(name) == expected


# Damage: the whole file.


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


def test_extended_headers_are_read():
    assert parse_pax(b"6 a=b\n12 path=x/y\n\0\0") == {"a": b"b", "path": b"x/y"}


def test_an_empty_value_keeps_the_name_of_the_header(tmp_path):
    info = tarfile.TarInfo("1.bin")
    info.pax_headers = {"comment": "x"}
    _, batches = read(write(tmp_path, pack([(info, b"x")], tarfile.PAX_FORMAT)))
    assert rows(batches)[0]["__key__"] == "1"


# Damage: single rows.


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
        ("txt.gz", gzip.compress(b"x"), gzip.compress(b"x")[:-1], "cut off"),
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


def test_names_with_an_early_dot_are_explained(tmp_path):
    path = write(tmp_path, pack([(f"v1.{i:04}.bin", b"x") for i in range(400)]))
    with pytest.raises(BadInputError, match="first dot"):
        read(path)


def test_a_key_that_returns_late_is_found():
    seen = SeenKeys()
    assert not any(seen.add(str(i)) for i in range(200_000))
    assert all(seen.add(str(i)) for i in range(0, 200_000, 997))


def test_a_file_that_changes_is_told(tmp_path):
    path = write(tmp_path, pack(list(pairs(5))))
    files = list_inputs([str(path)], WEBDATASET).files
    source = WebDatasetSource()
    features = source.infer(files, WEBDATASET)
    path.write_bytes(pack(list(pairs(6))))
    with pytest.raises(BadInputError, match="changed during conversion"):
        list(source.read(source.split(files, WEBDATASET)[0], files, features, WEBDATASET))


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


def test_mutations_end_in_an_error_or_in_all_rows(tmp_path):
    counts = fuzz(tmp_path, 150, seed=1)
    assert sum(counts.values()) == 150
    assert counts["refused"] > 50


# Real archives.


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "num_rows"),
    [("sample.tgz", 90), ("tendata.tar", 100), ("mpdata.tar", 100), ("testgz.tar", 1000), ("compressed.tar", 3)],
)
def test_real_archives_hold_what_tarfile_finds(name, num_rows):
    path = DATA / "webdataset-tars" / name
    if not path.exists():
        pytest.skip("the real data is not there")
    features, batches = read(path)
    expected = by_tarfile(path)
    found = rows(batches)
    assert len(found) == num_rows == len(expected)
    for row in found:
        for feature in features[1:]:
            stored = expected[row["__key__"]][feature.name]
            stored = gzip.decompress(stored) if feature.name.endswith(".gz") else stored
            value = row[feature.name]
            assert value == (
                stored if feature.dtype == "bytes" else stored.decode() if feature.dtype == "string" else int(stored)
            )
