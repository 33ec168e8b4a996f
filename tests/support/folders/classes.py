"""Folders of which the names of folders are the classes."""

from __future__ import annotations

import io
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from tests.support.folders.parts import Case, Row, picture, sound, write

_SPLITS = {"train": "train", "training": "train", "val": "validation", "valid": "validation", "test": "test"}


def _class_folders(
    folder: Path, splits: Iterable[str] = ("",), classes: Iterable[str] = ("cat", "dog"), number: int = 4
) -> list[Row]:
    rows, seed = [], 0
    for split in splits:
        for name in classes:
            for index in range(number):
                data = write(folder / split / name / f"{index:03}.jpg", picture(seed))
                rows.append((_SPLITS.get(split, "train"), data, name))
                seed += 1
    return rows


def _flat_splits(folder: Path) -> list[Row]:
    rows = []
    for seed, split in enumerate(("train", "train", "test", "test")):
        rows.append((split, write(folder / "facades" / split / f"{seed}.jpg", picture(seed)), None))
    return rows


def _hive(folder: Path) -> list[Row]:
    rows = _class_folders(folder, classes=("label=cat", "label=big%20dog"))
    return [(split, data, name.removeprefix("label=").replace("%20", " ")) for split, data, name in rows]


def _archived(pack: Callable[[Path, Path], None], *, splits: Iterable[str], suffix: str) -> Callable[[Path], list[Row]]:
    def make(folder: Path) -> list[Row]:
        rows = _class_folders(folder / "loose" / "pets", splits)
        pack(folder / "loose", folder / f"pets{suffix}")
        shutil.rmtree(folder / "loose")
        return rows

    return make


def _zip(source: Path, target: Path) -> None:
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(source.rglob("*")):
            archive.write(path, path.relative_to(source))


def _tar_of_class_tars(folder: Path) -> list[Row]:
    rows = _class_folders(folder / "loose", classes=("n01440764", "n01443537"))
    with tarfile.open(folder / "ILSVRC2012_img_train.tar", "w") as outer:
        for name in ("n01440764", "n01443537"):
            inner = folder / f"{name}.tar"
            with tarfile.open(inner, "w") as archive:
                for path in sorted((folder / "loose" / name).iterdir()):
                    archive.add(path, f"{name}_{path.name}")
            outer.add(inner, inner.name)
            inner.unlink()
    shutil.rmtree(folder / "loose")
    return rows


def _tar(source: Path, target: Path) -> None:
    with tarfile.open(target, "w:gz" if target.suffix == ".gz" else "w") as archive:
        archive.add(source / "pets", "pets")


def _with_rubbish(folder: Path) -> list[Row]:
    rows = _class_folders(folder)
    for name in ("Thumbs.db", ".DS_Store", "cat/Thumbs.db", "cat/._000.jpg", "README.md", "LICENSE", "desktop.ini"):
        write(folder / name, b"\x00\x05\x16\x07 rubbish" if "." in name[-4:] else "About these pictures\n")
    write(folder / "download.py", "import this\n")
    write(folder / "MD5SUMS.md5", "d41d8cd98f00b204e9800998ecf8427e  cat/000.jpg\n")
    return rows


def _arrays(folder: Path) -> list[Row]:
    rows = []
    for seed, name in enumerate(("cat", "dog", "cat", "dog")):
        buffer = io.BytesIO()
        np.save(buffer, np.arange(6, dtype=np.float32).reshape(2, 3) + 10 * seed)
        write(folder / name / f"{seed}.npy", buffer.getvalue())
        rows.append(("train", 10.0 * seed, name))
    return rows


def _flat(folder: Path) -> list[Row]:
    return [("train", write(folder / f"{i}.png", picture(i, form="PNG")), None) for i in range(6)]


def _mixed(folder: Path) -> list[Row]:
    rows = _class_folders(folder)
    write(folder / "notes.txt", "first line\nsecond line\n")
    write(folder / "prices.csv", "id,price\n1,2.5\n2,3.5\n")
    return rows


def _many_kinds(folder: Path) -> list[Row]:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
        archive.writestr("[Content_Types].xml", "<Types/>")
    write(folder / "budget.xlsx", buffer.getvalue())
    write(folder / "a.csv", "id,x\n1,2\n")
    write(folder / "b.jsonl", '{"id": 1}\n')
    write(folder / "c.png", picture(0, form="PNG"))
    return []


def _sounds(folder: Path, names: Iterable[str]) -> list[Row]:
    rows, seed = [], 0
    for name in names:
        for index in range(3):
            label = name.rpartition("/")[2] or None
            split = _SPLITS.get(name.partition("/")[0], "train")
            rows.append((split, write(folder / name / f"{index}.wav", sound(seed)), label))
            seed += 1
    return rows


def _sounds_of_outer(folder: Path, name: str) -> list[Row]:
    return [(split, key, name.partition("/")[0]) for split, key, _ in _sounds(folder, (name,))]


def _speech_commands(folder: Path) -> list[Row]:
    rows, tests, validations = [], [], []
    for seed in range(9):
        name = f"{('yes', 'no', 'up')[seed % 3]}/{seed:08x}_nohash_0.wav"
        split = ("train", "test", "validation")[seed // 3]
        {"test": tests, "validation": validations}.get(split, []).append(name)
        rows.append((split, write(folder / name, sound(seed)), name.partition("/")[0]))
    write(folder / "testing_list.txt", "".join(f"{name}\n" for name in tests))
    write(folder / "validation_list.txt", "".join(f"{name}\n" for name in validations))
    return rows


def _masked(folder: Path) -> list[Row]:
    for seed, name in enumerate(("benign/0", "benign/1", "normal/0", "normal/1")):
        write(folder / f"{name}.png", picture(seed, form="PNG"))
        write(folder / f"{name}_mask.png", picture(seed + 9, form="PNG"))
    return []


def _gtsrb(folder: Path) -> list[Row]:
    for seed, name in enumerate(("00000/1", "00000/2", "00001/1", "00001/2")):
        write(folder / "Final_Training" / "Images" / f"{name}.ppm", picture(seed, form="PPM"))
    for seed in range(2):
        write(folder / "Final_Test" / "Images" / f"{seed}.ppm", picture(seed + 9, form="PPM"))
    return []


def _urban_sound(folder: Path) -> list[Row]:
    rows, lines = [], ["slice_file_name,fsID,fold,class"]
    for seed in range(6):
        name, label = f"{seed}-3-0-0.wav", ("siren", "drilling")[seed % 2]
        rows.append(("train", write(folder / "audio" / f"fold{seed % 3 + 1}" / name, sound(seed)), label))
        lines.append(f"{name},{seed},{seed % 3 + 1},{label}")
    write(folder / "metadata" / "UrbanSound8K.csv", "\n".join(lines) + "\n")
    return rows


_SPEAKERS = ("id1/a", "id1/b", "id2/c", "id2/d")
_SONGS = tuple(f"train/song{i}" for i in "abcde")
_MARKET = ("bounding_box_train", "bounding_box_test", "gt_bbox", "gt_query", "query")


def _stems(folder: Path) -> list[Row]:
    for seed, name in enumerate(f"{song}/{part}.wav" for song in _SONGS for part in ("mixture", "bass", "drums")):
        write(folder / name, sound(seed))
    return []


_LEVELS = ("--class-folder 1 for", "--class-folder 2 for", "--no-labels")
_HARDLY = ("hardly classes", "--class-folder 1 for", "--no-labels")
_ONE_CLASS = ("--labels", "--no-labels")
CLASSES = (
    Case("arrays in class folders", _arrays, refusal=("--array-record",)),
    Case("arrays in class folders, asked for", _arrays, ("--array-record", "file"), key="array"),
    Case("ImageFolder", _class_folders),
    Case("ImageFolder, train and test", lambda f: _class_folders(f, ("train", "test"))),
    Case("ImageFolder, train, val and test", lambda f: _class_folders(f, ("train", "val", "test"))),
    Case("ImageFolder, one level too high", lambda f: _class_folders(f / "pets")),
    Case("ImageFolder with splits, too high", lambda f: _class_folders(f / "pets", ("train", "test"))),
    Case("ImageFolder, a tar", _archived(_tar, splits=("",), suffix=".tar")),
    Case("ImageFolder with splits, a tar.gz", _archived(_tar, splits=("train", "test"), suffix=".tar.gz")),
    Case("ImageFolder with splits, a zip", _archived(_zip, splits=("train", "test"), suffix=".zip")),
    Case("ImageNet, a tar of class tars", _tar_of_class_tars),
    Case("classes as Hive writes them", _hive),
    Case("a folder around splits without classes", _flat_splits),
    Case(
        "background noise beside the words",
        lambda f: _sounds(f, ("yes", "no", "_background_noise_")),
        key="audio",
        refusal=("_background_noise_ is hardly a class", "--exclude '_background_noise_/*'"),
    ),
    Case(
        "unlabelled pictures beside classes",
        lambda f: _class_folders(f, classes=("cat", "dog", "unlabeled")),
        refusal=("unlabeled is hardly a class", "--exclude 'unlabeled/*'", "--class-folder"),
    ),
    Case("one class only", lambda f: _class_folders(f, classes=("cat",)), refusal=_ONE_CLASS),
    Case(
        "one class only, --no-labels",
        lambda f: [(s, k, None) for s, k, _ in _class_folders(f, classes=("cat",))],
        options=("--no-labels",),
    ),
    Case("one class in train and test", lambda f: _class_folders(f, ("train", "test"), ("cat",)), refusal=_ONE_CLASS),
    Case("flat folder of pictures", _flat),
    Case("pictures beside Thumbs.db and README", _with_rubbish),
    Case("pictures, a text and a table", _mixed, refusal=("--format images", "notes.txt", "prices.csv")),
    Case("pictures, a text, a table, --format images", _mixed, options=("--format", "images")),
    Case("four kinds of files", _many_kinds, refusal=("csv", "jsonl", "images", "Excel")),
    Case("sounds in class folders", lambda f: _sounds(f, ("yes", "no")), key="audio"),
    Case("sounds in splits and classes", lambda f: _sounds(f, ("train/yes", "train/no", "test/yes")), key="audio"),
    Case("sounds in a flat folder", lambda f: _sounds(f, ("",)), key="audio"),
    Case("masks called like their pictures", _masked, refusal=("masks", "--exclude '*_mask.png'")),
    Case("GTSRB, test pictures without classes", _gtsrb, refusal=("in no class folder", "--exclude", "--no-labels")),
    Case("UrbanSound8K", _urban_sound, key="audio", refusal=("--labels", "UrbanSound8K.csv joins")),
    Case(
        "UrbanSound8K, --format audio",
        _urban_sound,
        ("--format", "audio"),
        key="audio",
        refusal=("UrbanSound8K.csv joins", "--exclude"),
    ),
    Case(
        "UrbanSound8K, --labels",
        _urban_sound,
        ("--labels", "{folder}/metadata/UrbanSound8K.csv"),
        key="audio",
        label=("class",),
    ),
    Case("VoxCeleb", lambda f: _sounds(f, _SPEAKERS), key="audio", refusal=("two levels", *_LEVELS)),
    Case(
        "VoxCeleb, --class-folder 1",
        lambda f: [row for name in _SPEAKERS for row in _sounds_of_outer(f, name)],
        ("--class-folder", "1"),
        key="audio",
    ),
    Case("numbers below classes", lambda f: _class_folders(f, ("wren", "finch"), ("1", "2")), refusal=_LEVELS),
    Case("years below classes", lambda f: _class_folders(f, ("wren", "finch"), ("2022", "2023")), refusal=_LEVELS),
    Case("versions below classes", lambda f: _class_folders(f, ("wren", "finch"), ("full", "cut")), refusal=_LEVELS),
    Case("folders of days", lambda f: _class_folders(f, classes=("2023-05-01", "2023-05-02")), refusal=_HARDLY),
    Case("folders of a camera", lambda f: _class_folders(f, classes=("100APPLE", "101APPLE")), refusal=_HARDLY),
    Case("MUSDB", _stems, key="audio", refusal=("hardly classes", "--include '*/bass.wav'", "--no-labels")),
    Case("folds of UrbanSound8K", lambda f: _sounds(f, ("fold1", "fold2")), refusal=("hardly classes", "--no-labels")),
    Case("Market-1501", lambda f: _class_folders(f, classes=_MARKET), refusal=("--split query='query/*' --no-labels",)),
    Case(
        "splits in Spanish",
        lambda f: _class_folders(f, ("entrenamiento", "prueba")),
        refusal=("--split train='entrenamiento/*' --split test='prueba/*' if",),
    ),
    Case(
        "splits in Spanish, what is advised",
        lambda f: [
            ("train" if index < 8 else "test", key, label)
            for index, (_, key, label) in enumerate(_class_folders(f, ("entrenamiento", "prueba")))
        ],
        ("--split", "train=entrenamiento/*", "--split", "test=prueba/*"),
    ),
    Case(
        "pictures in a folder a split, by globs",
        lambda f: [
            ("train" if label == "old" else "test", key, None)
            for _, key, label in _class_folders(f, classes=("old", "new"))
        ],
        ("--split", "train=old/*", "--split", "test=new/*"),
    ),
    Case("Speech Commands", _speech_commands, key="audio", refusal=("--format audio",)),
    Case(
        "Speech Commands with its lists",
        _speech_commands,
        key="audio",
        options=(
            "--format", "audio", "--split", "train", "--split", "validation=@{folder}/validation_list.txt",
            "--split", "test=@{folder}/testing_list.txt",
        ),
    ),
)  # fmt: skip
