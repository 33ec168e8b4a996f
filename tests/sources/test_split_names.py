"""Splits that names of files tell, and the class folders that are left below them."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.conversion.plan_notes import name_notes
from shardkit.errors import UsageError
from shardkit.sources.base import RawFile, SourceOptions
from shardkit.sources.file_globs import matches
from shardkit.sources.folders.class_folders import classes_of
from shardkit.sources.media.image_source import ImageSource
from shardkit.sources.split_names import (
    check_all_tell_splits,
    check_no_further_split,
    check_no_unusual_splits,
    check_one_dataset,
    folders_below_split,
    splits_in_names,
)
from shardkit.sources.split_words import split_in_name

PLAIN, SPLIT_NAMES = SourceOptions(), SourceOptions(has_split_names=True)


def files(*names):
    return tuple(RawFile(path=f"/d/{name}", name=name, num_bytes=1, version="1") for name in names)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train/cats/1.jpg", "train"),
        ("Training/1.jpg", "train"),
        ("data/valid-images/1.jpg", "validation"),
        ("dev.jsonl", "validation"),
        ("imdb_val.csv.gz", "validation"),
        ("test-00000-of-00010.parquet", "test"),
        ("split=eval/part-0.parquet", "test"),
        ("evaluation2.csv", "test"),
        ("train/test_image.png", "train"),
        ("train_test/val/1.jpg", "validation"),
        ("trainA/1.jpg", "train"),
        ("testB/1.jpg", "test"),
        ("MNIST/t10k-images-idx3-ubyte", "test"),
        ("clean_trainset_wav/1.wav", "train"),
        ("IRMAS-TestingData-Part1/1.wav", "test"),
        ("TrainingData/1.wav", "train"),
        ("devset.csv", "validation"),
        ("eng.testa", "validation"),
        ("eng.testb", "test"),
        ("KDDTrain+.txt", "train"),
        ("KDDTest-21.txt", "test"),
        ("KDDTrain+_20Percent.txt", "train"),
        ("optdigits.tra", "train"),
        ("optdigits.tes", "test"),
        ("shuttle.trn.gz", "train"),
        ("shuttle.tst", "test"),
        ("cats/1.jpg", None),
        ("trainStation/1.jpg", None),
        ("trains/1.jpg", None),
        ("attestation/1.jpg", None),
        ("devdatabase.csv", None),
        ("contest.csv", None),
        ("latest/invalid/1.csv", None),
        ("train_and_test.csv", None),
    ],
)
def test_a_word_of_its_own_tells_the_split(name, split):
    found = split_in_name(name)
    assert (found and found.split) == split


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (("test.csv", "train.csv"), ("train", "test")),
        (("a/dev.csv", "a/train.csv", "b/test.csv"), ("train", "validation", "test")),
        (("train.csv",), ()),
        (("train.csv", "train-2.csv"), ()),
        (("train.csv", "test.csv", "more.csv"), ()),
        ((), ()),
    ],
)
def test_names_give_splits_where_every_file_names_one_and_there_are_several(names, splits):
    assert splits_in_names(files(*names)) == splits


@given(st.sampled_from(["train", "test_data", "Val"]), st.lists(st.sampled_from("abc"), max_size=3), st.integers(0, 3))
def test_the_folder_that_names_the_split_is_no_class(word, folders, position):
    path = "/".join([*folders[:position], word, *folders[position:], "1.jpg"])
    assert folders_below_split(path) == folders


def classes(names, options=PLAIN):
    listed = files(*names)
    return classes_of(listed, "an image", ImageSource().settle(listed, options))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("cat/1.jpg", "dog/2.jpg"), ("cat", "dog")),
        (("x/cat/1.jpg", "x/dog/2.jpg"), ("cat", "dog")),
        (("animals/cat/1.jpg", "plants/rose/2.jpg"), ("cat", "rose")),
        (("cat/1.jpg", "dog/small/2.jpg"), ("cat", "dog")),
        (("cat/images/1.jpg", "dog/images/2.jpg"), ("cat", "dog")),
        (("photos/1.jpg", "photos/2.jpg"), ()),
        (("photos/1.jpg", "photos/more/2.jpg"), ()),
        (("1.jpg", "2.jpg"), ()),
        (("cat/1.jpg",), ()),
    ],
)
def test_the_innermost_folder_that_all_have_is_the_class(names, expected):
    assert classes(names) == expected
    assert classes([f"{split}/{name}" for split in ("train", "test") for name in names], SPLIT_NAMES) == expected
    assert classes([f"{name.replace('/', '/val/', 1)}" for name in names if "/" in name], SPLIT_NAMES) == expected


def test_files_without_a_class_folder_among_others_are_refused():
    with pytest.raises(UsageError, match="in no class folder"):
        classes(("1.jpg", "dog/2.jpg"))


@pytest.mark.parametrize(
    "names",
    [
        ("CoLA/train.tsv", "CoLA/dev.tsv", "SST-2/train.tsv", "SST-2/dev.tsv"),
        ("glue/CoLA/train/1.csv", "glue/CoLA/dev/1.csv", "glue/SST-2/train/1.csv", "glue/SST-2/dev/1.csv"),
        ("a/train.csv", "a/test.csv", "b/train.csv", "b/test.csv", "c/train.csv"),
    ],
)
def test_folders_of_whole_datasets_are_refused(names):
    with pytest.raises(UsageError) as caught:
        check_one_dataset(files(*names), are_documents=False)
    folder = "glue/CoLA" if names[0].startswith("glue") else names[0][: names[0].index("/")]
    assert f"--include '{folder}/*'" in caught.value.next_step
    assert "--source-column" in caught.value.next_step


@pytest.mark.parametrize(
    ("names", "are_documents"),
    [
        (("train/a.csv", "train/b.csv", "test/a.csv", "test/b.csv"), False),
        (("year=1/train.csv", "year=1/test.csv", "year=2/train.csv", "year=2/test.csv"), False),
        (("a/train.csv", "a/test.csv", "b/other.csv"), False),
        (("pos/train_1.txt", "pos/train_2.txt", "pos/test_1.txt", "neg/train_1.txt", "neg/test_1.txt"), True),
    ],
)
def test_parts_and_classes_are_one_dataset(names, are_documents):
    check_one_dataset(files(*names), are_documents=are_documents)


@pytest.mark.parametrize(
    ("names", "advice"),
    [
        (("train_5500.label", "TREC_10.label"), "--split train=train_5500.label --split test "),
        (("adult.data", "adult.test"), "--split test=adult.test --split train "),
        (("a9a", "a9a.t"), "--split test=a9a.t --split train "),
        (("a9a.bz2", "a9a.t.bz2"), "--split test=a9a.t.bz2 --split train "),
    ],
)
def test_files_beside_those_of_one_split_are_refused(names, advice):
    with pytest.raises(UsageError) as caught:
        check_no_further_split(files(*names), lambda: True)
    assert advice in caught.value.next_step
    assert "--split train=1" in caught.value.next_step
    check_no_further_split(files(*names), lambda: False)


@pytest.mark.parametrize(
    "names",
    [
        ("train.csv", "train-2.csv"),
        ("train.csv", "test.csv", "more.csv"),
        ("train.csv", "dev.csv"),
        ("train.csv", "dev.csv", "more.csv"),
        ("dev.log", "prod.log"),
        ("a.t", "b"),
        ("a.csv", "b.csv"),
        tuple(f"{word}.txt" for word in ("train", *"abcdefghijklmnopq")),
    ],
)
def test_other_names_say_nothing_of_a_further_split(names):
    check_no_further_split(files(*names), lambda: True)


@pytest.mark.parametrize("names", [("cats.csv", "dogs.csv"), ("test/run.csv", "test/walk.csv", "train/run.csv")])
def test_names_that_may_be_classes_are_noted(names):
    (note,) = name_notes(files(*names))
    assert note.startswith(f"the names {names[0].rpartition('/')[2]}, {names[1].rpartition('/')[2]} become no column")
    assert "--source-column NAME" in note


@pytest.mark.parametrize(
    "names",
    [
        ("a.csv", "b.csv"),
        ("data.csv", "info.csv"),
        ("train.csv", "test.csv"),
        ("2013-05.csv", "2014-05.csv"),
        ("part-0.csv", "part-1.csv"),
        ("train_a.csv", "test_a.csv"),
        ("cats.csv",),
        ("x/cats.csv", "y/cats.csv"),
    ],
)
def test_names_of_splits_numbers_and_parts_are_not(names):
    assert name_notes(files(*names)) == ()


@pytest.mark.parametrize(
    ("names", "first", "second"),
    [
        (("bank-full.csv", "bank.csv"), "bank.csv", "bank-full.csv"),
        (("data.csv", "data_sample.csv"), "data.csv", "data_sample.csv"),
        (("kddcup.data.gz", "kddcup.data_10_percent.gz"), "kddcup.data.gz", "kddcup.data_10_percent.gz"),
        (("train.jsonl", "train_socratic.jsonl", "test.jsonl"), "train.jsonl", "train_socratic.jsonl"),
        (("KDDTrain+.txt", "KDDTrain+_20Percent.txt", "KDDTest+.txt"), "KDDTrain+.txt", "KDDTrain+_20Percent.txt"),
    ],
)
def test_a_name_with_more_words_than_another_is_noted(names, first, second):
    (note,) = name_notes(files(*names))
    assert note.startswith(f"{first} and {second} are read together")
    assert f"--exclude {second}" in note


def test_names_of_one_split_that_differ_are_noted():
    names = ("train.tsv", "dev_matched.tsv", "dev_mismatched.tsv")
    (note,) = name_notes(files(*names))
    assert note.startswith("the names dev_matched.tsv, dev_mismatched.tsv become no column")


@pytest.mark.parametrize(
    ("names", "options"),
    [
        (("train/c/1", "holdout/c/2"), "--split test='holdout/*' --split train='train/*'"),
        (("tr/c/1", "tt/c/2", "cv/c/3"), "--split validation='cv/*' --split train='tr/*' --split test='tt/*'"),
        (("trn/1", "tst/2"), "--split train='trn/*' --split test='tst/*'"),
        (
            ("d/train_set/c/1", "d/public/c/2", "d/private/c/3"),
            "--split private='d/private/*' --split public='d/public/*' --split train='d/train_set/*'",
        ),
        (("train/c/1", "gallery/c/2"), "--split gallery='gallery/*' --split train='train/*'"),
        (("train/c/1", "new-data/c/2"), "--split new_data='new-data/*' --split train='train/*'"),
        (("a/train/c/1", "a/new/c/2", "b/train/c/1", "b/new/c/2"), "--split new='*/new/*' --split train='*/train/*'"),
        (("train.csv", "holdout.csv"), "--split test=holdout.csv --split train=train.csv"),
        (("entrenamiento/c/1", "prueba/c/2"), "--split train='entrenamiento/*' --split test='prueba/*'"),
        (
            ("Treino.csv", "valida\u00e7\u00e3o.csv"),
            "--split train=Treino.csv --split validation='valida\u00e7\u00e3o.csv'",
        ),
        (("dati_addestramento/1", "test/2"), "--split train='dati_addestramento/*' --split test='test/*'"),
        (
            ("\u8bad\u7ec3\u96c6/1", "\u6d4b\u8bd5\u96c6/2"),
            "--split test='\u6d4b\u8bd5\u96c6/*' --split train='\u8bad\u7ec3\u96c6/*'",
        ),
        (
            ("box_train/1", "box_test/2", "gt_box/3", "query/4"),
            "--split test='box_test/*' --split train='box_train/*' --split gt_box='gt_box/*' --split query='query/*'",
        ),
    ],
)
def test_folders_that_may_be_splits_by_unusual_names(names, options):
    with pytest.raises(UsageError, match="may be splits, and not all are called so") as caught:
        check_no_unusual_splits(files(*names))
    assert f"Add {options} if they are" in str(caught.value.next_step)


@pytest.mark.parametrize(("end", "option"), [("", " --no-labels"), ("/c", "")])
def test_folders_of_rows_that_are_splits_are_no_classes_besides(end, option):
    with pytest.raises(UsageError) as caught:
        check_no_unusual_splits(files(f"train{end}/1", f"holdout{end}/2"), are_rows=True)
    assert f"--split train='train/*'{option} if they are" in str(caught.value.next_step)


@pytest.mark.parametrize(
    "names",
    [
        ("train/c/1", "test/c/2"),
        # Pictures of vehicles, languages, and folders that say nothing of splits.
        ("train/1", "bus/2", "car/3"),
        ("tr/1", "de/2", "te/3"),
        ("public/c/1", "private/c/2"),
        ("a/c/1", "b/c/2"),
        ("1", "2"),
    ],
)
def test_folders_that_are_no_splits(names):
    check_no_unusual_splits(files(*names))


def test_what_is_advised_leaves_out_files_of_odd_names():
    odd = ("Icon\r", "[x]/a.csv", "what?.csv", "b*.csv", "\udcff_.csv", "it's.csv")
    named = files("train.csv", "test.csv", "dev.csv", "train.tsv", "test.tsv", "dev.tsv", *odd)
    with pytest.raises(UsageError) as caught:
        check_all_tell_splits(named, lambda _: False)
    words = shlex.split(caught.value.next_step.partition(", give")[0])
    globs = words[words.index("--exclude") + 1 :: 2]
    left = [name for name in (*odd, "x/a.csv", "whats.csv", "bc.csv") if any(matches(name, glob) for glob in globs)]
    assert left == list(odd)
