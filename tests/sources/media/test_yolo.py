"""The boxes of YOLO, and what data.yaml tells of classes, keypoints and splits."""

import pytest

from shardkit.errors import BadInputError, UsageError
from shardkit.sources.base import SourceOptions
from shardkit.sources.media.labels import labels_beside
from shardkit.sources.media.yolo import read_yolo
from tests.sources.media.test_layouts import listed


@pytest.mark.parametrize(
    "described",
    [
        {"data.yaml": "nc: 2\nnames: ['cat', \"dog\"]\n"},
        {"data.yaml": "names:\n  0: cat\n  1: dog  # the other\ntrain: images\n"},
        {"data.yaml": "names:\n- cat\n- dog\nnc: 2\n"},
        {"data.yaml": "names: {0: cat, 1: dog}\n"},
        {"classes.txt": "cat\ndog\n"},
    ],
)
def test_names_of_the_classes_of_yolo(tmp_path, described):
    files = listed(tmp_path, "labels/a.txt", **described)
    texts, others = (tuple(f for f in files if f.name.startswith("labels") == is_text) for is_text in (True, False))
    table = read_yolo(texts, others)
    assert table.features[1].vocabulary == ("cat", "dog")
    assert table.columns["box_labels"].to_pylist() == [[1]]
    assert [round(x, 6) for x in table.columns["boxes"].to_pylist()[0]] == [0.4, 0.4, 0.6, 0.6]


def test_a_polygon_of_yolo_becomes_the_box_around_it(tmp_path):
    table = read_yolo(listed(tmp_path, **{"a.txt": "0 0.1 0.2 0.5 0.9 0.3 0.3\n"}), ())
    assert [round(x, 6) for x in table.columns["boxes"].to_pylist()[0]] == [0.1, 0.2, 0.5, 0.9]
    assert "1 polygon of YOLO" in table.notes[1]


def test_boxes_in_pixels_are_refused_and_a_wrong_one_is_not(tmp_path):
    with pytest.raises(UsageError, match=r"2 of 3 centres are beyond 1, as if they were pixels"):
        read_yolo(listed(tmp_path / "a", **{"a.txt": "0 20 10 4 4\n0 5 0.5 1 1\n0 0.5 0.5 0.1 0.1\n"}), ())
    table = read_yolo(listed(tmp_path / "b", **{"a.txt": "0 0.5 0.5 1 1 0.98\n0 0.5 1.2 0.1 0.1\n"}), ())
    assert len(table.columns["boxes"].to_pylist()[0]) == 8
    assert "of the boxes of YOLO, this is not read: a number behind the box" in table.notes


@pytest.mark.parametrize(
    "line", ["0 0.5 0.5", "0 0.5 0.5 0.1 x", "0 0.5 0.5 0.1 nan", "a picture of a cat", "0.5 1 1 1 1"]
)
def test_lines_that_are_none_of_yolo(tmp_path, line):
    with pytest.raises(BadInputError) as caught:
        read_yolo(listed(tmp_path, **{"a.txt": f"0 0.5 0.5 0.1 0.1\n{line}\n"}), ())
    assert "a.txt, line 2" in str(caught.value)


def test_a_class_without_a_name(tmp_path):
    files = listed(tmp_path, **{"a.txt": "2 0.5 0.5 0.1 0.1\n", "classes.txt": "cat\ndog\n"})
    with pytest.raises(BadInputError, match=r"the class 2 has no name in a\.txt, line 1: 2 classes are named"):
        read_yolo(files[:1], files[1:])


def described(tmp_path, *texts, **others):
    """Writes a text of labels a line, and other files, and returns what read_yolo takes."""
    files = listed(tmp_path, **{f"labels/{n}.txt": text for n, text in enumerate(texts)}, **others)
    return tuple(tuple(f for f in files if f.name.startswith("labels") == is_text) for is_text in (True, False))


@pytest.mark.parametrize(
    ("others", "where", "step"),
    [
        (
            {"a/data.yaml": "names: [cat, dog]", "b/data.yaml": "names: [dog, cat]"},
            "a/data.yaml and b",
            "--include 'a/*'",
        ),
        ({"data.yaml": "names: [cat, dog]", "classes.txt": "dog\ncat\n"}, "data.yaml and cl", "--exclude classes.txt"),
        ({"a/data.yaml": "names: [cat, dog]", "data.yaml": "names: [dog]"}, "data.yaml", "--exclude data.yaml"),
    ],
)
def test_files_that_name_other_classes(tmp_path, others, where, step):
    with pytest.raises(UsageError, match=f"differ in their classes in .*{where}") as caught:
        read_yolo(*described(tmp_path, "0 .5 .5 .2 .2", **others))
    assert step in str(caught.value.next_step)


def test_lists_of_the_classes_that_a_folder_has_go_together(tmp_path):
    others = {"a/classes.txt": "cat\n", "b/classes.txt": "cat\ndog\n", "b/data.yaml": "names: [cat, dog]"}
    assert read_yolo(*described(tmp_path, "1 .5 .5 .2 .2", **others)).features[1].vocabulary == ("cat", "dog")


_POSE = "0 .5 .5 .4 .6 .4 .4 2 .6 .7 1 0 0 0 .5 .5 2"


def test_keypoints_are_left_out(tmp_path):
    others = {"data.yaml": "names: [person]\nkpt_shape: [4, 3]\n"}
    table = read_yolo(*described(tmp_path, _POSE, "0 .5 .5 .2 .2", **others))
    boxes = [[round(x, 6) for x in box] for box in table.columns["boxes"].to_pylist()]
    assert boxes == [[0.3, 0.2, 0.7, 0.8], [0.4, 0.4, 0.6, 0.6]]
    assert "this is not read: keypoints" in table.notes[1]
    with pytest.raises(BadInputError, match="and 12 numbers of keypoints"):
        read_yolo(*described(tmp_path, "0 .5 .5 .4 .6 .4 .4", **others))


@pytest.mark.parametrize("shape", ["[17]", "17", "[2, 4]"])
def test_a_shape_of_keypoints_that_is_none(tmp_path, shape):
    with pytest.raises(BadInputError, match="no number of keypoints and 2 or 3"):
        read_yolo(*described(tmp_path, _POSE, **{"data.yaml": f"kpt_shape: {shape}"}))


def test_boxes_with_keypoints_that_nothing_tells_from_polygons(tmp_path):
    with pytest.raises(UsageError, match="may be polygons, or boxes with keypoints") as caught:
        read_yolo(*described(tmp_path, _POSE, _POSE))
    assert "Write kpt_shape: [4, 3] into data.yaml" in str(caught.value.next_step)
    table = read_yolo(*described(tmp_path, _POSE, **{"data.yaml": "kpt_shape: [0, 2]"}))
    assert "2 polygons" in table.notes[1]


@pytest.mark.parametrize("line", ["0 .1 .1 .9 .1 .9 .9 .1 .9", "0 .1 .2 .3 .2 .5 .8 .3 .9 .1 .8"])
def test_polygons_of_one_length_are_no_keypoints(tmp_path, line):
    assert "2 polygons" in read_yolo(*described(tmp_path, line, line)).notes[1]


def _splits(tmp_path, folders, **others):
    names = [f"images/{folder}/{folder}{n}.jpg" for folder in folders for n in range(2)]
    texts = {name.replace("images", "labels").replace("jpg", "txt"): "0 .5 .5 .2 .2" for name in names}
    beside = labels_beside(tuple(listed(tmp_path, *names, **texts, **others)), str(tmp_path), SourceOptions())
    return {file.name: file.split for file in beside.files}, beside.notes


@pytest.mark.parametrize(
    "lines", ["train: images/a\nval: images/b", "path: /data/x\ntrain: [/data/x/images/a]\nval: ../images/b\ntest:"]
)
def test_splits_whose_folders_data_yaml_names(tmp_path, lines):
    found, notes = _splits(tmp_path, "abc", **{"data.yaml": f"names: [cat]\n{lines}\n"})
    assert {name[7]: split for name, split in found.items()} == {"a": "train", "b": "validation"}
    assert notes[-1].startswith("2 files of no split left out: ")


def test_one_folder_of_training_and_validation_is_train(tmp_path):
    found, _ = _splits(tmp_path, "a", **{"data.yaml": "names: [cat]\ntrain: images/a\nval: images/a\n"})
    assert set(found.values()) == {"train"}


def test_a_folder_in_two_splits(tmp_path):
    others = {"1.yaml": "train: images/a\nval: images/b", "2.yaml": "train: images/b\nval: images/a"}
    with pytest.raises(UsageError, match=r"images/b is in the splits|images/a is in the splits") as caught:
        _splits(tmp_path, "ab", **others)
    assert "--exclude 2.yaml" in str(caught.value.next_step)
