"""Formats of other packages, by entry points: the example in `examples/fixed_width`, installed as pip would."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from shardkit.dataset import open_dataset
from shardkit.preview import first_examples

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "fixed_width"
TEXT = "name      temperature\nOslo             -3.5\nBergen            4.0\nshort\n"


def install(folder, value=None):
    """Lays out what pip makes of the example."""
    (points,) = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"].items()
    group, entries = points
    info = folder / "shardkit_fixed_width-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shardkit-fixed-width\nVersion: 0.1.0\n")
    lines = [f"{name} = {value or entry}" for name, entry in entries.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    shutil.copy(EXAMPLE / "fixed_width.py", folder)
    return {**os.environ, "PYTHONPATH": str(folder)}


def convert(environment, *arguments):
    command = [sys.executable, "-m", "shardkit", "convert", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_an_installed_source_is_found_by_its_files(tmp_path):
    environment = install(tmp_path / "site")
    (tmp_path / "a.fwf").write_text(TEXT)
    result = convert(environment, tmp_path / "a.fwf", tmp_path / "out", "--on-bad-record", "quarantine")
    assert result.returncode == 0, result.stderr
    assert "read as fixed_width" in result.stderr
    assert "3 rows in, 2 examples out, 1 rejected" in result.stdout
    found = list(first_examples(open_dataset(str(tmp_path / "out")), "train", 9))
    assert {e["name"]: e["temperature"] for e in found} == {"Oslo": "-3.5", "Bergen": "4.0"}


def test_a_source_that_cannot_be_loaded_is_named(tmp_path):
    environment = install(tmp_path / "site", "fixed_width:Nothing")
    (tmp_path / "a.fwf").write_text(TEXT)
    result = convert(environment, tmp_path / "a.fwf", tmp_path / "out")
    assert result.returncode == 2
    assert "fixed_width:Nothing" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unknown_format_lists_the_known(tmp_path):
    (tmp_path / "a.fwf").write_text(TEXT)
    result = convert(os.environ, tmp_path / "a.fwf", tmp_path / "out", "--format", "fixed")
    assert result.returncode == 2
    assert "Known are csv, tsv, jsonl, json, parquet, arrow" in result.stderr
