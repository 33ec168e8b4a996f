"""Folders of tables as they are published: several tables, other tools' files, lines above tables."""

from __future__ import annotations

from pathlib import Path

from tests.support.folders.parts import Case, Row, write

_STORES = ("--include", "test.csv", "--include", "train.csv", "--union-by-name")
_ADULT = (
    *("--comment", "|", "--select"),
    "SELECT * REPLACE (trim(column_2) AS column_2, rtrim(trim(column_4), '.') AS column_4) FROM rows",
)
_WORLD_BANK = ("--include", "API_POP_v2.csv", "--skip-lines", "4")


def _stores(folder: Path) -> list[Row]:
    truth: list[Row] = [("train", i, i + 0.5) for i in range(20)] + [("test", i, None) for i in range(20, 26)]
    rows = "".join(f"{i},2013-01-01,AUTOMOTIVE,{i}.5\n" for i in range(20))
    write(folder / "train.csv", f"id,date,family,sales\n{rows}")
    write(folder / "test.csv", "id,date,family\n" + "".join(f"{i},2017-01-01,AUTOMOTIVE\n" for i in range(20, 26)))
    write(folder / "sample_submission.csv", "id,sales\n" + "".join(f"{i},0.0\n" for i in range(20, 26)))
    write(folder / "stores.csv", "store_nbr,city\n1,Quito\n2,Quito\n")
    write(folder / "oil.csv", "date,dcoilwtico\n2013-01-01,\n2013-01-02,93.14\n")
    write(folder / "transactions.csv", "date,store_nbr,transactions\n2013-01-01,25,770\n")
    return truth


def _world_bank(folder: Path) -> list[Row]:
    head = '"Data Source","World Development Indicators",\n\n"Last Updated Date","2023-09-19",\n\n'
    rows = "".join(f'"Country {i}","C{i:02}","Population, total","{i}","{i + 1}",\n' for i in range(12))
    names = '"Country Name","Country Code","Indicator Name","1960","1961",\n'
    write(folder / "API_POP_v2.csv", f"\ufeff{head}{names}{rows}")
    write(folder / "Metadata_Country_POP.csv", '"Country Code","Region",\n"C00","Europe",\n"C01","Asia",\n')
    write(folder / "Metadata_Indicator_POP.csv", '"INDICATOR_CODE","SOURCE",\n"POP","UN",\n')
    return [("train", f"C{i:02}", i + 1) for i in range(12)]


def _glue(folder: Path) -> list[Row]:
    rows: list[Row] = []
    for split, name, count in (("train", "train", 12), ("validation", "dev", 6)):
        write(folder / f"CoLA/{name}.tsv", "".join(f"gj04\t{i % 2}\t*\tA sentence {i}.\n" for i in range(count)))
        lines = [(f"{split} was fine {i}", i % 2) for i in range(count)]
        write(folder / f"SST-2/{name}.tsv", "sentence\tlabel\n" + "".join(f"{a}\t{b}\n" for a, b in lines))
        rows += [(split, a, b) for a, b in lines]
    return rows


def _messages(folder: Path) -> list[Row]:
    lines = [(("ham", "spam")[i % 2], f"see you, {i}") for i in range(12)]
    write(folder / "SMSSpamCollection", "".join(f"{label}\t{text}\n" for label, text in lines))
    write(folder / "readme", "SMS Spam Collection v.1\n\nThe corpus\tis a set of messages.\n")
    return [("train", text, label) for label, text in lines]


def _auto_mpg(folder: Path) -> list[Row]:
    rows = "".join(f'{i / 2:.1f}   {i % 8}   {i * 7:.1f}      {i}.  70\t"ford torino {i}"\n' for i in range(20))
    write(folder / "auto-mpg.data", rows)
    return []


def _fixed(folder: Path) -> list[Row]:
    names = ("Alice", "Bob Jones", "Cy")
    write(folder / "a.txt", "".join(f"{i:<6}{names[i % 3]:<12}{i * 17.25:>9.2f}\n" for i in range(30)))
    return []


def _short_header(end: str):
    def make(folder: Path) -> list[Row]:
        write(folder / "a.csv", "id,label\n" + "".join(f"{i},{'ab'[i % 2]}{end}\n" for i in range(9)))
        return [("train", i, "ab"[i % 2]) for i in range(9)]

    return make


def _adult(folder: Path) -> list[Row]:
    rows: list[Row] = []
    for split, name, dot in (("train", "adult.data", ""), ("test", "adult.test", ".")):
        labels = [("<=50K", ">50K")[i % 3 == 0] for i in range(8)]
        lines = (f"{30 + i}, State-gov, {77516 + i}, {labels[i]}{dot}\n" for i in range(8))
        title = "|1x3 Cross validator\n" if dot else ""
        write(folder / name, f"{title}{''.join(lines)}\n")
        rows += [(split, 77516 + i, label) for i, label in enumerate(labels)]
    write(folder / "adult.names", "| Extraction from the census database.\n>50K, <=50K.\n\nage: continuous.\n")
    return rows


def _features_and_labels(folder: Path) -> list[Row]:
    write(folder / "features.csv", "id,x1,x2\n" + "".join(f"{i},{i}.5,{i + 1}\n" for i in range(8)))
    write(folder / "labels.csv", "id,label\n" + "".join(f"{i},{'ab'[i % 2]}\n" for i in range(8)))
    return []


def _workbook(folder: Path) -> list[Row]:
    write(folder / "a.mat", b"MATLAB 5.0 MAT-file" + bytes(200))
    return []


FOUND_TABLES = (
    Case("store sales of Kaggle", _stores, refusal=(" ".join(_STORES),)),
    Case("store sales of Kaggle, what is advised", _stores, _STORES, key="id", label=("sales",)),
    Case("World Bank", _world_bank, refusal=(" ".join(_WORLD_BANK),)),
    Case("World Bank, what is advised", _world_bank, _WORLD_BANK, key="Country Code", label=("1961",)),
    Case("GLUE", _glue, refusal=("--include 'CoLA/*'", "--source-column")),
    Case("GLUE, one task", _glue, ("--include", "SST-2/*"), key="sentence"),
    Case("SMS beside a readme", _messages, key="column_2", label=("column_1",)),
    Case("SMS beside a readme, --no-header", _messages, ("--no-header",), key="column_2", label=("column_1",)),
    Case("UCI Adult", _adult, refusal=("--comment '|'",)),
    Case("UCI Adult, what is advised", _adult, _ADULT, key="column_3", label=("column_4",)),
    Case("features.csv and labels.csv", _features_and_labels, refusal=("merge(", 'on="id"', "convert joined")),
    Case("auto-mpg.data", _auto_mpg, refusal=("read_csv", "table.csv")),
    Case("columns at fixed places", _fixed, refusal=("read_fwf", "--format text")),
    Case("a delimiter at the end of rows", _short_header(","), refusal=("--skip-lines 1 --columns id,label,rest",)),
    Case(
        "a delimiter at the end of rows, what is advised",
        _short_header(","),
        ("--skip-lines", "1", "--columns", "id,label,rest", "--drop-columns", "rest"),
        key="id",
    ),
    Case("a file of MATLAB", _workbook, refusal=("a MATLAB file", "scipy.io.loadmat", "a.mat.npz")),
)
