"""Lines above a table, header lines that are too short, and second header lines: refused with what reads them."""

from __future__ import annotations

import re
import shlex
import subprocess

import msgspec
import pytest

from shardkit.errors import UsageError
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions, settle
from shardkit.sources.csv.source import CsvSource
from shardkit.sources.files.transcoding import with_text_options

ROWS = [{"id": i, "x": i / 4} for i in range(6)]
TABLE = "id,x\n" + "".join(f"{i},{i / 4}\n" for i in range(6))


def read(folder, advice=""):
    """Returns the rows by the options of an advice."""
    taken = {"--skip-lines": "skip_lines", "--comment": "comment", "--columns": "columns", "--include": "include"}
    taken |= {"--drop-columns": "drop_columns", "--delimiter": "delimiter"}
    words = dict(re.findall(r"(--[a-z-]+) ((?:'[^']*'|\S)+)", advice))
    given = {taken[option]: shlex.split(text)[0] for option, text in words.items()}
    given |= {"skip_lines": int(given["skip_lines"])} if "skip_lines" in given else {}
    many = {name: tuple(given[name].split(",")) for name in ("columns", "include", "drop_columns") if name in given}
    options = SourceOptions(**{**given, **many})
    options = msgspec.structs.replace(options, delimiter={"tab": "\t"}.get(options.delimiter, options.delimiter))
    source, files = CsvSource(), with_text_options(list_inputs([str(folder)], options).files, options)
    options = settle(source, files, options)
    features = source.infer(files, options)
    parts = [part for split in source.split(files, options) for part in source.read(split, files, features, options)]
    return [row for part in parts for row in part.batch.to_pylist()]


def advice(folder):
    with pytest.raises(UsageError) as caught:
        read(folder)
    return caught.value.next_step.partition(";")[0].partition(" takes it")[0].partition(", which")[0]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('"Source","Indicators",\n\n"Updated","2023-09-19",\n\n' + "id,x,y,\n" + "1,2,3,\n" * 4,
         [{"id": 1, "x": 2, "y": 3, "unnamed_4": None}] * 4),
        ("# made by us\n" + TABLE, ROWS),
        ("# made by us, at night\n" + TABLE, ROWS),
        ("a title\n" + TABLE, ROWS),
        ("id,x\n" + "".join(f"{i},{i / 4},\n" for i in range(6)), ROWS),
        ("id,x\n" + "".join(f"r{i},{i},{i / 4}\n" for i in range(6)), [{"row": f"r{i}", **ROWS[i]} for i in range(6)]),
        ("any,words\n" + TABLE, ROWS),
    ],
)  # fmt: skip
def test_what_is_advised_reads_the_table(tmp_path, text, rows):
    (tmp_path / "a.csv").write_text(text)
    assert read(tmp_path, advice(tmp_path)) == rows


def test_a_title_in_one_of_several_files_names_that_file(tmp_path):
    table = "id,a,b,c\n" + "".join(f"{i},{i},{i},{i}\n" for i in range(6))
    (tmp_path / "b.csv").write_text("Source,Indicators,\nUpdated,2023,\n" + table)
    (tmp_path / "metadata.csv").write_text("code,region\n1,x\n2,y\n")
    found = advice(tmp_path)
    assert "--include b.csv --skip-lines 2" in found
    assert len(read(tmp_path, found)) == 6


def test_one_column_of_texts_with_commas(tmp_path):
    (tmp_path / "a.csv").write_text("text\n" + "".join(f"hello, you {i}\n" for i in range(5)))
    advice(tmp_path)
    assert read(tmp_path, "--delimiter tab") == [{"text": f"hello, you {i}"} for i in range(5)]


@pytest.mark.parametrize("first", ["", "NA", "?", "3", "unknown"])
def test_a_first_row_without_a_name_is_a_row(tmp_path, first):
    (tmp_path / "a.csv").write_text(f"id,x\n7,{first}\n" + "".join(f"{i},{i}\n" for i in range(9)))
    assert len(read(tmp_path)) == 10


@pytest.mark.parametrize(
    ("units", "num_rows"),
    [
        (",degC,m/s", 5),
        (",,m/s", 5),
        ("ISO8601,degC,%", 1),
        ("ISO8601,degC,%", 5),
        ("TS,Deg C,m/s\n,Avg,Smp", 5),
    ],
)
def test_lines_of_units_are_refused_and_left_out_by_what_is_advised(tmp_path, units, num_rows):
    rows = "".join(f"2020-01-0{i + 1},{i}.5,{i}\n" for i in range(num_rows))
    (tmp_path / "a.csv").write_text(f"time,temp,wind\n{units}\n{rows}")
    with pytest.raises(UsageError, match="may be names, units or") as caught:
        read(tmp_path)
    advised = caught.value.next_step.rpartition(" leaves ")[0].rpartition("--skip-lines ")[2]
    found = read(tmp_path, f"--skip-lines {advised}")
    assert [row["wind"] for row in found] == list(range(num_rows))


def test_the_first_line_of_a_logger_is_left_out_by_what_is_advised(tmp_path):
    rows = "".join(f'"2020-01-0{i + 1} 00:00:00",{i},0.5,1.5\n' for i in range(5))
    heads = '"TIMESTAMP","RECORD","AirT","WS"\n"TS","RN","Deg C","m/s"\n"","","Avg","Smp"\n'
    (tmp_path / "a.dat").write_text(f'"TOA5","CR1000","1","2"\n{heads}{rows}')
    with pytest.raises(UsageError, match="may be names or values") as caught:
        read(tmp_path)
    assert "--skip-lines 1 leaves out the line that describes a logger" in caught.value.next_step
    with pytest.raises(UsageError, match="lines 2 to 3 may be names, units or rows") as caught:
        read(tmp_path, "--skip-lines 1")
    assert "--skip-lines 4 --columns TIMESTAMP,RECORD,AirT,WS leaves them out" in caught.value.next_step
    assert len(read(tmp_path, "--skip-lines 4 --columns TIMESTAMP,RECORD,AirT,WS")) == 5


@pytest.mark.full
@pytest.mark.parametrize(
    "content", ["| a | b |\n|---|:-:|\n| 0 | x |\n| 1 | y z |\n", "a | b\n--- | ---\n0 | x\n1 | y z\n"]
)
def test_a_table_of_markdown_is_refused_with_the_command_that_makes_csv(tmp_path, content):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text(content)
    with pytest.raises(UsageError, match="the second line is a rule") as caught:
        read(tmp_path / "in")
    (command,) = re.findall(r"run  (.*)  and convert table\.csv", caught.value.next_step)
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    assert (tmp_path / "table.csv").read_text() == "a|b\n0|x\n1|y z\n"


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (",x,x,y\n,mean,std,mean\nkind,,,\nA,1.5,2.5,3.5\nB,2.5,3.5,4.5\n", "kind,x_mean,x_std,y_mean"),
        ("year,20,21,22\nsex,m,m,w\ncity,,,\nA,2,2,2\nB,2,2,3\n", "year,20,21,22"),
        (",2023,2023,2024\n,m,w,m\ncity,,,\nA,1,,3\nB,,2,4\n", "city,2023_m,2023_w,2024_m"),
        ("Area;Men;;Women;\n;20;21;20;21\nA;0;1;2;3\nB;1;2;3;4\n", "Area,Men_20,Men_21,Women_20,Women_21"),
        (",A,A,B\n,x,y,x\nA,1,2,3\nB,4,5,6\n", "unnamed_1,A_x,A_y,B_x"),
        (",A,A,B\n,x,y,x\n,m,m,n\nA,p,q,r\nB,p,q,s\n", "unnamed_1,A_x_m,A_y_m,B_x_n"),
        ("k,a,a\n,x,y\nA,1,2\nB,4,5\n", "k,a_x,a_y"),
        ("k,k,v\nname,place,x\nA,p,2\nB,q,5\n", "k_name,k_place,v_x"),
        (",0,1,2\ncity,rome,oslo,rome\nA,1,2,3\nB,1,2,3\nA,3,4,5\n", "unnamed_1,0,1,2"),
        (",20,,21,\nItem,n,p,n,p\nA,3,2.5,4,2.6\nB,4,3.5,5,3.6\n", "Item,20_n,20_p,21_n,21_p"),
    ],
)
def test_names_of_several_levels_are_refused_with_the_names_joined(tmp_path, content, names):
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(UsageError, match="may be names, units or") as caught:
        read(tmp_path)
    (advice,) = re.findall(r"--skip-lines \d+ --columns \S+", caught.value.next_step)
    rows = read(tmp_path, advice)
    assert [next(iter(row.values())) for row in rows][:2] == ["A", "B"]
    assert list(rows[0]) == names.split(",")


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        ("Report 2024;;\n;;\nid;x;day\n1;0;1.2.24\n2;5;2.2.24\n", 2),
        ("Company,Acme,\nDate,2024-01-01,\n,,\nid,age,score\n1,2,3\n4,5,6\n", 2),
        ("Sales,,\nRegion,Month,Sum\nUlm,Jan,3\nJena,Feb,4\n", 2),
        ("id,Q1,Q2\nID,How old are you?,How do you feel?\n1,20,3\n2,30,4\n3,40,5\n", 3),
        ('id,q\nRecord,"Estimate!!Total, all"\n1,20\n2,30\n3,40\n', 3),
        ("Time,A,B\n(ms),(V),[mV]\n0,1.5,2\n1,2.5,3\n2,3.5,4\n", 3),
        ("Time,c,k\n-,µg/m³,1/s\n0,0.5,0.1\n1,1.5,1.1\n2,2.5,2.1\n", 3),
    ],
)
def test_titles_descriptions_and_units_are_refused_with_what_leaves_them_out(tmp_path, content, rows):
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(UsageError, match=r"may be a title|may be names, units or") as caught:
        read(tmp_path)
    advice = re.findall(r"--skip-lines \d+(?: --columns \S+)?", caught.value.next_step)[-1]
    assert len(read(tmp_path, advice)) == rows


@pytest.mark.parametrize(
    "content",
    [
        "name,a,b\nBob,x,y\nAnn,,\nKim,p,q\nLee,x,z\n",
        "area,month,sales\nUlm,Jan,3\n,Feb,4\nJena,Jan,5\n,Feb,6\n",
        "name,hw1,hw2,hw3\nAnna,10,10,9\nBen,,,\nCara,9,8,9\nDora,5,5,6\n",
        "time,t,p\n00:00,1.5,1.5\n00:01,,\n00:02,2.5,1.5\n00:03,2.0,1.0\n",
    ],
)
def test_rows_with_empty_cells_are_no_names(tmp_path, content):
    (tmp_path / "a.csv").write_text(content)
    assert len(read(tmp_path)) == 4
