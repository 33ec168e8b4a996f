"""Two tables that share a column of identifiers are refused, with a command that joins them."""

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


@pytest.mark.full
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_the_command_joins_all_rows_and_keeps_their_digits(tmp_path, delimiter):
    (tmp_path / "it's").mkdir()
    step = advice(tmp_path / "it's", FEATURES.replace(",", delimiter), LABELS.replace("001,cat\n", ""))
    command = re.search(r"run  (python -c .*?)  and convert joined\.csv", step)[1]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(["bash", "-c", command], cwd=tmp_path, env={**os.environ, "PATH": path}, check=True)
    with (tmp_path / "joined.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["id", "x", "label"]
    assert sorted(rows) == sorted([i, f"{i}.5", "" if i == "001" else "cat"] for i in IDS)


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
