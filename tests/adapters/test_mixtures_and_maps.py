"""Mixtures and functions on batches pass through the adapters of all frameworks as splits do."""

import importlib
import json
import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

import shardkit
from shardkit.errors import UsageError
from shardkit.features import arrow_schema, make_feature
from shardkit.reading.splits import Splits
from shardkit.testing import write_dataset
from tests.support.paths import ROOT

pytestmark = pytest.mark.full

MAPPED = ROOT / "tests/support/adapters/mapped.py"


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    features = (make_feature("id", "int64"),)
    batch = pa.record_batch([pa.array(range(1000, 1060))], arrow_schema(features))
    folder = tmp_path_factory.mktemp("other") / "set"
    return Splits(write_dataset(folder, features, {"train": batch}, num_shards=1, block_examples=5))


@pytest.fixture(scope="module")
def mixture(splits, other):
    return shardkit.mix({splits["train"]: 3, other["train"]: 1})


@pytest.fixture(scope="module")
def mapped():
    pytest.importorskip("torch")
    # Under the name by which a process that is started anew can import it.
    sys.path.insert(0, str(MAPPED.parent))
    yield importlib.import_module("mapped")
    sys.path.remove(str(MAPPED.parent))


def fill_black(batch):
    return {"pixels": np.repeat(batch["id"].astype(np.uint8)[:, None], 3, axis=1), "words": batch["word"]}


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_functions_run_in_the_workers_of_a_data_loader(splits, mapped, monkeypatch, how):
    from torch.utils.data import DataLoader

    from shardkit.adapters.torch import BatchDataset

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    source = splits["train"].filter(mapped.is_odd).map(mapped.double)
    dataset = BatchDataset(source, global_batch_size=20, seed=1)
    alone = {i: noise for b in dataset for i, noise in zip(b["id"].tolist(), b["noise"].tolist(), strict=True)}
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=how)
    found = list(loader)
    assert len(found) == len(loader) == 25
    ids = [i for batch in found for i in batch["id"].tolist()]
    assert sorted(ids) == sorted(alone) == list(range(1, 500, 2))
    assert {i: n for b in found for i, n in zip(b["id"].tolist(), b["noise"].tolist(), strict=True)} == alone
    assert all((batch["twice"] == 2 * batch["id"]).all() for batch in found)


def run_ranks(splits, other, tmp_path, num_loader_workers, num_steps):
    urls = f"{splits.dataset.url},{other.dataset.url}"
    command = [sys.executable, str(MAPPED), urls, str(tmp_path / "store")]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), "2", str(num_loader_workers), str(num_steps)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    return [json.loads(out) for out, _ in outputs]


@pytest.mark.slow
@pytest.mark.parametrize("num_loader_workers", [0, 2])
def test_two_ranks_times_loader_workers_read_a_mixture(splits, other, tmp_path, num_loader_workers):
    pytest.importorskip("torch")
    found = run_ranks(splits, other, tmp_path, num_loader_workers, 60)
    assert [len(rank) for rank in found] == [60, 60]
    ids = [i for rank in found for batch, _ in rank for i in batch]
    sources = [source for rank in found for _, batch in rank for source in batch]
    assert [int(i >= 1000) for i in ids] == sources
    assert abs(sum(sources) - 0.25 * 60 * 24) <= 1 + max(1, num_loader_workers)
    for examples in (range(500), range(1000, 1060)):
        counts = Counter(i for i in ids if i in examples)
        assert len(counts) == len(examples)
        assert max(counts.values()) - min(counts.values()) <= 3


def test_a_stateful_loader_goes_on_within_a_mixture(mixture):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    from shardkit.adapters.torch import BatchDataset

    def loader():
        dataset = BatchDataset(mixture, global_batch_size=20, seed=7, num_steps=30, features=["id"])
        return stateful.StatefulDataLoader(dataset, batch_size=None, num_workers=2)

    whole = [batch["id"].tolist() for batch in loader()]
    running = loader()
    iterator = iter(running)
    first = [next(iterator)["id"].tolist() for _ in range(9)]
    state = running.state_dict()
    del iterator
    again = loader()
    again.load_state_dict(state)
    assert first + [batch["id"].tolist() for batch in again] == whole


def test_tensorflow_reads_mixtures_and_what_functions_make(splits, mixture):
    tf = pytest.importorskip("tensorflow")
    from shardkit.adapters.tensorflow import batches, dataset

    settings = {"global_batch_size": 24, "seed": 2}
    of_mixture = {**settings, "num_steps": 10, "features": ["id"], "source_feature": "source"}
    expected = [(b["id"].tolist(), b["source"].tolist()) for b in mixture.batches(**of_mixture)]
    run = batches(mixture, **of_mixture)
    assert [(b["id"].numpy().tolist(), b["source"].numpy().tolist()) for b in run] == expected
    made = dataset(mixture, **of_mixture)
    assert made.element_spec == {"id": tf.TensorSpec([24], tf.int64), "source": tf.TensorSpec([24], tf.int32)}
    assert made.cardinality() == 10
    assert [b["id"].numpy().tolist() for b in made] == [ids for ids, _ in expected]
    source = splits["train"].map(fill_black).filter(lambda batch: batch["pixels"][:, 0] % 2 == 0)
    made = dataset(source, **settings)
    assert made.element_spec["pixels"] == tf.TensorSpec([None, 3], tf.uint8)
    assert made.element_spec["words"] == tf.TensorSpec([None], tf.string)
    plain = splits["train"].batches(**settings, decodes_text=False)
    for tensors, batch in zip(made, plain, strict=True):
        even = batch["id"].astype(np.uint8) % 2 == 0
        assert tensors["pixels"].numpy()[:, 0].tolist() == batch["id"].astype(np.uint8)[even].tolist()
        assert tensors["words"].numpy().tolist() == batch["word"][even].tolist()
    padded = dataset(splits["train"].map(fill_black), **settings, remainder="pad")
    assert sum(int(b["mask"].numpy().sum()) for b in padded) == 500
    with pytest.raises(UsageError, match="no batch of split 'train' is full"):
        dataset(source, global_batch_size=501)


def test_jax_reads_mixtures_and_what_functions_make(splits, mixture):
    jax = pytest.importorskip("jax")
    from shardkit.adapters.jax import batches

    sharding = jax.NamedSharding(jax.make_mesh((1,), ("data",)), jax.P("data"))
    settings = {"global_batch_size": 24, "num_steps": 5, "features": ["id"], "source_feature": "source"}
    expected = [(b["id"].tolist(), b["source"].tolist()) for b in mixture.batches(**settings)]
    run = batches(mixture, sharding=sharding, **settings)
    assert [(b["id"].tolist(), b["source"].tolist()) for b in run] == expected
    train = splits["train"]
    pixels = train.map(lambda batch: {"pixels": fill_black(batch)["pixels"]})
    plain = train.batches(global_batch_size=24)
    for arrays, batch in zip(batches(pixels, global_batch_size=24, sharding=sharding), plain, strict=True):
        assert arrays["pixels"].shape == (24, 3)
        assert arrays["pixels"][:, 0].tolist() == batch["id"].astype(np.uint8).tolist()
    with pytest.raises(UsageError, match="a filter makes batches of several sizes"):
        batches(train.filter(lambda batch: batch["id"] > 3), global_batch_size=24, sharding=sharding)
    with pytest.raises(UsageError, match=r"column 'words' cannot lie on a device.*object \[24\]"):
        list(batches(train.map(fill_black), global_batch_size=24, sharding=sharding))
    with pytest.raises(UsageError, match=r"expected numbers \[24, ...\], got int64 \[12\]"):
        list(batches(train.map(lambda b: {"id": b["id"][:12]}), global_batch_size=24, sharding=sharding))
