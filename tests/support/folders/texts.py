"""Folders of text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.support.folders.parts import Case, Row, write


def _lines(folder: Path, name: str, lines: Iterable[str], split: str = "train") -> list[Row]:
    content = "".join(f"{line}\n" for line in lines)
    write(folder / name, content)
    return [(split, line, None) for line in content.splitlines()]


def _log(number: int) -> list[str]:
    return [f"2026-11-0{1 + i % 9} 12:0{i % 10}:00 INFO server started on port {8000 + i}" for i in range(number)]


def _language_model(folder: Path) -> list[Row]:
    truth = []
    for name, split in (("train", "train"), ("valid", "validation"), ("test", "test")):
        truth += _lines(folder, f"ptb.{name}.txt", [f"the {name} sentence number {i}" for i in range(6)], split)
    return truth


def _reviews(folder: Path, number: int = 4) -> list[Row]:
    rows = []
    for split in ("train", "test"):
        for label in ("pos", "neg"):
            for index in range(number):
                content = f"A {label} review, {split} {index}.<br /><br />It was long."
                rows.append((split, write(folder / split / label / f"{index}_{index}.txt", content), label))
    return rows


def _reviews_as_downloaded(folder: Path) -> list[Row]:
    rows = _reviews(folder, 30)
    for split in ("train", "test"):
        for label in ("pos", "neg"):
            write(folder / split / f"urls_{label}.txt", "http://www.imdb.com/title/tt0453418/usercomments\n" * 4)
        write(folder / split / "labeledBow.feat", "9 0:9 1:1 2:4\n7 0:7 3:1 5:4\n")
    write(folder / "imdb.vocab", "the\nand\na\nof\n")
    write(folder / "imdbEr.txt", "0.0490972013402\n0.201363575849\n")
    write(folder / "README", "Large Movie Review Dataset v1.0\n")
    return rows


def _newsgroups(folder: Path) -> list[Row]:
    rows = []
    for split in ("train", "test"):
        for label in ("alt.atheism", "sci.space"):
            for index in range(3):
                content = f"From: someone@example.org\nSubject: {split} {label}\n\nMessage {index}\n"
                path = folder / f"20news-bydate-{split}" / label / str(51000 + index)
                rows.append((split, write(path, content), label))
    return rows


TEXTS = (
    Case("logs without an extension", lambda f: _lines(f, "syslog", _log(8)), key="text"),
    Case("a .log", lambda f: _lines(f, "server.log", _log(8)), key="text"),
    Case("words.txt", lambda f: _lines(f, "words.txt", ["apple", "pear", "plum", "fig", "lime"]), key="text"),
    Case("numbers.txt", lambda f: _lines(f, "numbers.txt", [str(i) for i in range(9)]), key="text"),
    Case(
        "text with colours of a terminal",
        lambda f: _lines(f, "build.txt", ["\x1b[32mok\x1b[0m, built", "a,b", "\x1b[31mfailed\x1b[0m, again"]),
        key="text",
    ),
    Case(
        "code whose lines end in semicolons",
        lambda f: _lines(f, "a.js", ["const a = 1;", "const b = 2;", "f(a);"]),
        key="text",
    ),
    Case(
        "a log of Python",
        lambda f: _lines(f, "app.log", [f"2021-01-01 10:00:{i:02},123 INFO x: step {i}" for i in range(20)]),
        key="text",
    ),
    Case("train, valid and test .txt", _language_model, key="text"),
    Case("aclImdb", _reviews, key="text"),
    Case("aclImdb as downloaded", _reviews_as_downloaded, refusal=("libsvm", "--format text")),
    Case(
        "aclImdb as downloaded, texts",
        _reviews_as_downloaded,
        ("--format", "text"),
        refusal=("--exclude imdb.vocab", "--exclude imdbEr.txt", "--exclude test/urls_neg.txt"),
    ),
    Case(
        "aclImdb as downloaded, what is advised",
        _reviews_as_downloaded,
        (
            *("--format", "text", "--exclude", "imdb.vocab", "--exclude", "imdbEr.txt"),
            *(f"--exclude={split}/urls_{label}.txt" for split in ("train", "test") for label in ("neg", "pos")),
        ),
        key="text",
    ),
    Case("20 newsgroups", _newsgroups, key="text"),
)
