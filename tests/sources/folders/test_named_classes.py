"""Classes that the names of files may begin with."""

from __future__ import annotations

import pytest

from shardkit.sources.base import RawFile
from shardkit.sources.folders.named_classes import advice_on_named_classes


def advice(*names):
    return advice_on_named_classes([RawFile(path=n, name=n, num_bytes=1, version="") for n in names])


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (("train/cat.0.jpg", "train/cat.1.jpg", "train/dog.0.jpg", "train/dog.1.jpg"), "([^/.]+)[.][^/]*[.][^/.]*$"),
        (("0_al_1.wav", "0_bo_1.wav", "1_al_1.wav", "1_bo_1.wav"), "([^/_]+)[_][^/]*[.][^/.]*$"),
        (("pug_1.jpg", "pug_2.jpg", "great_dane_1.jpg", "great_dane_2.jpg"), "([^/]+)[_.-][0-9]+[.][^/.]*$"),
    ],
)
def test_words_that_repeat_may_be_classes(names, pattern):
    assert f"regexp_extract(filename, '{pattern}', 1)" in advice(*names)


def test_the_test_files_may_lack_the_class():
    names = ("train/cat.0.jpg", "train/cat.1.jpg", "train/dog.0.jpg", "train/dog.1.jpg")
    assert "nullif(regexp_extract(filename, '([^/.]+)[.]" in advice(*names, "test/1.jpg", "test/2.jpg")
    assert advice(*(name.removeprefix("train/") for name in names), "1.jpg", "2.jpg") == ""


@pytest.mark.parametrize(
    "names",
    [
        ("IMG_1.jpg", "IMG_2.jpg", "IMG_3.jpg"),
        ("a_1.jpg", "b_1.jpg", "c_1.jpg"),
        ("20230501_1.jpg", "20230501_2.jpg", "20230502_1.jpg", "20230502_2.jpg"),
        ("cat_1.jpg", "cat_2.jpg", "dog-1.jpg", "dog-2.jpg"),
        ("1.jpg", "2.jpg"),
    ],
)
def test_other_names_hold_none(names):
    assert advice(*names) == ""
