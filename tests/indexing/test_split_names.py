"""Which split a file belongs to, by the names that are in use."""

import pytest

from shardkit.errors import UsageError
from shardkit.indexing.listing import is_called_tfrecord
from shardkit.indexing.open import assign_splits, order_of_splits, split_of_name


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("mnist-test.tfrecord-00000-of-00001", "test"),
        ("imdb_reviews-unsupervised.tfrecord-00000-of-00001", "unsupervised"),
        ("my-train-set-validation.tfrecord-00003-of-00010", "validation"),
        ("train-00000-of-01024", "train"),
        ("validation-00127-of-00128.tfrecord.gz", "validation"),
        ("train_0007.tfrecord", "train"),
        ("train.tfrecord", "train"),
        ("val.tfrecords", "val"),
        ("valid.tfrec", "valid"),
        ("dev.tfrecord.gz", "dev"),
        ("test.record", "test"),
        ("mnist_test.tfrecord", "test"),
        ("data_tfrecord_eval.gz", "eval"),
        ("Training/part-0.tfrecord", "train"),
        ("Split-eval/data_tfrecord-00000-of-00012.gz", "eval"),
        ("test/2024/part-0.tfrecord", "test"),
        ("train/test-00000-of-00001.tfrecord", "test"),
        ("train/val/part-0.tfrecord", "val"),
        ("pretrained.tfrecord", None),
        ("contest/part-00000-of-00010.tfrecord", None),
        ("toy.tfe-tfrecord-00000-of-00002", None),
        ("data_tfrecord-00000-of-00012.gz", None),
        (".tfrecord", None),
    ],
)
def test_names_in_use_tell_their_split(name, split):
    assert split_of_name(name) == split


def test_a_glob_wins_over_the_name_and_the_first_over_later_ones():
    names = ["a/train-00000-of-00002", "a/train-00001-of-00002", "b/part-1", "b/part-2"]
    splits, untold = assign_splits(names, [("held_out", "train-00001*"), ("extra", "*part*"), ("train", "a/*")])
    assert splits == dict(zip(names, ["train", "held_out", "extra", "extra"], strict=True))
    assert untold == []


def test_what_tells_no_split_is_train_and_is_named():
    splits, untold = assign_splits(["test.tfrecord", "part-0.tfrecord"], [])
    assert splits == {"test.tfrecord": "test", "part-0.tfrecord": "train"}
    assert untold == ["part-0.tfrecord"]


@pytest.mark.parametrize("glob", [("te st", "*"), ("", "*"), ("test", "*.nothing")])
def test_a_split_without_a_name_or_without_files_is_refused(glob):
    with pytest.raises(UsageError):
        assign_splits(["part-0.tfrecord"], [glob])


def test_splits_stand_as_asked_for_then_train_what_validates_test_and_others():
    found = ["zebra", "test", "val", "apple", "train", "train", "mine"]
    assert order_of_splits(found, [("mine", "*"), ("not_there", "*")]) == [
        "mine", "train", "val", "test", "apple", "zebra",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "is_called"),
    [
        ("a.tfrecord", True),
        ("d/x.tfrecord-00000-of-00005", True),
        ("train-00000-of-01024", True),
        ("test.record", True),
        ("a.tfrec", True),
        ("a.tfrecord.gz", True),
        ("a.tfrecord.idx", False),
        ("a.tfrecord.json", False),
        ("LICENSE", False),
        ("recordings.wav", False),
        ("bytes.tar.gz", False),
    ],
)
def test_what_is_called_tfrecords_is_never_passed_over(name, is_called):
    assert is_called_tfrecord(name) == is_called
