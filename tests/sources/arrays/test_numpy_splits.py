"""Arrays of an .npz that are named after splits make these splits, as those of the datasets of Keras."""

import json

import numpy as np
import pytest

import shardkit
from shardkit.cli import main

pytestmark = pytest.mark.full


def save(path, names, sizes=(60, 10)):
    rng = np.random.default_rng(0)
    arrays = {}
    for (x, y), size in zip(names, sizes, strict=True):
        arrays[x] = rng.integers(0, 256, (size, 4, 3), np.uint8)
        arrays[y] = np.arange(size) + len(arrays)
    np.savez(path, **arrays)
    return arrays


def rows_of(dataset, split, *names):
    rows = (dataset[split][i] for i in range(dataset[split].num_examples))
    return sorted((row[names[0]].tolist(), int(row[names[1]])) for row in rows)


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        ((("x_train", "y_train"), ("x_test", "y_test")), ("x", "y")),
        ((("train_images", "train_labels"), ("test_images", "test_labels")), ("images", "labels")),
        ((("train", "train-y"), ("test", "test-y")), ("values", "y")),
        ((("X.training", "Y.training"), ("X.eval", "Y.eval")), ("X", "Y")),
        ((("train/x", "train/y"), ("test/x", "test/y")), ("x", "y")),
    ],
)
def test_they_make_these_splits(tmp_path, capfd, names, columns):
    arrays = save(tmp_path / "digits.npz", names)
    assert main(["convert", str(tmp_path / "digits.npz"), str(tmp_path / "out")]) == 0
    assert "digits.npz is read as one file for each split that its arrays are named after" in capfd.readouterr().err
    dataset = shardkit.open(tmp_path / "out")
    assert list(dataset) == ["train", "test"]
    for split, (x, y) in zip(("train", "test"), names, strict=True):
        expected = zip(arrays[x].tolist(), arrays[y].tolist(), strict=True)
        assert rows_of(dataset, split, *columns) == sorted(expected)


def test_fractions_pool_them_and_an_append_knows_them(tmp_path, capfd):
    save(tmp_path / "digits.npz", (("x_train", "y_train"), ("x_test", "y_test")))
    options = ("--split", "train=0.5", "--split", "test=0.5")
    assert main(["convert", str(tmp_path / "digits.npz"), str(tmp_path / "out"), *options]) == 0
    assert main(["convert", str(tmp_path / "digits.npz"), str(tmp_path / "out"), "--append"]) == 0
    assert "Nothing to append" in capfd.readouterr().out
    assert main(["inspect", str(tmp_path / "out"), "--json"]) == 0
    assert sum(split["num_examples"] for split in json.loads(capfd.readouterr().out)["splits"]) == 70


@pytest.mark.parametrize(
    "names",
    [
        (("x", "y"), ("x_test", "y_test")),
        (("x_train", "y_train"), ("x_train2", "y")),
        (("x_train", "y_train"), ("x_test", "z_test")),
        (("train1", "train2"), ("test1", "test")),
    ],
)
def test_other_arrays_of_several_lengths_are_refused(tmp_path, capfd, names):
    save(tmp_path / "digits.npz", names)
    assert main(["convert", str(tmp_path / "digits.npz"), str(tmp_path / "out")]) == 2
    assert "the arrays have different lengths in digits.npz" in " ".join(capfd.readouterr().err.split())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--split", "train=*.npz"], {"train": 70}),
        (["--split", "b=train.npz", "--split", "a=test.npz"], {"a": 10, "b": 60}),
        (["--split", "train=test.npz", "--split", "test=train.npz"], {"test": 60, "train": 10}),
        (["--split", "all=1"], {"all": 70}),
    ],
)
def test_options_put_their_rows_into_other_splits(tmp_path, options, expected):
    arrays = save(tmp_path / "digits.npz", (("x_train", "y_train"), ("x_test", "y_test")))
    assert main(["convert", str(tmp_path / "digits.npz"), str(tmp_path / "out"), *options]) == 0
    dataset = shardkit.open(tmp_path / "out")
    assert {name: dataset[name].num_examples for name in sorted(dataset)} == expected
    every = sorted(row for name in dataset for row in rows_of(dataset, name, "x", "y"))
    pairs = [(arrays[f"x_{split}"].tolist(), arrays[f"y_{split}"].tolist()) for split in ("train", "test")]
    assert every == sorted(row for x, y in pairs for row in zip(x, y, strict=True))


def test_images_of_as_many_rows_are_splits(tmp_path):
    images = {f"x_{split}": np.full((4, 2, 2), i) for i, split in enumerate(("train", "test"))}
    np.savez(tmp_path / "a.npz", **images, y_train=np.arange(4), y_test=np.arange(4))
    assert main(["convert", str(tmp_path / "a.npz"), str(tmp_path / "out")]) == 0
    dataset = shardkit.open(tmp_path / "out")
    assert {name: (dataset[name].num_examples, [f.name for f in dataset[name].features]) for name in dataset} == {
        "train": (4, ["x", "y"]),
        "test": (4, ["x", "y"]),
    }


def test_values_of_as_many_rows_are_one_table(tmp_path):
    np.savez(tmp_path / "a.npz", train_loss=np.arange(5), val_loss=np.arange(5))
    assert main(["convert", str(tmp_path / "a.npz"), str(tmp_path / "out")]) == 0
    assert [f.name for f in shardkit.open(tmp_path / "out")["train"].features] == ["train_loss", "val_loss"]


def test_arrays_of_one_split_are_columns_as_they_are_called(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=np.arange(5), y_train=np.arange(5))
    assert main(["convert", str(tmp_path / "a.npz"), str(tmp_path / "out")]) == 0
    assert [f.name for f in shardkit.open(tmp_path / "out")["train"].features] == ["x_train", "y_train"]
