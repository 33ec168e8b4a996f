"""JSON that holds a table in another way than an object a row."""

import json
import shlex
from pathlib import Path

import pytest

from shardkit.errors import UsageError
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.files.transcoding import with_text_options
from shardkit.sources.json.array_source import JsonArraySource
from shardkit.sources.json.lines_source import JsonLinesSource

ROW = {"a": 1, "b": "x"}


def inferred(folder, document):
    path = folder / "a.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    files = list_inputs([str(path)]).files
    return JsonLinesSource(), files, SourceOptions()


def advice(folder, document):
    source, files, options = inferred(folder, document)
    with pytest.raises(UsageError) as caught:
        source.infer(files, options)
    return caught.value.next_step


def run_python(step):
    """Runs the code of a command `python -c` in this process."""
    exec(shlex.split(step.split("  ")[1])[2], {})  # noqa: S102


@pytest.mark.parametrize(
    ("document", "names"),
    [
        ({"columns": ["n", "s"], "index": [0, 1], "data": [[1, "x"], [2, "y"]]}, ["n", "s"]),
        ([[1, "x"], [2, "y"]], ["0", "1"]),
        ([7, 8], ["0"]),
        ("[1, 2]\n[3, 4]\n", ["0", "1"]),
    ],
)
def test_tables_without_names_in_their_rows_are_refused_with_a_command(tmp_path, monkeypatch, document, names):
    pandas = pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    run_python(advice(tmp_path, document))
    table = pandas.read_parquet(tmp_path / "a.json.parquet")
    assert (list(table.columns), len(table)) == (names, 2)


def test_the_rows_of_a_table_schema_are_advised(tmp_path):
    document = {"schema": {"fields": [{"name": "a", "type": "integer"}]}, "data": [ROW, ROW]}
    assert advice(tmp_path, document).startswith("Take its objects as the rows with --records data, or")


def test_a_chat_a_file_is_a_row_by_what_is_advised(tmp_path):
    for i in range(3):
        chat = {"id": i, "messages": [{"role": "user", "content": "a"}]}
        assert "each document as a row with --records ." in advice(tmp_path, chat)
        (tmp_path / f"{i}.json").write_text(json.dumps(chat, indent=1))
    (tmp_path / "a.json").unlink()
    options = SourceOptions(records=".")
    files = with_text_options(list_inputs([str(tmp_path)]).files, options)
    assert [f.name for f in JsonArraySource().infer(files, options)] == ["id", "messages"]


def test_an_only_object_beside_a_file_of_several_is_a_row(tmp_path):
    chat = json.dumps({"messages": [{"role": "user", "content": "a"}]})
    for name, number in (("train", 3), ("valid", 1)):
        (tmp_path / f"{name}.jsonl").write_text(f"{chat}\n" * number)
    files = list_inputs([str(tmp_path)]).files
    assert [f.name for f in JsonLinesSource().infer(files, SourceOptions())] == ["messages"]


def test_lists_of_splits_are_written_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    step = advice(tmp_path, {"train": [ROW, ROW], "test": [ROW]})
    assert "--records train or --records test, which leaves the others out, or" in step
    run_python(step)
    assert [len(Path(name).read_text().splitlines()) for name in ("train.jsonl", "test.jsonl")] == [2, 1]


@pytest.mark.parametrize(
    ("document", "is_noted"),
    [
        ({"u1": {"n": "a", "x": 1}, "u2": {"n": "b", "x": 2}}, True),
        ({"name": ["a", "b", "c"], "n": [1, 2, 3]}, True),
        ({"name": {"0": "a", "1": "b"}, "n": {"0": 1, "1": 2}}, True),
        ({"name": "a", "n": [1, 2]}, False),
        ({"name": ["a"], "n": [1]}, False),
    ],
)
def test_a_small_table_in_one_object_is_noted(tmp_path, document, is_noted):
    source, files, options = inferred(tmp_path, document)
    source.infer(files, options)
    assert any("becomes one row" in note for note in source.notes(files, options)) == is_noted
