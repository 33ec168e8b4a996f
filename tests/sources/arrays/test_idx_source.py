"""IDX: images and labels that belong together are one table; damage is named."""

from __future__ import annotations

import gzip
import random
import struct
from pathlib import Path

import numpy as np
import pytest

from shardkit.errors import BadInputError, DamagedFileError, ShardkitError, UsageError
from shardkit.features import make_feature
from shardkit.sources import list_inputs
from shardkit.sources.arrays.idx_source import IdxSource
from shardkit.sources.base import SourceOptions
from shardkit.testing.reading import Reading
from tests.support.files.source_makers import read_all
from tests.support.paths import DATA

CODES = {"u1": 8, "i1": 9, ">i2": 11, ">i4": 12, ">f4": 13, ">f8": 14}


def encode(values: np.ndarray, dtype: str = "u1") -> bytes:
    head = bytes([0, 0, CODES[dtype], values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    return head + values.astype(dtype).tobytes()


def write(folder: Path, name: str, values: np.ndarray, dtype: str = "u1") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    content = encode(values, dtype)
    path.write_bytes(gzip.compress(content, mtime=0) if name.endswith(".gz") else content)
    return path


def read(*paths: Path, **options) -> Reading:
    return read_all(IdxSource(), *paths, **options)


IMAGES = np.random.default_rng(3).integers(0, 256, (40, 4, 5), dtype=np.uint8)
LABELS = np.arange(40, dtype=np.uint8) % 10


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("images", "labels"),
    [
        ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
        ("t10k-images.idx3-ubyte", "t10k-labels.idx1-ubyte"),
        ("emnist-letters-test-images-idx3-ubyte", "emnist-letters-test-labels-idx1-ubyte"),
    ],
)
def test_pairs(tmp_path, images, labels, suffix):
    write(tmp_path, images + suffix, IMAGES)
    write(tmp_path, labels + suffix, LABELS)
    found = read(tmp_path)
    assert found.features == (make_feature("image", "uint8", (4, 5)), make_feature("label", "uint8"))
    assert found.rows == [
        {"image": image.ravel().tolist(), "label": label} for image, label in zip(IMAGES, LABELS.tolist(), strict=True)
    ]
    assert found.notes == (f"{images}{suffix} and {labels}{suffix} are read as one table",)
    assert set(found.file_indices) == {0}
    assert len(set(found.identities)) == 40


def test_several_pairs_and_mixed_compression(tmp_path):
    write(tmp_path, "train-images-idx3-ubyte.gz", IMAGES)
    write(tmp_path, "train-labels-idx1-ubyte", LABELS)
    train = read(tmp_path)
    write(tmp_path, "t10k-images-idx3-ubyte", IMAGES[:7])
    write(tmp_path, "t10k-labels-idx1-ubyte.gz", LABELS[:7])
    both = read(tmp_path)
    assert both.rows == train.rows[:7] + train.rows
    assert both.identities[7:] == train.identities
    assert len(set(both.identities)) == 47


@pytest.mark.parametrize(
    ("names", "globs"),
    [
        (("emnist-letters-train", "emnist-digits-train"), ["emnist-digits-train-*", "emnist-letters-train-*"]),
        (("MNIST/raw/train", "FashionMNIST/raw/train"), ["FashionMNIST/raw/train-*", "MNIST/raw/train-*"]),
        (("train-Letters", "train-Digits", "val-Letters", "val-Digits"), ["*Digits*", "*Letters*"]),
    ],
)
def test_several_families_are_refused(tmp_path, names, globs):
    for name in names:
        write(tmp_path, f"{name}-images-idx3-ubyte", np.zeros((2, 3, 3)))
        write(tmp_path, f"{name}-labels-idx1-ubyte", np.zeros(2))
    with pytest.raises(UsageError, match="of several data sets") as caught:
        read(tmp_path)
    assert all(f"--include '{glob}'" in str(caught.value) for glob in globs)
    for glob in globs:
        assert len(read(tmp_path, include=(glob,)).rows) == len(names)


def test_parts_that_differ_in_numbers_are_one_table(tmp_path):
    for name in ("part1/train", "part2/train"):
        write(tmp_path, f"{name}-images-idx3-ubyte", np.zeros((2, 3, 3)))
        write(tmp_path, f"{name}-labels-idx1-ubyte", np.zeros(2))
    assert len(read(tmp_path).rows) == 4


def test_a_file_alone_is_values(tmp_path):
    for dtype in CODES:
        values = np.random.default_rng(1).integers(0, 100, (9, 2)).astype(dtype)
        found = read(write(tmp_path, "a-idx2-x", values, dtype))
        assert found.features == (make_feature("values", np.dtype(dtype).newbyteorder("=").name, (2,)),)
        assert [row["values"] for row in found.rows] == values.tolist()


def test_pairs_must_count_the_same(tmp_path):
    write(tmp_path, "train-images-idx3-ubyte", IMAGES)
    write(tmp_path, "train-labels-idx1-ubyte.gz", LABELS[:39])
    message = "train-images-idx3-ubyte has 40 rows, train-labels-idx1-ubyte.gz has 39"
    for tolerates in (False, True):
        with pytest.raises(UsageError, match=message):
            read(tmp_path, tolerates_bad_rows=tolerates)


def test_pairs_and_others_do_not_go_together(tmp_path):
    write(tmp_path, "train-images-idx3-ubyte", IMAGES)
    write(tmp_path, "train-labels-idx1-ubyte", LABELS)
    write(tmp_path, "t10k-labels-idx1-ubyte", LABELS)
    with pytest.raises(UsageError, match="'values' is only in t10k-labels-idx1-ubyte"):
        read(tmp_path)


GOOD = encode(IMAGES)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD[:-1], "cut off"),
        (GOOD + b"x", "longer than its header says|bytes follow"),
        (GOOD[:10], "ends in the header"),
        (GOOD[:3], "is no IDX file"),
        (b"<html>404</html>", "is no IDX file"),
        (bytes([0, 0, 8, 0]), "is no IDX file"),
        (bytes([0, 0, 10, 1, 0, 0, 0, 1]), "is no IDX file"),
        (bytes([0, 0, 8, 3, 255, 255, 255, 255, 0, 0, 0, 4, 0, 0, 0, 5]), "cut off"),
    ],
)
@pytest.mark.parametrize("is_compressed", [False, True])
def test_damage(tmp_path, content, message, is_compressed):
    path = tmp_path / "a-images-idx3-ubyte"
    path.write_bytes(gzip.compress(content) if is_compressed else content)
    with pytest.raises(DamagedFileError, match=message):
        read(path)
    write(tmp_path, "b-images-idx3-ubyte", IMAGES)
    files = list_inputs([str(tmp_path)]).files
    options = SourceOptions(tolerates_bad_rows=True)
    source = IdxSource()
    features = source.infer(files, options)
    if features[0].shape != (4, 5):
        return
    bad, fine = source.split(files, options)
    with pytest.raises(DamagedFileError, match=message):
        list(source.read(bad, files, features, options))
    assert sum(b.batch.num_rows for b in source.read(fine, files, features, options)) == 40


def test_damaged_labels_are_named(tmp_path):
    write(tmp_path, "train-images-idx3-ubyte", IMAGES)
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(encode(LABELS)[:-5]))
    with pytest.raises(DamagedFileError, match=r"cut off in train-labels-idx1-ubyte.gz: 5 bytes fewer"):
        read(tmp_path)


def test_rows_that_are_too_large_or_hold_nothing(tmp_path):
    with pytest.raises(BadInputError, match="the rows are too large"):
        read(write(tmp_path, "a-idx3-ubyte", IMAGES), max_record_bytes=19)
    with pytest.raises(UsageError, match="has no values"):
        read(write(tmp_path, "a-idx3-ubyte", np.zeros((3, 0, 4))))


@pytest.mark.parametrize(
    ("head", "name", "expected"),
    [
        (bytes([0, 0, 8, 3, 0, 0]), "a", True),
        (b"<html>", "train-images-idx3-ubyte.gz", True),
        (b"<html>", "t10k-labels.idx1-ubyte", True),
        (bytes([0, 0, 1, 0]), "a.ico", False),
        (bytes([0, 0, 0, 24]), "a.mp4", False),
        (b"a,b\n", "index.csv", False),
    ],
)
def test_recognizes(head, name, expected):
    assert IdxSource().recognizes(head, name) is expected


@pytest.mark.full
def test_mutations_never_lose_rows(tmp_path):
    rng = random.Random(2)
    for _ in range(300):
        check_mutation(tmp_path, rng)


def check_mutation(folder: Path, rng: random.Random) -> str:
    contents = {"train-images-idx3-ubyte": encode(IMAGES), "train-labels-idx1-ubyte": encode(LABELS)}
    name = rng.choice(list(contents))
    data = bytearray(contents[name])
    for _ in range(rng.randint(1, 3)):
        data[rng.randrange(20 if rng.random() < 0.7 else len(data)) % len(data)] = rng.randrange(256)
    if rng.random() < 0.2:
        del data[rng.randrange(1, len(data)) :]
    is_packed = rng.random() < 0.5
    packed = bytearray(gzip.compress(bytes(data)) if is_packed else data)
    if is_packed and rng.random() < 0.3:
        packed[rng.randrange(len(packed))] = rng.randrange(256)
    for other, content in contents.items():
        (folder / other).write_bytes(content)
    (folder / name).write_bytes(packed)
    try:
        found = read(folder, tolerates_bad_rows=True)
    except ShardkitError:
        return "refused"
    assert len(found.rows) == struct.unpack(">I", data[4:8])[0]
    return "read"


@pytest.mark.full
@pytest.mark.data
@pytest.mark.skipif(not DATA.is_dir(), reason="the real data sets are not there")
def test_fashion_mnist():
    folder = DATA / "fashion-mnist"
    found = read(folder / "t10k-images-idx3-ubyte.gz", folder / "t10k-labels-idx1-ubyte.gz")
    with (
        gzip.open(folder / "t10k-images-idx3-ubyte.gz") as images,
        gzip.open(folder / "t10k-labels-idx1-ubyte.gz") as labels,
    ):
        pixels = np.frombuffer(images.read(), np.uint8, offset=16).reshape(10_000, 784)
        classes = np.frombuffer(labels.read(), np.uint8, offset=8)
    assert found.features[0].shape == (28, 28)
    assert [row["label"] for row in found.rows] == classes.tolist()
    assert (np.array([row["image"] for row in found.rows], dtype=np.uint8) == pixels).all()
