"""Which level of folders may be the classes of files."""

import re
import subprocess

import pytest

from shardkit.errors import UsageError
from shardkit.sources.base import RawFile
from shardkit.sources.folders.class_levels import Placed, check_levels, may_be_classes


def check(*names, level=0, root="/in/"):
    files = [RawFile(path=f"{root}{name}", name=name, num_bytes=9, version="") for name in names]
    check_levels([Placed(file, [p for p in file.name.split("/")[:-1] if p != "train"]) for file in files], level)


@pytest.mark.parametrize(
    ("below", "may_be"),
    [
        ({"id1": {"1zc", "7gW"}, "id2": {"9Kx"}}, True),
        ({"Archery": {"v_Archery_g01", "v_Archery_g02"}, "Biking": {"v_Biking_g01"}}, True),
        ({"open": {"session1", "session2"}, "closed": {"session1", "session2"}}, True),
        # A class below each, the letters of Places, parts, and classes of several places.
        ({"lfw": {"a"}, "lfw2": {"b"}}, False),
        ({"a": {"airfield", "arch"}, "b": {"bar"}}, False),
        ({"fold1": {"cat", "dog"}, "fold2": {"ox"}}, False),
        ({"amazon": {"bike", "mug"}, "dslr": {"bike", "mug"}}, False),
        ({"x": {"0", "1"}, "y": {"0", "1"}}, False),
        ({"x": {"a", "b"}}, False),
    ],
)
def test_which_outer_folders_may_be_classes(below, may_be):
    assert may_be_classes(below) is may_be


@pytest.mark.full
def test_both_commands_are_named_and_give_the_folders(tmp_path):
    names = [
        f"train/{outer}/{inner}/{i}.wav" for outer, inner in (("a b", "c"), ("a b", "d"), ("e", "f")) for i in "12"
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UsageError, match="folders of two levels may be the classes") as caught:
        check(*names, level=1, root=f"{tmp_path}/")
    commands = re.findall(r"run  (.*?) >labels.tsv", str(caught.value.next_step))
    tables = [subprocess.run(["sh", "-c", c], capture_output=True, text=True, check=True).stdout for c in commands]
    rows = [dict(line.split("\t") for line in table.splitlines()) for table in tables]
    assert [found["file"] for found in rows] == ["label", "label"]
    assert [found["train/a b/d/1.wav"] for found in rows] == ["a b", "d"]


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ([f"fold{i}/{i}.wav" for i in (1, 2)], "parts of the data"),
        ([f"images_part_{i}/{i}.jpg" for i in (1, 2)], "parts of the data"),
        ([f"{i // 2:03}/{i:06}.mp3" for i in range(6)], "go on from folder to folder"),
        ([f"{song}/{part}.wav" for song in "klmno" for part in ("mixture", "bass", "drums")], "'*/bass.wav'"),
    ],
)
def test_folders_that_are_hardly_classes(names, why):
    with pytest.raises(UsageError, match="are hardly classes") as caught:
        check(*names)
    assert why in f"{caught.value.why} {caught.value.next_step}"
    assert "--no-labels" in str(caught.value.next_step)


@pytest.mark.parametrize(
    "names",
    [
        [f"{i % 2}/{i}.png" for i in range(9)],
        [f"{i // 3:05}/{i % 3:05}_0.ppm" for i in range(9)],
        [f"s{i}/{j}.pgm" for i in range(6) for j in range(4)],
        [f"Actor_{i:02}/03-01-{i}.wav" for i in range(3)],
        [f"{word}/{speaker}_nohash_0.wav" for word in ("yes", "no", "up", "on", "off") for speaker in ("0a17", "bb22")],
        ["cat/1.jpg", "2.jpg"],
    ],
)
def test_folders_that_may_be_classes(names):
    check(*names)
