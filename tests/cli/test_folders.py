"""Folders as people have them: the obvious command gives all their rows with split and label, or names the option."""

import shutil

import pytest

from shardkit.cli import main
from tests.support.folders import CASES
from tests.support.folders.parts import compare

pytestmark = pytest.mark.full


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_folder(case, tmp_path, capsys):
    source, target = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    expected = case.make(source)
    inputs = list(source.iterdir())
    given = inputs[0] if len(inputs) == 1 and inputs[0].is_file() else source
    options = [option.replace("{folder}", str(source)) for option in case.options]
    code = main(["convert", str(given), str(target), "--workers", "1", *options])
    text = " ".join(capsys.readouterr().err.split())
    assert "Traceback" not in text
    if case.refusal:
        assert code in (2, 3)
        assert [word for word in case.refusal if word not in text] == [], text
        return
    assert code == 0, text
    # The output names the layout of what lies beside other files.
    assert case.name not in ("Pascal VOC", "COCO", "YOLO", "Common Voice", "LibriSpeech") or "layout: " in text
    num_right, num_stored, _ = compare(case, expected, target)
    assert (num_right, num_stored) == (len(expected), len(expected))


PACKED = ("ImageFolder, train and test", "Hugging Face, metadata.csv", "Pascal VOC", "COCO", "YOLO", "LibriSpeech")


@pytest.mark.parametrize("suffix", ["zip", "tar", "gztar"])
@pytest.mark.parametrize("case", [case for case in CASES if case.name in PACKED], ids=lambda case: case.name)
def test_an_archive_gives_the_rows_of_its_folder(case, suffix, tmp_path, capsys):
    (tmp_path / "in").mkdir()
    expected = case.make(tmp_path / "in")
    archive = shutil.make_archive(str(tmp_path / "packed"), suffix, tmp_path / "in")
    code = main(["convert", archive, str(tmp_path / "out"), "--workers", "1"])
    assert code == 0, capsys.readouterr().err
    assert compare(case, expected, tmp_path / "out")[:2] == (len(expected), len(expected))
