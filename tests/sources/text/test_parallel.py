"""Texts that belong together line by line are refused, with a command that makes columns of them."""

from __future__ import annotations

import gzip
import re
import subprocess

import pytest

from shardkit.errors import UsageError
from shardkit.sources import list_inputs
from shardkit.sources.text.parallel import check_not_parallel
from tests.support.commands import shardkit

TWO, THREE = "one\ntwo\n", "one\ntwo\nthree"


def check(folder, **contents):
    for name, content in contents.items():
        path = folder / name.replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    check_not_parallel(list_inputs([str(folder)]).files)


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        (("train.de", "train.en"), "de en"),
        (("train.zh_CN", "train.pt-BR"), "pt_BR zh_CN"),
        (("train.source", "train.target"), "source target"),
        (("europarl-v7.de-en.de", "europarl-v7.de-en.en"), "de en"),
        (("X_train.txt", "subject_train.txt", "y_train.txt"), "X subject y"),
        (("label", "seq.in", "seq.out"), "label seq_in seq_out"),
        (("text.txt", "text_labels.txt"), "text labels"),
        (("long.txt", "short.txt"), "long short"),
    ],
)
def test_names_that_differ_in_a_word_and_lines_as_many_belong_together(tmp_path, names, columns):
    for name in names:
        (tmp_path / name).write_text(THREE)
    with pytest.raises(UsageError, match=f"3 lines each: {re.escape(min(names))}") as caught:
        check(tmp_path)
    header = columns.replace(" ", "\\t")
    assert f"printf '{header}\\n'" in caught.value.next_step


@pytest.mark.parametrize(
    "names",
    [
        ("a.txt", "b.txt"),
        ("log.1", "log.2"),
        ("2013.txt", "2014.txt"),
        ("part-aa", "part-ab"),
        ("xaa", "xab"),
        ("access_log", "error_log"),
        ("access.log", "error.log"),
        ("train.txt", "test.txt"),
        ("de/train.txt", "en/train.txt"),
        ("old_report.txt", "news_of_today.txt"),
    ],
)
def test_parts_splits_and_other_names_do_not(tmp_path, names):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(TWO)
    check(tmp_path)


def test_other_numbers_of_lines_and_lines_alone_do_not(tmp_path):
    check(tmp_path, train__de=TWO, train__en=THREE)
    check(tmp_path / "single", train__de="one\n", train__en="two\n")


@pytest.mark.parametrize("names", [("rt.neg", "rt.pos"), ("ham.txt", "spam.txt"), ("a_fake.txt", "a_real.txt")])
def test_classes_are_not_pasted_into_one_row(tmp_path, names):
    with pytest.raises(UsageError, match="the names of the text files may be two classes") as caught:
        check(tmp_path, **{name.replace(".", "__"): TWO for name in names})
    assert caught.value.next_step.startswith("--source-column file takes the lines of all files")
    assert "paste" not in caught.value.next_step


def test_large_files_need_extensions_that_differ(tmp_path, monkeypatch):
    monkeypatch.setattr("shardkit.sources.text.parallel._MAX_COUNTED_BYTES", 4)
    with pytest.raises(UsageError) as caught:
        check(tmp_path / "a", train__de=TWO, train__en=THREE)
    assert "lines each" not in caught.value.why
    check(tmp_path / "b", neg__txt=TWO, pos__txt=TWO)


def test_compressed_files_are_counted_and_need_more_than_a_command(tmp_path):
    packed = gzip.compress(TWO.encode())
    with pytest.raises(UsageError, match="2 lines each") as caught:
        check(tmp_path, train__de__gz=packed, train__en__gz=packed)
    assert "run " not in caught.value.next_step
    assert "--include '*.de.gz'" in caught.value.next_step


@pytest.mark.full
def test_the_command_makes_a_table_of_each_split(tmp_path):
    for tag in ("train", "dev"):
        for language in ("de", "en"):
            path = tmp_path / "corpus" / f"{tag}.{language}"
            path.parent.mkdir(exist_ok=True)
            path.write_text(f'"{tag}, {language}\n{tag} "2" {language}\n')
    refused = shardkit("convert", tmp_path / "corpus", tmp_path / "out", code=2)
    command, options = re.search(r"run  (.*)  and convert pasted ([^.]*)\.", refused.stderr).groups()
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    made = shardkit("convert", tmp_path / "pasted", tmp_path / "out", *options.split())
    assert "4 rows in, 4 examples out" in made.stdout + made.stderr
    assert "the splits: train, validation" in made.stdout + made.stderr


@pytest.mark.full
def test_a_column_of_files_keeps_all_lines(tmp_path):
    for label in ("pos", "neg"):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"rt.{label}").write_text(TWO)
    shardkit("convert", tmp_path / "in", tmp_path / "out", code=2)
    shardkit("convert", tmp_path / "in", tmp_path / "out", "--source-column", "file")
