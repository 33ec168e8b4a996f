"""Labels that lie beside images and sounds are found by the names of the files, and read with their splits."""

import pytest

from shardkit.errors import BadInputError, UsageError
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.media.labels import labels_beside
from shardkit.sources.media.layouts import find_layout, image_of
from shardkit.sources.media.sidecars import read_texts, read_transcripts
from shardkit.sources.media.voc import VocLabels
from shardkit.sources.registry import choose
from tests.support.files.label_makers import picture

COCO = '{"images": [], "annotations": [], "categories": []}'
XML = "<annotation></annotation>"


def listed(folder, *names, **contents):
    """Writes files, pictures as such, and returns them as inputs."""
    for name in (*names, *contents):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        is_picture = name.endswith((".jpg", ".png"))
        usual = "file_name,n\n" if name.endswith("metadata.csv") else "1 0.5 0.5 0.2 0.2\n"
        path.write_bytes(picture() if is_picture else contents.get(name, usual).encode())
    return list_inputs([str(folder)]).files


@pytest.mark.parametrize(
    ("names", "kind", "labels"),
    [
        (["train/a.jpg", "train/metadata.csv", "test/b.jpg", "test/metadata.csv"], "folder table", 2),
        (["JPEGImages/a.jpg", "Annotations/a.xml", "ImageSets/Main/train.txt"], "voc", 1),
        (["images/a.jpg", "a.xml"], "voc", 1),
        (["images/train/a.jpg", "labels/train/a.txt", "data.yaml"], "yolo", 1),
        (["a.jpg", "a.txt", "classes.txt"], "yolo", 1),
        (["a.jpg", "b.jpg", "a.caption"], "captions", 1),
        (["a.jpg", "b.jpg", "a.txt"], "yolo", 1),
        (["a.wav", "a.txt"], "spoken", 1),
        (["wav48/p1/1.wav", "wav48/p2/1.wav", "txt/p1/1.txt", "txt/p2/1.txt", "info.txt"], "spoken apart", 2),
        (["1/2/1-2-0.flac", "1/2/1-2.trans.txt"], "transcripts", 1),
        (["clips/a.mp3", "train.tsv", "dev.tsv", "other.tsv"], "common voice", 2),
        (["train/a.jpg", "train.csv", "sample_submission.csv"], "table", 1),
    ],
)
def test_the_layouts(tmp_path, names, kind, labels):
    layout = find_layout(listed(tmp_path, *names))
    assert layout is not None
    assert (layout.kind, len(layout.labels)) == (kind, labels)


@pytest.mark.parametrize(
    "names",
    [
        ["wav/a/1.jpg", "txt/a/1.txt"],
        ["1.wav", "txt/1.txt", "notes/1.txt"],
        ["a/1.jpg", "b/2.jpg"],
        ["a.jpg", "README.md"],
        ["a.jpg", "notes.txt"],
        ["a.csv", "b.txt"],
        ["a.jpg", "x.csv"],
    ],
)
def test_no_layout(tmp_path, names):
    assert find_layout(listed(tmp_path, *names)) is None


def test_coco_is_known_by_its_keys_and_has_the_boxes_alone(tmp_path):
    files = ("annotations/instances_val.json", "annotations/captions_val.json", "annotations/licenses.json")
    layout = find_layout(listed(tmp_path, "val/a.jpg", **dict.fromkeys(files[:2], COCO), **{files[2]: "[]"}))
    assert layout is not None
    assert (layout.kind, [f.name for f in layout.labels]) == ("coco", [files[0]])


def test_two_forms_are_refused(tmp_path):
    files = listed(tmp_path, "images/a.jpg", "labels/a.txt", "a.xml", "data.yaml")
    with pytest.raises(UsageError, match="in several forms") as caught:
        find_layout(files)
    assert "Pascal VOC (a.xml)" in str(caught.value)
    assert "--no-labels" in str(caught.value)


def test_lists_name_splits_and_files_of_none_are_counted(tmp_path):
    names = [f"JPEGImages/{i}.jpg" for i in range(4)] + [f"Annotations/{i}.xml" for i in range(4)]
    lists = {"ImageSets/Main/train.txt": "0 1\n1 -1\n", "ImageSets/Main/test.txt": "2\n"}
    beside = labels_beside(listed(tmp_path, *names, **lists), str(tmp_path), SourceOptions())
    assert beside is not None
    assert {f.name: f.split for f in beside.files} == {
        "JPEGImages/0.jpg": "train", "JPEGImages/1.jpg": "train", "JPEGImages/2.jpg": "test"
    }  # fmt: skip
    assert beside.notes[1] == "1 file of no split left out: 'JPEGImages/3.jpg'"


def test_a_file_in_two_lists_is_refused(tmp_path):
    lists = {"ImageSets/Main/train.txt": "0\n", "ImageSets/Main/test.txt": "0\n"}
    with pytest.raises(UsageError, match=r"0\.jpg' is in the splits test and train"):
        labels_beside(
            listed(tmp_path, "JPEGImages/0.jpg", "Annotations/0.xml", **lists), str(tmp_path), SourceOptions()
        )


@pytest.mark.parametrize(
    ("name", "image"),
    [
        ("labels/train/a.txt", "images/train/a"),
        ("train/labels/a.b.txt", "train/images/a.b"),
        ("labels/labels/a.txt", "labels/images/a"),
        ("a.txt", "a"),
    ],
)
def test_the_image_of_labels_of_yolo(name, image):
    assert image_of(name) == image


def test_transcripts_go_with_the_files_of_their_folder(tmp_path):
    files = listed(tmp_path, **{"1/a.trans.txt": "a-0 ONE TWO\n\na-1 THREE\n"})
    table = read_transcripts(files)
    assert (list(table.names), table.columns["transcript"].to_pylist()) == (["1/a-0", "1/a-1"], ["ONE TWO", "THREE"])
    with pytest.raises(BadInputError, match=r"no words in b\.trans\.txt, line 1"):
        read_transcripts(listed(tmp_path / "b", **{"b.trans.txt": "a-0\n"}))


def test_a_caption_that_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00x")
    with pytest.raises(BadInputError, match=r"not UTF-8 in a\.txt"):
        read_texts(list_inputs([str(tmp_path)]).files, "caption")


def test_no_labels_leaves_out_those_of_all_forms(tmp_path):
    files = listed(tmp_path, "images/a.jpg", "labels/a.txt", "a.xml", "data.yaml")
    beside = labels_beside(files, str(tmp_path), SourceOptions(no_labels=True))
    assert beside is not None
    assert ([f.name for f in beside.files], beside.labels) == (["images/a.jpg"], None)
    assert beside.notes == ("layout: Pascal VOC and YOLO, its 3 files left out",)


@pytest.mark.parametrize(
    "beside",
    [
        ("cat/a.caption", "dog/b.caption"),
        ("cat/a.json", "dog/b.json"),
        ("metadata.csv",),
        ("cat/cat.csv", "dog/dog.csv"),
        ("cat/metadata.csv", "dog/metadata.csv"),
        ("cat/a.xml", "dog/b.xml"),
    ],
)
def test_class_folders_that_give_no_label_are_named(tmp_path, beside):
    contents = {name: '{"x": 1}' if name.endswith(".json") else "file_name,n\ncat/a.jpg,1\n" for name in beside}
    files = listed(tmp_path, "cat/a.jpg", "dog/b.jpg", **contents)
    found = labels_beside(files, str(tmp_path), SourceOptions())
    assert [note for note in found.notes if "--include '*.jpg' takes them as classes" in note] != []
    # What is advised leaves nothing but the classes.
    alone = list_inputs([str(tmp_path)], SourceOptions(include=("*.jpg",))).files
    assert [f.name for f in alone] == ["cat/a.jpg", "dog/b.jpg"]


def test_captions_of_coco_are_read_where_no_boxes_are(tmp_path):
    names = ["annotations/captions_train.json", "annotations/person_keypoints_train.json"]
    captions = listed(tmp_path / "a", "train/a.jpg", **{names[0]: COCO})
    assert find_layout(captions).labels[0].name == names[0]
    with pytest.raises(UsageError, match="in several forms"):
        find_layout(listed(tmp_path / "b", "train/a.jpg", **dict.fromkeys(names, COCO)))
    every = ["annotations/instances_train.json", *names]
    files = listed(tmp_path / "c", "train/a.jpg", **dict.fromkeys(every, COCO))
    beside = labels_beside(files, str(tmp_path / "c"), SourceOptions())
    assert f"2 files are passed over: {names[0]}, {names[1]}; --exclude 'instances_*' reads them" in beside.notes[1]


@pytest.mark.parametrize(
    ("title", "name", "content"),
    [
        (
            "CreateML",
            "_annotations.createml.json",
            '[{"image": "a.jpg", "annotations": []}, {"image": "b.jpg", "annotations": '
            '[{"label": "c", "coordinates": {"x": 5, "y": 5, "width": 2, "height": 2}}]}]',
        ),
        ("LabelMe", "a.json", '{"version": "5.0.1", "flags": {}, "shapes": [], "imagePath": "a.jpg"}'),
        ("CVAT", "annotations.xml", '<?xml version="1.0"?>\n<annotations>\n  <version>1.1</version></annotations>'),
    ],
)
def test_labels_that_are_not_read_are_refused_by_their_name(tmp_path, title, name, content):
    files = listed(tmp_path, "a.jpg", **{name: content})
    with pytest.raises(UsageError, match=f"labels of {title} are not read in {name}") as caught:
        find_layout(files)
    assert "--no-labels" in str(caught.value)
    beside = labels_beside(files, str(tmp_path), SourceOptions(no_labels=True))
    assert [f.name for f in beside.files] == ["a.jpg"]


def test_annotations_of_voc_may_lack_an_extension(tmp_path):
    files = listed(tmp_path, "Images/cat/c_1.jpg", **{"Annotation/cat/c_1": XML})
    layout = find_layout(files)
    assert (layout.kind, [f.name for f in layout.labels]) == ("voc", ["Annotation/cat/c_1"])
    assert list(VocLabels(layout.labels).names) == ["Annotation/cat/c_1"]
    assert find_layout(listed(tmp_path / "other", "Images/c_1.jpg", **{"Notes/c_1": "a note"})) is None


def test_a_table_in_each_folder_names_the_files_beside_it(tmp_path):
    tables = {f"{n}/GT-{n}.csv": f"Filename;ClassId\na.ppm;{n}\n" for n in (0, 1)}
    files = listed(tmp_path, "0/a.ppm", "1/a.ppm", **tables)
    layout = find_layout(files)
    assert (layout.kind, layout.folders) == ("folder table", ("0", "1"))
    assert find_layout([f for f in files if f.name != "1/GT-1.csv"]) is None


def test_a_table_that_names_the_files_is_noted_beside_a_layout(tmp_path):
    files = listed(tmp_path, "a.jpg", "b.jpg", **{"a.xml": "<annotation/>", "list.txt": "a 1 2\nb 2 1\n"})
    found = labels_beside(files, str(tmp_path), SourceOptions())
    assert f"list.txt names these files: --labels {tmp_path}/list.txt joins its columns" in found.notes


def test_one_error_names_the_labels_and_the_masks(tmp_path):
    images = [place.format(i) for i in range(3) for place in ("images/a{}.jpg", "trimaps/a{}.png")]
    files = listed(tmp_path, *images, **{"list.txt": "a0 x y\na1 x y\na2 y y\n"})
    with pytest.raises(UsageError, match="of several kinds") as caught:
        choose(files, SourceOptions())
    assert f"--labels {tmp_path}/list.txt --exclude 'trimaps/*.png' joins" in str(caught.value.next_step)
