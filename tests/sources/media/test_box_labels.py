"""Boxes beside images: COCO and Pascal VOC, and labels that are damaged."""

from __future__ import annotations

import gzip
import json
import random

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from shardkit.errors import BadInputError, ShardkitError, UsageError
from shardkit.sources import list_inputs
from shardkit.sources.base import RawFile
from shardkit.sources.media.coco import read_coco
from shardkit.sources.media.voc import parse_voc
from tests.support.files.image_makers import encoded
from tests.support.files.label_makers import fails, images, read, text
from tests.support.paths import DATA

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the real data sets are not there")


COCO = {
    "info": {"year": 2020},
    "images": [{"id": 7, "file_name": "a.png"}, {"id": 3, "file_name": "b.png"}, {"id": 9, "file_name": "c.png"}],
    "categories": [{"id": 18, "name": "dog"}, {"id": 17, "name": "cat"}],
    "annotations": [
        {"id": 1, "image_id": 3, "category_id": 18, "bbox": [1, 2, 3.5, 4], "area": 14.0, "iscrowd": 0},
        {"id": 2, "image_id": 7, "category_id": 17, "bbox": [0, 0, 7, 5], "area": 35.0, "iscrowd": 1},
        {"id": 3, "image_id": 3, "category_id": 17, "bbox": [2, 2, 1, 1], "area": 1.0, "segmentation": []},
    ],
}


@pytest.mark.parametrize("indent", [None, 2])
def test_coco(tmp_path, indent):
    labels = text(tmp_path, "instances.json", json.dumps(COCO, indent=indent))
    found, rows, notes, _ = read(images(tmp_path, "a.png", "b.png", "c.png"), labels)
    assert found["box_labels"].vocabulary == ("cat", "dog")
    assert rows["b.png"]["boxes"] == [1, 2, 4.5, 6, 2, 2, 3, 3]
    assert rows["b.png"]["box_labels"] == [1, 0]
    assert rows["b.png"]["areas"] == [14, 1]
    assert rows["a.png"]["is_crowd"] == [True]
    assert rows["c.png"]["boxes"] == []
    assert not found["boxes"].nullable
    assert any("segmentation" in n for n in notes)


@pytest.mark.parametrize(
    ("change", "kind", "why"),
    [
        (lambda d: d["annotations"][0].update(image_id=99), UsageError, "an image that is not there"),
        (lambda d: d["annotations"][0].update(category_id=99), UsageError, "a category that is not there"),
        (lambda d: d["annotations"][0].pop("bbox"), UsageError, "1 of 3 annotations have no bbox"),
        (lambda d: d["annotations"][0].update(bbox=[1, 2, 3]), BadInputError, "bbox"),
        (lambda d: d["images"][0].update(file_name="b.png"), UsageError, "two images are called 'b.png'"),
        (lambda d: d["images"][0].update(id=3), UsageError, "stands twice"),
        (lambda d: d["categories"][0].update(name="cat"), UsageError, "two categories are called 'cat'"),
        (lambda d: d.pop("categories"), BadInputError, "categories"),
    ],
)
def test_coco_that_cannot_be_used(tmp_path, change, kind, why):
    document = json.loads(json.dumps(COCO))
    change(document)
    message = fails(images(tmp_path, "a.png"), text(tmp_path, "c.json", json.dumps(document)), kind=kind)
    assert why in message
    assert "c.json" in message


def test_coco_is_read_as_it_is_stored(tmp_path):
    folder = images(tmp_path, "a.png", "b.png", "c.png")
    raw = json.dumps(COCO).encode()
    for name, content in (("bom.json", b"\xef\xbb\xbf" + raw), ("l.json.gz", gzip.compress(raw))):
        (tmp_path / name).write_bytes(content)
        assert read(folder, tmp_path / name)[1]["b.png"]["boxes"] == [1, 2, 4.5, 6, 2, 2, 3, 3]


def test_boxes_that_may_be_wrong_are_counted(tmp_path):
    document = json.loads(json.dumps(COCO))
    for image in document["images"]:
        image.update(width=7, height=5)
    document["annotations"][2]["bbox"] = [-2, 2, -1, 1]
    folder = images(tmp_path, "a.png", "b.png", "c.png")
    _, rows, notes, _ = read(folder, text(tmp_path, "c.json", json.dumps(document)))
    assert rows["b.png"]["boxes"] == [1, 2, 4.5, 6, -2, 2, -3, 3]
    assert "of 3 boxes, 1 has no area, taken as written" in notes
    assert "of 3 boxes, 2 reach beyond their images, taken as written; --image-size clips them" in notes
    size = "<size><width>7</width><height>5</height></size>"
    content = f"<annotation>{size}{voc_object('dog', (6, 1, 8, 2))}{voc_object('dog', (1, 1, 7, 5))}</annotation>"
    text(tmp_path, "xml/a.xml", content)
    _, _, notes, _ = read(folder, tmp_path / "xml")
    assert "of 2 boxes, 1 reaches beyond its image, taken as written; --image-size clips them" in notes
    assert not any("no area" in n for n in notes)


@pytest.mark.parametrize("kind", ["coco", "voc"])
def test_boxes_of_images_of_another_size_are_refused(tmp_path, kind):
    folder = images(tmp_path, "a.png", "b.png", "c.png")
    sizes = {"a.png": (7, 5), "b.png": (5, 7), "c.png": (14, 10)}
    if kind == "coco":
        document = json.loads(json.dumps(COCO))
        for image in document["images"]:
            image["width"], image["height"] = sizes[image["file_name"]]
        labels = text(tmp_path, "c.json", json.dumps(document))
    else:
        labels = tmp_path / "xml"
        for name, (width, height) in sizes.items():
            size = f"<size><width>{width}</width><height>{height}</height></size>"
            content = f"<annotation>{size}{voc_object('dog', (1, 1, 2, 2))}</annotation>"
            text(tmp_path, f"xml/{name[0]}.xml", content)
    message = fails(folder, labels, kind=BadInputError)
    assert "the boxes are of an image of another size in c.png: the labels say 14x10 pixels, and it has 7x5" in message
    _, rows, _, rejected = read(folder, labels, tolerates_bad_rows=True)
    assert sorted(rows) == ["a.png", "b.png"]
    assert rows["a.png"]["boxes"][:2] == ([0, 0] if kind == "coco" else [1, 1])
    assert [r.file_index for r in rejected] == [2]


@pytest.mark.parametrize("tolerates", [False, True])
def test_damaged_labels_are_blamed_on_the_labels(tmp_path, tolerates):
    folder = images(tmp_path, "a.png")
    kind = UsageError if tolerates else BadInputError
    for name, content, step in (
        ("c.json", json.dumps(COCO).encode()[:-9], "Correct the labels."),
        ("l.csv", b"file,n\na.png,caf\xe9\n", "Write the labels as UTF-8."),
        ("l.csv", b"file,n,m\na.png,2\n", "Correct the labels."),
    ):
        (tmp_path / name).write_bytes(content)
        message = fails(folder, tmp_path / name, kind=kind, tolerates_bad_rows=tolerates)
        assert name in message
        assert message.endswith(step)


def voc(*objects: str) -> str:
    return f"<annotation><size><width>7</width></size>{''.join(objects)}</annotation>"


def voc_object(name: str, box: tuple, more: str = "") -> str:
    corners = "".join(f"<{k}>{v}</{k}>" for k, v in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True))
    return f"<object><name>{name}</name>{more}<bndbox>{corners}</bndbox></object>"


def test_voc(tmp_path):
    folder = images(tmp_path, "a.png", "b.png", "c.png")
    two = voc(
        voc_object("dog", (1, 2, 3, 4.5), "<difficult>1</difficult>"),
        voc_object("cat &amp; co", (0, 0, 7, 5), "<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part>"),
    )
    text(tmp_path, "xml/a.xml", two)
    text(tmp_path, "xml/b.xml", voc())
    found, rows, notes, _ = read(folder, tmp_path / "xml")
    assert found["box_labels"].vocabulary == ("cat & co", "dog")
    assert rows["a.png"]["boxes"] == [1, 2, 3, 4.5, 0, 0, 7, 5]
    assert rows["a.png"]["box_labels"] == [1, 0]
    assert rows["a.png"]["is_difficult"] == [True, False]
    assert rows["b.png"]["boxes"] == []
    assert rows["c.png"]["boxes"] is None
    assert "1 image has no label: 'c.png'" in notes


def test_voc_in_folders(tmp_path):
    folder = images(tmp_path, "train/a.png", "val/a.png")
    for name in ("train", "val"):
        text(tmp_path, f"xml/{name}/a.xml", voc(voc_object(name, (1, 2, 3, 4))))
    found, rows, _, _ = read(folder, tmp_path / "xml")
    classes = {name: found["box_labels"].vocabulary[row["box_labels"][0]] for name, row in rows.items()}
    assert classes == {"train/a.png": "train", "val/a.png": "val"}


BOMB = '<!DOCTYPE a [<!ENTITY x "yyyyyyyyyy"><!ENTITY z "&x;&x;&x;">]>'


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (BOMB + voc(voc_object("&z;", (1, 2, 3, 4))), "document type"),
        ('<!DOCTYPE a SYSTEM "file:///etc/passwd">' + voc(), "document type"),
        (voc(voc_object("a", (1, 2, 3, "x"))), "'x', expected a number"),
        (voc(voc_object("a", (1, 2, 3, "nan"))), "finite"),
        (voc("<object><name>a</name></object>"), "no <xmin>"),
        (voc(voc_object("a", (1, 2, 3, "1_0"))), "'1_0', expected a number"),
        (voc("<object></object>"), "no <name>"),
        (voc(voc_object("a", (1, 2, 3, 4), "<truncated>maybe</truncated>")), "expected 0 or 1"),
        ("<html></html>", "expected <annotation>"),
        ("", "no element found"),
        ("just text", "syntax error"),
        (voc()[:-5], "unclosed token"),
        ("<annotation>" + "<a>" * 100, "deeper than"),
        (voc(voc_object("a", (1, 2, 3, 4), "<name>b</name>")), "stands twice"),
    ],
)
def test_voc_that_cannot_be_used(tmp_path, content, why):
    text(tmp_path, "xml/a.xml", content)
    message = fails(images(tmp_path, "a.png"), tmp_path / "xml", kind=BadInputError)
    assert why in message
    assert "a.xml" in message


@pytest.mark.full
def test_mutated_labels_end_in_errors_that_name_them(tmp_path):
    rng = random.Random(3)
    folder = images(tmp_path, "a.png", "b.png", "c.png")
    good = json.dumps(COCO).encode()
    xml = voc(voc_object("dog", (1, 2, 3, 4))).encode()
    file = RawFile(path="/x/a.xml", name="a.xml", num_bytes=1, version="")
    labels = tmp_path / "l.json"
    num_read = num_refused = 0
    for _ in range(300):
        for content, is_json in ((bytearray(good), True), (bytearray(xml), False)):
            for _ in range(rng.randint(1, 2)):
                content[rng.randrange(len(content))] = rng.choice([rng.randrange(256), rng.choice(b"0123456789")])
            try:
                if is_json:
                    labels.write_bytes(content)
                    assert len(read(folder, labels)[1]) == 3
                else:
                    parse_voc(bytes(content), file)
                num_read += 1
            except ShardkitError:
                num_refused += 1
    assert num_read > 20
    assert num_refused > 20


@pytest.mark.data
@needs_data
def test_real_boxes_agree_in_all_their_forms():
    folder = DATA / "raccoon-detection"
    _, from_xml, notes, _ = read(folder / "images", folder / "annotations")
    assert not any("no label" in n or "no file" in n for n in notes)
    _, from_csv, _, _ = read(folder / "images", folder / "data" / "test_labels.csv")
    table = pd.read_csv(folder / "data" / "test_labels.csv")
    assert set(from_xml) == set(from_csv) == set(table["filename"])
    for name, rows in table.groupby("filename"):
        corners = rows[["xmin", "ymin", "xmax", "ymax"]].to_numpy()
        boxes = np.array(from_xml[name]["boxes"]).reshape(-1, 4)
        assert sorted(corners.tolist()) == sorted(boxes.tolist())
        assert from_csv[name]["xmin"] == corners[:, 0].tolist()
        assert from_csv[name]["labels/width"][0] == from_csv[name]["width"]


def test_captions_of_coco_are_lists(tmp_path):
    captions = [{"image_id": i, "caption": f"picture {i}{j}"} for i, j in ((2, 0), (1, 0), (2, 1))]
    document = {"images": [{"id": i, "file_name": f"{n}.png"} for i, n in ((1, "a"), (2, "b"), (3, "c"))]}
    document["annotations"] = captions
    table = read_coco(list_inputs([str(text(tmp_path, "c.json", json.dumps(document)))]).files[0])
    assert [(f.name, f.shape) for f in table.features] == [("caption", (None,))]
    assert table.columns["caption"].to_pylist() == [["picture 10"], ["picture 20", "picture 21"], []]


@pytest.mark.parametrize(("orientation", "is_noted"), [(1, False), (3, True), (6, True)])
def test_images_with_boxes_that_exif_data_turns_are_noted(tmp_path, orientation, is_noted):
    folder = images(tmp_path, "b.png")
    exif = Image.Exif()
    exif[0x0112] = orientation
    (folder / "a.jpg").write_bytes(encoded("RGB", "JPEG", (40, 20), exif=exif))
    boxes = text(tmp_path, "boxes.csv", "filename,xmin,ymin,xmax,ymax\na.jpg,1,2,3,4\nb.png,1,2,3,4\n")
    classes = text(tmp_path, "classes.csv", "filename,label\na.jpg,x\nb.png,y\n")
    noted = [note for note in read(folder, boxes)[2] if "EXIF data turns a.jpg of 2 images" in note]
    assert bool(noted) == is_noted
    assert all("--image-format jpeg" in note for note in noted)
    assert not any("EXIF" in note for note in read(folder, classes)[2])
