"""Folders of files that belong together: images and their masks, images of two sizes, and labels of a part of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.support.folders.parts import Case, Row, picture, write

_SPLITS = {"train": "train", "val": "validation", "test": "test"}


def _pairs(
    folder: Path, parts: Iterable[str], wanted: str = "", splits: Iterable[str] = _SPLITS, number: int = 3
) -> list[Row]:
    """Writes images of the same names into parts such as `{split}/HR/{n}.png`, and returns the rows of one part."""
    rows, seed = [], 0
    for part in parts:
        for split in splits:
            for index in range(number):
                place = Path(part.format(split=split, n=index))
                data = write(folder / place, picture(seed, form="PNG" if place.suffix == ".png" else "JPEG"))
                seed += 1
                if part == wanted:
                    rows.append((_SPLITS[split], data, None))
    return rows


def _two(*parts: str, splits: Iterable[str] = _SPLITS) -> Callable[[Path], list[Row]]:
    return lambda folder: _pairs(folder, parts, parts[0], splits)


_CAMVID = _two("{split}/{split}_{n}.png", "{split}_labels/{split}_{n}_L.png")
_TWINS = _two("{split}/{n}.jpg", "{split}/{n}.png")
_ISIC = _two("ISIC_Input/ISIC_{n}.jpg", "ISIC_GroundTruth/ISIC_{n}_segmentation.png", splits=("train",))
_DRIVE = _two(
    *("{split}/images/{n}_{split}.png", "{split}/mask/{n}_{split}_mask.png", "{split}/1st_manual/{n}_manual1.png")
)
_NUMBERED = _two("{split}/HR/{n}.png", "{split}/LR/{n}.png")


def _in_classes(image: str, mask: str, classes: Iterable[str]) -> Callable[[Path], list[Row]]:
    def make(folder: Path) -> list[Row]:
        rows, seed = [], 0
        for name in classes:
            for split in ("train", "val"):
                for index in range(2):
                    seed += 2
                    words = {"split": split, "name": name, "n": index}
                    data = write(folder / image.format(**words), picture(seed, form="PNG"))
                    write(folder / mask.format(**words), picture(seed + 1, form="PNG"))
                    rows.append((_SPLITS[split], data, name))
        return rows

    return make


_CITY = _in_classes(
    "leftImg8bit/{split}/{name}/{name}_{n}_leftImg8bit.png",
    "gtFine/{split}/{name}/{name}_{n}_gtFine_labelIds.png",
    ("aachen", "bochum"),
)
_DAVIS = _in_classes(
    "{split}/JPEGImages/480p/{name}/{n:05}.png", "{split}/Annotations/480p/{name}/{n:05}.png", ("bear", "camel")
)


def _createml(folder: Path) -> list[Row]:
    rows: list[Row] = []
    for split, tag in (("train", "train"), ("validation", "valid")):
        box = {"label": "cat", "coordinates": {"x": 6, "y": 7, "width": 10, "height": 10}}
        for index in range(3):
            data = write(folder / tag / f"{index}.jpg", picture(index + 5 * (tag == "valid")))
            rows.append((split, data, None))
        found = [{"image": f"{index}.jpg", "annotations": [box]} for index in range(3)]
        write(folder / tag / "_annotations.createml.json", json.dumps(found))
    return rows


def _imagenet(folder: Path) -> list[Row]:
    rows, data = [], folder / "Data" / "CLS-LOC"
    lines = ["ImageId,PredictionString"]
    for index in range(4):
        write(data / "train" / f"n0{index % 2}" / f"n0{index % 2}_{index}.JPEG", picture(index))
        name = f"ILSVRC2012_val_{index:08}"
        rows.append(("train", write(data / "val" / f"{name}.JPEG", picture(index + 9)), f"n0{index % 2} 1 2 3 4"))
        lines.append(f"{name},{rows[-1][2]}")
    write(folder / "LOC_val_solution.csv", "\n".join(lines) + "\n")
    return rows


def _above_classes(folder: Path) -> list[Row]:
    rows: list[Row] = []
    for seed, name in enumerate(("A", "B", "A", "B")):
        data = write(folder / "alphabet_train" / "alphabet_train" / name / f"{name}{seed}.jpg", picture(seed))
        rows.append(("train", data, name))
    for seed, name in enumerate("AB"):
        write(folder / "alphabet_test" / "alphabet_test" / f"{name}_test.jpg", picture(seed + 9))
    return rows


def _captions(folder: Path) -> list[Row]:
    rows, lines = [], []
    for index in range(4):
        data = write(folder / "images" / f"{index}_ab.jpg", picture(index))
        texts = [f"A child {index} {k} ." for k in range(2)]
        lines += [f"{index}_ab.jpg#{k}\t{text}" for k, text in enumerate(texts)]
        rows.append(("train", data, texts))
    write(folder / "token.txt", "\n".join(lines) + "\n")
    return rows


def _one_object(folder: Path) -> list[Row]:
    rows = [("train", write(folder / f"{i}x.jpg", picture(i)), ("cat", "dog")[i % 2]) for i in range(4)]
    write(folder / "labels.json", json.dumps({f"{i}x.jpg": label for i, (_, _, label) in enumerate(rows)}))
    return rows


def _blanks_in_the_header(folder: Path) -> list[Row]:
    rows: list[Row] = []
    for split, tag in (("train", "train"), ("validation", "valid")):
        lines = ["filename, cat, dog"]
        for index in range(2):
            data = write(folder / tag / f"{tag}{index}.jpg", picture(index + 5 * (tag == "valid")))
            lines.append(f"{tag}{index}.jpg, {index}, {1 - index}")
            rows.append((split, data, (index, 1 - index)))
        write(folder / tag / "_classes.csv", "\n".join(lines) + "\n")
    return rows


_MASKS = "masks lie beside the images"
_TABLE = ("--labels", "{folder}/LOC_val_solution.csv")
PAIRS = (
    Case("CamVid", _CAMVID, refusal=(_MASKS, "--exclude '*_labels/*',")),
    Case("CamVid, what is advised", _CAMVID, ("--exclude", "*_labels/*")),
    Case("images and masks of the same names", _TWINS, refusal=("--exclude '*.png' or --exclude '*.jpg',",)),
    Case("images and masks, what is advised", _TWINS, ("--exclude", "*.png")),
    Case("Cityscapes", _CITY, refusal=(_MASKS, "--exclude 'gtFine/*',")),
    Case("Cityscapes, what is advised", _CITY, ("--exclude", "gtFine/*")),
    Case("DAVIS", _DAVIS, refusal=(_MASKS, "--exclude '*/Annotations/*',")),
    Case("DAVIS, what is advised", _DAVIS, ("--exclude", "*/Annotations/*")),
    Case("ISIC", _ISIC, refusal=(_MASKS, "--exclude 'ISIC_GroundTruth/*' --no-labels")),
    Case("ISIC, what is advised", _ISIC, ("--exclude", "ISIC_GroundTruth/*", "--no-labels")),
    Case("DRIVE", _DRIVE, refusal=("--exclude '*/1st_manual/*' --exclude '*/mask/*' --no-labels",)),
    Case(
        "DRIVE, what is advised",
        _DRIVE,
        ("--exclude", "*/mask/*", "--exclude", "*/1st_manual/*", "--no-labels"),
    ),
    Case("images of two sizes", _NUMBERED, refusal=("HR and LR are hardly classes", "--include '*/HR/*'")),
    Case("images of two sizes, what is advised", _NUMBERED, ("--include", "*/HR/*", "--no-labels")),
    Case("CreateML", _createml, refusal=("labels of CreateML are not read", "--no-labels")),
    Case("CreateML, --no-labels", _createml, ("--no-labels",)),
    Case(
        "ImageNet, labels of val alone",
        _imagenet,
        (*_TABLE, "--exclude", "Data/CLS-LOC/train/*"),
        label=("PredictionString",),
    ),
    Case("files above class folders", _above_classes, refusal=("--exclude 'alphabet_test/*'", "--no-labels")),
    Case("files above, what is advised", _above_classes, ("--exclude", "alphabet_test/*")),
    Case("Flickr8k", _captions, ("--labels", "{folder}/token.txt"), label=("column_2",)),
    Case("labels in one JSON object", _one_object, ("--labels", "{folder}/labels.json")),
    Case("Roboflow, several classes an image", _blanks_in_the_header, label=("cat", "dog")),
)
