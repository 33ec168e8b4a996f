"""Tables of the same rows are refused, with a command that joins them."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardkit.errors import UsageError
from shardkit.sources import list_inputs, source_for
from shardkit.sources.options import SourceOptions

IDS = [f"00{i}" for i in range(1, 11)]
FEATURES = "id,x\n" + "".join(f"{i},{i}.5\n" for i in IDS)
LABELS = "id,label\n" + "".join(f"{i},cat\n" for i in IDS[::-1])


def advice(folder, first, second):
    (folder / "features.csv").write_text(first)
    (folder / "labels.csv").write_text(second)
    with pytest.raises(UsageError) as caught:
        source_for("csv").infer(list_inputs([str(folder)]).files, SourceOptions(format="csv"))
    return caught.value.next_step


def run_advice(step, folder):
    """Runs the command of an error, and returns the rows of each file that it writes."""
    command = re.search(r"run  (mkdir joined && python -c .*?)  and convert joined", step)[1]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(["bash", "-c", command], cwd=folder, env={**os.environ, "PATH": path}, check=True)
    found = {}
    for written in (folder / "joined").iterdir():
        with written.open(newline="") as file:
            header, *rows = csv.reader(file)
        found[written.name] = (header, sorted(rows))
    return found


@pytest.mark.full
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_the_command_joins_all_rows_and_keeps_their_digits(tmp_path, delimiter):
    (tmp_path / "it's").mkdir()
    step = advice(tmp_path / "it's", FEATURES.replace(",", delimiter), LABELS.replace("001,cat\n", ""))
    rows = sorted([i, f"{i}.5", "" if i == "001" else "cat"] for i in IDS)
    assert run_advice(step, tmp_path) == {"joined.csv": (["id", "x", "label"], rows)}


def refusal(folder, files, **options):
    folder.mkdir()
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    with pytest.raises(UsageError) as caught:
        source_for("csv").infer(list_inputs([str(folder)]).files, SourceOptions(format="csv", **options))
    return caught.value


@pytest.mark.full
@pytest.mark.parametrize("with_union", [False, True])
@pytest.mark.parametrize(
    ("values", "labels", "expected"),
    [
        ("a,b\n01,x\n2,\n3,z\n", "y\n1\n0\n1\n", [["01", "x", "1"], ["2", "", "0"], ["3", "z", "1"]]),
        ('id,a\n1,"p\nq"\n2,s\n3,t\n', "id,y\n3,u\n1,v\n2,w\n", [["1", "p\nq", "v"], ["2", "s", "w"], ["3", "t", "u"]]),
        (",a\n7,p\n2,q\n4,r\n", ",y\n4,u\n2,v\n7,w\n", [["2", "q", "v"], ["4", "r", "u"], ["7", "p", "w"]]),
    ],
    ids=["in one order", "by identifiers", "by an index without a name"],
)
def test_each_split_is_joined_by_itself(tmp_path, values, labels, expected, with_union):
    files = {f"{split}_{name}": text for split in ("train", "test") for name, text in
             (("values", values), ("labels", labels))}  # fmt: skip
    error = refusal(tmp_path / "in", files, union_by_name=with_union)
    assert "--union-by-name" not in str(error)
    found = run_advice(error.next_step, tmp_path)
    assert sorted(found) == ["test.csv", "train.csv"]
    for header, rows in found.values():
        assert len(header) == 3
        assert sorted(map(sorted, rows)) == sorted(map(sorted, expected))


def test_a_file_without_its_labels_is_named(tmp_path):
    files = {"train_values": FEATURES, "train_labels": LABELS, "test_values": FEATURES.replace("00", "99")}
    assert "which leaves out test_values.csv" in refusal(tmp_path / "in", files).next_step


@pytest.mark.parametrize(
    "other",
    [
        LABELS + "001,dog\n",
        LABELS.replace("00", "99"),
        LABELS.replace("label", "label,x").replace("cat", "cat,1"),
        "id\n" + "".join(f"{i}\n" for i in IDS),
    ],
    ids=["an identifier twice", "other identifiers", "two columns in both", "identifiers alone"],
)
def test_other_tables_are_not_joined(tmp_path, other):
    assert "merge" not in advice(tmp_path, FEATURES, other)
