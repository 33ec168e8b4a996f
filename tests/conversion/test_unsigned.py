"""Unsigned integers beyond int64: kept bit by bit, and said."""

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import shardkit
from shardkit.cli import main

pytestmark = pytest.mark.full

VALUES = [1, 2**63 - 1, 2**63, 2**64 - 1]


def write(folder, kind):
    folder.mkdir()
    table = pa.table({"key": pa.array(VALUES, pa.uint64())})
    if kind == "parquet":
        pq.write_table(table, folder / "a.parquet")
    elif kind == "arrow":
        feather.write_feather(table, folder / "a.arrow")
    else:
        np.savez(folder / "a.npz", key=np.array(VALUES, np.uint64))
    return folder


@pytest.mark.parametrize("kind", ["parquet", "arrow", "npz"])
def test_they_come_back_as_they_were_and_a_note_says_what_others_see(tmp_path, capsys, kind):
    out = tmp_path / "out"
    assert main(["convert", str(write(tmp_path / "in", kind)), str(out), "--workers", "1", "--no-shuffle"]) == 0
    printed = "".join(capsys.readouterr())
    assert "uint64 in 'key'" in printed
    assert "stored as negative" in printed
    assert shardkit.open(str(out))["train"].take(range(4))["key"].tolist() == VALUES
    (shard,) = Path(out, "data").rglob("*.gz")
    # The int64_list of 2**64 - 1 is the varint of -1.
    assert b"\xff" * 9 + b"\x01" in gzip.decompress(shard.read_bytes())
