"""What the processes of a conversion load."""

import subprocess
import sys

import pytest

from shardkit.dataset.open import open_dataset
from tests.support.in_process import read_rows

pytestmark = pytest.mark.full

FUNCTION = """
import pandas
import pyarrow as pa

def doubled(batch):
    table = batch.to_pandas()
    table["twice"] = table["x"] * 2
    return pa.RecordBatch.from_pandas(table, preserve_index=False)
"""


def test_a_function_of_the_user_has_pandas_in_every_process_of_a_conversion(tmp_path):
    pytest.importorskip("pandas")
    for number in range(2):
        (tmp_path / f"{number}.csv").write_text(f"x\n{number}.5\n")
    (tmp_path / "own.py").write_text(FUNCTION)
    command = [sys.executable, "-m", "shardkit", "convert", f"{tmp_path}/?.csv", f"{tmp_path}/out"]
    subprocess.run([*command, "--map", f"{tmp_path}/own.py:doubled", "--workers", "6"], check=True)
    rows = read_rows(open_dataset(str(tmp_path / "out")), "train")
    assert sorted(row["twice"] for row in rows) == [1.0, 3.0]
