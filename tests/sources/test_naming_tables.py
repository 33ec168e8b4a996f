"""Tables and lists beside the files that they name: which options read them."""

from __future__ import annotations

import re
import subprocess

import pytest

from shardkit.errors import UsageError
from shardkit.sources import list_inputs
from shardkit.sources.naming_tables import advice_on_rows, check_not_numbered, tables_that_name
from shardkit.sources.split_lists import list_notes

IMAGES = [f"images/{'cat' if i < 3 else 'dog'}/p{i}.jpg" for i in range(6)]


def listed(folder, names, **contents):
    for name in (*names, *contents):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(contents.get(name, "x"))
    files = list_inputs([str(folder)]).files
    return [f for f in files if f.name in names], [f for f in files if f.name in contents]


def advice(folder, names, **contents):
    return advice_on_rows(*listed(folder, names, **contents), "images")


def test_a_table_that_names_the_files(tmp_path):
    table = "file,class\n" + "".join(f"{name},1\n" for name in IMAGES)
    found = advice(tmp_path, IMAGES, **{"meta.csv": table})
    assert found == f"--labels {tmp_path}/meta.csv joins a table that names the files"
    with_list = advice(tmp_path, IMAGES, **{"meta.csv": table, "test_list.txt": "p0.jpg\n"})
    assert with_list.startswith(f"--labels {tmp_path}/meta.csv --split test=@{tmp_path}/test_list.txt --split train ")


def test_lists_of_splits(tmp_path):
    lists = {"meta/train.txt": "cat/p0\ncat/p1\ndog/p3\n", "meta/test.txt": "cat/p2\ndog/p4\ndog/p5\n"}
    # A document of JSON that lists them too is no table.
    lists["meta/train.json"] = '{"cat": ["cat/p0", "cat/p1", "cat/p2"], "dog": ["dog/p3", "dog/p4"]}'
    found = advice(tmp_path, IMAGES, **lists)
    assert found == (
        f"--format images --split test=@{tmp_path}/meta/test.txt --split train=@{tmp_path}/meta/train.txt takes the "
        "splits that lists of files name"
    )
    (note,) = list_notes(*listed(tmp_path, IMAGES, **lists), is_asked=False)
    assert "--split test=@" in note
    assert list_notes(*listed(tmp_path, IMAGES, **lists), is_asked=True) == ()


@pytest.mark.parametrize("content", ["kitten\npuppy\n", "p0.jpg 3\n", ""])
def test_a_text_that_is_called_like_a_split_and_lists_no_file(tmp_path, content):
    assert advice(tmp_path, IMAGES, **{"train/0_boxes.txt": "p0.jpg\n", "test.txt": content}) is None


def test_tables_that_name_a_part_of_the_files_each(tmp_path):
    names = [f"{'dev' if i < 3 else 'eval'}/p{i}.jpg" for i in range(6)]
    lines = [f"{name},1\n" for name in names]
    tables = {"truth/dev.csv": "".join(["f,c\n", *lines[:3]]), "truth/eval.csv": "".join(["f,c\n", *lines[3:]])}
    found = advice(tmp_path / "beside", names, **tables)
    assert f"with --include 'dev/*' --labels {tmp_path}/beside/truth/dev.csv, and with --include 'eval/*'" in found
    apart = advice(tmp_path / "apart", names, **{"a.csv": tables["truth/dev.csv"], "b/b.csv": tables["truth/eval.csv"]})
    assert f"{tmp_path}/apart/a.csv, and with --format images --exclude 'dev/*'" in apart


@pytest.mark.full
def test_tables_of_numbers_must_be_joined(tmp_path):
    contents = {
        "images.txt": "".join(f"{i + 1} {name[7:]}\n" for i, name in enumerate(IMAGES)),
        "labels_of.txt": "".join(f"{i + 1} {i % 2 + 1}\n" for i in range(6)),
        "train_test.txt": "".join(f"{i + 1} {int(i < 4)}\n" for i in range(6)),
        "classes.txt": "1 cat\n2 dog\n",
    }
    rows, others = listed(tmp_path, IMAGES, **contents)
    tables = tables_that_name(rows, others)
    with pytest.raises(UsageError, match=r"such as labels_of\.txt, train_test\.txt") as caught:
        check_not_numbered(rows, tables, others)
    command = re.search("awk .* > labels.txt", caught.value.next_step)[0]
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    joined = sorted(line.split() for line in (tmp_path / "labels.txt").read_text().splitlines())
    assert joined[0] == ["cat/p0.jpg", "1", "1"]
    assert len(joined) == 6
    with pytest.raises(UsageError, match="a table numbers the files"):
        advice_on_rows(rows, others, "images")
    check_not_numbered(rows, tables, [file for file in others if file.name in ("images.txt", "classes.txt")])


def test_of_several_lists_of_a_split_the_first_counts(tmp_path):
    lists = {f"train{n}.txt": f"cat/p{n % 3}\n" for n in range(1, 11)} | {f"test{n}.txt": "dog/p4\n" for n in (1, 2)}
    found = str(advice(tmp_path, IMAGES, **lists))
    assert f"--split test=@{tmp_path}/test1.txt --split train=@{tmp_path}/train1.txt " in found


def test_tables_of_labels_of_a_split_each_are_joined(tmp_path):
    tables = {f"{split}.txt": "".join(f"{name} 1\n" for name in IMAGES[:3]) for split in ("train", "val")}
    found = str(advice(tmp_path, IMAGES, **tables))
    assert (
        f"join them with cat {tmp_path}/train.txt {tmp_path}/val.txt > labels.txt, and add --labels labels.txt" in found
    )
