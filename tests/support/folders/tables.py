"""Folders of tables."""

from __future__ import annotations

import io
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.folders.parts import Case, Row, sound, write

_IRIS = ("Iris-setosa", "Iris-versicolor", "Iris-virginica")


def _rows(count: int, first: int = 0) -> list[tuple[int, float, str]]:
    return [(i, i / 4, ("low", "high")[i % 2]) for i in range(first, first + count)]


def _csv(rows: list[tuple[int, float, str]], header: str = "id,x,label\n") -> str:
    return header + "".join(f"{i},{x},{label}\n" for i, x, label in rows)


def _truth(rows: list[tuple[int, float, str]], split: str = "train") -> list[Row]:
    return [(split, i, label) for i, _, label in rows]


def _parquet(rows: list[tuple[int, float, str]], names: tuple[str, ...] = ("id", "x", "label")) -> bytes:
    buffer = io.BytesIO()
    columns = dict(zip(("id", "x", "label"), map(list, zip(*rows, strict=True)), strict=True))
    pq.write_table(pa.table({name: columns[name] for name in names}), buffer)
    return buffer.getvalue()


def _one(name: str, content: str | bytes, truth: list[Row]):
    def make(folder: Path) -> list[Row]:
        write(folder / name, content)
        return truth

    return make


def _iris(folder: Path) -> list[Row]:
    values = [(5 + i / 10, 3 - i / 20, 1.4 + i / 10, 0.2 + i / 20, _IRIS[i // 4]) for i in range(12)]
    write(folder / "iris.data", "".join(f"{a:.1f},{b:.2f},{c:.1f},{d:.2f},{e}\n" for a, b, c, d, e in values) + "\n")
    return [("train", float(f"{row[0]:.1f}"), row[4]) for row in values]


def _ag_news(folder: Path) -> list[Row]:
    rows = []
    for split, count in (("train", 8), ("test", 4)):
        lines = []
        for i in range(count):
            title = f"{split} headline {i}"
            lines.append(f'"{i % 4 + 1}","{title}","Story number {i}, with a comma."\n')
            rows.append((split, title, i % 4 + 1))
        write(folder / f"{split}.csv", "".join(lines))
    return rows


def _kaggle_table(folder: Path) -> list[Row]:
    write(folder / "train.csv", _csv(_rows(8)))
    write(folder / "test.csv", "id,x\n" + "".join(f"{i},{x}\n" for i, x, _ in _rows(4, 100)))
    write(folder / "sample_submission.csv", "id,label\n" + "".join(f"{i},low\n" for i, _, _ in _rows(4, 100)))
    return _truth(_rows(8))


def _split_files(suffix: str):
    def make(folder: Path) -> list[Row]:
        truth = []
        for index, (tag, split) in enumerate((("train", "train"), ("dev", "validation"), ("test", "test"))):
            rows = _rows(5, 100 * index)
            if suffix == "jsonl":
                content: str | bytes = "".join(f'{{"id": {i}, "x": {x}, "label": "{y}"}}\n' for i, x, y in rows)
            else:
                content = _parquet(rows) if suffix == "parquet" else _csv(rows)
            write(folder / f"{tag}.{suffix}", content)
            truth += _truth(rows, split)
        return truth

    return make


def _spark(folder: Path) -> list[Row]:
    for index in range(3):
        name = f"part-0000{index}-c8f2a3d1-c000.csv"
        write(folder / name, _csv(_rows(4, 10 * index)))
        write(folder / f".{name}.crc", b"crc\x00\x00\x00\x02\x00")
    write(folder / "_SUCCESS", b"")
    return [row for index in range(3) for row in _truth(_rows(4, 10 * index))]


def _hive(folder: Path) -> list[Row]:
    rows = _rows(12)
    for label in ("low", "high"):
        part = [row for row in rows if row[2] == label]
        write(folder / f"label={label}" / "part-0.parquet", _parquet(part, ("id", "x")))
    empty = pq.read_table(io.BytesIO(_parquet(rows[:1], ("id", "x")))).schema
    pq.write_metadata(empty, folder / "_common_metadata")
    write(folder / "_SUCCESS", b"")
    return _truth(rows)


def _sounds(make: Callable[[bytes], Any]) -> Callable[[Path], list[Row]]:
    def in_parquet(folder: Path) -> list[Row]:
        files = [sound(i) for i in range(6)]
        buffer = io.BytesIO()
        pq.write_table(pa.table({"audio": [make(data) for data in files], "label": list("abcabc")}), buffer)
        write(folder / "part.0.parquet", buffer.getvalue())
        return [("train", data, label) for data, label in zip(files, "abcabc", strict=True)]

    return in_parquet


def _glossary(folder: Path) -> list[Row]:
    pairs = [("name", "Name"), ("house", "Haus"), ("tree", "Baum"), ("day", "Tag")]
    write(folder / "words.csv", "".join(f"{a},{b}\n" for a, b in pairs))
    return [("train", a, b) for a, b in pairs]


def _two_kinds(folder: Path) -> list[Row]:
    write(folder / "a.csv", _csv(_rows(4)))
    write(folder / "b.parquet", _parquet(_rows(4, 10)))
    return _truth(_rows(4))


def _quotes(folder: Path) -> list[Row]:
    lines = ['1\t"First\n', '2\tSecond "x" of them\n', "3\tThird\n", '4\t"Fourth"\n']
    write(folder / "reviews.tsv", "id\tlabel\n" + "".join(lines))
    return [("train", i + 1, line.rstrip("\n").partition("\t")[2]) for i, line in enumerate(lines)]


def _libsvm(folder: Path) -> list[Row]:
    lines = ["+1 1:0.5 3:1.25\n", "-1 2:2\n", "+1 1:1 2:1 3:1\n", "-1 3:0.75\n"]
    write(folder / "heart_scale", "".join(lines * 3))
    return [("train", None, 1 if line.startswith("+") else -1) for line in lines * 3]


def _libsvm_of_tests(folder: Path) -> list[Row]:
    write(folder / "a1a", "-1 3:1 11:1\n+1 1:1 2:1\n" * 3)
    write(folder / "a1a.t", "+1 5:1\n" * 2)
    return [("train", None, -1), ("train", None, 1)] * 3 + [("test", None, 1)] * 2


def _apart(*splits: str, key: str = ""):
    def make(folder: Path) -> list[Row]:
        for split in splits:
            keys = [f"{i}," if key else "" for i in range(9)]
            write(folder / f"X_{split}.csv", f"{key}a,b\n" + "".join(f"{k}{i},{i}.5\n" for i, k in enumerate(keys)))
            write(folder / f"y_{split}.csv", f"{key}y\n" + "".join(f"{k}{i % 2}\n" for i, k in enumerate(keys)))
        return []

    return make


def _titanic(folder: Path) -> list[Row]:
    write(folder / "train.csv", "PassengerId,Survived,Age\n1,0,22\n2,1,38\n")
    write(folder / "test.csv", "PassengerId,Age\n892,34\n893,47\n")
    write(folder / "gender_submission.csv", "PassengerId,Survived\n892,0\n893,1\n")
    return []


def _criteo(folder: Path) -> list[Row]:
    write(folder / "train.txt", "".join(f"{i % 2}\t{i}\t{i * 2}\ta{i}\n" for i in range(9)))
    write(folder / "test.txt", "".join(f"{i}\t{i * 2}\ta{i}\n" for i in range(9)))
    return []


def _cifar(folder: Path) -> list[Row]:
    for index in range(2):
        write(folder / f"data_batch_{index + 1}", _PICKLE)
    return []


# The dictionary {b"data": b"...", b"labels": [1]} by protocol 2.
_PICKLE = b"\x80\x02}q\x00(U\x04dataq\x01U\x05\x00\xff\x10\x80\x03q\x02U\x06labelsq\x03]q\x04K\x01au."
_SEMICOLONS = "sep=;\n" + _csv(_rows(5)).replace(",", ";")
_PREAMBLE = "Export of 2026-11-01\nUnit: metres\n" + _csv(_rows(6))
_COMMENTS = "# made by a logger\n" + _csv(_rows(6)).replace("3,0.75", "# paused\n3,0.75")
_RECORDS = '{"data": [' + ", ".join(f'{{"id": {i}, "x": {x}, "label": "{y}"}}' for i, x, y in _rows(6)) + "]}"
_QUOTED_HINT = '"sep=;"\n' + _csv(_rows(5)).replace(",", ";")
_MARKDOWN = "| a | b |\n|---|---|\n" + "".join(f"| {i} | x{i} |\n" for i in range(9))
_LEVELS = ",A,A,B\n,x,y,x\n" + "".join(f"{i},{i},0,{9 - i}\n" for i in range(2))
_SPACED = "".join(f"{i}, State-gov, {x}, {label}\n" for i, x, label in _rows(8))
_HOUSING = "".join(f" {i / 7:.5f}  {i * 3:6.2f}   {i / 3:.3f}  0\n" for i in range(20))
_SHUTTLE = "".join(f"{i} {i % 7} {i * 3 % 11} {i % 2 + 1}\n" for i in range(20))
_RATINGS = "".join(f"{i % 4}::{i * 7}::{i % 5 + 1}::97830076{i}\n" for i in range(9))
_BULK = "".join(f'{{"index":{{"_id":"{i}"}}}}\n{{"name":"n{i}"}}\n' for i in range(4))
_THOUSANDS = "id;price;sold\n" + "".join(f"{i};{i},5;{f'{400 + 175 * i:,}'.replace(',', '.')}\n" for i in range(9))
_WITHOUT_POINTS = "SELECT * REPLACE (CAST(REPLACE(sold, '.', '') AS BIGINT) AS sold) FROM rows"
_DECIMAL_COMMAS = "".join(f"{i},5;{i},25\n" for i in range(9))
_ORDERS = "".join(f'{{"id": {i}, "items": [{{"sku": "a{i}"}}, {{"sku": "b{i}"}}]}}\n' for i in range(9))
_BY_COLUMNS = (
    '{"a": {'
    + ", ".join(f'"{i}": {i}' for i in range(9))
    + '}, "b": {'
    + ", ".join(f'"{i}": "t{i}"' for i in range(9))
    + "}}"
)
_CARS = "".join(f'1{i}.0   8   30{i}.0   130.0   7{i}  1\t"ford pinto"\n' for i in range(9))
_COLUMNS = {"key": "id"}
_CHECKED = (("--check-media",), "audio")

TABLES = (
    Case("a CSV", _one("adult.csv", _csv(_rows(9)), _truth(_rows(9))), **_COLUMNS),
    Case("iris.data, no header", _iris, key="column_1", label=("column_5",)),
    Case("AG News, no header", _ag_news, key="column_2", label=("column_1",)),
    Case("Kaggle, train.csv and test.csv", _kaggle_table, **_COLUMNS, refusal=("test.csv", "--")),
    Case("train, dev and test .csv", _split_files("csv"), **_COLUMNS),
    Case("train, dev and test .jsonl", _split_files("jsonl"), **_COLUMNS),
    Case("train, dev and test .parquet", _split_files("parquet"), **_COLUMNS),
    Case("output of Spark", _spark, **_COLUMNS),
    Case("output of Hive, Parquet", _hive, **_COLUMNS),
    Case(
        "sounds in Parquet, as Hugging Face has them", _sounds(lambda data: {"bytes": data, "path": "a.wav"}), *_CHECKED
    ),
    Case("sounds in Parquet", _sounds(lambda data: data), *_CHECKED),
    Case("a glossary", _glossary, refusal=("--header", "--no-header")),
    Case("a glossary, --no-header", _glossary, ("--no-header",), "column_1", ("column_2",)),
    Case("a CSV and a Parquet", _two_kinds, **_COLUMNS, refusal=("--format csv", "--format parquet")),
    Case("a CSV and a Parquet, --format csv", _two_kinds, **_COLUMNS, options=("--format", "csv")),
    Case("CSV of Excel, sep=;", _one("report.csv", _SEMICOLONS, _truth(_rows(5))), **_COLUMNS),
    Case("CSV of Excel, sep=; in quotes", _one("report.csv", _QUOTED_HINT, _truth(_rows(5))), **_COLUMNS),
    Case(
        "adult.data, blanks behind commas",
        _one("adult.data", _SPACED, [("train", i, f" {label}") for i, _, label in _rows(8)]),
        key="column_1",
        label=("column_4",),
    ),
    Case("housing.data, columns between blanks", _one("housing.data", _HOUSING, []), refusal=("--format text", "sed")),
    Case("shuttle.trn, single blanks", _one("shuttle.trn", _SHUTTLE, []), refusal=("--delimiter ' '", "--format text")),
    Case(
        "shuttle.trn, --delimiter ' '",
        _one("shuttle.trn", _SHUTTLE, [("train", i, i % 2 + 1) for i in range(20)]),
        ("--delimiter", " "),
        key="column_1",
        label=("column_4",),
    ),
    Case("Criteo, the test without labels", _criteo, refusal=("train.txt has 4", "test.txt has 3")),
    Case("MovieLens, ::", _one("ratings.dat", _RATINGS, []), refusal=("::", "--format text", "sed")),
    Case(
        "decimal commas between semicolons",
        _one("a.csv", _DECIMAL_COMMAS, [("train", f"{i},5", f"{i},25") for i in range(9)]),
        key="column_1",
        label=("column_2",),
    ),
    Case(
        "points beside decimal commas", _one("a.csv", _THOUSANDS, []), refusal=("--cast sold=float32", "REPLACE(sold")
    ),
    Case(
        "points beside decimal commas, what is advised",
        _one("a.csv", _THOUSANDS, [("train", i, 400 + 175 * i) for i in range(9)]),
        ("--cast", "sold=string", "--select", _WITHOUT_POINTS),
        key="id",
        label=("sold",),
    ),
    Case("actions of Elasticsearch", _one("bulk.ndjson", _BULK, []), refusal=("bulk API", "grep -vE")),
    Case("X_train.csv and y_train.csv", _apart("train"), refusal=("y_train.csv shares no column", ".join(t)")),
    Case("X_train, y_train, X_test, y_test", _apart("train", "test"), ("--union-by-name",), refusal=(".join(t)",)),
    Case("the same with identifiers", _apart("train", "test", key="id,"), refusal=("joined/test.csv", 'on="id"')),
    Case(
        "a comma or a decimal between semicolons",
        _one("a.csv", "1,10;20\n2,30;40\n3,50;60\n", []),
        refusal=("--delimiter ';'", "--delimiter ,"),
    ),
    Case(
        "a TSV whose texts have a comma each",
        _one(
            "a.tsv",
            "".join(f"{'ab'[i % 2]}\tWell, nice {i}\n" for i in range(9)),
            [("train", f"Well, nice {i}", "ab"[i % 2]) for i in range(9)],
        ),
        key="column_2",
        label=("column_1",),
    ),
    Case("JSON by columns, as pandas writes it", _one("a.json", _BY_COLUMNS, []), refusal=("orient='records'",)),
    Case(
        "lists of objects in JSON Lines",
        _one("orders.jsonl", _ORDERS, [("train", i, f'[{{"sku":"a{i}"}},{{"sku":"b{i}"}}]') for i in range(9)]),
        key="id",
        label=("items",),
    ),
    Case(
        "lists of objects, --records",
        _one("orders.jsonl", _ORDERS, []),
        ("--records", "items"),
        refusal=("several objects",),
    ),
    Case("a data frame of two levels of names", _one("a.csv", _LEVELS, []), refusal=("unnamed_1,A_x,A_y,B_x",)),
    Case(
        "a data frame of two levels, what is advised",
        _one("a.csv", _LEVELS, [("train", i, 9 - i) for i in range(2)]),
        ("--skip-lines", "2", "--columns", "unnamed_1,A_x,A_y,B_x"),
        key="A_x",
        label=("B_x",),
    ),
    Case(
        "--columns over a header",
        _one("a.csv", "id,v\n1,2\n3,4\n", []),
        ("--columns", "x,y"),
        refusal=("--skip-lines 1",),
    ),
    Case("Titanic, with a sample of a submission", _titanic, refusal=("gender_submission.csv", "--exclude")),
    Case("CSV below two lines of text", _one("a.csv", _PREAMBLE, []), refusal=("--skip-lines",)),
    Case(
        "CSV below two lines, --skip-lines 2",
        _one("a.csv", _PREAMBLE, _truth(_rows(6))),
        **_COLUMNS,
        options=("--skip-lines", "2"),
    ),
    Case(
        "CSV with comments, --comment",
        _one("a.csv", _COMMENTS, _truth(_rows(6))),
        **_COLUMNS,
        options=("--comment", "#"),
    ),
    Case("TSV of odd quotes", _quotes, **_COLUMNS, refusal=("--quote none",)),
    Case("TSV of odd quotes, --quote none", _quotes, **_COLUMNS, options=("--quote", "none")),
    Case("CSV in xz", _one("a.csv.xz", lzma.compress(_csv(_rows(7)).encode()), _truth(_rows(7))), **_COLUMNS),
    Case('JSON {"data": [...]}', _one("a.json", _RECORDS, []), refusal=("--records data",)),
    Case("JSON, --records data", _one("a.json", _RECORDS, _truth(_rows(6))), **_COLUMNS, options=("--records", "data")),
    Case("libsvm", _libsvm, key="none"),
    Case("libsvm, a1a and a1a.t", _libsvm_of_tests, refusal=("--split test=a1a.t --split train",)),
    Case(
        "libsvm, what is advised",
        _libsvm_of_tests,
        ("--split", "test=a1a.t", "--split", "train"),
        key="none",
    ),
    Case("auto-mpg.data, blanks and a tab", _one("auto-mpg.data", _CARS, []), ("--no-header",), refusal=("pandas",)),
    Case("CIFAR-10, pickles", _cifar, refusal=("pickle",)),
)
