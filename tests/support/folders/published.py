"""Folders of published datasets as they are unpacked: labels in tables, lists and documents beside the data."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from struct import pack

from tests.support.folders.parts import Case, Row, picture, sound, write

_CLASSES = ("spam", "ham")


def _few_mails(folder: Path) -> list[Row]:
    for name in _CLASSES:
        for index in range(3):
            write(folder / name / f"{index}.txt", f"Subject: {name} {index}\n\nA letter of two\nlines.\n")
    write(folder / "notes.txt", "These letters were gathered in 2009.\n")
    return []


def _mails(folder: Path) -> list[Row]:
    _few_mails(folder)
    return [("train", (folder / name / f"{index}.txt").read_bytes(), name) for name in _CLASSES for index in range(3)]


def _idx(folder: Path, stem: str, offset: int, suffixes: Sequence[str] = ("",)) -> list[tuple[bytes, int]]:
    pixels = [bytes(range(offset + 9 * i, offset + 9 * i + 9)) for i in range(3)]
    images = pack(">BBBBIII", 0, 0, 8, 3, 3, 3, 3) + b"".join(pixels)
    labels = pack(">BBBBI", 0, 0, 8, 1, 3) + bytes(range(3))
    for suffix in suffixes:
        packed = gzip.compress if suffix else bytes
        write(folder / f"{stem}-images-idx3-ubyte{suffix}", packed(images))
        write(folder / f"{stem}-labels-idx1-ubyte{suffix}", packed(labels))
    return list(zip(pixels, range(3), strict=True))


def _emnist(folder: Path, names: Sequence[str] = ("letters", "digits")) -> list[Row]:
    rows: list[Row] = []
    for number, name in enumerate(names):
        for split in ("train", "test"):
            found = _idx(folder, f"emnist-{name}-{split}", 50 * number + 25 * (split == "test"))
            rows += [(split, pixels, label) for pixels, label in found if name == names[0]]
    return rows


def _mnist_raw(folder: Path) -> list[Row]:
    rows = []
    for stem, split in (("train", "train"), ("t10k", "test")):
        found = _idx(folder, stem, 40 * (split == "test"), ("", ".gz"))
        rows += [(split, pixels, label) for pixels, label in found]
    return rows


def _fsd50k(folder: Path) -> list[Row]:
    rows = []
    for split in ("dev", "eval"):
        lines = ["fname,labels,mids" + (",split" if split == "dev" else "")]
        for index in range(4):
            name = str(64760 + index + 10 * (split == "eval"))
            data = write(folder / f"FSD50K.{split}_audio" / f"{name}.wav", sound(index))
            label, own = ("Bark", "Meow,Animal")[index % 2], ("train", "val")[index // 3]
            lines.append(f'{name},"{label}","/m/0{index}"' + (f",{own}" if split == "dev" else ""))
            rows.append((("train", "validation")[index // 3], data, label))
        write(folder / "FSD50K.ground_truth" / f"{split}.csv", "\n".join(lines) + "\n")
    write(folder / "FSD50K.ground_truth" / "vocabulary.csv", "0,Bark,/m/00\n1,Meow,/m/01\n2,Animal,/m/02\n")
    return rows[:4]


_COCO_KINDS = ("instances", "captions", "person_keypoints")


def _coco(folder: Path, *kinds: str) -> list[Row]:
    rows: list[Row] = []
    for number, split in enumerate(("train", "val")):
        images = []
        for index in range(4):
            name = f"{index + 10 * number:012}.jpg"
            images.append({"id": index, "file_name": name, "width": 40, "height": 30})
            box = ((1.0, 2.0, 11.0, 12.0), "person")
            label = f"a picture {index}" if kinds[-1] == "captions" else box
            data = write(folder / f"{split}2017" / name, picture(index + 10 * number))
            rows.append((("train", "validation")[number], data, label))
        boxes = [{"id": i, "image_id": i, "category_id": 1, "bbox": [1, 2, 10, 10], "area": 100} for i in range(4)]
        by_kind = {
            "instances": (boxes, [{"id": 1, "name": "person"}]),
            "captions": ([{"id": i, "image_id": i, "caption": f"a picture {i}"} for i in range(4)], None),
            "person_keypoints": (
                [{**box, "keypoints": [5, 6, 2], "num_keypoints": 1} for box in boxes],
                [{"id": 1, "name": "person", "keypoints": ["nose"], "skeleton": []}],
            ),
        }
        for kind in kinds:
            annotations, categories = by_kind[kind]
            document = {"info": {}, "licenses": [], "images": images, "annotations": annotations}
            document |= {"categories": categories} if categories else {}
            write(folder / "annotations" / f"{kind}_{split}2017.json", json.dumps(document))
    return rows


def _voc_xml(name: str) -> str:
    return (
        f"<annotation><size><width>40</width><height>30</height></size><object><name>{name}</name>"
        "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>11</xmax><ymax>12</ymax></bndbox></object></annotation>"
    )


def _stanford_dogs(folder: Path) -> list[Row]:
    rows = []
    for number, name in enumerate(("n02085620-Chihuahua", "n02085782-Japanese_spaniel")):
        for index in range(3):
            stem = f"{name.partition('-')[0]}_{index}"
            data = write(folder / "Images" / name / f"{stem}.jpg", picture(index + 5 * number))
            write(folder / "Annotation" / name / stem, _voc_xml(name.partition("-")[2]))
            rows.append(("train", data, ((1.0, 2.0, 11.0, 12.0), name.partition("-")[2])))
    return rows


def _food(folder: Path) -> list[Row]:
    rows, lists = [], {"train": [], "test": []}
    for number, name in enumerate(("apple_pie", "sushi")):
        for index in range(4):
            split = "test" if index == 3 else "train"
            lists[split].append(f"{name}/{100 * number + index}")
            data = write(folder / "images" / f"{lists[split][-1]}.jpg", picture(10 * number + index))
            rows.append((split, data, name))
    for split, names in lists.items():
        write(folder / "meta" / f"{split}.txt", "\n".join(names) + "\n")
        by_class = {name: [n for n in names if n.startswith(name)] for name in ("apple_pie", "sushi")}
        write(folder / "meta" / f"{split}.json", json.dumps(by_class))
    write(folder / "meta" / "classes.txt", "apple_pie\nsushi\n")
    write(folder / "meta" / "labels.txt", "Apple pie\nSushi\n")
    return rows


def _cub(folder: Path) -> list[Row]:
    rows, images, labels, splits = [], [], [], []
    for index in range(6):
        name = ("001.Black_footed_Albatross", "002.Laysan_Albatross")[index % 2]
        images.append(f"{index + 1} {name}/bird_{index}.jpg")
        labels.append(f"{index + 1} {index % 2 + 1}")
        splits.append(f"{index + 1} {int(index < 4)}")
        data = write(folder / "images" / name / f"bird_{index}.jpg", picture(index))
        rows.append(("train" if index < 4 else "test", data, name))
    for name, lines in (("images", images), ("image_class_labels", labels), ("train_test_split", splits)):
        write(folder / f"{name}.txt", "\n".join(lines) + "\n")
    write(folder / "classes.txt", "1 001.Black_footed_Albatross\n2 002.Laysan_Albatross\n")
    write(folder / "bounding_boxes.txt", "".join(f"{i + 1} 1.0 2.0 10.0 10.0\n" for i in range(6)))
    return rows


def _cub_joined(folder: Path) -> list[Row]:
    rows = _cub(folder)
    # What the advised command of awk writes.
    tables = [
        [line.split() for line in (folder / f"{name}.txt").read_text().splitlines()]
        for name in ("images", "bounding_boxes", "image_class_labels", "train_test_split")
    ]
    lines = [" ".join(["", *(word for row in found for word in row[1:])]) for found in zip(*tables, strict=True)]
    write(folder / "labels.txt", "\n".join(lines) + "\n")
    return [("train", data, int(name[:3])) for _, data, name in rows]


def _chest(folder: Path) -> list[Row]:
    rows, lines = [], ["Image Index,Finding Labels,Follow-up #,Patient ID"]
    for index in range(6):
        name = f"{index:08}_000.png"
        label = ("Cardiomegaly", "No Finding", "Hernia|Mass")[index % 3]
        data = write(folder / f"images_{index // 3 + 1:03}" / "images" / name, picture(index, form="PNG"))
        lines.append(f"{name},{label},0,{index}")
        rows.append(("train" if index < 4 else "test", data, label))
    write(folder / "Data_Entry_2017.csv", "\n".join(lines) + "\n")
    write(folder / "BBox_List_2017.csv", "Image Index,Finding Label,x,y,w,h\n00000000_000.png,Cardiomegaly,1,2,3,4\n")
    names = [f"{index:08}_000.png" for index in range(6)]
    write(folder / "train_val_list.txt", "\n".join(names[:4]))
    write(folder / "test_list.txt", "\n".join(names[4:]))
    write(folder / "LOG_CHESTXRAY.pdf", b"%PDF-1.4 log")
    return rows


def _gtsrb_training(folder: Path) -> list[Row]:
    rows = []
    for number in range(2):
        lines = ["Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId"]
        for index in range(3):
            place = folder / f"{number:05}" / f"00000_{index:05}.ppm"
            rows.append(("train", write(place, picture(index + 5 * number, form="PPM")), number))
            lines.append(f"{place.name};40;30;5;6;30;25;{number}")
        write(folder / f"{number:05}" / f"GT-{number:05}.csv", "\n".join(lines) + "\n")
    return rows


def _cvat(folder: Path) -> list[Row]:
    rows: list[Row] = []
    lines = ['<?xml version="1.0" encoding="utf-8"?>', "<annotations><version>1.1</version><meta/>"]
    for index in range(4):
        rows.append(("train", write(folder / "images" / f"{index}.jpg", picture(index)), None))
        lines.append(f'<image id="{index}" name="{index}.jpg" width="40" height="30">')
        lines.append('<box label="cat" occluded="0" xtl="1.0" ytl="2.0" xbr="11.0" ybr="12.0"/></image>')
    write(folder / "annotations.xml", "\n".join([*lines, "</annotations>"]))
    return rows


def _labelme(folder: Path) -> list[Row]:
    rows: list[Row] = []
    for index in range(4):
        rows.append(("train", write(folder / f"{index}.jpg", picture(index)), None))
        shape = {"label": "cat", "points": [[1, 2], [11, 12]], "shape_type": "rectangle", "flags": {}}
        document = {"version": "5.0.1", "flags": {}, "shapes": [shape], "imagePath": f"{index}.jpg"}
        document |= {"imageData": "aGVsbG8=", "imageHeight": 30, "imageWidth": 40}
        write(folder / f"{index}.json", json.dumps(document))
    return rows


def _cyclegan(folder: Path) -> list[Row]:
    rows, seed = [], 0
    for split in ("train", "test"):
        for domain in "AB":
            for _ in range(3):
                seed += 1
                rows.append((split, write(folder / f"{split}{domain}" / f"{seed}.jpg", picture(seed)), domain))
    return rows


def _eurosat(folder: Path) -> list[Row]:
    rows: list[Row] = []
    for name in ("AnnualCrop", "Forest"):
        for index in range(3):
            split = "train" if len(rows) < 4 else "validation" if len(rows) < 5 else "test"
            data = write(folder / "2750" / name / f"{name}_{index}.jpg", picture(len(rows)))
            rows.append((split, data, name))
    lines = [f"{i},{name}/{name}_{k}.jpg,{n},{name}" for i, (n, name, k) in enumerate(
        (n, name, k) for n, name in enumerate(("AnnualCrop", "Forest")) for k in range(3))]  # fmt: skip
    for split, found in (("train", lines[:4]), ("validation", lines[4:5]), ("test", lines[5:])):
        write(folder / f"{split}.csv", "\n".join([",Filename,Label,ClassName", *found]) + "\n")
    write(folder / "label_map.json", '{"AnnualCrop": 0, "Forest": 1}')
    return rows


def _eurosat_in_one_split(folder: Path) -> list[Row]:
    return [("train", data, name) for _, data, name in _eurosat(folder)]


_BOX_LABEL = ("boxes", "box_labels")
_COCO_TWO_FORMS = ("in several forms", "captions of COCO", "--exclude GLOB")
PUBLISHED: tuple[Case, ...] = (
    Case("few texts in class folders beside another", _few_mails, refusal=("--exclude notes.txt", "--no-labels")),
    Case("few texts, what is advised", _mails, ("--exclude", "notes.txt"), key="text"),
    Case("EMNIST, two of its tables", _emnist, refusal=("--include 'emnist-digits-*'", "--include 'emnist-letters-*'")),
    Case("EMNIST, one of its tables", _emnist, ("--include", "emnist-letters-*")),
    Case("MNIST, packed and unpacked", _mnist_raw),
    Case(
        "FSD50K",
        _fsd50k,
        refusal=("--include 'FSD50K.dev_audio/*' --labels", "--include 'FSD50K.eval_audio/*' --labels", "eval.csv"),
    ),
    Case(
        "FSD50K, what is advised",
        _fsd50k,
        (
            *("--include", "FSD50K.dev_audio/*", "--labels", "{folder}/FSD50K.ground_truth/dev.csv"),
            *("--split-column", "split"),
        ),
        key="audio",
        label=("labels",),
    ),
    Case("Food-101", _food, refusal=("--format images --split test=@", "meta/test.txt --split train=@")),
    Case(
        "Food-101, what is advised",
        _food,
        (
            *("--format", "images", "--split", "test=@{folder}/meta/test.txt"),
            *("--split", "train=@{folder}/meta/train.txt"),
        ),
    ),
    Case("CUB-200", _cub, refusal=("images.txt", "awk", "--labels labels.txt", "--exclude", "image_class_labels.txt")),
    Case("CUB-200, --format images", _cub, ("--format", "images"), refusal=("awk", "--labels labels.txt")),
    Case("CUB-200, what is advised", _cub_joined, ("--labels", "{folder}/labels.txt"), label=("column_6",)),
    Case(
        "chest X-ray", _chest, refusal=("--labels", "Data_Entry_2017.csv --split test=@", "test_list.txt --split train")
    ),
    Case(
        "chest X-ray, what is advised",
        _chest,
        (
            *("--labels", "{folder}/Data_Entry_2017.csv"),
            *("--split", "test=@{folder}/test_list.txt", "--split", "train"),
        ),
        label=("Finding Labels",),
    ),
    Case("COCO, captions alone", lambda f: _coco(f, "captions"), label=("caption",)),
    Case("COCO, keypoints alone", lambda f: _coco(f, "person_keypoints"), label=_BOX_LABEL),
    Case("COCO, all of its documents", lambda f: _coco(f, *_COCO_KINDS), label=_BOX_LABEL),
    Case("COCO, captions and keypoints", lambda f: _coco(f, *_COCO_KINDS[1:]), refusal=_COCO_TWO_FORMS),
    Case(
        "COCO, boxes and captions, the captions",
        lambda f: _coco(f, "instances", "captions"),
        ("--exclude", "instances_*"),
        label=("caption",),
    ),
    Case("Stanford Dogs", _stanford_dogs, label=_BOX_LABEL),
    Case("GTSRB, training", _gtsrb_training, label=("ClassId",)),
    Case("CVAT", _cvat, refusal=("labels of CVAT are not read", "COCO", "--no-labels")),
    Case("CVAT, --no-labels", _cvat, ("--no-labels",)),
    Case("LabelMe", _labelme, refusal=("labels of LabelMe are not read", "COCO", "--no-labels")),
    Case("LabelMe, --no-labels", _labelme, ("--no-labels",)),
    Case("CycleGAN", _cyclegan, refusal=("Move the files of testA to test/A", "--no-labels")),
    Case("EuroSAT", _eurosat, label=("ClassName",)),
    Case("EuroSAT, its folders as classes", _eurosat_in_one_split, ("--include", "*.jpg")),
)
