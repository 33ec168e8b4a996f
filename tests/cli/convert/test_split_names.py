"""Folders and files that people name after the splits: the dataset has these splits, and no class of that name."""

import shutil
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

from shardkit.dataset.open import open_dataset
from tests.support.in_process import read_rows

pytestmark = pytest.mark.full


@pytest.fixture
def photos(tmp_path):
    """An ImageFolder: 3 cats and 2 dogs to train on, and one of each to test."""
    folder = tmp_path / "photos"
    for split, label, number in (("train", "cat", 3), ("train", "dog", 2), ("test", "cat", 1), ("test", "dog", 1)):
        for index in range(number):
            path = folder / split / label / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((4, 5, 3), index, np.uint8)).save(path)
    return folder


def found(location):
    """Returns the file name and the class of each row, by split."""
    dataset = open_dataset(str(location))
    names = dataset.manifest.features[1].vocabulary
    return {
        split.name: sorted((row["filename"], names[row["label"]]) for row in read_rows(dataset, split.name))
        for split in dataset.manifest.splits
    }


EXPECTED = {
    "train": [(f"train/{c}/{i}.png", c) for c, n in (("cat", 3), ("dog", 2)) for i in range(n)],
    "test": [("test/cat/0.png", "cat"), ("test/dog/0.png", "dog")],
}


def test_a_folder_and_archives_of_it_have_the_same_splits_and_classes(run, photos, tmp_path):
    shutil.make_archive(str(tmp_path / "flat"), "zip", photos)
    with zipfile.ZipFile(tmp_path / "wrapped.zip", "w") as archive:
        for path in sorted(photos.rglob("*.png")):
            archive.write(path, path.relative_to(tmp_path))
    with tarfile.open(tmp_path / "photos.tar.gz", "w:gz") as archive:
        archive.add(photos, "photos")
    for index, source in enumerate((photos, "flat.zip", "wrapped.zip", "photos.tar.gz")):
        code, _, err = run("convert", tmp_path / source, tmp_path / f"out{index}")
        assert code == 0, err
        assert "the names of the files tell the splits: train, test" in err
        assert found(tmp_path / f"out{index}") == EXPECTED


@pytest.mark.parametrize("wrapper", ["training_data", "my_test_project"])
def test_a_folder_around_all_that_holds_such_a_word_hides_no_split(run, photos, tmp_path, wrapper):
    shutil.copytree(photos, tmp_path / "in" / wrapper)
    (tmp_path / "in" / "README.md").write_text("Photos\n")
    shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "in")
    for index, name in enumerate(("in", "packed.zip")):
        code, _, err = run("convert", tmp_path / name, tmp_path / f"out{index}")
        assert code == 0, err
        assert found(tmp_path / f"out{index}") == EXPECTED
    shutil.copy(photos / "test/dog/0.png", tmp_path / "in" / wrapper / "test/dog/9.png")
    code, _, err = run("convert", tmp_path / "in", tmp_path / "out0", "--append")
    assert code == 0, err
    assert ("test/dog/9.png", "dog") in found(tmp_path / "out0")["test"]


def test_a_folder_too_high_changes_no_class(run, photos, tmp_path):
    deep = tmp_path / "download" / "v2"
    deep.mkdir(parents=True)
    photos.rename(deep / "photos")
    code, _, err = run("convert", tmp_path / "download", tmp_path / "out")
    assert code == 0, err
    assert {s: [label for _, label in rows] for s, rows in found(tmp_path / "out").items()} == {
        s: [label for _, label in rows] for s, rows in EXPECTED.items()
    }


def test_tables_are_split_by_their_names_and_the_recipe_does_it_again(run, tmp_path):
    for name, first, last in (("train", 0, 50), ("valid", 50, 60), ("test", 60, 80)):
        (tmp_path / f"{name}.csv").write_text("id,word\n" + "".join(f"{i},w{i}\n" for i in range(first, last)))
    code, _, err = run("convert", tmp_path / "*.csv", tmp_path / "out")
    assert code == 0, err
    dataset = open_dataset(str(tmp_path / "out"))
    ids = {s.name: sorted(row["id"] for row in read_rows(dataset, s.name)) for s in dataset.manifest.splits}
    assert ids == {"train": [*range(50)], "validation": [*range(50, 60)], "test": [*range(60, 80)]}
    (tmp_path / "recipe.toml").write_text(run("inspect", tmp_path / "out", "--recipe")[1])
    code, _, err = run("convert", tmp_path / "*.csv", tmp_path / "again", "--recipe", tmp_path / "recipe.toml")
    assert code == 0, err
    assert open_dataset(str(tmp_path / "again")).manifest.fingerprint == dataset.manifest.fingerprint
    code, _, err = run("convert", tmp_path / "*.csv", tmp_path / "dry", "--dry-run")
    assert code == 0
    assert not (tmp_path / "dry").exists()


def test_fractions_pool_the_files_and_say_so(run, tmp_path):
    for name in ("train", "test"):
        (tmp_path / f"{name}.csv").write_text("id,word\n" + "".join(f"{i},{name}{i}\n" for i in range(100)))
    options = ("--split", "a=0.5", "--split", "b=0.5")
    code, _, err = run("convert", tmp_path / "*.csv", tmp_path / "out", *options)
    assert code == 0, err
    assert "tell splits (train, test), which are pooled" in err
    splits = open_dataset(str(tmp_path / "out")).manifest.splits
    assert [s.name for s in splits] == ["a", "b"]
    assert sum(s.num_examples for s in splits) == 200


def test_a_file_that_tells_no_split_beside_others_is_named(run, tmp_path):
    for name in ("all", "train", "test"):
        (tmp_path / f"{name}.csv").write_text("id,word\n1,a\n")
    code, _, err = run("convert", tmp_path / "*.csv", tmp_path / "out")
    assert (code, list(tmp_path.glob("out/*"))) == (2, [])
    assert "1 file of 3 tell none, such as all.csv" in err
    assert "--exclude all.csv" in err
    code, _, err = run("convert", tmp_path / "*.csv", tmp_path / "pooled", "--split", "train=1")
    assert code == 0, err
    assert "tell splits (train, test), but not that of all.csv: all rows are pooled" in err
    (split,) = open_dataset(str(tmp_path / "pooled")).manifest.splits
    assert (split.name, split.num_examples) == ("train", 3)


@pytest.mark.parametrize(
    "names", [("qa_train", "qa_dev", "schema"), ("train-00000", "test-00000", "unsupervised-00000")]
)
def test_a_file_of_no_split_beside_names_with_other_letters_is_refused(run, tmp_path, names):
    for name in names:
        (tmp_path / f"{name}.csv").write_text("id,word\n1,a\n")
    code, _, err = run("convert", tmp_path / "*.csv", tmp_path / "out")
    assert code == 2
    assert f"--exclude {names[-1]}.csv" in " ".join(err.split())


def test_what_is_appended_goes_to_the_splits_that_names_tell(run, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("train", "test"):
        (folder / f"{name}.csv").write_text("id,word\n" + "".join(f"{i},{name}{i}\n" for i in range(10)))
    assert run("convert", folder, tmp_path / "out")[0] == 0
    (folder / "test-2.csv").write_text("id,word\n1,more\n")
    code, _, err = run("convert", folder, tmp_path / "out", "--append")
    assert code == 0, err
    assert "the names of the files tell the splits: test" in err
    sizes = {s.name: s.num_examples for s in open_dataset(str(tmp_path / "out")).manifest.splits}
    assert sizes == {"train": 10, "test": 11}
    (folder / "more.csv").write_text("id,word\n1,more\n")
    code, _, err = run("convert", folder, tmp_path / "out", "--append")
    assert code == 2
    assert "tells no split, as those of the dataset do" in err


def test_files_that_tell_splits_are_appended_to_a_dataset_without(run, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "rows.csv").write_text("id,word\n1,a\n")
    assert run("convert", folder, tmp_path / "out")[0] == 0
    for name in ("train", "test"):
        (folder / f"{name}.csv").write_text("id,word\n2,b\n")
    code, _, err = run("convert", folder, tmp_path / "out", "--append")
    assert code == 0, err
    (split,) = open_dataset(str(tmp_path / "out")).manifest.splits
    assert (split.name, split.num_examples) == ("train", 3)


def test_a_split_that_no_option_names_is_refused(run, tmp_path):
    for name in ("train", "test"):
        (tmp_path / f"{name}.csv").write_text("id,word\n1,a\n")
    code, _, err = run("convert", tmp_path / "*.csv", tmp_path / "out", "--split", "train")
    assert code == 2
    assert "--split test" in err


def test_a_column_split_of_labels_is_named_with_its_option(run, tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    for index in range(6):
        Image.fromarray(np.full((4, 5, 3), index, np.uint8)).save(images / f"{index}.png")
    rows = [f"{index}.png,{('train', 'val', 'test')[index % 3]}\n" for index in range(6)]
    (tmp_path / "labels.csv").write_text("filename,split\n" + "".join(rows))
    labels = ("--labels", str(tmp_path / "labels.csv"))
    note = "note: column 'split' may name the split of each row; --split-column split divides the rows by it"
    assert note in run("convert", images, tmp_path / "one", *labels)[2]
    said = run("convert", images, tmp_path / "out", *labels, "--split-column", "split")[2]
    assert "may name the split" not in said
    splits = open_dataset(str(tmp_path / "out")).manifest.splits
    assert {split.name: split.num_examples for split in splits} == {"train": 2, "validation": 2, "test": 2}
