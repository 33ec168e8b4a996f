"""PyTorch: every example once under DataLoader workers times ranks, exact resume, positions for samplers."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import BatchSampler, DataLoader, RandomSampler  # noqa: E402

from shardkit.adapters.torch import BatchDataset, ExampleDataset, RaggedTensors, to_tensors  # noqa: E402
from shardkit.errors import UsageError  # noqa: E402


def read_ids(loader):
    return [batch["id"].tolist() for batch in loader]


def loader_of(dataset, num_workers=0):
    return DataLoader(dataset, batch_size=None, num_workers=num_workers)


def run_ranks(splits, tmp_path, world_size, num_loader_workers, remainder):
    command = [
        sys.executable,
        str(Path(__file__).with_name("ddp_reader.py")),
        splits.dataset.url,
        str(tmp_path / "store"),
    ]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(world_size), str(num_loader_workers), remainder],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    outputs = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world_size, outputs
    return [json.loads(out) for out, _ in outputs]


@pytest.mark.slow
@pytest.mark.parametrize("num_loader_workers", [0, 2])
@pytest.mark.parametrize("remainder", ["drop", "pad"])
def test_two_ranks_times_loader_workers_read_every_example_once(splits, tmp_path, num_loader_workers, remainder):
    found = run_ranks(splits, tmp_path, 2, num_loader_workers, remainder)
    num_batches = len(splits["train"]) // 24 + (remainder == "pad")
    for rank in found:
        assert len(rank["mine"]) == rank["len"] == num_batches
        assert rank["all"] == [r["mine"] for r in found]
    seen = [number for rank in found for batch in rank["mine"] for number in batch]
    assert (
        len(seen) == len(set(seen)) == (len(splits["train"]) if remainder == "pad" else len(splits["train"]) // 24 * 24)
    )


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("shuffle", [True, False])
def test_loader_workers_change_no_number_of_batches_and_repeat_nothing(splits, num_workers, shuffle):
    dataset = BatchDataset(splits["train"], global_batch_size=16, shuffle=shuffle)
    loader = loader_of(dataset, num_workers)
    found = read_ids(loader)
    assert len(found) == len(loader) == len(splits["train"]) // 16
    seen = [number for batch in found for number in batch]
    assert len(set(seen)) == len(seen) == 16 * (len(splits["train"]) // 16)
    if not shuffle:
        assert seen == list(range(len(seen)))


def test_an_epoch_has_its_own_order_and_the_same_one_again(splits):
    dataset = BatchDataset(splits["train"], global_batch_size=50, seed=2)
    first = read_ids(loader_of(dataset))
    assert read_ids(loader_of(dataset)) == first
    dataset.set_epoch(1)
    assert read_ids(loader_of(dataset)) != first


def test_columns_become_tensors(splits):
    batch = next(iter(loader_of(BatchDataset(splits["train"], global_batch_size=8, shuffle=False))))
    assert batch["id"].dtype == torch.int64
    assert batch["point"].tolist() == [[i, -i] for i in range(8)]
    assert batch["at"].tolist() == [i * 10**6 for i in range(8)]
    assert batch["word"] == ["", "w1", "w2", "w3", "", "w5", "w6", "w7"]
    assert batch["word/present"].tolist() == [i % 4 != 0 for i in range(8)]
    assert isinstance(batch["tokens"], RaggedTensors)
    assert batch["tokens"].row_splits.tolist() == np.cumsum([0, *(i % 3 for i in range(8))]).tolist()


def test_numbers_are_not_copied(splits):
    batch = next(iter(splits["train"].batches(global_batch_size=8)))
    tensors = to_tensors(batch)
    for name in ("id", "point"):
        assert tensors[name].data_ptr() == batch[name].ctypes.data


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stateful_loader_goes_on_in_a_new_process(splits, num_workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader():
        dataset = BatchDataset(splits["train"], global_batch_size=20, seed=7)
        return stateful.StatefulDataLoader(dataset, batch_size=None, num_workers=num_workers)

    whole = read_ids(loader())
    running = loader()
    iterator = iter(running)
    first = [next(iterator)["id"].tolist() for _ in range(9)]
    state = running.state_dict()
    del iterator
    other = loader()
    other.load_state_dict(state)
    assert first + read_ids(other) == whole


def test_samplers_find_examples_by_position(splits):
    dataset = ExampleDataset(splits["train"])
    assert len(dataset) == len(splits["train"])
    assert dataset[17]["id"].item() == 17
    assert dataset[17]["tokens"].tolist() == [0, 1]
    sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(
        dataset, batch_sampler=BatchSampler(sampler, 50, drop_last=False), collate_fn=list, num_workers=2
    )
    seen = [example["id"].item() for batch in loader for example in batch]
    assert sorted(seen) == list(range(len(splits["train"])))
    assert seen != sorted(seen)


def test_half_a_place_is_refused(splits):
    with pytest.raises(UsageError, match="belong together"):
        BatchDataset(splits["train"], global_batch_size=8, rank=1)
    with pytest.raises(UsageError, match="no multiple of the 3 workers"):
        BatchDataset(splits["train"], global_batch_size=8, rank=1, world_size=3)
