"""Which level of folders may be the classes of files."""

import pytest

from shardkit.errors import UsageError
from shardkit.sources.base import RawFile
from shardkit.sources.folders.class_levels import Placed, check_levels, may_be_classes


def check(*names, level=0):
    files = [RawFile(path=f"/in/{name}", name=name, num_bytes=9, version="") for name in names]
    check_levels([Placed(file, [p for p in file.name.split("/")[:-1] if p != "train"]) for file in files], level)


@pytest.mark.parametrize(
    ("below", "may_be"),
    [
        ({"id1": {"1zc", "7gW"}, "id2": {"9Kx"}}, True),
        ({"Archery": {"v_Archery_g01", "v_Archery_g02"}, "Biking": {"v_Biking_g01"}}, True),
        ({"open": {"session1", "session2"}, "closed": {"session1", "session2"}}, True),
        ({"wren": {"full", "cut"}, "finch": {"full", "cut"}}, True),
        ({"wren": {"1", "2"}, "finch": {"1"}}, True),
        ({"wren": {"2022", "2023"}, "finch": {"2022"}}, True),
        ({"01": {"0", "1"}, "02": {"0", "1"}}, True),
        # A class below each, the letters of Places, parts, and dates above and below.
        ({"lfw": {"a"}, "lfw2": {"b"}}, False),
        ({"a": {"airfield", "arch"}, "b": {"bar"}}, False),
        ({"fold1": {"cat", "dog"}, "fold2": {"ox"}}, False),
        ({"2022": {"cat", "dog"}, "2023": {"cat"}}, False),
        ({"2022": {"2022-01", "2022-02"}, "2023": {"2023-01"}}, False),
        ({"seg_train": {"ice", "sea"}, "seg_test": {"sea"}}, False),
        ({"x": {"a", "b"}}, False),
    ],
)
def test_which_outer_folders_may_be_classes(below, may_be):
    assert may_be_classes(below) is may_be


def test_the_option_for_each_level_is_named():
    with pytest.raises(UsageError, match="folders of two levels may be the classes") as caught:
        check("train/a b/c/1.wav", "train/a b/d/1.wav", "train/e/f/1.wav", level=1)
    assert "--class-folder 1 for a b, --class-folder 2 for c and the like" in caught.value.next_step


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ([f"fold{i}/{i}.wav" for i in (1, 2)], "parts of the data"),
        ([f"images_part_{i}/{i}.jpg" for i in (1, 2)], "parts of the data"),
        ([f"{i // 2:03}/{i:06}.mp3" for i in range(6)], "go on from folder to folder"),
        (["2023-05-01/1.jpg", "2023-05-02 Garden/2.jpg"], "called after dates"),
        (["01.05.2023/1.jpg", "02.05.2023/2.jpg"], "called after dates"),
        (["January/1.jpg", "Feb 2023/2.jpg", "März/3.jpg"], "called after dates"),
        (["Photos from 2021/1.jpg", "Photos from 2022/2.jpg"], "called after dates"),
        (["100APPLE/IMG_1.jpg", "101APPLE/IMG_2.jpg", "100_PANA/P1.jpg"], "cameras"),
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
        ["May day/1.jpg", "marble/2.jpg"],
        ["2019 trip/1.jpg", "2020 trip/2.jpg"],
        ["202301/1.jpg", "202399/0.jpg"],
        ["100/1.jpg", "101/0.jpg"],
        ["cat/1.jpg", "2.jpg"],
    ],
)
def test_folders_that_may_be_classes(names):
    check(*names)
