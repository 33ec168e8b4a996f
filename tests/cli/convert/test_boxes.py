"""Boxes of pictures that are resized: each box still lies around its object, as drawn pixels show."""

import io
import json

import numpy as np
import pytest
from PIL import Image, ImageDraw

from shardkit.cli import main
from shardkit.dataset.open import open_dataset
from tests.support.in_process import read_rows

pytestmark = pytest.mark.full

OBJECTS = {"red": (30, 20, 90, 60), "blue": (100, 70, 180, 110)}


@pytest.fixture
def images(tmp_path):
    """Returns a folder of pictures of several shapes, each with two coloured rectangles, and their boxes by name."""
    folder = tmp_path / "in"
    folder.mkdir()
    boxes = {}
    for index, (width, height) in enumerate([(200, 120), (400, 120), (200, 360)]):
        image = Image.new("RGB", (width, height), "white")
        boxes[f"{index}.png"] = {}
        for colour, (left, top, right, bottom) in OBJECTS.items():
            box = [left * width / 200, top * height / 120, right * width / 200, bottom * height / 120]
            ImageDraw.Draw(image).rectangle([box[0], box[1], box[2] - 1, box[3] - 1], fill=colour)
            boxes[f"{index}.png"][colour] = box
        image.save(folder / f"{index}.png")
    return folder, boxes


def coco(folder, boxes):
    document = {"images": [], "annotations": [], "categories": [{"id": i, "name": n} for i, n in enumerate(OBJECTS)]}
    for index, (name, objects) in enumerate(boxes.items()):
        document["images"].append({"id": index, "file_name": name})
        for category, (left, top, right, bottom) in enumerate(objects.values()):
            size = [right - left, bottom - top]
            found = {"image_id": index, "category_id": category, "bbox": [left, top, *size], "area": size[0] * size[1]}
            document["annotations"].append(found)
    path = folder.parent / "instances.json"
    path.write_text(json.dumps(document))
    return path


def voc(folder, boxes):
    labels = folder.parent / "Annotations"
    labels.mkdir()
    for name, objects in boxes.items():
        parts = []
        for colour, box in objects.items():
            corners = zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
            inner = "".join(f"<{k}>{v}</{k}>" for k, v in corners)
            parts.append(f"<object><name>{colour}</name><bndbox>{inner}</bndbox></object>")
        (labels / name.replace("png", "xml")).write_text(f"<annotation>{''.join(parts)}</annotation>")
    return labels


def objects(folder, boxes):
    lines = []
    for name, found in boxes.items():
        lists = [[left, top, right - left, bottom - top] for left, top, right, bottom in found.values()]
        lines.append(json.dumps({"file_name": name, "objects": {"bbox": lists, "categories": list(range(len(found)))}}))
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")


def check_boxes(row, names, size):
    """Checks that each box of a row lies around the pixels of its colour, and that nothing is drawn elsewhere."""
    image = Image.open(io.BytesIO(row["image"])).convert("RGB")
    assert image.size == size
    drawn = image.copy()
    for label, box in zip(row["box_labels"], np.reshape(row["boxes"], (-1, 4)), strict=True):
        expected = Image.new("RGB", (1, 1), names[label]).getpixel((0, 0))
        ys, xs = np.nonzero(np.abs(np.asarray(image, int) - expected).sum(axis=2) < 200)
        found = [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]
        assert np.abs(found - box).max() <= 1, (row["filename"], names[label], box, found)
        ImageDraw.Draw(drawn).rectangle([box[0] - 1, box[1] - 1, box[2], box[3]], fill="black")
    # Painted over with their boxes, the objects are gone but for half a pixel at their edges.
    pixels = np.asarray(drawn)
    assert ((pixels != 255).any(axis=2) & (pixels != 0).any(axis=2)).sum() <= 4 * size[1]


@pytest.mark.parametrize("write_labels", [coco, voc, objects])
def test_boxes_lie_around_their_colour_in_resized_images(images, tmp_path, capsys, write_labels):
    folder, boxes = images
    labels = write_labels(folder, boxes)
    out = tmp_path / "out"
    named = ["--labels", str(labels)] if labels is not None else []
    assert main(["convert", str(folder), str(out), *named, "--image-size", "96x64"]) == 0
    notes = " ".join(capsys.readouterr().err.split())
    assert "boxes are scaled and clipped to --image-size" in notes
    dataset = open_dataset(str(out))
    features = {f.name: f for f in dataset.manifest.features}
    rows = read_rows(dataset, "train")
    assert len(rows) == 3
    for row in rows:
        with Image.open(folder / row["filename"]) as before:
            assert (row["original_width"], row["original_height"]) == before.size
        assert (row["height"], row["width"]) == (96, 64)
        check_boxes(row, features["box_labels"].vocabulary or tuple(OBJECTS), (64, 96))


def test_boxes_of_yolo_are_those_of_the_upright_image(images, tmp_path, capsys):
    folder, boxes = images
    root = tmp_path / "yolo"
    (root / "images").mkdir(parents=True)
    (root / "labels").mkdir()
    (root / "data.yaml").write_text("names: [red, blue]\n")
    turned = Image.Exif()
    turned[0x0112] = 6
    for name, objects in boxes.items():
        with Image.open(folder / name) as image:
            width, height = image.size
            image.transpose(Image.Transpose.ROTATE_90).save(root / "images" / name, exif=turned)
        lines = []
        for index, (left, top, right, bottom) in enumerate(objects.values()):
            centre = f"{(left + right) / 2 / width} {(top + bottom) / 2 / height}"
            lines.append(f"{index} {centre} {(right - left) / width} {(bottom - top) / height}\n")
        (root / "labels" / name.replace("png", "txt")).write_text("".join(lines))
    out = tmp_path / "out"
    assert main(["convert", str(root), str(out), "--image-size", "96x64"]) == 0, capsys.readouterr().err
    dataset = open_dataset(str(out))
    names = next(f.vocabulary for f in dataset.manifest.features if f.name == "box_labels")
    rows = read_rows(dataset, "train")
    assert len(rows) == 3
    for row in rows:
        check_boxes(row, names, (64, 96))
