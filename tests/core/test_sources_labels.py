"""Labels beside images: tables, COCO and Pascal VOC, and files and labels that do not go together."""

from __future__ import annotations

import gzip
import io
import json
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from shardkit.errors import BadInputError, ShardkitError, UsageError
from shardkit.sources import list_inputs
from shardkit.sources.base import RawFile, SourceOptions
from shardkit.sources.image_files import ImageSource
from shardkit.sources.image_labels import label_files, without_label_files
from shardkit.sources.label_tables import match_names
from shardkit.sources.voc import parse_voc

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the real data sets are not there")


def picture(size: tuple[int, int] = (7, 5)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size).save(buffer, "PNG")
    return buffer.getvalue()


def images(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture())
    return folder / "images"


def text(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def read(folder: Path, labels: Path, source=None, **options):
    """Returns features by name, rows by file name, notes, and what was rejected."""
    source = source or ImageSource()
    settings_ = SourceOptions(labels=str(labels), **options)
    files = list_inputs([str(folder)]).files
    features = source.infer(files, settings_)
    rows, rejected = {}, []
    for split in source.split(files, settings_):
        for part in source.read(split, files, features, settings_):
            part.batch.validate(full=True)
            assert [c.type for c in part.batch.columns] == [f.arrow_type for f in features]
            rows |= {row.pop("filename"): row for row in part.batch.to_pylist()}
            rejected += part.rejected
    return {f.name: f for f in features}, rows, source.notes(files, settings_), rejected


def fails(folder: Path, labels: Path, kind=UsageError, **options) -> str:
    with pytest.raises(kind) as caught:
        read(folder, labels, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("l.csv", "age,filename,kind\n3,a.png,cat\n5,b.png,dog\n"),
        ("l.jsonl", '{"age": 3, "image": "a.png", "kind": "cat"}\n{"age": 5, "image": "b.png", "kind": "dog"}\n'),
        ("l.csv", "name,age,kind\na.png,3,cat\nb.png,5,dog\n"),
        ("l.csv", "path,age,kind\n/some/where/a.png,3,cat\n/some/where/b.png,5,dog\n"),
        ("l.csv", "id,age,kind\na,3,cat\nb,5,dog\n"),
        ("l.json", '[{"age": 3, "file": "a.png", "kind": "cat"}, {"age": 5, "file": "b.png", "kind": "dog"}]'),
        ("l.json", '[\n  {\n    "age": 3,\n "file": "a", "kind": "cat"},\n {"age": 5, "file": "b", "kind": "dog"}\n]'),
    ],
)
def test_tables(tmp_path, name, content):
    found, rows, notes, _ = read(images(tmp_path, "a.png", "b.png"), text(tmp_path, name, content))
    assert found["age"].dtype == "int64"
    assert "label" not in found
    assert {n: (r["age"], r["kind"]) for n, r in rows.items()} == {"a.png": (3, "cat"), "b.png": (5, "dog")}
    assert notes == ()


def test_rows_stay_with_their_images_in_every_batch(tmp_path):
    names = [f"{i:03}.png" for i in range(60)]
    folder = images(tmp_path, *names)
    shuffled = random.Random(1).sample(names, 60)
    labels = text(tmp_path, "l.csv", "file,n\n" + "".join(f"{n},{int(n[:3])}\n" for n in shuffled))
    source = ImageSource(split_bytes=1000, batch_bytes=200)
    _, rows, _, _ = read(folder, labels, source)
    assert {n: r["n"] for n, r in rows.items()} == {n: int(n[:3]) for n in names}


def test_several_rows_an_image_become_lists(tmp_path):
    content = "filename,width,class,xmin\na.png,7,cat,1\nb.png,7,dog,2\na.png,7,dog,3\n"
    found, rows, notes, _ = read(images(tmp_path, "a.png", "b.png"), text(tmp_path, "l.csv", content))
    assert found["xmin"].shape == (None,)
    assert rows["a.png"]["class"] == ["cat", "dog"]
    assert rows["a.png"]["xmin"] == [1, 3]
    assert rows["b.png"]["xmin"] == [2]
    assert rows["a.png"]["labels/width"] == [7, 7]
    assert (rows["a.png"]["width"], rows["a.png"]["height"]) == (7, 5)
    assert any("several rows" in n for n in notes)
    assert any("'labels/width'" in n for n in notes)
    text(tmp_path, "l.csv", "filename,xmin\na.png,1\na.png,\n")
    assert "row 2" in fails(tmp_path / "images", tmp_path / "l.csv")


def test_what_does_not_go_together_is_counted(tmp_path):
    folder = images(tmp_path, "a.png", "b.png", "c.png")
    found, rows, notes, _ = read(folder, text(tmp_path, "l.csv", "file,n\na.png,1\nx.png,2\ny.png,3\n"))
    assert found["n"].nullable
    assert [rows[n]["n"] for n in ("a.png", "b.png", "c.png")] == [1, None, None]
    assert "2 images have no label: 'b.png', 'c.png'" in notes
    assert "2 labels have no file among the inputs: 'x.png', 'y.png'" in notes
    message = fails(folder, text(tmp_path, "l.csv", "file,n\nx.png,2\n"))
    assert "none of the labels" in message
    assert "'x.png'" in message


def test_names_that_fit_several_files_or_labels(tmp_path):
    folder = images(tmp_path, "1/a.png", "2/a.png")
    assert "belongs to 2 files" in fails(folder, text(tmp_path, "l.csv", "file,n\na.png,1\n"))
    _, rows, _, _ = read(folder, text(tmp_path, "l.csv", "file,n\n2/a.png,1\n1/a.png,2\n"))
    assert [rows[n]["n"] for n in ("1/a.png", "2/a.png")] == [2, 1]
    other = images(tmp_path / "other", "a.png")
    assert "several labels are for 'a.png'" in fails(other, text(tmp_path, "l.csv", "file,n\nx/a.png,1\ny/a.png,2\n"))


def test_a_label_of_another_folder_is_not_taken(tmp_path):
    folder = images(tmp_path, "train/a.png", "val/b.png")
    _, rows, notes, _ = read(folder, text(tmp_path, "l.csv", "file,n\ntrain/a.png,1\ntrain/b.png,2\n"))
    assert {name: row["n"] for name, row in rows.items()} == {"train/a.png": 1, "val/b.png": None}
    assert "1 image has no label: 'val/b.png'" in notes
    assert "1 label has no file among the inputs: 'train/b.png'" in notes


def test_an_image_without_label_does_not_claim_that_of_another_folder(tmp_path):
    folder = images(tmp_path, "train/a.png", "train/b.png", "val/a.png", "val/a.bmp")
    _, rows, _, _ = read(folder, text(tmp_path, "l.csv", "file,n\ntrain/a.png,1\ntrain/b.png,2\nval/a.png,3\n"))
    assert {name: row["n"] for name, row in rows.items()} == {
        "train/a.png": 1,
        "train/b.png": 2,
        "val/a.png": 3,
        "val/a.bmp": None,
    }


@pytest.mark.parametrize("root", ["", "/data/set/", "http://host/", "x/"])
@pytest.mark.parametrize("end", [".png", ""])
def test_labels_with_more_folders_than_the_files(root, end):
    names = ["train/a.png", "val/a.png", "val/b.png"]
    labels = [f"{root}{n.removesuffix('.png')}{end}" for n in reversed(names)]
    assert match_names(names, labels, "l.csv", "images").positions.tolist() == [2, 1, 0]
    assert match_names([f"{root}{n}" for n in names], ["a", *labels], "l", "images").positions.tolist() == [3, 2, 1]


def test_folders_are_looked_past_where_none_agrees():
    matching = match_names(["cats/a.png", "dogs/b.png"], ["img/b.png", "img/a.png"], "l.csv", "images")
    assert matching.positions.tolist() == [1, 0]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_every_file_gets_its_own_label(data):
    names = data.draw(st.lists(st.text("ab.c/", min_size=1, max_size=6), min_size=1, max_size=8, unique=True))
    labels = data.draw(st.permutations(names))
    try:
        matching = match_names(names, labels, "l.csv", "images")
    except UsageError:
        plain = [n.removeprefix("./") for n in names]
        assert len(set(plain)) < len(plain)
        return
    assert [labels[i] for i in matching.positions] == names
    assert matching.notes == ()


def test_tables_that_are_no_labels(tmp_path):
    folder = images(tmp_path, "a.png")
    assert "holds no names" in fails(folder, text(tmp_path, "l.csv", "x,y\n1.5,2\n"))
    assert "no name of a file" in fails(folder, text(tmp_path, "l.csv", "file,y\na.png,2\n,3\n"))
    assert "there are no labels in l.csv" in fails(folder, text(tmp_path, "l.csv", ""))
    headerless = text(tmp_path, "l.csv", "x/a.png,cat\nb.png,dog\n")
    assert "first line is the label of 'a.png'" in fails(folder, headerless)
    assert "none of the labels" in fails(folder, text(tmp_path, "l.txt", "file\na.png 1\n"))
    nested = text(tmp_path, "l.jsonl", '{"file": "a.png", "boxes": [[1, 2], [3, 4]]}\n')
    assert fails(folder, nested).endswith("Leave it out of the labels.")
    assert "no XML files" in fails(folder, images(tmp_path / "more", "x.png", "y.png"))
    assert "no kind that is read" in fails(folder, images(tmp_path / "one", "x.png") / "x.png")
    assert "line 3" in fails(folder, text(tmp_path, "l.csv", "file,y\na.png,2\nb.png\n"), kind=BadInputError)
    with pytest.raises(UsageError):
        read(folder, tmp_path / "absent.csv")


def test_labels_among_the_images_are_no_images(tmp_path):
    folder = images(tmp_path, "a.png")
    labels = text(folder, "labels.csv", "file,n\na.png,1\n")
    files, options = list_inputs([str(folder)]).files, SourceOptions(labels=str(labels))
    assert len(files) == 2
    assert [f.name for f in without_label_files(files, options)] == ["a.png"]
    assert without_label_files(files, SourceOptions()) == files
    assert [f.name for f in label_files(str(labels))] == ["labels.csv"]


def test_labels_that_do_not_fit_a_schema_are_rejected(tmp_path):
    folder = images(tmp_path, "a.png", "b.png")
    labels = text(tmp_path, "l.csv", "file,n\na.png,1\nb.png,many\n")
    source, options = ImageSource(), SourceOptions(labels=str(labels), tolerates_bad_rows=True)
    files = list_inputs([str(folder)]).files
    from shardkit.schema import Schema, apply_schema

    features = apply_schema(source.infer(files, options), Schema(features={"n": "int64"}))
    (part,) = source.read(source.split(files, options)[0], files, features, options)
    assert part.batch["n"].to_pylist() == [1]
    (bad,) = part.rejected
    assert files[bad.file_index].name == "b.png"
    assert bad.raw == picture()
    assert "'many'" in bad.reason


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
    assert "of 3 boxes, 2 reach beyond their images, taken as written" in notes
    size = "<size><width>7</width><height>5</height></size>"
    content = f"<annotation>{size}{voc_object('dog', (6, 1, 8, 2))}{voc_object('dog', (1, 1, 7, 5))}</annotation>"
    text(tmp_path, "xml/a.xml", content)
    _, _, notes, _ = read(folder, tmp_path / "xml")
    assert "of 2 boxes, 1 reaches beyond its image, taken as written" in notes
    assert not any("no area" in n for n in notes)


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
