"""`shardkit clean --drop-broken-version`: a version that cannot be read is given up, and nothing else."""

import json

import pytest

from shardkit.cleaning import inventory
from shardkit.cleaning.remove import Mark, remove_broken
from shardkit.cli import main
from shardkit.dataset.commit import is_mark
from shardkit.dataset.manifest import manifest_path
from shardkit.dataset.open import list_versions, open_dataset
from shardkit.errors import ConflictError
from shardkit.storage.files import delete_file
from tests.support.histories import FINGERPRINTS, Place


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path / "set")
    for fingerprint in FINGERPRINTS[:2]:
        place.write_shards(fingerprint)
        place.commit(fingerprint)
    return place


def run(capsys, *args):
    code = main([str(arg) for arg in args])
    return code, *capsys.readouterr()


def lose_table(place):
    (place.root / open_dataset(place.root, 2).manifest.shard_table.path).unlink()


def spoil_manifest(place):
    (place.root / "manifests/00000002.json").write_text("{")


@pytest.mark.parametrize("harm", [lose_table, spoil_manifest])
def test_the_version_before_is_the_newest_again(capsys, place, harm):
    harm(place)
    code, _, err = run(capsys, "clean", place.root, "--older-than", "0", "--delete")
    assert code == 7
    assert f"shardkit clean {place.root} --drop-broken-version --delete" in err
    code, out, _ = run(capsys, "clean", place.root, "--drop-broken-version")
    assert (code, list_versions(place.root)) == (0, [1, 2])
    assert out.startswith("version 2: ")
    before = place.left()
    code, out, _ = run(capsys, "clean", place.root, "--drop-broken-version", "--delete", "--json")
    assert (code, [found["version"] for found in json.loads(out)["broken"]]) == (0, [2])
    assert sorted(set(before) - set(place.left())) == ["manifests/00000002.json"]
    assert len(open_dataset(place.root).shards)
    assert "every version can be opened" in run(capsys, "clean", place.root, "--drop-broken-version")[1]


def test_a_path_without_a_dataset_is_no_sound_one(capsys, tmp_path):
    code, _, err = run(capsys, "clean", tmp_path / "nowhere", "--drop-broken-version", "--delete")
    assert code == 2
    assert "there is no dataset" in err


def test_no_version_that_was_made_meanwhile_is_dropped(place):
    """A version is made again by its number between the look of a dropping and its end: the conversion waits."""
    lose_table(place)
    beside = []

    def delete(path):
        # What a conversion that looks now would wait for.
        beside.extend(p.name for p in (place.root / "manifests").iterdir() if is_mark(p.name))
        delete_file(path)

    assert [found.version for found in remove_broken(str(place.root), delete=delete)] == [2]
    assert len(beside) == 1
    assert list(place.left()) == [path for path in place.left() if ".cleaning-" not in path]


@pytest.mark.parametrize("number", [1, 2])
def test_a_version_that_another_dropping_removes_meanwhile_is_not_broken(place, monkeypatch, number):
    find = inventory.find_versions

    def find_and_drop(root):
        found = find(root)
        (place.root / manifest_path(number)).unlink()
        return found

    monkeypatch.setattr(inventory, "find_versions", find_and_drop)
    assert remove_broken(str(place.root)) == []


def test_a_look_that_took_too_long_drops_nothing(place, monkeypatch):
    lose_table(place)
    monkeypatch.setattr(Mark, "is_old", True)
    with pytest.raises(ConflictError, match="took too long"):
        remove_broken(str(place.root))
    assert list_versions(place.root) == [1, 2]


def test_no_version_behind_a_link_is_dropped(capsys, place, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    for folder in ("manifests", "data"):
        (other / folder).symlink_to(place.root / folder)
    lose_table(place)
    before = place.left()
    code, _, err = run(capsys, "clean", other, "--drop-broken-version", "--delete")
    assert (code, place.left()) == (7, before)
    assert "manifests is a link" in err


@pytest.mark.parametrize("option", [(), ("--delete",)])
def test_a_folder_in_place_of_a_manifest_is_left_alone(capsys, place, option):
    (place.root / "manifests/00000003.json").mkdir()
    place.write("manifests/00000003.json/of-a-user")
    before = place.left()
    code, _, err = run(capsys, "clean", place.root, "--drop-broken-version", *option)
    assert (code, place.left()) == (7, before)
    assert "a folder is in place of a manifest in" in err
    assert "Move it away" in err
    code, _, err = run(capsys, "clean", place.root, *option)
    assert (code, place.left()) == (7, before)
    assert "the manifest cannot be read: it is a folder, not a file" in err
    assert run(capsys, "verify", place.root)[0] == 1


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_what_reads_a_broken_version_names_the_way_back(capsys, place, command):
    lose_table(place)
    code, out, err = run(capsys, command, place.root)
    assert code == 1
    assert f"shardkit clean {place.root} --drop-broken-version --delete" in out + err


@pytest.mark.parametrize("content", [b'{"format_version": 99}', None])
def test_a_manifest_that_is_not_broken_is_not_dropped(capsys, place, content):
    if content is None:
        place.write("manifests/x.json")
    else:
        place.write("manifests/00000003.json", content)
    before = place.left()
    code, _, err = run(capsys, "clean", place.root, "--delete")
    assert code == 7
    assert "--drop-broken-version" not in err
    assert run(capsys, "clean", place.root, "--drop-broken-version", "--delete")[0] in (2, 7)
    assert place.left() == before
