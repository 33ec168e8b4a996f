"""Images and sound that do not decode: rejected by `convert --check-media`, named by `verify --decode`."""

import json

import numpy as np
import pytest
from PIL import Image

from shardkit.dataset.open import open_dataset
from tests.support.in_process import read_rows

soundfile = pytest.importorskip("soundfile")
pytestmark = pytest.mark.full


@pytest.fixture
def images(tmp_path):
    """Six pictures, of which 4.png is whole by its structure and damaged in its pixels."""
    folder = tmp_path / "in"
    folder.mkdir()
    for index in range(6):
        noise = np.random.default_rng(index).integers(0, 255, (30, 30, 3), np.uint8)
        Image.fromarray(noise).save(folder / f"{index}.png")
    content = bytearray((folder / "4.png").read_bytes())
    content[len(content) // 2] ^= 0xFF
    (folder / "4.png").write_bytes(content)
    return folder


def names(location):
    return sorted(row["filename"] for row in read_rows(open_dataset(str(location)), "train"))


def test_convert_rejects_what_does_not_decode(run, images, tmp_path):
    code, _, err = run("convert", images, tmp_path / "out", "--check-media")
    assert code == 3
    assert "the image does not decode in 4.png" in err
    whole = [f"{i}.png" for i in range(6) if i != 4]
    for way in ("skip", "quarantine"):
        code, _, err = run("convert", images, tmp_path / way, "--check-media", "--on-bad-record", way)
        assert code == 0, err
        assert names(tmp_path / way) == whole
        assert run("verify", tmp_path / way, "--decode")[0] == 0
    code, out, _ = run("inspect", tmp_path / "quarantine", "--json")
    (rejected,) = json.loads(out)["accounting"]["rejected_files"]
    assert rejected["num_rows"] == 1


def test_verify_names_shard_and_record_of_what_does_not_decode(run, images, tmp_path):
    assert run("convert", images, tmp_path / "out")[0] == 0
    assert run("verify", tmp_path / "out")[0] == 0
    code, out, _ = run("verify", tmp_path / "out", "--decode")
    assert code == 1
    position = [r["filename"] for r in read_rows(open_dataset(str(tmp_path / "out")), "train")].index("4.png")
    first, *rest = out.splitlines()
    assert first.startswith("damage: data/")
    assert f"record {position}: image does not decode: " in first
    assert "damaged: 1 damage; 0 of 1 shard are whole" in rest[0]
    assert any("--check-media" in line for line in rest)
    assert not any("--overwrite" in line for line in rest)
    document = json.loads(run("verify", tmp_path / "out", "--decode", "--json")[1])
    assert (document["num_damages"], document["num_undecodable"]) == (1, 1)


def test_sounds_are_decoded_too(run, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 20_000)
    for name in ("a", "b"):
        soundfile.write(folder / f"{name}.flac", noise, 8000)
    content = bytearray((folder / "b.flac").read_bytes())
    content[len(content) // 2 : len(content) // 2 + 2000] = bytes(2000)
    (folder / "b.flac").write_bytes(content)
    assert run("convert", folder, tmp_path / "out")[0] == 0
    code, out, _ = run("verify", tmp_path / "out", "--decode")
    assert code == 1
    assert "audio does not decode" in out
    code, _, err = run("convert", folder, tmp_path / "checked", "--check-media", "--on-bad-record", "skip")
    assert code == 0, err
    assert names(tmp_path / "checked") == ["a.flac"]


def test_tables_have_nothing_to_decode(run, tmp_path):
    (tmp_path / "a.csv").write_text("id,word\n1,a\n2,b\n")
    code, _, err = run("convert", tmp_path / "a.csv", tmp_path / "out", "--check-media")
    assert code == 2
    assert "--check-media is for images, audio files and videos" in err
    assert run("convert", tmp_path / "a.csv", tmp_path / "out")[0] == 0
    code, _, err = run("verify", tmp_path / "out", "--decode")
    assert code == 2
    assert "--decode is for images, audio files and videos" in err
