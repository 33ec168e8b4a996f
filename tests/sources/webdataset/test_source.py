"""WebDataset shards against `tarfile`, and every damage that a tar can have."""

from __future__ import annotations

import gzip
import json
import tarfile

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.errors import BadInputError, UsageError
from shardkit.features import make_feature
from shardkit.sources import list_inputs
from shardkit.sources.base import row_identities
from shardkit.sources.files.tar_headers import parse_pax
from shardkit.sources.files.tar_stream import cut_name
from tests.support.examples import draws
from tests.support.files.webdataset_makers import FORMATS, WEBDATASET, npy, pack, png, read, rows, write
from tests.support.paths import DATA


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
@settings(deadline=None, max_examples=draws(50))
def test_any_keys_and_any_content_come_back(tmp_path_factory, samples, form, batch_bytes):
    path = write(tmp_path_factory.mktemp("tar"), pack([(f"{k}.bin", v) for k, v in samples], FORMATS[form]))
    _, batches = read(path, batch_bytes=batch_bytes)
    assert [(r["__key__"], r["bin"]) for r in rows(batches)] == samples
    identities = np.concatenate([b.identities for b in batches])
    (file,) = list_inputs([str(path)], WEBDATASET).files
    assert identities.tolist() == row_identities(file, 0, 0, len(samples)).tolist()


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
        ([b'{"a": 1}', b'{"b": 1}'], "json"),
        ([b'{"a": 1}', b'{"a": "x"}'], "json"),
        ([b"[1]", b"[2]"], "json"),
        ([b'{"a": 1, "a": 2}', b'{"a": 1}'], "json"),
    ],
)
def test_json_that_does_not_agree_is_one_column(tmp_path, contents, dtype):
    path = write(tmp_path, pack([(f"{i}.json", c) for i, c in enumerate(contents)]))
    if b'"a": 2}' in contents[0]:
        contents = contents[1:] * 2
        path = write(tmp_path, pack([("0.json", b'{"a": 1, "a": 2}'), ("1.json", b'{"a": 1}')]))
        assert read(path)[0][1].describe_type() == dtype
        return
    features, batches = read(path)
    assert features[1].describe_type() == dtype
    assert [json.loads(r["json"]) for r in rows(batches)] == [json.loads(c) for c in contents]


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


def test_extended_headers_are_read():
    assert parse_pax(b"6 a=b\n12 path=x/y\n\0\0") == {"a": b"b", "path": b"x/y"}


def test_an_empty_value_keeps_the_name_of_the_header(tmp_path):
    info = tarfile.TarInfo("1.bin")
    info.pax_headers = {"comment": "x"}
    _, batches = read(write(tmp_path, pack([(info, b"x")], tarfile.PAX_FORMAT)))
    assert rows(batches)[0]["__key__"] == "1"


def test_names_with_an_early_dot_are_explained(tmp_path):
    path = write(tmp_path, pack([(f"v1.{i:04}.bin", b"x") for i in range(400)]))
    with pytest.raises(BadInputError, match="first dot"):
        read(path)


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
