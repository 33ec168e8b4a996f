"""Folders of well-known sets, whose labels and splits lie in tables and lists beside the files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.folders.parts import Case, Row, picture, sound, write

_CLASSES = ("cat", "dog")


def _split_tables(
    write_table: Callable[[Path, Sequence[tuple[str, str | None]]], None],
    names: Sequence[str],
    images: str = "images",
    *,
    is_test_labelled: bool = True,
) -> Callable[[Path], list[Row]]:
    """Returns what makes a folder of pictures, and tables that name four of them each."""

    def make(folder: Path) -> list[Row]:
        rows: list[Row] = []
        for number, table in enumerate(names):
            split = "train" if "train" in table else "validation" if "val" in table else "test"
            lines: list[tuple[str, str | None]] = []
            for index in range(4 * number, 4 * number + 4):
                label = _CLASSES[index % 2] if split != "test" or is_test_labelled else None
                rows.append((split, write(folder / images / f"pet{index}.jpg", picture(index)), label))
                lines.append((f"pet{index}", label))
            write_table(folder / table, lines)
        return rows

    return make


def _csv(path: Path, lines: Sequence[tuple[str, str | None]], head: str = "id", end: str = "") -> None:
    titles = [head] if lines[0][1] is None else [head, "label"]
    rows = [[f"{name}{end}", *([label] if label else [])] for name, label in lines]
    write(path, "".join(",".join(row) + "\n" for row in [*([titles] if head else []), *rows]))


def _jsonl(path: Path, lines: Sequence[tuple[str, str | None]]) -> None:
    write(path, "".join(json.dumps({"image": f"{name}.jpg", "label": label}) + "\n" for name, label in lines))


def _json(path: Path, lines: Sequence[tuple[str, str | None]]) -> None:
    write(path, json.dumps([{"image": f"{name}.jpg", "label": label} for name, label in lines]))


def _object(path: Path, lines: Sequence[tuple[str, str | None]]) -> None:
    write(path, json.dumps({f"{name}.jpg": label for name, label in lines}))


def _data(path: Path, lines: Sequence[tuple[str, str | None]]) -> None:
    write(path, json.dumps({"data": [{"image": f"{name}.jpg", "label": label} for name, label in lines]}))


def _words(path: Path, lines: Sequence[tuple[str, str | None]]) -> None:
    write(path, "".join(f"{name}.jpg {label}\n" for name, label in lines))


def _cifar(folder: Path) -> list[Row]:
    rows: list[Row] = []
    lines = ["id,label"]
    for index in range(1, 7):
        data = write(folder / "train" / f"{index}.png", picture(index, (32, 32), "PNG"))
        rows.append(("train", data, _CLASSES[index % 2]))
        lines.append(f"{index},{_CLASSES[index % 2]}")
        unknown = write(folder / "test" / f"{index}.png", picture(index + 9, (32, 32), "PNG"))
        rows.append(("test", unknown, None))
    write(folder / "trainLabels.csv", "\n".join(lines) + "\n")
    write(folder / "sampleSubmission.csv", "id,label\n1,cat\n2,cat\n")
    return rows


def _celeba(folder: Path, suffix: str) -> list[Row]:
    rows: list[Row] = []
    attributes, partitions, points = [], [], []
    is_csv = suffix == ".csv"
    for index in range(9):
        name, partition = f"{index + 1:06}.jpg", index // 3
        images = folder / "img_align_celeba" / ("img_align_celeba" if is_csv else ".")
        data, values = write(images / name, picture(index)), (1 - 2 * (index % 2), 1)
        rows.append((("train", "validation", "test")[partition], data, values))
        for lines, cells in ((attributes, (name, *values)), (partitions, (name, partition)), (points, (name, 69, 109))):
            lines.append(("," if is_csv else " ").join(map(str, cells)))
    heads = ("image_id,Smiling,Young", "image_id,partition", "image_id,x,y")
    if not is_csv:
        heads = ("9\nSmiling Young ", "", "9\nx y")
    for name, head, lines in zip(("attr_celeba", "eval_partition", "landmarks_celeba"), heads,
                                 (attributes, partitions, points), strict=True):  # fmt: skip
        write(folder / f"list_{name}{suffix}", "\n".join(([head] if head else []) + lines) + "\n")
    return rows


def _flickr(folder: Path, *, has_rest: bool = False) -> list[Row]:
    rows: list[Row] = []
    captions: list[str] = []
    for number, (split, name) in enumerate((("train", "train"), ("validation", "dev"), ("test", "test"))):
        names = [f"{1000268201 + 3 * number + index}_693b.jpg" for index in range(3)]
        for index, image in enumerate(names):
            texts = tuple(f"A child in a pink dress , {name} {index} {k} ." for k in range(5))
            captions += [f"{image}#{k}\t{text}\n" for k, text in enumerate(texts)]
            in_list = not has_rest or number or index
            rows.append((split if in_list else "rest", write(folder / "Images" / image, picture(len(rows))), texts))
        write(folder / f"Flickr_8k.{name}Images.txt", "\n".join(names[1 if has_rest and not number else 0 :]) + "\n")
    write(folder / "Flickr8k.token.txt", "".join(captions))
    write(folder / "Flickr8k.lemma.token.txt", "".join(captions).lower())
    image = captions[0].partition("#")[0]
    pairs = [f"{image}\t{line.partition(chr(9))[0]}\t0.5\t1\t2\n" for line in captions]
    write(folder / "CrowdFlowerAnnotations.txt", "".join(pairs))
    return rows


def _reviews(folder: Path) -> list[Row]:
    rows: list[Row] = []
    for split in ("train", "test"):
        for label in ("pos", "neg", "unsup") if split == "train" else ("pos", "neg"):
            for index in range(5):
                text = f"This {label} film {index} of {split}, was <br />long."
                write(folder / "aclImdb" / split / label / f"{index}_{9 - index}.txt", text)
                rows += [(split, text, label)] if label != "unsup" else []
            # That of the real set has more than 1 MiB.
            count = 30_000 if label == "unsup" else 5
            urls = "http://www.imdb.com/title/tt0453418/usercomments\n" * count
            write(folder / "aclImdb" / split / f"urls_{label}.txt", urls)
        write(folder / "aclImdb" / split / "labeledBow.feat", "9 0:9 1:1 2:4\n2 0:5 3:1 4:4\n" * 5)
    write(folder / "aclImdb" / "train" / "unsupBow.feat", "0 0:9 1:1 2:4\n" * 5)
    write(folder / "aclImdb" / "imdb.vocab", "the\nand\na\nof\n")
    write(folder / "aclImdb" / "imdbEr.txt", "0.0490972013402\n0.201363575849\n")
    write(folder / "aclImdb" / "README", "Large Movie Review Dataset v1.0\n")
    return rows


_REVIEWS = (
    *("imdb.vocab", "imdbEr.txt", "test/labeledBow.feat", "test/urls_neg.txt", "test/urls_pos.txt"),
    *("train/labeledBow.feat", "train/unsupBow.feat", "train/urls_neg.txt", "train/urls_pos.txt"),
    "train/urls_unsup.txt",
)
_WITHOUT_LISTS = (*(word for name in _REVIEWS for word in ("--exclude", f"aclImdb/{name}")), "--exclude", "*unsup/*")


def _mls(folder: Path) -> list[Row]:
    rows: list[Row] = []
    for number, (split, name) in enumerate((("train", "train"), ("validation", "dev"), ("test", "test"))):
        lines, segments = [], []
        for index in range(4):
            utterance = f"{4800 + number}_{10003 + index % 2}_{index:06}"
            speaker, book, _ = utterance.split("_")
            text = f"woord {index} van {name}"
            data = write(folder / name / "audio" / speaker / book / f"{utterance}.wav", sound(9 * number + index))
            rows.append((split, data, text))
            lines.append(f"{utterance}\t{text}\n")
            segments.append(f"{utterance}\thttp://www.archive.org/x.mp3\t401.{index}\t417.57\n")
        write(folder / name / "transcripts.txt", "".join(lines))
        write(folder / name / "segments.txt", "".join(segments))
    write(folder / "train" / "limited_supervision" / "1hr" / "0" / "handles.txt", "4800_10003_000000\n")
    write(folder / "metainfo.txt", "SPEAKER | GENDER | PARTITION\n4800 | F | train\n")
    return rows


def _fleurs(folder: Path) -> list[Row]:
    rows: list[Row] = []
    for number, (split, name) in enumerate((("train", "train"), ("validation", "dev"), ("test", "test"))):
        lines = []
        for index in range(4):
            # The names are the same in all splits.
            file, text = f"1000408853{index}.wav", f'Hallo, welt "nummer" {number} {index}'
            data = write(folder / "audio" / name / file, sound(9 * number + index))
            gender = ("MALE", "FEMALE")[index % 2]
            rows.append((split, data, (text, gender)))
            lines.append(f"{900 + index // 2}\t{file}\t{text}\t{text.lower()}\tH a l l o |\t{300 + index}\t{gender}\n")
        write(folder / f"{name}.tsv", "".join(lines))
    return rows


def _supervisely(folder: Path) -> list[Row]:
    rows: list[Row] = []
    for index in range(4):
        rows.append(("train", write(folder / "ds" / "img" / f"{index}.jpg", picture(index)), None))
        points = {"exterior": [[1, 2], [11, 12]], "interior": []}
        found = [{"classTitle": "cat", "geometryType": "rectangle", "points": points}] if index % 2 else []
        document = {"description": "", "tags": [], "size": {"height": 30, "width": 40}, "objects": found}
        write(folder / "ds" / "ann" / f"{index}.jpg.json", json.dumps(document))
    write(folder / "meta.json", json.dumps({"classes": [{"title": "cat", "shape": "rectangle"}], "tags": []}))
    return rows


def _digits(folder: Path) -> list[Row]:
    names = [
        f"{digit}_{speaker}_{index}" for digit in range(3) for speaker in ("george", "lucas") for index in range(2)
    ]
    data = [write(folder / "my_recordings" / f"{name}.wav", sound(seed)) for seed, name in enumerate(names)]
    return [("train", content, name[0]) for content, name in zip(data, names, strict=True)]


def _breeds(folder: Path) -> list[Row]:
    names = [f"{breed}_{index}" for breed in ("Abyssinian", "great_pyrenees", "great_dane") for index in range(9, 12)]
    data = [write(folder / f"{name}.jpg", picture(seed)) for seed, name in enumerate(names)]
    return [("train", content, name.rpartition("_")[0]) for content, name in zip(data, names, strict=True)]


def _dogs_and_cats(folder: Path) -> list[Row]:
    names = [f"train/{pet}.{index}.jpg" for pet in _CLASSES for index in range(4)] + ["test/1.jpg", "test/2.jpg"]
    data = [write(folder / name, picture(seed)) for seed, name in enumerate(names)]
    parts = [name.partition("/") for name in names]
    return [
        (split, content, rest[:3] if split == "train" else None)
        for (split, _, rest), content in zip(parts, data, strict=True)
    ]


def _named(pattern: str) -> tuple[str, str, str]:
    return "--no-labels", "--select", f"SELECT *, regexp_extract(filename, '{pattern}', 1) AS label FROM rows"


def _flickr_options(*more: str) -> tuple[str, ...]:
    lists = (f"{split}=@{{folder}}/Flickr_8k.{name}Images.txt"
             for split, name in (("test", "test"), ("train", "train"), ("validation", "dev")))  # fmt: skip
    splits = (word for split in lists for word in ("--split", split))
    return ("--labels", "{folder}/Flickr8k.token.txt", *splits, *more)


_PETS = (
    "--no-labels",
    "--select",
    "SELECT *, nullif(regexp_extract(filename, '([^/.]+)[.][^/]*[.][^/.]*$', 1), '') AS label FROM rows",
)
_DIGITS = _named("([^/_]+)[_][^/]*[.][^/.]*$")
_BREEDS = _named("([^/]+)[_.-][0-9]+[.][^/.]*$")
_THREE = ("train.csv", "val.csv", "test.csv")
_FLICKR_WORDS = ("Flickr8k.token.txt --split test=@", "Flickr_8k.testImages.txt --split train=@", "validation=@")
KNOWN_SETS = (
    Case("tables of splits, names without extensions", _split_tables(_csv, _THREE)),
    Case("tables of splits, a test without labels", _split_tables(_csv, _THREE, is_test_labelled=False)),
    Case(
        "tables of splits, names with extensions",
        _split_tables(lambda p, lines: _csv(p, lines, "image_id", ".jpg"), ("train_labels.csv", "test_labels.csv")),
    ),
    Case(
        "tables of splits, no header line",
        _split_tables(lambda p, lines: _csv(p, lines, "", ".jpg"), ("train.csv", "test.csv")),
        label=("column_2",),
    ),
    Case("tables of splits, JSON Lines", _split_tables(_jsonl, ("train.jsonl", "test.jsonl"))),
    Case("tables of splits, JSON", _split_tables(_json, ("train.json", "test.json"))),
    Case("tables of splits, an object of JSON", _split_tables(_object, ("train.json", "val.json"))),
    Case("tables of splits, below a key", _split_tables(_data, ("train.json", "val.json")), refusal=("as JSON Lines",)),
    Case("tables of splits, words", _split_tables(_words, ("train.txt", "val.txt")), label=("column_2",)),
    Case(
        "tables of splits, other columns",
        _split_tables(lambda p, lines: _csv(p, lines, p.stem, ".jpg"), ("train.csv", "test.csv")),
        refusal=("Name the columns of the tables alike",),
    ),
    Case(
        "train.csv beside train_images/, which test.csv names too",
        _split_tables(_csv, ("train.csv", "test.csv"), "train_images", is_test_labelled=False),
    ),
    Case("CIFAR-10 of Kaggle", _cifar),
    Case("CelebA", lambda f: _celeba(f, ".txt"), label=("Smiling", "Young")),
    Case("CelebA of Kaggle", lambda f: _celeba(f, ".csv"), label=("Smiling", "Young")),
    Case("Flickr8k", _flickr, refusal=_FLICKR_WORDS),
    Case("Flickr8k, what is advised", _flickr, _flickr_options(), label=("column_2",)),
    Case("Flickr8k, files in no list", lambda f: _flickr(f, has_rest=True), refusal=(*_FLICKR_WORDS, "--split rest")),
    Case(
        "Flickr8k, files in no list, what is advised",
        lambda f: _flickr(f, has_rest=True),
        _flickr_options("--split", "rest"),
        label=("column_2",),
    ),
    Case("aclImdb below its folder", _reviews, refusal=(" ".join(_WITHOUT_LISTS[:-1]), "'*unsup/*'")),
    Case("aclImdb below its folder, --format text", _reviews, ("--format", "text"), refusal=("urls_unsup.txt",)),
    Case("aclImdb below its folder, what is advised", _reviews, _WITHOUT_LISTS, key="text"),
    Case("Multilingual LibriSpeech", _mls, key="audio", label=("transcript",)),
    Case("FLEURS", _fleurs, key="audio", label=("raw_transcription", "gender")),
    Case("Dogs vs. Cats", _dogs_and_cats, _PETS, label=("label",)),
    Case("digits in names", _digits, refusal=(f'--no-labels --select "{_DIGITS[2]}"',)),
    Case("digits in names, what is advised", _digits, _DIGITS, key="audio"),
    Case("breeds in names, what is advised", _breeds, _BREEDS),
    Case("Supervisely", _supervisely, refusal=("labels of Supervisely are not read", "--no-labels")),
    Case("Supervisely, --no-labels", _supervisely, ("--no-labels",)),
)
