"""The commands, from raw files in a store to a model: what lies in the store then is what a local run writes."""

from pathlib import Path

import numpy as np
import pytest

import shardkit
from shardkit.storage import files as storage
from tests.support.campaign import in_campaign
from tests.support.commands import run_shardkit

pytestmark = pytest.mark.full

NUM_ROWS = 3000


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A table of two files whose label can be learned."""
    folder = tmp_path_factory.mktemp("raw")
    draw = np.random.default_rng(0)
    for part in range(2):
        x, y = draw.normal(size=(2, NUM_ROWS // 2))
        lines = [f"{a:.6f},{b:.6f},{'yes' if a > b else 'no'}" for a, b in zip(x, y, strict=True)]
        (folder / f"part-{part}.csv").write_text("\n".join(["x,y,label", *lines]) + "\n")
    return folder


def objects_below(url):
    """Returns what lies below a place, by relative path."""
    found = storage.expand_input(url).files
    root = storage.normalize(url)
    return {file.path[len(root) + 1 :]: storage.read_bytes(file.path) for file in found}


def shards_of(objects):
    return {name: content for name, content in objects.items() if name.startswith("data/")}


@pytest.mark.parametrize(
    "server", ["moto", "hdfs", "hub", *in_campaign("fake-gcs", "azurite", "seaweedfs")], indirect=True
)
@pytest.mark.slow
def test_from_raw_files_in_a_store_to_predictions(server, table, tmp_path):
    base = f"{server.url}/{tmp_path.name}"
    for path in table.iterdir():
        storage.put_file(path, f"{base}/raw/{path.name}")
    options = ["--split", "train=0.8", "--split", "test=0.2", "--shard-size", "16KiB", "--seed", "3"]
    said = []

    def succeed(*args):
        done = run_shardkit(*args)
        said.append(done.stdout + done.stderr)
        assert done.returncode == 0, said[-1]
        return said[-1]

    url = f"{base}/set"
    succeed("convert", f"{base}/raw", url, *options)
    succeed("convert", table, tmp_path / "set", *options)
    remote, local = objects_below(url), objects_below(str(tmp_path / "set"))
    # The names of shard tables differ between attempts at a commit.
    assert {name for name in remote if ".shards." not in name} == {name for name in local if ".shards." not in name}
    assert len(remote) == len(local)
    assert shards_of(remote) == shards_of(local)
    assert f"{NUM_ROWS:,} examples" in succeed("verify", url)
    assert "label" in succeed("inspect", url)
    found = [batch["x"].tolist() for batch in shardkit.open(url)["train"].batches(global_batch_size=64)]
    assert found == [
        batch["x"].tolist() for batch in shardkit.open(str(tmp_path / "set"))["train"].batches(global_batch_size=64)
    ]
    refused = run_shardkit("convert", f"{base}/raw", url, *options, "--overwrite", "--shard-size", "4XB")
    assert refused.returncode == 2
    assert run_shardkit("convert", f"{base}/raw", url, *options).returncode == 4
    succeed("convert", f"{base}/raw", url, "--overwrite", "--shard-size", "32KiB")
    assert "version 2" in succeed("inspect", url)
    succeed("train", url, "--label", "label", "--epochs", "2", "--output", tmp_path / "run")
    evaluated = succeed("evaluate", url, "--checkpoint", tmp_path / "run", "--split", "train")
    accuracy = next(line for line in evaluated.splitlines() if line.startswith("accuracy"))
    assert float(accuracy.split()[1]) > 0.9
    kept = [Path(p) for p in tmp_path.rglob("*") if p.is_file() and "workers" not in p.parts]
    for secret in server.secrets:
        assert not any(secret in text for text in said)
        assert not any(secret.encode() in content for content in objects_below(base).values())
        assert not any(secret.encode() in path.read_bytes() for path in kept)
