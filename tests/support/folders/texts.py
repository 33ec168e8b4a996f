"""Folders of text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from tests.support.folders.parts import Case, Row, write


def _lines(folder: Path, name: str, lines: Iterable[str], split: str = "train") -> list[Row]:
    content = "".join(f"{line}\n" for line in lines)
    write(folder / name, content)
    return [(split, line, None) for line in content.splitlines()]


def _log(number: int) -> list[str]:
    return [f"2026-11-0{1 + i % 9} 12:0{i % 10}:00 INFO server started on port {8000 + i}" for i in range(number)]


def _brat(folder: Path) -> list[Row]:
    rows = []
    for index in range(3):
        rows += _lines(folder, f"d{index}.txt", [f"Smith {index} lives.", "He works."])
        write(folder / f"d{index}.ann", "T1\tPerson 0 5\tSmith\n")
    return rows


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


def _reviews_as_downloaded(folder: Path, number: int = 30) -> list[Row]:
    rows = _reviews(folder, number)
    for index in range(number):
        write(folder / "train" / "unsup" / f"{index}_0.txt", f"A review, nobody knows {index}")
    for split in ("train", "test"):
        for label in ("pos", "neg"):
            write(folder / split / f"urls_{label}.txt", "http://www.imdb.com/title/tt0453418/usercomments\n" * 4)
        write(folder / split / "labeledBow.feat", "9 0:9 1:1 2:4\n7 0:7 3:1 5:4\n")
    write(folder / "imdb.vocab", "the\nand\na\nof\n")
    write(folder / "imdbEr.txt", "0.0490972013402\n0.201363575849\n")
    write(folder / "README", "Large Movie Review Dataset v1.0\n")
    return rows


def _mails(folder: Path) -> list[Row]:
    rows = []
    for label, count in (("easy_ham", 12), ("spam", 8)):
        for index in range(count):
            text = f"From: a@b.c\nSubject: {index}\n\nA {label}, caf\u00e9\n"
            name = f"{index:05}.{hashlib.md5(f'{label}{index}'.encode(), usedforsecurity=False).hexdigest()}"
            write(folder / label / name, text.encode("latin-1"))
            rows.append(("train", text.encode(), label))
        write(folder / label / "cmds", "mv 1 00001\n" * count)
    return rows


def _corpora(folder: Path) -> list[Row]:
    rows = []
    for corpus in ("amazon", "yelp"):
        for split in ("train", "test"):
            rows += _lines(folder, f"{corpus}/{split}.txt", [f"{corpus} says {split} {i}" for i in range(6)], split)
    return [row for row in rows if row[1].startswith("yelp")]


_ACL_IMDB = (
    *("--exclude imdb.vocab", "--exclude imdbEr.txt", "--exclude test/labeledBow.feat", "--exclude test/urls_neg.txt"),
    *("--exclude test/urls_pos.txt", "--exclude train/labeledBow.feat", "--exclude train/urls_neg.txt"),
    "--exclude train/urls_pos.txt",
)
_CMDS = ("--exclude easy_ham/cmds", "--exclude spam/cmds")


def _translations(folder: Path) -> list[Row]:
    rows = []
    for tag, split in (("train", "train"), ("valid", "validation"), ("test", "test")):
        for language in ("de", "en"):
            rows += _lines(folder, f"{tag}.{language}", [f"{tag} sentence {i} of {language}." for i in range(5)], split)
    return [row for row in rows if row[1].endswith("de.")]


def _sentences(folder: Path, pattern: str = "{}.txt", languages: Iterable[str] = ("english", "french")) -> list[Row]:
    rows = []
    for count, language in enumerate(languages, start=6):
        name = pattern.format(language)
        rows += [(s, t, name) for s, t, _ in _lines(folder, name, [f"Line {i} in {language}." for i in range(count)])]
    return rows


def _books(folder: Path) -> list[Row]:
    return [(split, text, None) for split, text, _ in _sentences(folder, "book_{}.txt", ("a", "b"))]


def _phrases(folder: Path) -> list[Row]:
    for language in ("english", "french"):
        _lines(folder, f"{language}.txt", [f"{language}, {i}" for i in range(6)])
    return []


def _intents(folder: Path) -> list[Row]:
    for split in ("train", "valid", "test"):
        for name, line in (("seq.in", "fly to rome"), ("seq.out", "O O B-city"), ("label", "flight")):
            write(folder / split / name, f"{line}\n" * 4)
    return []


def _activities(folder: Path) -> list[Row]:
    for split in ("train", "test"):
        for name, line in (("X", "2.8e-01 -2.0e-02"), ("subject", "1"), ("y", "5")):
            write(folder / split / f"{name}_{split}.txt", f"{line}\n" * 2)
    return []


def _controls(folder: Path) -> list[Row]:
    return _lines(folder, "a.txt", ["progress 10%\b\b\b50%", "first\x01a", "second\x08", "third\x1a"])


def _polarities(folder: Path) -> list[Row]:
    rows = []
    for label in ("neg", "pos"):
        path = f"rt-polarity.{label}"
        lines = [f"a film, {label} {i} ." for i in range(6)]
        rows += [(split, line, path) for split, line, _ in _lines(folder, path, lines)]
    return rows


def _questions(folder: Path) -> list[Row]:
    rows = _lines(folder, "train_5500.label", [f"NUM:dist How far is {i} ?" for i in range(6)])
    return rows + _lines(folder, "TREC_10.label", [f"LOC:city Where is {i} ?" for i in range(3)], "test")


def _named_entities(folder: Path) -> list[Row]:
    rows = []
    for tag, split in (("train", "train"), ("testa", "validation"), ("testb", "test")):
        content = "".join(f"EU{i} NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n" for i in range(3))
        write(folder / f"eng.{tag}", content)
        rows += [(split, line, None) for line in content.splitlines() if line]
    return rows


def _sides(folder: Path) -> list[Row]:
    sides = (("pos", ["a fine film"]), ("neg", ["a dull film", "a bad film"]))
    return [
        (split, line, f"{name}.txt") for name, lines in sides for split, line, _ in _lines(folder, f"{name}.txt", lines)
    ]


_ARFF = "@RELATION iris\n@ATTRIBUTE length NUMERIC\n@ATTRIBUTE class {a,b}\n@DATA\n1.5,a\n2.5,b\n"
_TREC_SPLITS = ("--split", "train=train_5500.label", "--split", "test")


def _newsgroups(folder: Path) -> list[Row]:
    rows = []
    for split in ("train", "test"):
        for label in ("alt.atheism", "sci.space"):
            for index in range(3):
                content = f"From: someone@example.org\nSubject: {split} {label}\n\nMessage {index}\n"
                path = folder / f"20news-bydate-{split}" / label / str(51000 + index)
                rows.append((split, write(path, content), label))
    return rows


_FASTA = (">sp|P1 first", "MKTAYIAKQR", "QISFVKSH", ">sp|P2 second", "MKLV")
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
        "a manual underlined by backspaces",
        lambda f: _lines(f, "ls.txt", ["N\bNA\bAM\bME\bE", "_\bl_\bs lists files", "_\bO_\bP_\bT"]),
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
    Case("aclImdb as downloaded", _reviews_as_downloaded, refusal=(" ".join((*_ACL_IMDB, "--exclude '*unsup/*'")),)),
    Case(
        "a small sample of aclImdb",
        lambda f: _reviews_as_downloaded(f, 3),
        refusal=(" ".join((*_ACL_IMDB, "--exclude '*unsup/*'")),),
    ),
    Case(
        "aclImdb as downloaded, what is advised",
        _reviews_as_downloaded,
        tuple(word for option in (*_ACL_IMDB, "--exclude *unsup/*") for word in option.split()),
        key="text",
    ),
    Case(
        "a small sample of aclImdb, what is advised",
        lambda f: _reviews_as_downloaded(f, 3),
        tuple(word for option in (*_ACL_IMDB, "--exclude *unsup/*") for word in option.split()),
        key="text",
    ),
    Case("SpamAssassin", _mails, refusal=(*_CMDS,)),
    Case(
        "SpamAssassin, what is advised",
        _mails,
        tuple(word for option in (*_CMDS, "--encoding latin-1") for word in option.split()),
        key="text",
    ),
    Case("texts of two corpora", _corpora, refusal=("--include 'amazon/*'", "--source-column file")),
    Case("texts of two corpora, one of them", _corpora, ("--include", "yelp/*"), key="text"),
    Case("20 newsgroups", _newsgroups, key="text"),
    Case("WMT, train.en and train.de", _translations, refusal=("paste ", "--include '*.de'", "--source-column file")),
    Case("WMT, one language", _translations, ("--include", "*.de"), key="text"),
    Case("english.txt and french.txt", _sentences, refusal=("sides of a translation", "--source-column language")),
    Case(
        "english.txt and french.txt, what is advised",
        _sentences,
        ("--source-column", "language"),
        key="text",
        label=("language",),
    ),
    Case("en.txt and fr.txt", lambda f: _sentences(f, "{}.txt", ("en", "fr")), refusal=("--source-column language",)),
    Case("source.txt and target.txt", lambda f: _sentences(f, "{}.txt", ("source", "target")), refusal=("sides",)),
    Case("train.en and train.de", lambda f: _sentences(f, "train.{}", ("en", "de")), refusal=("sides",)),
    Case("english.txt and french.txt with commas", _phrases, refusal=("--format text checks",)),
    Case("book_a.txt and book_b.txt", _books, key="text"),
    Case("ATIS, seq.in, seq.out and label", _intents, refusal=("label\\tseq_in\\tseq_out", "--include test/label")),
    Case("UCI HAR, X, subject and y", _activities, refusal=("X\\tsubject\\ty", "--include test/X_test.txt")),
    Case("texts and annotations of brat", _brat, refusal=("d0.ann and d0.txt", "--include '*.txt'", "--source-column")),
    Case("texts of brat, what is advised", _brat, ("--include", "*.txt"), key="text"),
    Case("rt-polarity.pos and .neg", _polarities, refusal=("may be two classes", "--source-column file")),
    Case("control characters in a text", _controls, key="text"),
    Case(
        "rt-polarity, --source-column",
        _polarities,
        ("--source-column", "file"),
        key="text",
        label=("file",),
    ),
    Case("TREC, train_5500 and TREC_10", _questions, refusal=("--split train=train_5500.label --split test",)),
    Case("TREC, what is advised", _questions, _TREC_SPLITS, key="text"),
    Case("CoNLL 2003, eng.testa and eng.testb", _named_entities, refusal=("sentences", "--text-record paragraph")),
    Case("CoNLL 2003, --format text", _named_entities, ("--format", "text"), key="text"),
    Case("pos.txt and neg.txt of other lengths", _sides, refusal=("two classes", "--source-column label")),
    Case("pos.txt and neg.txt, what is advised", _sides, ("--source-column", "label"), key="text"),
    Case("ARFF", lambda f: _lines(f, "iris.arff", _ARFF.splitlines()), refusal=("ARFF", "loadarff", "--format text")),
    Case("ARFF, --format text", lambda f: _lines(f, "a.arff", _ARFF.splitlines()), ("--format", "text"), key="text"),
    Case("FASTA", lambda f: _lines(f, "a.txt", _FASTA), refusal=("FASTA text", "python -c", "--format text")),
    Case("FASTA, --format text", lambda f: _lines(f, "a.fa", _FASTA), ("--format", "text"), key="text"),
    Case("FASTQ", lambda f: _lines(f, "a.fastq", ["@r1", "ACGT", "+", "IIII"]), refusal=("FASTQ text", "python -c")),
    Case("an XML dump", lambda f: _lines(f, "dump.xml", ["<a>", "<b/>", "</a>"]), refusal=("XML", "--format text")),
)
