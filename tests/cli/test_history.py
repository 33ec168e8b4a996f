"""`shardkit inspect --history` tells of every version, of damaged ones too."""

import json

import pytest

from tests.support.commands import shardkit

pytestmark = pytest.mark.full


@pytest.fixture
def dataset(tmp_path):
    """Returns a dataset of three versions, the last one a repetition of the second."""
    for number, rows in ((1, 10), (2, 30)):
        (tmp_path / f"{number}.csv").write_text("x\n" + "".join(f"{i}\n" for i in range(rows)))
    shardkit("convert", tmp_path / "1.csv", tmp_path / "out")
    shardkit("convert", tmp_path / "2.csv", tmp_path / "out", "--overwrite")
    shardkit("convert", tmp_path / "2.csv", tmp_path / "out", "--overwrite")
    return tmp_path / "out"


def test_all_versions_are_listed(dataset):
    shown = shardkit("inspect", dataset, "--history").stdout.splitlines()
    assert [line.split()[0] for line in shown if line] == ["version", "1", "2", "3"]
    assert shown[-2].endswith("2.csv")
    assert shown[-1].endswith("the same as version 2")
    found = json.loads(shardkit("inspect", dataset, "--history", "--json").stdout)
    assert [(v["version"], v["num_examples"]) for v in found] == [(1, 10), (2, 30), (3, 30)]
    assert found[1]["fingerprint"] == found[2]["fingerprint"] != found[0]["fingerprint"]
    assert found[0]["inputs"][0].endswith("1.csv")


def test_a_damaged_version_hides_no_other(dataset):
    path = dataset / "manifests" / "00000002.json"
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-20])
    found = json.loads(shardkit("inspect", dataset, "--history", "--json").stdout)
    assert [v["damage"] is None for v in found] == [True, False, True]
    assert "cannot be read" in shardkit("inspect", dataset, "--history").stdout


def test_no_dataset_has_no_history(tmp_path):
    assert "there is no dataset" in shardkit("inspect", tmp_path / "gone", "--history", code=2).stderr
