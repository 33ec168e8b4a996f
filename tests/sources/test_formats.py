"""A format is one entry of `FORMATS`: recognition, help, options and the README follow from it."""

import importlib
import re
import subprocess
import sys

import pytest

from shardkit.errors import UsageError
from shardkit.sources import choose_source, list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.formats import FORMATS, Format, format_named, formats_with
from tests.support.paths import ROOT

pytestmark = pytest.mark.full

# A format of tests: CSV with pipes, known by its first bytes.
NEW_FORMAT = """
import sys
from shardkit.sources.csv.source import CsvSource
from shardkit.sources.formats import FORMATS, Format


class PipesSource(CsvSource):
    def recognizes(self, head, name):
        return head.startswith(b"pipes|")


FORMATS["pipes"] = Format(
    "pipes", "piped", "tables", "new_format.PipesSource", content="text", suffixes=(".pipes",), options=("null_values",)
)
"""
MAIN = """
import new_format
import sys
from shardkit.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def shardkit(tmp_path):
    """Runs shardkit with one more format."""
    (tmp_path / "new_format.py").write_text(NEW_FORMAT)
    (tmp_path / "main.py").write_text(MAIN)

    def run(*arguments):
        command = [sys.executable, str(tmp_path / "main.py"), *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    return run


def test_an_entry_is_all_that_a_new_format_needs(shardkit, tmp_path):
    (tmp_path / "rows.pipes").write_text("pipes|x\n1|NA\n3|4\n")
    assert "video, pipes," in " ".join(shardkit("convert", "--help").stdout.split())
    result = shardkit("convert", "rows.pipes", "out", "--null-value", "NA", "--workers", "1")
    assert result.returncode == 0, result.stderr
    assert "read as pipes" in result.stderr
    assert "2 rows in, 2 examples out" in result.stdout


def test_an_option_that_the_entry_does_not_name_is_refused(shardkit, tmp_path):
    (tmp_path / "rows.pipes").write_text("pipes|x\n1|2\n")
    result = shardkit("convert", "rows.pipes", "out", "--encoding", "latin-1")
    assert result.returncode == 2
    assert "--encoding has no meaning for pipes files" in result.stderr


@pytest.mark.parametrize("name", FORMATS)
def test_classes_are_there_and_recognize_what_they_are_asked(name):
    module, _, class_name = FORMATS[name].source.rpartition(".")
    source = getattr(importlib.import_module(module), class_name)(format=name)
    assert source.format == name
    assert hasattr(source, "recognizes") or not FORMATS[name].is_asked


def test_options_are_fields_of_the_options_of_sources():
    assert {option for format in FORMATS.values() for option in format.options} <= set(SourceOptions.__struct_fields__)
    assert formats_with("table") == ("sqlite",)


def test_no_two_formats_promise_an_extension():
    suffixes = [suffix for format in FORMATS.values() for suffix in format.suffixes]
    assert len(suffixes) == len(set(suffixes))


def test_a_format_of_another_package_has_no_option():
    assert format_named("other") == Format("other", "other", "", "", content="text")


def test_formats_that_there_are_are_named(tmp_path):
    (tmp_path / "a.csv").write_text("a\n1\n")
    with pytest.raises(UsageError, match="there is no format 'none'") as caught:
        choose_source(list_inputs([str(tmp_path / "a.csv")]).files, SourceOptions(format="none"))
    assert ", ".join(FORMATS) in str(caught.value.next_step)


def test_the_readme_lists_the_formats():
    rows = re.findall(r"^\| (\w+) \| ((?:`[\w-]+`(?:, )?)+) \| ", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    listed = {kind: re.findall(r"`([\w-]+)`", names) for kind, names in rows}
    kinds = {format.kind for format in FORMATS.values()}
    expected = {kind: [name for name, format in FORMATS.items() if format.kind == kind] for kind in kinds}
    assert {kind: names for kind, names in listed.items() if kind in kinds} == expected
