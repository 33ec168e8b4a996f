"""NumPy's files: the rows are what numpy.load gives, bit for bit; no pickle is read, and damage is named."""

from __future__ import annotations

import gzip
import io
import random
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shardkit.errors import BadInputError, DamagedFileError, ShardkitError, UsageError
from shardkit.sources import list_inputs
from shardkit.sources.arrays.numpy_source import NumpySource
from shardkit.sources.base import SourceOptions
from shardkit.testing.reading import Reading
from tests.support.examples import draws
from tests.support.files.source_makers import read_all
from tests.support.paths import DATA

PROPERTY = settings(max_examples=draws(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(*paths: Path, source: NumpySource | None = None, **options) -> Reading:
    return read_all(source or NumpySource(), *paths, **options)


def save(folder: Path, values, name: str = "a.npy") -> Path:
    path = folder / name
    np.save(path, values)
    return path


def same(found: list, values: np.ndarray) -> None:
    """Asserts that rows hold exactly these values, of NaN and negative zeros the bits."""
    flat = values.reshape(len(values), -1)
    rows = [[row] if values.ndim == 1 else row for row in found]
    if values.dtype.kind == "f":
        dtype = values.dtype.newbyteorder("=")
        assert np.array(rows, dtype).reshape(flat.shape).tobytes() == flat.astype(dtype).tobytes()
    else:
        assert rows == flat.tolist()


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("dtype", ["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"])
def test_numbers_are_kept_exactly(tmp_path, dtype, order):
    type_ = np.dtype(order + dtype)
    raw = np.random.default_rng(1).integers(0, 256, 1000 * type_.itemsize, dtype=np.uint8)
    values = (raw % 2 == 1) if dtype == "b1" else raw.view(type_)
    if type_.kind == "f":
        values = np.where(np.isnan(values), type_.type(1.5), values).astype(type_)
    found = read(save(tmp_path, values, "x y.npy"))
    assert found.types == {"x y": type_.newbyteorder("=").name}
    same(found.columns["x y"], values)


def test_the_ends_of_uint64_are_kept(tmp_path):
    values = np.array([0, 2**63, 2**64 - 1], dtype=np.uint64)
    assert read(save(tmp_path, values)).columns["a"] == [0, 2**63, 2**64 - 1]


ARRAYS = hnp.arrays(
    dtype=st.sampled_from(["<f8", ">f4", "f2", "<i8", ">u2", "u1", "?", "<U5", ">U3", "S4"]),
    shape=hnp.array_shapes(min_dims=1, max_dims=4, max_side=6),
    elements=None,
)


@pytest.mark.full
@PROPERTY
@given(values=ARRAYS, is_fortran=st.booleans(), split_bytes=st.integers(1, 100), batch_bytes=st.integers(1, 100))
def test_any_array_and_any_cut(tmp_path, values, is_fortran, split_bytes, batch_bytes):
    path = save(tmp_path, np.asfortranarray(values) if is_fortran else values)
    source = NumpySource(split_bytes=split_bytes, batch_bytes=batch_bytes)
    expected = np.load(path)
    if values.dtype.kind == "U" and any("\ud800" <= code <= "\udfff" for text in values.flat for code in text):
        with pytest.raises(BadInputError, match="which is no character"):
            read(path, source=source)
        return
    found = read(path, source=source)
    same(found.columns["a"], expected)
    assert len(set(found.identities)) == len(values)
    assert read(path, source=NumpySource(split_bytes=split_bytes)).identities == found.identities
    packed = tmp_path / "p.npy.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    same(read(packed, source=source).columns["p"], expected)
    for write in (np.savez, np.savez_compressed):
        write(tmp_path / "z.npz", a=np.asfortranarray(values) if is_fortran else values, b=np.arange(len(values)))
        inside = read(tmp_path / "z.npz", source=source)
        same(inside.columns["a"], expected)
        assert inside.columns["b"] == list(range(len(values)))


def test_fortran_order_is_read_in_slabs(tmp_path, monkeypatch):
    monkeypatch.setattr("shardkit.sources.arrays.rows._SLAB_BYTES", 2000)
    values = np.asfortranarray(np.arange(3000).reshape(100, 5, 6))
    found = read(save(tmp_path, values), source=NumpySource(split_bytes=2000, batch_bytes=700))
    assert found.types == {"a": "int64[5][6]"}
    same(found.columns["a"], values)


def test_structured_arrays_are_columns(tmp_path):
    inner = np.dtype([("u", "<i2"), ("v", ">f4")])
    dtype = np.dtype(
        [("id", ">i4"), ("name", "<U6"), ("vector", "<f4", (2, 3)), ("in", inner), ("raw", "S3")], align=True
    )
    values = np.zeros(50, dtype)
    values["id"] = np.arange(50)
    values["name"] = [f"né{i}" for i in range(50)]
    values["vector"] = np.random.default_rng(0).random((50, 2, 3))
    values["in"]["v"] = 1.5
    values["raw"] = b"a\0b"
    found = read(save(tmp_path, values))
    assert found.types == {
        "id": "int32", "name": "string", "vector": "float32[2][3]", "in/u": "int16", "in/v": "float32", "raw": "bytes",
    }  # fmt: skip
    assert found.columns["id"] == list(range(50))
    assert found.columns["name"] == values["name"].tolist()
    same(found.columns["vector"], values["vector"])
    assert found.columns["raw"] == [b"a\0b"] * 50
    np.savez(tmp_path / "z.npz", t=values, n=np.arange(50))
    assert list(read(tmp_path / "z.npz").types)[:2] == ["t/id", "t/name"]


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("M8[D]", "date"),
        ("M8[s]", "timestamp[s]"),
        ("M8[ns]", "timestamp[ns]"),
        (">M8[us]", "timestamp[us]"),
        ("M8[h]", "timestamp[s]"),
        ("m8[ms]", "duration[ms]"),
        ("m8[D]", "duration[s]"),
    ],
)
def test_times(tmp_path, dtype, expected):
    values = np.array([0, 1000, 12_000, "NaT"], dtype=dtype)
    found = read(save(tmp_path, values))
    assert found.types == {"a": expected}
    unit = "D" if expected == "date" else expected[-3:].strip("[]")
    back = np.array(found.columns["a"][:3], dtype=f"{np.dtype(dtype).kind}8[{unit}]")
    assert (back == values[:3]).all()
    assert found.columns["a"][3] is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([1 + 2j]), "column 'a' has the dtype complex128 in a.npy"),
        (np.array(["x", None], dtype=object), "column 'a' holds Python objects in a.npy.*pickle.*plain dtype"),
        (np.array([b"ab"], dtype="V2"), "column 'a' has the dtype"),
        (np.array([1], dtype="M8[Y]"), "column 'a' has the dtype"),
        (np.array([1], dtype="M8[25s]"), "column 'a' has the dtype"),
        (np.zeros((3, 0)), "column 'a' has no values"),
        (np.zeros(3, dtype=[("x", "O")]), "column 'x' holds Python objects"),
        (np.zeros(3, dtype=[("x", "f4"), ("", "i4")]), None),
    ],
)
def test_what_an_example_cannot_hold(tmp_path, values, message):
    path = tmp_path / "a.npy"
    np.save(path, values, allow_pickle=True)
    if message is None:
        assert read(path).types == {"x": "float32", "f1": "int32"}
        return
    with pytest.raises(UsageError, match=message):
        read(path)
    np.savez(tmp_path / "a.npz", good=np.zeros(len(values)), a=values)
    with pytest.raises(UsageError, match=r"in a\.npz"):
        read(tmp_path / "a.npz")


def test_no_pickle_runs(tmp_path):
    class Hostile:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    np.save(tmp_path / "a.npy", np.array([Hostile()], dtype=object), allow_pickle=True)
    with pytest.raises(UsageError, match="pickle"):
        read(tmp_path / "a.npy")
    assert not (tmp_path / "ran").exists()


def header(text: str, version: int = 1) -> bytes:
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text.encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>404</html>", "the file is no NumPy array in a.npy: it begins with HTML text"),
        (b"\x93NUMPY", "version"),
        (b"\x93NUMPY\x09\x00", "version"),
        (b"\x93NUMPY\x01\x00", "ends in the header"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "its header has 4,294,967,295 bytes"),
        (header("__import__('os').system('x')"), "cannot be read"),
        (header("{}"), "cannot be read"),
        (header("(" * 60_000), "cannot be read"),
        (header("-" * 60_000 + "1"), "cannot be read"),
        (header("[" * 150 + "]" * 150), "cannot be read"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}"), "no valid shape"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}"), "no valid shape"),
        (header("{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}"), "no valid shape"),
        (header("{'descr': 'zz', 'fortran_order': False, 'shape': (1,)}"), "cannot be read"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': ()}"), "single value"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (10,)}") + b"1234", "cut off"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000,)}"), "cut off"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}") + b"12345", "bytes follow the array"),
    ],
)
@pytest.mark.parametrize("is_compressed", [False, True])
def test_damaged_arrays(tmp_path, content, message, is_compressed):
    path = tmp_path / "a.npy"
    path.write_bytes(gzip.compress(content) if is_compressed else content)
    with pytest.raises(DamagedFileError, match=message):
        read(path)
    good = save(tmp_path, np.zeros(3, "f4"), "b.npy")
    files = list_inputs([str(path), str(good)]).files
    options = SourceOptions(tolerates_bad_rows=True)
    features = NumpySource().infer(files, options)
    bad, fine = NumpySource().split(files, options)
    with pytest.raises(DamagedFileError, match=message):
        list(NumpySource().read(bad, files, features, options))
    assert sum(b.batch.num_rows for b in NumpySource().read(fine, files, features, options)) == 3


def test_a_value_without_bytes(tmp_path):
    path = tmp_path / "a.npy"
    path.write_bytes(header("{'descr': '|S0', 'fortran_order': False, 'shape': (10000000000000000,)}"))
    with pytest.raises(UsageError, match="has no values"):
        read(path)


def zip_of(folder: Path, method: int = zipfile.ZIP_STORED, **arrays) -> Path:
    with zipfile.ZipFile(folder / "a.npz", "w", method) as archive:
        for name, values in arrays.items():
            content = io.BytesIO()
            np.save(content, values)
            archive.writestr(f"{name}.npy", content.getvalue())
    return folder / "a.npz"


def test_archives(tmp_path):
    with pytest.raises(UsageError, match=r"different lengths in a.npz: 'x' has 3, 'y' has 4"):
        read(zip_of(tmp_path, x=np.zeros(3), y=np.zeros(4)))
    with pytest.raises(DamagedFileError, match="single value"):
        read(zip_of(tmp_path, x=np.zeros(3), y=np.float32(1)))
    with pytest.raises(DamagedFileError, match="compression has the number 12"):
        read(zip_of(tmp_path, zipfile.ZIP_BZIP2, x=np.zeros(3)))
    with pytest.raises(DamagedFileError, match="empty"):
        read(zip_of(tmp_path))
    path = zip_of(tmp_path, x=np.arange(1000), y=np.arange(1000))
    content = path.read_bytes()
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("notes.txt", "x")
    with pytest.raises(UsageError, match=r"'notes.txt' is no array"):
        read(path)
    path.write_bytes(content[:-30])
    with pytest.raises(DamagedFileError, match="cut off or damaged"):
        read(path)
    flipped = bytearray(content)
    flipped[content.index(struct.pack("<q", 500)) + 1] ^= 1
    path.write_bytes(flipped)
    for tolerates in (False, True):
        with pytest.raises(DamagedFileError, match=r"a.npz: bad CRC-32"):
            read(path, tolerates_bad_rows=tolerates)
    with zipfile.ZipFile(path, "w") as doubled:
        doubled.writestr("x.npy", b"x")
        with pytest.warns(UserWarning, match="Duplicate name"):
            doubled.writestr("x.npy", b"x")
    with pytest.raises(DamagedFileError, match="'x' is there 2 times"):
        read(path)


@pytest.mark.full
def test_bombs_are_refused_by_name(tmp_path):
    path = zip_of(tmp_path, zipfile.ZIP_DEFLATED, x=np.zeros(10_000_000))
    with pytest.raises(BadInputError, match=r"more than 200 times as much.*--max-expansion"):
        read(path)
    assert len(read(path, max_expansion=2000).identities) == 10_000_000


def test_rows_that_are_too_large(tmp_path):
    with pytest.raises(BadInputError, match=r"the rows are too large in a\.npy: each has 80.0 KiB"):
        read(save(tmp_path, np.zeros((2, 10_240))), max_record_bytes=1000)


def test_several_files_must_agree(tmp_path):
    first, second = save(tmp_path, np.zeros((2, 3), "<f4"), "1.npy"), save(tmp_path, np.ones((4, 3), ">f4"), "2.npy")
    found = read(first, second)
    assert found.types == {"values": "float32[3]"}
    assert found.columns["values"] == [[0.0] * 3] * 2 + [[1.0] * 3] * 4
    third = save(tmp_path, np.ones((4, 2)), "3.npy")
    with pytest.raises(UsageError, match=r"'values' is float32\[3\] in 1.npy and float64\[2\] in 3.npy"):
        read(first, second, third)


def test_bad_text_is_a_bad_row(tmp_path):
    values = np.array(["ab", "cd", "ef", "gh"])
    codes = values.view(np.uint32).copy()
    codes[3], codes[4] = 0xD800, 0x110000
    path = save(tmp_path, codes.view("U2"))
    with pytest.raises(BadInputError, match=r"column 'a' does not fit in a.npy, row 2: .*0xd800"):
        read(path)
    found = read(path, tolerates_bad_rows=True)
    assert found.columns["a"] == ["ab", "gh"]
    assert [(r.position, len(r.raw)) for r in found.rejected] == [("row 2", 8), ("row 3", 8)]
    whole = read(save(tmp_path, values))
    assert found.identities == [whole.identities[0], whole.identities[3]]


def test_marks_and_zeros_within_text_are_kept(tmp_path):
    values = np.array(["\ufeffa", "a\0b", "", "é😀"])
    assert read(save(tmp_path, values)).columns["a"] == values.tolist()


@pytest.mark.parametrize(
    ("head", "name", "expected"),
    [
        (b"\x93NUMPY\x01\x00", "a", True),
        (b"PK\x03\x04", "a.npz", True),
        (b"PK\x03\x04", "a.zip", False),
        (b"<html>", "a.npy", True),
        (b"a,b\n", "a.csv", False),
    ],
)
def test_recognizes(head, name, expected):
    assert NumpySource().recognizes(head, name) is expected


@pytest.mark.full
def test_mutations_never_lose_rows(tmp_path):
    rng = random.Random(5)
    for _ in range(300):
        check_mutation(tmp_path, rng)


def check_mutation(folder: Path, rng: random.Random) -> str:
    kind = rng.choice(["npy", "npy", "npz", "gz"])
    values = rng.choice(
        [np.arange(30, dtype="<i4").reshape(10, 3), np.array(["ab", "ç"] * 5), np.asfortranarray(np.eye(10))]
    )
    buffer = io.BytesIO()
    if kind == "npz":
        rng.choice([np.savez, np.savez_compressed])(buffer, x=values, y=np.arange(10))
    else:
        np.save(buffer, values)
    data = bytearray(buffer.getvalue())
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(min(len(data), 140)) if rng.random() < 0.4 else rng.randrange(len(data))
        data[place] = rng.choice([rng.randrange(256), *b"0129,()'{}<>|fiuSUOMV"])
    if rng.random() < 0.2:
        del data[rng.randrange(1, len(data)) :]
    path = folder / {"npy": "a.npy", "npz": "a.npz", "gz": "a.npy.gz"}[kind]
    path.write_bytes(gzip.compress(bytes(data)) if kind == "gz" else bytes(data))
    try:
        found = read(path, tolerates_bad_rows=True, source=NumpySource(split_bytes=50))
    except ShardkitError:
        return "refused"
    loaded = np.load(io.BytesIO(bytes(data)), allow_pickle=False)
    loaded = loaded[loaded.files[0]] if kind == "npz" else loaded
    assert len(found.identities) + len(found.rejected) == len(loaded)
    return "read"


@pytest.mark.data
@pytest.mark.skipif(not DATA.is_dir(), reason="the real data sets are not there")
def test_real_arrays():
    path = DATA / "numpy" / "example_nsynth_audio.npy"
    found = read(path)
    assert found.types == {"example_nsynth_audio": "float32[64000]"}
    same(found.columns["example_nsynth_audio"], np.load(path))
    for name in ("cora", "citeseer"):
        with pytest.raises(UsageError, match=f"different lengths in {name}.npz"):
            read(DATA / "numpy" / f"{name}.npz")
