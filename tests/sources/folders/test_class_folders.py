"""Small texts in class folders are documents with a class; other texts are lines."""

import shlex

import msgspec
import pytest

from shardkit.errors import UsageError
from shardkit.sources import list_inputs
from shardkit.sources.base import RawFile, SourceOptions
from shardkit.sources.file_globs import matches
from shardkit.sources.folders.class_documents import are_class_documents
from shardkit.sources.folders.class_folders import (
    check_class_folders,
    class_notes,
    class_of,
    find_class_level,
    folder_notes,
)
from shardkit.sources.folders.paired_files import check_no_masks, check_no_pairs
from shardkit.sources.registry import choose
from shardkit.sources.split_names import splits_in_names
from shardkit.sources.text.source import TextSource
from tests.support.files.listing_makers import write
from tests.support.files.source_makers import read_all


def listed(folder, names, content="One, two\nthree, four\n"):
    for name in names:
        write(folder, name, content)
    return list_inputs([str(folder)]).files


def reviews(*folders, number=3, suffix=".txt"):
    return [f"{folder}/{i}{suffix}" for folder in folders for i in range(number)]


@pytest.mark.parametrize(
    "names",
    [
        reviews("pos", "neg"),
        reviews("train/pos", "train/neg", "test/pos", "test/neg"),
        reviews("20news-bydate-train/sci.space", "20news-bydate-train/rec.autos", suffix=""),
        [*reviews("pos", "neg"), "README", "_SUCCESS"],
        reviews("1", "2", "5"),
        reviews("pos/2022", "pos/2023", "neg/2022"),
    ],
)
def test_documents(tmp_path, names):
    files = listed(tmp_path, names)
    assert are_class_documents(files)
    # A short text may look like a table, and is none here.
    assert choose(files, SourceOptions()).source.format == "text"


@pytest.mark.parametrize(
    "names",
    [
        reviews("pos"),
        reviews("pos", "neg", number=1),
        reviews("2026-11-01", "2026-11-02"),
        reviews("day=1", "day=2"),
        reviews("01", "02"),
        reviews("2023/01", "2023/02", "2024/01"),
        reviews("en", "de", suffix=".csv"),
        ["train.txt", "test.txt", "valid.txt", "more.txt"],
    ],
)
def test_lines(tmp_path, names):
    assert not are_class_documents(listed(tmp_path, names))


def test_large_files_are_no_documents(tmp_path):
    assert not are_class_documents(listed(tmp_path, reviews("en", "de"), "word\n" * 300_000))


@pytest.mark.parametrize("alone", ["aclImdb/imdbEr.txt", "aclImdb/train/mixed/1.txt"])
def test_a_text_that_is_alone_in_its_folder_takes_no_class_from_the_others(tmp_path, alone):
    names = [f"aclImdb/{name}" for name in reviews("train/pos", "train/neg", "test/pos", "test/neg")]
    with pytest.raises(UsageError, match=f"1 of 13: .*{alone}"):
        are_class_documents(listed(tmp_path, [*names, alone]))


def test_a_few_files_beside_documents_are_refused(tmp_path):
    files = listed(tmp_path, [*reviews("train/pos", "train/neg", number=10), "imdb.vocab", "train/urls_pos.txt"])
    with pytest.raises(UsageError, match=r"2 of 22: imdb.vocab, train/urls_pos.txt") as caught:
        are_class_documents(files)
    assert "--exclude" in str(caught.value)


def test_as_many_lists_as_reviews_in_the_classes_of_two_splits_are_refused_with_what_leaves_them_out(tmp_path):
    folders = ("train/pos", "train/neg", "train/unsup", "test/pos", "test/neg")
    lists = [f"{split}/urls_{label}.txt" for split in ("train", "test") for label in ("pos", "neg")]
    listed(tmp_path, [*reviews(*folders, number=2), *lists, "imdb.vocab", "imdbEr.txt"])
    listed(tmp_path, [f"{split}/labeledBow.feat" for split in ("train", "test")], "9 0:9 1:1 2:4\n7 0:7 3:1 5:4\n")
    with pytest.raises(UsageError, match="8 of 18") as caught:
        choose(list_inputs([str(tmp_path)]).files, SourceOptions())
    step = str(caught.value.next_step)
    advised = shlex.split(step.partition(" has, with ")[2].partition(", or add")[0])
    assert set(advised[::2]) == {"--exclude"}
    options = SourceOptions(exclude=tuple(advised[1::2]))
    files = list_inputs([str(tmp_path)], options).files
    assert sorted(file.name for file in files) == sorted(reviews(*folders[:2], *folders[3:], number=2))
    assert choose(files, options).source.format == "text"


@pytest.mark.parametrize("others", [["notes.txt"], ["notes.txt", "list.csv"]])
def test_a_file_beside_few_documents_is_refused(tmp_path, others):
    with pytest.raises(UsageError, match=f"{len(others)} of {6 + len(others)}") as caught:
        are_class_documents(listed(tmp_path, [*reviews("spam", "ham"), *others]))
    assert all(f"--exclude {name}" in str(caught.value) for name in others)


def test_folders_called_after_a_split_and_a_letter_are_refused(tmp_path):
    files = listed(tmp_path, [f"{name}/{i}.png" for name in ("trainA", "trainB", "testA", "testB") for i in range(2)])
    assert splits_in_names(files) == ("train", "test")
    with pytest.raises(UsageError, match="Move the files of testA to test/A"):
        check_class_folders(files, SourceOptions(has_split_names=True))


def test_folders_that_name_splits_and_different_things_are_refused(tmp_path):
    files = listed(tmp_path, [f"{name}/{i}.png" for name in ("Blood test", "Training plan") for i in range(2)])
    with pytest.raises(UsageError, match="such as Blood test, Training plan"):
        check_class_folders(files, SourceOptions(has_split_names=True))


def test_rows_have_the_class_of_their_folder(tmp_path):
    listed(tmp_path, reviews("neg"), "bad\n")
    listed(tmp_path, reviews("pos"), "good\n")
    found = read_all(TextSource(), tmp_path)
    label = next(f for f in found.features if f.name == "label")
    assert label.vocabulary == ("neg", "pos")
    assert {(row["text"], row["label"]) for row in found.rows} == {("bad\n", 0), ("good\n", 1)}
    lines = read_all(TextSource(), tmp_path, no_labels=True)
    assert [f.name for f in lines.features] == ["text"]


def test_the_folder_that_is_named_is_the_class_of_texts(tmp_path):
    listed(tmp_path, reviews("pos/2022", "pos/2023", "neg/2022"))
    with pytest.raises(UsageError, match="--class-folder 1 for neg, --class-folder 2 for 2022"):
        read_all(TextSource(), tmp_path)
    classes = [read_all(TextSource(), tmp_path, class_folder=n).features[1].vocabulary for n in (1, 2)]
    assert classes == [("neg", "pos"), ("2022", "2023")]
    with pytest.raises(UsageError, match="fewer folders than --class-folder 3"):
        read_all(TextSource(), tmp_path, class_folder=3)
    listed(tmp_path / "all", reviews("in/x", "in/y"))
    with pytest.raises(UsageError, match="names one folder, in, around all files"):
        read_all(TextSource(), tmp_path / "all", class_folder=1)


def test_folders_of_one_name_below_different_ones_are_one_class_with_a_note(tmp_path):
    files = listed(tmp_path, reviews("animal/cat", "animal/dog", "plant/cat"))
    options = SourceOptions(class_level=1)
    notes = class_notes(files, "texts", options)
    assert notes[0] == "files in class folders: cat 6, dog 3"
    assert "class 'cat' is that of animal/cat and plant/cat; --labels" in notes[1]
    assert len(class_notes(files[:6], "texts", options)) == 1


def test_folders_with_files_of_the_same_names_get_a_note():
    def notes(*names):
        files = tuple(RawFile(path=f"/{name}", name=name, num_bytes=9, version="") for name in names)
        return [note for note in class_notes(files, "images", SourceOptions()) if "same names" in note]

    (note,) = notes("HR/baboon.png", "HR/bird.png", "HR/lenna.png", "LR/baboon.jpg", "LR/bird.jpg", "LR/lenna.jpg")
    assert "--include '*HR/*' --no-labels" in note
    assert notes(*(f"{c}/{i}.png" for c in ("cat", "dog") for i in range(9))) == []
    assert notes(*(f"{c}/{c}{i}.png" for c in ("cat", "dog") for i in range(9))) == []


@pytest.mark.parametrize(
    ("names", "stray"),
    [
        (("data/cat/1.jpg", "data/dog/2.jpg", "previews/p.jpg"), "previews/p.jpg"),
        (("a/good/1.jpg", "a/bad/2.jpg", "b/good/3.jpg", "b/bad/4.jpg", "a/extra.jpg"), "a/extra.jpg"),
        (("Data/photos/cat/1.jpg", "Data/photos/dog/2.jpg", "Data/montage.jpg"), "Data/montage.jpg"),
    ],
)
def test_files_above_class_folders_are_refused(names, stray):
    files = tuple(RawFile(path=f"/{name}", name=name, num_bytes=9, version="") for name in names)
    options = SourceOptions(class_level=find_class_level(files, SourceOptions()))
    with pytest.raises(UsageError, match=f"above folders that may be classes in {stray}"):
        check_class_folders(files, options)
    rest = tuple(file for file in files if file.name != stray)
    check_class_folders(rest, SourceOptions(class_level=find_class_level(rest, SourceOptions())))


@pytest.mark.parametrize("names", [("cat/1.jpg", "cat/extra/2.jpg", "dog/3.jpg"), ("cat/1.jpg", "dog/2.jpg")])
def test_a_folder_within_a_class_is_of_the_class(names):
    files = tuple(RawFile(path=f"/{name}", name=name, num_bytes=9, version="") for name in names)
    options = SourceOptions(class_level=find_class_level(files, SourceOptions()))
    check_class_folders(files, options)
    assert {class_of(file, options) for file in files} == {"cat", "dog"}


def test_folders_called_after_a_split_and_a_class_are_refused(tmp_path):
    names = [f"{name}_{split}/{i}.png" for name in ("cat", "dog") for split in ("train", "test") for i in range(2)]
    files = listed(tmp_path, names)
    options = SourceOptions(has_split_names=True)
    with pytest.raises(UsageError, match="Move the files of cat_test to test/cat"):
        check_class_folders(files, options)
    check_class_folders(files, SourceOptions(has_split_names=True, no_labels=True))
    (note,) = folder_notes(files, is_text=True)
    assert note.startswith("the folders cat_test, cat_train, dog_test, ... become no column")
    assert "--text-record" not in note


def test_a_file_beside_folders_hides_no_note(tmp_path):
    files = listed(tmp_path, [*reviews("pos", "neg", number=2), "x.log"])
    (note,) = folder_notes(files, is_text=True)
    assert note.startswith("the folders neg, pos become no column")
    assert "--text-record file" in note
    assert folder_notes(listed(tmp_path / "flat", ["a/1.txt", "b.txt", "c.txt"]), is_text=True) == ()


def test_classes_that_differ_in_capitals_are_noted(tmp_path):
    files = listed(tmp_path, reviews("train/Cat", "train/dog", "test/cat", "test/dog"))
    options = SourceOptions(has_split_names=True)
    assert "the classes 'Cat' and 'cat' differ in capitals or blanks alone" in class_notes(files, "texts", options)


def test_classes_of_two_normal_forms_are_one(tmp_path):
    files = listed(tmp_path, reviews("train/caf\u00e9", "train/th\u00e9", "test/cafe\u0301", "test/the\u0301"))
    options = SourceOptions(has_split_names=True)
    options = msgspec.structs.replace(options, class_level=find_class_level(files, options))
    assert {class_of(file, options) for file in files} == {"caf\u00e9", "th\u00e9"}


def test_splits_that_share_no_class_are_noted(tmp_path):
    options = SourceOptions(has_split_names=True)
    notes = class_notes(listed(tmp_path / "a", reviews("train/cat", "train/dog", "test/Cat ", "test/ox")), "x", options)
    assert "the classes 'Cat ' and 'cat' differ in capitals or blanks alone" in notes
    shared = class_notes(listed(tmp_path / "b", reviews("train/cat", "train/dog", "test/cat")), "x", options)
    assert not any("no class of another split" in note for note in (*notes, *shared))
    apart = class_notes(listed(tmp_path / "c", reviews("train/cat", "train/dog", "test/owl", "test/ox")), "x", options)
    assert "the split test has no class of another split; such as 'owl'" in apart


def test_all_folders_that_are_hardly_classes_are_named(tmp_path):
    names = [f"train/{name}/images/{i}.png" for name in ("cat", "dog") for i in range(2)]
    files = listed(tmp_path, [*names, "val/images/8.png", "test/images/9.png"])
    options = SourceOptions(has_split_names=True)
    with pytest.raises(UsageError, match="the folder images is hardly a class") as caught:
        check_class_folders(files, options)
    assert "by --exclude 'test/images/*' --exclude 'val/images/*';" in str(caught.value)


def named(*names):
    return tuple(RawFile(path=f"/{name}", name=name, num_bytes=9, version="") for name in names)


def check(files, **given):
    splits = SourceOptions(has_split_names=bool(splits_in_names(files)), **given)
    check_class_folders(files, msgspec.structs.replace(splits, class_level=find_class_level(files, splits)))


def numbered(*templates, number=3):
    return [template.format(i) for template in templates for i in range(number)]


@pytest.mark.parametrize(
    ("names", "advice"),
    [
        (numbered("images/{}.jpg", "masks/{}.png"), "--exclude 'masks/*' --no-labels,"),
        (numbered("{}.jpg", "{}_mask.png"), "--exclude '*_mask.png',"),
        (numbered("{}.jpg", "mask_{}.png"), "--exclude 'mask_*.png',"),
        (numbered("{}.jpg", "{}_mask_1.png", "{}_mask_2.png"), "--exclude '*_mask_*.png',"),
        (numbered("train/{}.png", "val/{}.png", "train_labels/{}_L.png", "val_labels/{}_L.png"), "'*_labels/*',"),
        (numbered("img/{}.jpg", "img/{}.png"), "--exclude '*.png' --no-labels or --exclude '*.jpg' --no-labels,"),
        (numbered("gt[1]/a/{}_gt.png", "gt[1]/b/{}_gt.png", "im/a/{}_x.png", "im/b/{}_x.png"), "'gt[[]1]/*',"),
        (numbered("train/cat/{}.png", "train/cat/{}.GT.png", "train/dog/{}.png"), "--exclude '*.GT.png',"),
    ],
)
def test_masks_are_refused_and_what_is_advised_takes_the_images(names, advice):
    files = named(*names)
    with pytest.raises(UsageError, match=r"masks") as caught:
        check(files)
    step = str(caught.value.next_step)
    assert advice in step
    words = shlex.split(step.partition(" out with ")[2].partition(",")[0].partition(" or ")[0])
    globs = [words[i + 1] for i, word in enumerate(words) if word == "--exclude"]
    kept = tuple(file for file in files if not any(matches(file.name, glob) for glob in globs))
    assert 0 < len(kept) < len(files)
    check(kept, no_labels="--no-labels" in words)


@pytest.mark.parametrize(
    "names",
    [
        numbered("label/{}.png", "cat/{}.png", "dog/{}.png"),
        numbered("with_mask/{}.png", "without_mask/{}.png"),
        numbered("seg_train/seg_train/sea/{}.png", "seg_train/seg_train/ice/{}.png", "seg_test/seg_test/sea/{}.png"),
        numbered("manual/{}.jpg", "automatic/{}.jpg"),
        ["cat/1.jpg", "cat/1.png", *numbered("cat/c{}.jpg", "dog/{}.jpg")],
    ],
)
def test_classes_are_no_masks(names):
    check(named(*names))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("A", "B"),
        ("HR", "LR"),
        ("high", "low"),
        ("inputs", "targets"),
        ("rgb", "depth"),
        ("x", "y"),
        ("before", "after"),
    ],
)
def test_folders_of_pairs_are_refused(first, second):
    files = named(*numbered(f"train/{first}/{{}}.png", f"train/{second}/{{}}.png", f"val/{first}/{{}}.png"))
    check(files)  # Not all of them are pairs.
    whole = (*files, *named(*numbered(f"val/{second}/{{}}.png")))
    with pytest.raises(UsageError, match="are hardly classes") as caught:
        check(whole)
    assert f"--include '*/{first}/*'" in str(caught.value)
    check(whole, no_labels=True)


@pytest.mark.parametrize("folders", [("A", "B", "C"), ("cat", "dog"), ("high", "depth")])
def test_numbered_files_alone_are_no_pairs(folders):
    check(named(*numbered(*(f"{folder}/{{}}.png" for folder in folders))))


def test_the_parts_of_a_pair_may_mark_their_names():
    with pytest.raises(UsageError, match="HR and LR are hardly classes"):
        check(named(*numbered("HR/{}.png", "LR/{}x4.png")))


@pytest.mark.parametrize(
    ("names", "globs"),
    [
        (numbered("test/x/{}.jpg", "train/y/cat/{}.jpg", "train/y/dog/{}.jpg"), "--exclude 'test/*'"),
        (numbered("no/{}.jpg", "yes/{}.jpg", "again/no/{}.jpg", "again/yes/{}.jpg"), "--exclude 'again/*'"),
        (numbered("cat/{}.jpg", "dog/{}.jpg", "x/a/{}.jpg", "x/b/{}.jpg", number=2), "--exclude 'x/*'"),
    ],
)
def test_the_fewer_of_files_at_several_depths_are_advised_to_be_left_out(names, globs):
    with pytest.raises(UsageError, match="above folders that may be classes") as caught:
        check(named(*names))
    assert f"with {globs}, or add" in str(caught.value)


@pytest.mark.parametrize(
    ("names", "globs"),
    [
        # LEVIR-CD, RESIDE, Rain100, a stereo set, GoPro, Set5, RoadScene and a set of faces.
        (numbered("A/{}.png", "B/{}.png", "label/{}.png"), "'A/*' or --include 'B/*' or --include 'label/*'"),
        (numbered("clear/{}.png", "hazy/{}_0.8_1.png"), "'clear/*' or --include 'hazy/*'"),
        (numbered("norain/norain-{}.png", "rain/rain-{}.png"), "'norain/*' or --include 'rain/*'"),
        (numbered("disp/{}.png", "left/{}.png", "right/{}.png"), "'disp/*'"),
        (
            numbered("train/G/blur/{}.png", "train/G/sharp/{}.png", "test/H/blur/{}.png", "test/H/sharp/{}.png"),
            "*/blur/*",
        ),
        ([f"{folder}/{name}.png" for folder in ("x", "LRx2", "LRx3") for name in ("baby", "bird", "head")], "'LRx2/*'"),
        (numbered("infrared/FLIR_{}.jpg", "visible/FLIR_{}.jpg"), "'infrared/*'"),
        ([f"{folder}/{n}_ab.jpg" for folder in ("day", "night") for n in (7, 190, 2214)], "'day/*'"),
        (numbered("mix/a{}.wav", "s1/a{}.wav", "s2/a{}.wav"), "'mix/*'"),
    ],
)
def test_folders_of_the_parts_of_pairs_are_no_classes(names, globs):
    with pytest.raises(UsageError, match="are hardly classes") as caught:
        check(named(*names))
    assert globs in str(caught.value.next_step)
    check(named(*names), no_labels=True)


@pytest.mark.parametrize(
    "names",
    [
        # Files of a class are counted, whatever stands before the number, or have names of their own.
        numbered("cat/IMG_{}.jpg", "dog/IMG_{}.jpg"),
        numbered("cat/cat.{}.jpg", "dog/dog.{}.jpg"),
        numbered("s1/{}.pgm", "s2/{}.pgm", "s3/{}.pgm"),
        numbered("a/{}_x.jpg", "b/{}_x.jpg"),
        ["a/car.jpg", "a/bus.jpg", "a/van.jpg", "b/car.jpg", "b/bus.jpg", "b/tram.jpg"],
        # Four classes and more are seldom parts.
        [f"{folder}/{name}.png" for folder in "klmn" for name in ("baby", "bird", "head")],
        # Turned and flipped copies lie in the folders of classes.
        numbered("cat/{}.jpg", "cat/{}_flip.jpg", "dog/{}.jpg", "dog/{}_flip.jpg"),
    ],
)
def test_classes(names):
    check(named(*names))


@pytest.mark.parametrize(
    ("names", "glob"),
    [
        (numbered("{}_rgb.png", "{}_depth.png"), "--exclude '*_rgb.png',"),
        (numbered("Image_{}L.jpg", "Image_{}L_1stHO.png", "Image_{}L_2ndHO.png"), "--exclude '*.png',"),
        (numbered("{}_left.jpg", "{}_right.jpg"), "--exclude '*_right.jpg',"),
    ],
)
def test_files_that_differ_in_their_ends_alone(names, glob):
    with pytest.raises(UsageError, match="the same names but for their ends") as caught:
        check(named(*names))
    assert glob in str(caught.value.next_step)
    check(named(*names), no_labels=True)


@pytest.mark.parametrize(
    "names", [numbered("cat_{}.jpg", "dog_{}.jpg"), numbered("{}.jpg", "{}_b.jpg")[:5], ["a_b.jpg", "c_d.jpg", "e.jpg"]]
)
def test_files_that_are_called_otherwise(names):
    check_no_masks(named(*names), dict.fromkeys(names), lambda left: "", has_labels=False)


def test_a_folder_called_labeled_holds_masks():
    with pytest.raises(UsageError, match="masks lie beside the images") as caught:
        check(named(*numbered("Stills_full/{}.png", "LabeledApproved_full/{}_L.png")))
    assert "--exclude 'LabeledApproved_full/*' --no-labels" in str(caught.value.next_step)


def test_folders_of_one_file_each_are_no_classes():
    names = numbered("PH2/{0}/{0}_image/{0}.bmp", "PH2/{0}/{0}_lesion/{0}_lesion.bmp")
    with pytest.raises(UsageError, match="each class folder holds one file") as caught:
        check(named(*names))
    assert "--include '*_image/*' or --include '*_lesion/*', and add --no-labels" in str(caught.value.next_step)
    check_no_pairs(named("cat/1.jpg", "dog/2.jpg"), {"cat/1.jpg": "cat", "dog/2.jpg": "dog"})
