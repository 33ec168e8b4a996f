"""Pictures with what is known about them in files beside them."""

from __future__ import annotations

import io
import json
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.folders.parts import Case, Row, picture, write

_SPLITS = ("train", "train", "train", "validation", "test", "test")
_WIDTH, _HEIGHT = 40, 30
_BOXES = ((4, 6, 20, 21), (10, 3, 30, 27))
"""xmin, ymin, xmax, ymax of the boxes of a picture, in pixels."""
_NAMES = ("cat", "dog")


def _box_row(split: str, data: bytes, index: int) -> Row:
    number = 1 + index % 2
    boxes = tuple(float(x) for box in _BOXES[:number] for x in box)
    return split, data, (boxes, _NAMES[:number] if number > 1 else _NAMES[0])


def _metadata(folder: Path, suffix: str) -> list[Row]:
    rows = []
    for split in ("train", "test"):
        lines = []
        for index in range(3):
            name = f"{index:04}.png"
            data = write(folder / split / name, picture(index + 10 * (split == "test"), form="PNG"))
            lines.append({"file_name": name, "caption": f"{split} picture {index}", "age": index})
            rows.append((split, data, (f"{split} picture {index}", index)))
        if suffix == "csv":
            content = "file_name,caption,age\n" + "".join(
                f"{r['file_name']},{r['caption']},{r['age']}\n" for r in lines
            )
        else:
            content = "".join(json.dumps(r) + "\n" for r in lines)
        write(folder / split / f"metadata.{suffix}", content)
    return rows


def _kaggle_images(folder: Path) -> list[Row]:
    rows, lines = [], ["image_id,healthy,rust"]
    for index in range(5):
        data = write(folder / "train" / f"leaf_{index}.jpg", picture(index))
        lines.append(f"leaf_{index},{index % 2},{1 - index % 2}")
        rows.append(("train", data, (index % 2, 1 - index % 2)))
    write(folder / "train.csv", "\n".join(lines) + "\n")
    return rows


def _tables_of_splits(folder: Path, is_apart: bool) -> list[Row]:
    """Makes train.csv and test.csv, both with labels, beside a folder of their names or beside one of all images."""
    rows = []
    for split in ("train", "test"):
        lines = ["filename,label"]
        for index in range(4):
            name = f"{index}.jpg" if is_apart else f"{split}_{index}.jpg"
            data = write(folder / (split if is_apart else "images") / name, picture(index + 9 * (split == "test")))
            lines.append(f"{name},{_NAMES[index % 2]}")
            rows.append((split, data, _NAMES[index % 2]))
        write(folder / f"{split}.csv", "\n".join(lines) + "\n")
    return rows


def _voc(folder: Path, left_out: tuple[str, ...] = ()) -> list[Row]:
    rows, lists = [], {}
    for index, split in enumerate(_SPLITS):
        stem = f"2007_{index:06}"
        data = write(folder / "JPEGImages" / f"{stem}.jpg", picture(index))
        row = _box_row(split, data, index)
        objects = "".join(
            f"<object><name>{name}</name><difficult>0</difficult><truncated>0</truncated><bndbox><xmin>{x0}</xmin>"
            f"<ymin>{y0}</ymin><xmax>{x1}</xmax><ymax>{y1}</ymax></bndbox></object>"
            for name, (x0, y0, x1, y1) in list(zip(_NAMES, _BOXES, strict=True))[: 1 + index % 2]
        )
        write(
            folder / "Annotations" / f"{stem}.xml",
            f"<annotation><folder>VOC2007</folder><filename>{stem}.jpg</filename><size><width>{_WIDTH}</width>"
            f"<height>{_HEIGHT}</height><depth>3</depth></size>{objects}</annotation>",
        )
        lists.setdefault({"validation": "val"}.get(split, split), []).append(stem)
        rows.append(row)
    if left_out:
        lists["trainval"] = lists["train"] + lists["val"]
        for split in left_out:
            del lists[split]
        rows = [("train" if "val" in left_out and row[0] == "validation" else row[0], *row[1:]) for row in rows]
    for name, stems in lists.items():
        write(folder / "ImageSets" / "Main" / f"{name}.txt", "\n".join(stems) + "\n")
    return rows


def _coco(folder: Path, num_apart: int = 100) -> list[Row]:
    """Makes COCO; with `num_apart` 0 the images of both splits have the same names."""
    rows = []
    categories = [{"id": 3 + i, "name": name} for i, name in enumerate(_NAMES)]
    for split, tag in (("train", "train2017"), ("validation", "val2017")):
        images, annotations = [], []
        for index in range(3):
            name = f"{index + num_apart * (tag == 'val2017'):012}.jpg"
            data = write(folder / tag / name, picture(index + 50 * (tag == "val2017")))
            images.append({"id": index, "file_name": name, "width": _WIDTH, "height": _HEIGHT})
            for number, (x0, y0, x1, y1) in enumerate(_BOXES[: 1 + index % 2]):
                box = [x0, y0, x1 - x0, y1 - y0]
                annotations.append(
                    {"id": len(annotations), "image_id": index, "category_id": 3 + number, "bbox": box, "iscrowd": 0,
                     "area": box[2] * box[3]}
                )  # fmt: skip
            rows.append(_box_row(split, data, index))
        write(
            folder / "annotations" / f"instances_{tag}.json",
            json.dumps({"images": images, "annotations": annotations, "categories": categories}),
        )
    return rows


def _coco_of_splits(folder: Path) -> list[Row]:
    """Makes one folder of images, and a document of each split beside it."""
    rows = _coco(folder)
    (folder / "images").mkdir()
    for image in folder.glob("*2017/*.jpg"):
        image.rename(folder / "images" / image.name)
    for document, name in (("instances_train2017", "train"), ("instances_val2017", "val")):
        (folder / "annotations" / f"{document}.json").rename(folder / f"{name}.json")
    return rows


def _yolo(folder: Path) -> list[Row]:
    rows = []
    for index, split in enumerate(_SPLITS):
        tag = {"validation": "val"}.get(split, split)
        data = write(folder / "images" / tag / f"{index}.jpg", picture(index))
        lines = [
            f"{number} {(x0 + x1) / 2 / _WIDTH:.8f} {(y0 + y1) / 2 / _HEIGHT:.8f} {(x1 - x0) / _WIDTH:.8f} "
            f"{(y1 - y0) / _HEIGHT:.8f}\n"
            for number, (x0, y0, x1, y1) in enumerate(_BOXES[: 1 + index % 2])
        ]
        write(folder / "labels" / tag / f"{index}.txt", "".join(lines))
        rows.append(_box_row(split, data, index))
    write(
        folder / "data.yaml",
        "path: ../pets\ntrain: images/train\nval: images/val\ntest: images/test\n\nnc: 2\nnames:\n  0: cat\n  1: dog\n",
    )
    return rows


def _captions(folder: Path) -> list[Row]:
    rows = []
    for index in range(4):
        data = write(folder / f"{index}.jpg", picture(index))
        write(folder / f"{index}.txt", f"a picture of number {index}\n")
        rows.append(("train", data, f"a picture of number {index}"))
    return rows


def _parquet_of_hugging_face(folder: Path) -> list[Row]:
    rows = []
    info = {
        "info": {
            "features": {
                "image": {"_type": "Image"},
                "label": {"names": list(_NAMES), "_type": "ClassLabel"},
            }
        }
    }
    for split, number in (("train", 4), ("test", 2)):
        image_files = [picture(i + 10 * (split == "test"), form="PNG") for i in range(number)]
        schema = pa.schema(
            [("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])), ("label", pa.int64())],
            metadata={"huggingface": json.dumps(info)},
        )
        values = [{"bytes": data, "path": f"{i}.png"} for i, data in enumerate(image_files)]
        table = pa.table([pa.array(values, schema.field(0).type), [i % 2 for i in range(number)]], schema=schema)
        buffer = io.BytesIO()
        pq.write_table(table, buffer)
        write(folder / "data" / f"{split}-00000-of-00001.parquet", buffer.getvalue())
        rows += [(split, data, _NAMES[i % 2]) for i, data in enumerate(image_files)]
    return rows


def _yolo_lists(folder: Path) -> list[Row]:
    rows = _yolo(folder)
    lists: dict[str, list[str]] = {}
    for index, split in enumerate(_SPLITS):
        tag = {"validation": "val"}.get(split, split)
        for kind, suffix in (("images", "jpg"), ("labels", "txt")):
            (folder / kind / tag / f"{index}.{suffix}").rename(folder / kind / f"{index}.{suffix}")
        lists.setdefault(tag, []).append(f"./images/{index}.jpg\n")
    for tag, lines in lists.items():
        write(folder / f"{tag}.txt", "".join(lines))
        for kind in ("images", "labels"):
            (folder / kind / tag).rmdir()
    write(folder / "data.yaml", "train: train.txt\nval: val.txt\ntest: test.txt\nnames: [cat, dog]\n")
    return rows


def _roboflow_csv(folder: Path) -> list[Row]:
    rows = []
    for split, tag in (("train", "train"), ("validation", "valid")):
        lines = ["filename,width,height,class,xmin,ymin,xmax,ymax"]
        for index in range(2):
            name = f"{tag}_{index}_jpg.rf.0a1b.jpg"
            data = write(folder / tag / name, picture(index + 7 * (tag == "valid")))
            for label, (x0, y0, x1, y1) in list(zip(_NAMES, _BOXES, strict=True))[: 1 + index % 2]:
                lines.append(f"{name},{_WIDTH},{_HEIGHT},{label},{x0},{y0},{x1},{y1}")
            rows.append(_box_row(split, data, index))
        write(folder / tag / "_annotations.csv", "\n".join(lines) + "\n")
    write(folder / "README.roboflow.txt", "Exported on a day.\n")
    return rows


def _objects(folder: Path) -> list[Row]:
    rows = []
    for split in ("train", "test"):
        lines = []
        for index in range(2):
            data = write(folder / split / f"{index:04}.png", picture(index + 9 * (split == "test"), form="PNG"))
            boxes = [[x0, y0, x1 - x0, y1 - y0] for x0, y0, x1, y1 in _BOXES[: 1 + index]]
            objects = {"bbox": boxes, "categories": list(_NAMES[: 1 + index])}
            lines.append(json.dumps({"file_name": f"{index:04}.png", "image_id": index, "objects": objects}))
            rows.append(_box_row(split, data, index))
        write(folder / split / "metadata.jsonl", "\n".join(lines) + "\n")
    return rows


def _kaggle_same_names(folder: Path) -> list[Row]:
    rows, lines = [], ["id,age"]
    for index in range(4):
        rows.append(("train", write(folder / "train_images" / f"{index}.jpg", picture(index)), index + 20))
        lines.append(f"{index}.jpg,{index + 20}")
        rows.append(("test", write(folder / "test_images" / f"{index}.jpg", picture(index + 50)), None))
    write(folder / "train_labels.csv", "\n".join(lines) + "\n")
    write(folder / "sample_submission.csv", "id,age\n0.jpg,0\n1.jpg,0\n")
    return rows


def _darknet(folder: Path) -> list[Row]:
    rows = []
    for index in range(4):
        data = write(folder / "obj_train_data" / f"{index}.jpg", picture(index))
        x0, y0, x1, y1 = _BOXES[0]
        parts = ((x0 + x1) / 2 / _WIDTH, (y0 + y1) / 2 / _HEIGHT, (x1 - x0) / _WIDTH, (y1 - y0) / _HEIGHT)
        write(
            folder / "obj_train_data" / f"{index}.txt", " ".join((str(index % 2), *(f"{x:.8f}" for x in parts))) + "\n"
        )
        rows.append(("train", data, (tuple(map(float, _BOXES[0])), _NAMES[index % 2])))
    write(folder / "obj.names", "cat\ndog\n")
    write(folder / "obj.data", "classes = 2\ntrain = data/train.txt\nnames = data/obj.names\nbackup = backup/\n")
    write(folder / "train.txt", "".join(f"data/obj_train_data/{index}.jpg\n" for index in range(4)))
    return rows


def _yolo_without_names(folder: Path) -> list[Row]:
    rows = [(split, data, (boxes, _NAMES.index(name))) for split, data, (boxes, name) in _darknet(folder)]
    for path in folder.glob("obj_train_data/*"):
        path.rename(folder / path.name)
    for name in ("obj.names", "obj.data", "train.txt"):
        (folder / name).unlink()
    return rows


def _celeba(folder: Path) -> list[Row]:
    rows, lines = [], ["6", "Smiling Young"]
    for index in range(6):
        data = write(folder / "img_align_celeba" / f"{index:06}.jpg", picture(index))
        values = (1 - 2 * (index % 2), 1 - 2 * (index % 3 == 0))
        lines.append(f"{index:06}.jpg {values[0]:2} {values[1]:2}")
        rows.append(("train", data, values))
    write(folder / "list_attr_celeba.txt", "\n".join(lines) + "\n")
    return rows


def _pets(folder: Path) -> list[Row]:
    rows = []
    lines = ["#Image CLASS-ID SPECIES BREED ID", "#ID: 1:37 Class ids", "#SPECIES: 1:Cat 2:Dog"]
    for index in range(4):
        data = write(folder / "images" / f"Abyssinian_{index}.jpg", picture(index))
        lines.append(f"Abyssinian_{index} 1 {1 + index % 2} 1")
        rows.append(("train", data, 1 + index % 2))
    write(folder / "annotations" / "list.txt", "\n".join(lines) + "\n")
    write(folder / "annotations" / "trainval.txt", "\n".join(lines[3:]) + "\n")
    return rows


def _labels_csv(folder: Path) -> list[Row]:
    rows = [("train", write(folder / f"{index}.jpg", picture(index)), ("cat", "dog")[index % 2]) for index in range(6)]
    write(folder / "labels.csv", "id,breed\n" + "".join(f"{i},{rows[i][2]}\n" for i in range(6)))
    return rows


def _list_of_classes(folder: Path) -> list[Row]:
    rows = [("train", write(folder / f"ILSVRC_{i:08}.JPEG", picture(i)), 3 + i % 2) for i in range(6)]
    write(folder / "val.txt", "".join(f"ILSVRC_{i:08}.JPEG {3 + i % 2}\n" for i in range(6)))
    return rows


def _list_of_names(folder: Path) -> list[Row]:
    for index in range(3):
        write(folder / f"{index}.jpg", picture(index))
    write(folder / "names.txt", "0.jpg\n1.jpg\n2.jpg\n")
    return []


def _masks(folder: Path) -> list[Row]:
    for index in range(3):
        write(folder / "images" / f"{index}.jpg", picture(index))
        write(folder / "masks" / f"{index}.png", picture(index, form="PNG"))
    return []


def _images_of_masks(folder: Path) -> list[Row]:
    _masks(folder)
    return [("train", (folder / "images" / f"{index}.jpg").read_bytes(), None) for index in range(3)]


def _tiny_imagenet(folder: Path) -> list[Row]:
    rows = []
    for number, name in enumerate(("n01443537", "n01629819")):
        for index in range(3):
            data = write(folder / "train" / name / "images" / f"{name}_{index}.JPEG", picture(3 * number + index))
            rows.append(("train", data, name))
        boxes = "".join(f"{name}_{index}.JPEG\t0\t10\t20\t30\n" for index in range(3))
        write(folder / "train" / name / f"{name}_boxes.txt", boxes)
    for index in range(3):
        data = write(folder / "val" / "images" / f"val_{index}.JPEG", picture(index + 20))
        rows.append(("validation", data, f"n0{1443537 + index % 2}"))
        rows.append(("test", write(folder / "test" / "images" / f"test_{index}.JPEG", picture(index + 30)), None))
    lines = "".join(f"val_{index}.JPEG\tn0{1443537 + index % 2}\t0\t32\t44\t62\n" for index in range(3))
    write(folder / "val" / "val_annotations.txt", lines)
    write(folder / "wnids.txt", "n01443537\nn01629819\n")
    return rows


def _tiny_imagenet_validation(folder: Path) -> list[Row]:
    _tiny_imagenet(folder)
    found = (folder / "val" / "images" / f"val_{index}.JPEG" for index in range(3))
    return [("train", path.read_bytes(), f"n0{1443537 + index % 2}") for index, path in enumerate(found)]


def _extra(folder: Path) -> list[Row]:
    for seed, name in enumerate(("train/0", "train/1", "test/0", "test/1", "extra/0", "extra/1")):
        write(folder / name / "a.png", picture(seed, form="PNG"))
    return []


_BOX_LABEL = ("boxes", "box_labels")
ANNOTATED = (
    Case("Hugging Face, metadata.csv", lambda f: _metadata(f, "csv"), label=("caption", "age")),
    Case("Hugging Face, metadata.jsonl", lambda f: _metadata(f, "jsonl"), label=("caption", "age")),
    Case("Hugging Face, Parquet of pictures", _parquet_of_hugging_face),
    Case("Kaggle, train.csv beside train/", _kaggle_images, label=("healthy", "rust")),
    Case("train.csv and test.csv with labels", lambda f: _tables_of_splits(f, True), label=("label",)),
    Case("a table of each split, one folder", lambda f: _tables_of_splits(f, False), label=("label",)),
    Case("COCO, a document of each split", _coco_of_splits, label=_BOX_LABEL),
    Case("COCO, same names in both splits", lambda f: _coco(f, 0), label=_BOX_LABEL),
    Case("Pascal VOC", _voc, label=_BOX_LABEL),
    Case("Pascal VOC, trainval and test", partial(_voc, left_out=("train", "val")), label=_BOX_LABEL),
    Case("Pascal VOC, trainval, val and test", partial(_voc, left_out=("train",)), label=_BOX_LABEL),
    Case("COCO", _coco, label=_BOX_LABEL),
    Case("YOLO", _yolo, label=_BOX_LABEL),
    Case("pictures with captions beside them", _captions, label=("caption",)),
    Case("YOLO, lists of the splits", _yolo_lists, label=_BOX_LABEL),
    Case("Roboflow, _annotations.csv", _roboflow_csv, label=_BOX_LABEL),
    Case("Hugging Face, metadata.jsonl with objects", _objects, label=_BOX_LABEL),
    Case("Kaggle, train_labels.csv beside train_images/", _kaggle_same_names, label=("age",)),
    Case("name and class between blanks", _list_of_classes, ("--labels", "{folder}/val.txt"), label=("column_2",)),
    Case("names alone for labels", _list_of_names, ("--labels", "{folder}/names.txt"), refusal=("--split NAME=@FILE",)),
    Case("YOLO without names of classes", _yolo_without_names, label=("boxes", "box_labels")),
    Case("YOLO of CVAT and Darknet", _darknet, label=_BOX_LABEL),
    Case("CelebA, its attributes", _celeba, ("--labels", "{folder}/list_attr_celeba.txt"), label=("Smiling", "Young")),
    Case("Oxford Pets", _pets, ("--labels", "{folder}/annotations/list.txt"), label=("column_3",)),
    Case("labels.csv beside pictures", _labels_csv, refusal=("--labels", "labels.csv joins a table")),
    Case("labels.csv, --labels", _labels_csv, ("--labels", "{folder}/labels.csv"), label=("breed",)),
    Case("images/ and masks/", _masks, refusal=("masks", "--exclude 'masks/*'", "--no-labels")),
    Case("images/ and masks/, the images alone", _images_of_masks, ("--include", "images/*", "--no-labels")),
    Case("Tiny ImageNet", _tiny_imagenet),
    Case(
        "Tiny ImageNet, its val",
        _tiny_imagenet_validation,
        ("--include", "val/images/*", "--labels", "{folder}/val/val_annotations.txt"),
        label=("column_2",),
    ),
    Case("Tiny ImageNet, --format images", _tiny_imagenet, ("--format", "images")),
    Case(
        "Tiny ImageNet, its train without the others",
        lambda f: _tiny_imagenet(f)[:6],
        ("--format", "images", "--exclude", "test/images/*", "--exclude", "val/images/*"),
    ),
    Case("Tiny ImageNet, its train", lambda f: _tiny_imagenet(f)[:6], ("--format", "images", "--include", "train/*")),
    Case("splits beside another folder", _extra, refusal=("extra", "--exclude 'extra/*'", "--split train=1")),
)
