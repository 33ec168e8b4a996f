"""`--split` names files by globs and lists, and shares as people write them."""

import pytest

from shardkit.cli import main
from shardkit.conversion.option_forms import Split
from shardkit.dataset.open import open_dataset
from shardkit.errors import UsageError
from tests.support.in_process import read_rows

pytestmark = pytest.mark.full
PARSE = Split("").parse


@pytest.fixture
def run(capsys, tmp_path):
    for index in range(6):
        folder = tmp_path / "in" / ("new" if index > 3 else "old")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{index}.csv").write_text(f"n,word\n{index},a\n{index + 10},b\n")

    def invoke(*arguments):
        code = main(["convert", *map(str, arguments), "--workers", "1"])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return code, " ".join(captured.err.split())

    return invoke


def found(location):
    dataset = open_dataset(str(location))
    return {s.name: sorted(row["n"] for row in read_rows(dataset, s.name)) for s in dataset.manifest.splits}


def test_globs_name_the_files_of_splits_and_one_split_the_rest(run, tmp_path):
    out = tmp_path / "out"
    code, err = run(tmp_path / "in", out, "--split", "test=new/*", "--split", "train")
    assert code == 0, err
    assert "files: test 2, train 4" in err
    assert found(out) == {"test": [4, 5, 14, 15], "train": [0, 1, 2, 3, 10, 11, 12, 13]}


def test_lists_name_files_with_or_without_folder_and_extension(run, tmp_path):
    (tmp_path / "train.txt").write_text("0\nold/1.csv 1\n./old/2\n3.csv -1\n99\n")
    (tmp_path / "test.txt").write_text("4\n5\n")
    options = [f"--split=train=@{tmp_path}/train.txt", f"--split=test=@{tmp_path}/test.txt"]
    code, err = run(tmp_path / "in", tmp_path / "out", *options)
    assert code == 0, err
    assert "1 name of" in err
    assert "without a file: 99" in err
    assert found(tmp_path / "out") == {"train": [0, 1, 2, 3, 10, 11, 12, 13], "test": [4, 5, 14, 15]}


@pytest.mark.parametrize("start", ["/data/in/old/", "in\\\\old\\\\", "./in/old/"])
def test_lists_name_files_below_folders_of_another_machine(run, tmp_path, start):
    (tmp_path / "train.txt").write_text(f"{start}0.csv\n{start}2.csv\n")
    code, err = run(tmp_path / "in", tmp_path / "out", f"--split=train=@{tmp_path}/train.txt", "--split=test")
    assert code == 0, err
    assert found(tmp_path / "out")["train"] == [0, 2, 10, 12]


def test_a_list_of_other_files_gives_another_dataset_of_the_same_path(run, tmp_path):
    prints = []
    for names in ("0\n1\n", "0\n2\n"):
        (tmp_path / "train.txt").write_text(names)
        options = [f"--split=train=@{tmp_path}/train.txt", "--split=rest", "--overwrite"]
        assert run(tmp_path / "in", tmp_path / "out", *options)[0] == 0
        prints.append(open_dataset(str(tmp_path / "out")).manifest.fingerprint)
    assert prints[0] != prints[1]


def test_files_of_no_split_and_of_two_are_refused(run, tmp_path):
    code, err = run(tmp_path / "in", tmp_path / "out", "--split", "test=new/*", "--split", "train=old/0.csv")
    assert code == 2
    assert "3 files of 6 belong to no split: old/1.csv, old/2.csv, old/3.csv" in err
    code, err = run(tmp_path / "in", tmp_path / "out", "--split", "test=new/*", "--split", "train=*.csv")
    assert code == 2
    assert "new/4.csv belongs to the splits test and train" in err
    code, err = run(tmp_path / "in", tmp_path / "out", "--split", "test=nothing/*", "--split", "train")
    assert code == 2
    assert "names no file of the inputs" in err


@pytest.mark.parametrize(("text", "fraction"), [("train=0.8", 0.8), ("train=80%", 0.8), ("train=1", 1.0)])
def test_shares(text, fraction):
    assert PARSE(text).fraction == pytest.approx(fraction)


@pytest.mark.parametrize(
    "text", ["80/20", "train=80/20", "train=80", "train=0,8", "0.8", "train=", "train=nan", "train=80%,test=20%"]
)
def test_other_shares_are_answered_with_the_form(text):
    with pytest.raises(UsageError) as caught:
        PARSE(text)
    assert "--split train=0." in str(caught.value)


def test_files_that_are_appended_go_by_the_globs_of_the_dataset(run, tmp_path):
    assert run(tmp_path / "in", tmp_path / "out", "--split", "test=new/*", "--split", "train")[0] == 0
    (tmp_path / "in" / "old" / "9.csv").write_text("n,word\n99,c\n")
    code, err = run(tmp_path / "in", tmp_path / "out", "--append")
    assert code == 0, err
    assert found(tmp_path / "out") == {"test": [4, 5, 14, 15], "train": [0, 1, 2, 3, 10, 11, 12, 13, 99]}
