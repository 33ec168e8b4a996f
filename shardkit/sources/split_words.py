"""Words that name splits, alone between characters that are no letters, as Hugging Face `datasets` reads them.

A single capital behind small letters is a separate word, as in `trainA`. In paths the last word may also begin with a
capital behind other letters, as in `KDDTrain`, and the extensions of UCI's data tell a split, as `.tra` and `.tes`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from shardkit.file_types import COMPRESSED_PATTERN

_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
SPLIT_WORDS = {
    f"{word}{end}": split for split, words in _WORDS.items() for word in words for end in ("", "set", "data")
} | {"testa": "validation", "testb": "test"}  # As CoNLL 2003 calls them.
# What folders beside `train` are called that are hardly trained on; None where the name itself is the split.
_UNUSUAL_WORDS = {"tr": "train", "trn": "train", "cv": "validation"} | dict.fromkeys(
    ("holdout", "heldout", "te", "tst", "tt", "unseen"), "test"
)
# The same in Spanish, Portuguese, French, Italian, German and Chinese, without accents.
_FOREIGN_WORDS = {
    word: split
    for split, words in {
        "train": "entrenamiento treino treinamento entrainement apprentissage addestramento trainingsdaten 训练 训练集",
        "validation": "validacion validacao validazione convalida validierung validierungsdaten 验证 验证集",
        "test": "prueba pruebas teste testes essai essais prova testdaten 测试 测试集",
    }.items()
    for word in words.split()
}
_OWN_SPLITS = frozenset({"gallery", "query", "probe", "public", "private", "extra", "unlabeled", "unlabelled"})
# What any of the words holds: few names do, and there may be a million.
_SIGN = re.compile("train|val|dev|test|t10k", re.IGNORECASE)
_EXTENSION = re.compile(f"\\.(tra|trn|tes|tst)(?:{COMPRESSED_PATTERN})?$", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]+")
# The test files of the MNIST family are called t10k.
_MNIST_TEST = re.compile("t10k", re.IGNORECASE)
# As in trainA and trainB, where A and B are what pictures are made to look like.
_LAST_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z](?![A-Za-z]))")
_ACCENT = re.compile("[\u0300-\u036f]")
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class NamedSplit(NamedTuple):
    """What the name of a file tells.

    Attributes:
        split: `train`, `validation` or `test`.
        level: Position in the path of the folder or file whose name tells it, counted from the root.
    """

    split: str
    level: int


def split_in_name(name: str) -> NamedSplit | None:
    """Returns the split that a path tells, None if it tells none. The outermost name counts that tells one split."""
    parts = name.split("/")
    for level, part in enumerate(parts):
        if _SIGN.search(part) is not None and (split := _split_of(_words_of_path(part))) is not None:
            return NamedSplit(split, level)
    if (extension := _EXTENSION.search(parts[-1])) is not None:
        return NamedSplit("train" if extension[1].lower().startswith("tr") else "test", len(parts) - 1)
    return None


class NameBesideSplit(NamedTuple):
    """The folder of a path that tells its split, and the letters in its name that do not."""

    split: str
    folder: str
    rest: str


def name_beside_split(name: str) -> NameBesideSplit | None:
    """Returns the other letters of the folder that tells the split of a path, as `cat` of `cat_train/1.jpg`.

    None if a file tells the split, or nothing else is in the name.
    """
    found, folders = split_in_name(name), name.split("/")[:-1]
    if found is None or found.level >= len(folders):
        return None
    folder = folders[found.level]
    rest = "_".join(words_beside_split(folder))
    return NameBesideSplit(found.split, folder, rest) if rest else None


def words_beside_split(name: str) -> tuple[str, ...]:
    """Returns the words of a path that name no split."""
    return tuple(word for word in _words_of_path(name) if word.lower() not in SPLIT_WORDS)


def split_in_words(text: str) -> str | None:
    """Returns the split that the words of a text name, None if they name none or several."""
    return _split_of(_words(text)) if _SIGN.search(text) is not None else None


def _split_of(words: Sequence[str]) -> str | None:
    found = {SPLIT_WORDS[lower] for word in words if (lower := word.lower()) in SPLIT_WORDS}
    return found.pop() if len(found) == 1 else None


def _words_of_path(name: str) -> list[str]:
    found = []
    for word in _words(name):
        parts = _CAPITAL.sub(" ", word).split()
        # A station is no split in `trainStation`.
        found += ["".join(parts[:-1]), parts[-1]] if len(parts) > 1 and parts[-1].lower() in SPLIT_WORDS else [word]
    return found


def split_in_unusual_words(text: str) -> str | None:
    """Returns the split that a name may mean beside others of the kind: also `holdout`, `prueba` or `gallery`."""
    words = [word.lower() for word in _WORD.findall(_without_accents(text))]
    word = "".join(words)
    foreign = next((_FOREIGN_WORDS[word] for word in words if word in _FOREIGN_WORDS), None)
    return split_in_words(text) or _UNUSUAL_WORDS.get(word) or foreign or (word if word in _OWN_SPLITS else None)


def _without_accents(text: str) -> str:
    return text if text.isascii() else _ACCENT.sub("", unicodedata.normalize("NFD", text))


def _words(text: str) -> list[str]:
    return _WORD.findall(_LAST_CAPITAL.sub(" ", _MNIST_TEST.sub("test", text)))


def folder_that_hides_splits(names: Sequence[str]) -> str:
    """Returns the folder around all files, with a slash, that tells a split, while those below it tell several.

    In `training_data/val/1.jpg` the outer folder tells `train`. Empty if there is none.

    Args:
        names: Paths of the files below their root.
    """
    shared = "".join(f"{folder}/" for folder in shared_parts([name.split("/")[:-1] for name in names]))
    if not shared or split_in_name(shared) is None:
        return ""
    inner = [split_in_name(name.removeprefix(shared)) for name in names]
    return shared if None not in inner and len({found.split for found in inner if found}) > 1 else ""


def shared_parts(paths: Sequence[Sequence[str]]) -> list[str]:
    """Returns the parts that all paths begin with."""
    at_level = zip(*paths, strict=False)
    return [parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, at_level)]
