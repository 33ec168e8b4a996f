"""Formats of other packages, by entry points: the example in `examples/fixed_width`, installed as pip would."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib

import pytest

from shardkit.conversion.inputs.schema_file import Schema, apply_schema
from shardkit.dataset.block_reader import first_examples
from shardkit.dataset.open import open_dataset
from shardkit.errors import BadInputError
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from tests.support.paths import ROOT

EXAMPLE = ROOT / "examples" / "fixed_width"
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


@pytest.mark.full
def test_an_installed_source_is_found_by_its_files(tmp_path):
    environment = install(tmp_path / "site")
    (tmp_path / "a.fwf").write_text(TEXT)
    result = convert(environment, tmp_path / "a.fwf", tmp_path / "out", "--on-bad-record", "quarantine")
    assert result.returncode == 0, result.stderr
    assert "read as fixed_width" in result.stderr
    assert "3 rows in, 2 examples out, 1 rejected" in result.stdout
    found = list(first_examples(open_dataset(str(tmp_path / "out")), "train", 9))
    assert {e["name"]: e["temperature"] for e in found} == {"Oslo": "-3.5", "Bergen": "4.0"}


def load_example():
    spec = importlib.util.spec_from_file_location("fixed_width_example", EXAMPLE / "fixed_width.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Its dataclass looks there.
    spec.loader.exec_module(module)
    return module.FixedWidthSource()


def read(path, schema=None, *, tolerates=False):
    source, options = load_example(), SourceOptions(tolerates_bad_rows=tolerates)
    files = list_inputs([str(path)]).files
    features = apply_schema(source.infer(files, options), Schema(features=schema or {}))
    ((part,),) = [list(source.read(split, files, features, options)) for split in source.split(files, options)]
    return part


def test_the_example_obeys_a_schema_and_names_rows_by_their_lines(tmp_path):
    path = tmp_path / "a.fwf"
    path.write_bytes(b"name  n\r\na     1\r\nb\x0cc   2\r\nd     x\r\ne\r\nf     3")
    part = read(path, {"n": "int64"}, tolerates=True)
    assert part.batch.to_pylist() == [{"name": "a", "n": 1}, {"name": "b\x0cc", "n": 2}, {"name": "f", "n": 3}]
    assert [(row.position, row.raw) for row in part.rejected] == [("line 4", b"d     x"), ("line 5", b"e")]
    path.write_bytes(b"name  n\na     1\nb\x0cc   2\nd     4\ne     5\nf     3\n")
    assert read(path).identities[[0, 1, 4]].tolist() == part.identities.tolist()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"name  n\na     \xff\n", "not UTF-8 at byte 14"),
        (b"\n\n", "names no columns"),
        (b"", "names no columns"),
        (b"a  a\n1  2\n", "a column is there twice"),
        (b"name  n\na\n", "a.fwf, line 2"),
    ],
)
def test_files_that_the_example_refuses(tmp_path, content, why):
    (tmp_path / "a.fwf").write_bytes(content)
    with pytest.raises(BadInputError) as caught:
        read(tmp_path / "a.fwf")
    assert why in str(caught.value)


@pytest.mark.full
def test_a_source_that_cannot_be_loaded_is_named(tmp_path):
    environment = install(tmp_path / "site", "fixed_width:Nothing")
    (tmp_path / "a.fwf").write_text(TEXT)
    result = convert(environment, tmp_path / "a.fwf", tmp_path / "out")
    assert result.returncode == 2
    assert "fixed_width:Nothing" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.full
def test_an_unknown_format_lists_the_known(tmp_path):
    (tmp_path / "a.fwf").write_text(TEXT)
    result = convert(os.environ, tmp_path / "a.fwf", tmp_path / "out", "--format", "fixed")
    assert result.returncode == 2
    assert "Known are csv, tsv, jsonl, json, parquet, arrow" in result.stderr
