"""PyTorch: every example once under DataLoader workers times ranks, exact resume, positions for samplers."""

import json
import subprocess
import sys
from datetime import date, datetime
from decimal import Decimal
from itertools import chain

import numpy as np
import pyarrow as pa
import pytest

from tests.support.paths import ROOT

torch = pytest.importorskip("torch")
from torch.utils.data import BatchSampler, DataLoader, RandomSampler  # noqa: E402

from shardkit.adapters.torch import BatchDataset, ExampleDataset, RaggedTensors, to_tensors  # noqa: E402
from shardkit.conversion.memory.batches import batches_of  # noqa: E402
from shardkit.errors import UsageError  # noqa: E402
from shardkit.features import arrow_schema, make_feature  # noqa: E402
from shardkit.reading.splits import Splits  # noqa: E402
from shardkit.testing import write_dataset  # noqa: E402

pytestmark = pytest.mark.full


def read_ids(loader):
    return [batch["id"].tolist() for batch in loader]


def loader_of(dataset, num_workers=0):
    return DataLoader(dataset, batch_size=None, num_workers=num_workers)


def run_ranks(splits, tmp_path, world_size, num_loader_workers, remainder):
    command = [
        sys.executable,
        str(ROOT / "tests/support/adapters/ddp_reader.py"),
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


def test_what_is_no_number_has_its_form_too(tmp_path):
    rows = {
        make_feature("raw", "bytes", (2,)): [[b"a", b"b"], [b"", b"c"]],
        make_feature("price", "decimal(5,2)", nullable=True): [Decimal("1.50"), None],
        make_feature("day", "date"): [date(1970, 1, 3), date(1969, 12, 31)],
        make_feature("at", "timestamp[ms]", nullable=True): [None, datetime(1970, 1, 1, 0, 0, 1)],
        make_feature("share", "float64", nullable=True): [None, 0.5],
        make_feature("words", "string", (None,), nullable=True): [["x", "y"], None],
        make_feature("pixels", "uint8", (2, 1), nullable=True): [[0, 255], None],
        make_feature("steps", "int8", (None,)): [[-128], [127, -1]],
    }
    arrays = [pa.array(values, feature.arrow_type) for feature, values in rows.items()]
    table = pa.record_batch(arrays, arrow_schema(tuple(rows)))
    split = Splits(write_dataset(tmp_path / "set", tuple(rows), {"train": table}, num_shards=1))["train"]
    (batch,) = BatchDataset(split, global_batch_size=2, shuffle=False)
    assert batch["raw"] == [[b"a", b"b"], [b"", b"c"]]
    assert batch["price"] == [Decimal("1.50"), Decimal(0)]
    assert batch["day"].tolist() == [2, -1]
    assert batch["at"].tolist() == [-(2**63), 1000]
    assert (batch["pixels"].dtype, batch["pixels"].tolist()) == (torch.uint8, [[[0], [255]], [[0], [0]]])
    assert (batch["steps"].values.dtype, batch["steps"].values.tolist()) == (torch.int8, [-128, 127, -1])
    assert batch["share"].isnan().tolist() == [True, False]
    assert (batch["words"].values, batch["words"].row_splits.tolist()) == (["x", "y"], [0, 2, 2])
    for name in ("price", "words"):
        assert batch[f"{name}/present"].tolist() == [True, False]
    example = ExampleDataset(split)[0]
    assert (example["raw"], example["words"], example["day"].item()) == ([b"a", b"b"], ["x", "y"], 2)


def test_numbers_are_not_copied(splits):
    batch = next(iter(splits["train"].batches(global_batch_size=8)))
    tensors = to_tensors(batch)
    for name in ("id", "point"):
        assert tensors[name].data_ptr() == batch[name].ctypes.data


@pytest.mark.parametrize("num_passes", [0, 1])
@pytest.mark.parametrize("num_read", [0, 1, 9])
@pytest.mark.parametrize(("num_workers", "persists"), [(0, False), (2, False), (2, True)])
def test_a_stateful_loader_goes_on_in_a_new_process(splits, num_workers, persists, num_read, num_passes):
    """Also at a step that not every worker has reached, and in a later pass of workers that go on."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader():
        dataset = BatchDataset(splits["train"], global_batch_size=20, seed=7)
        return stateful.StatefulDataLoader(
            dataset, batch_size=None, num_workers=num_workers, persistent_workers=persists
        )

    whole = read_ids(loader())
    running = loader()
    for _ in range(num_passes):
        read_ids(running)
    iterator = iter(running)
    first = [next(iterator)["id"].tolist() for _ in range(num_read)]
    state = running.state_dict()
    del iterator
    other = loader()
    other.load_state_dict(state)
    assert first + read_ids(other) == whole


def test_a_state_is_gone_on_from_in_its_own_epoch(splits):
    def dataset(**settings):
        return BatchDataset(splits["train"], global_batch_size=20, seed=7, **settings)

    def rest_after(state, **settings):
        other = dataset(**settings)
        other.load_state_dict(state)
        return read_ids(other)

    reading = dataset()
    reading.set_epoch(3)
    whole = read_ids(reading)
    iterator = iter(reading)
    assert rest_after(reading.state_dict()) == whole
    for _ in range(2):
        next(iterator)
    state = reading.state_dict()
    assert rest_after(state) == rest_after(state, epoch=3) == rest_after(state, epoch=5) == whole[2:]
    for _ in iterator:
        pass
    finished = reading.state_dict()
    assert rest_after(finished) == rest_after(finished, epoch=3) == []
    assert rest_after(finished, epoch=4) == read_ids(dataset(epoch=4))


def test_a_state_that_was_loaded_is_the_state(splits):
    dataset = BatchDataset(splits["train"], global_batch_size=20)
    iterator = iter(dataset)
    next(iterator)
    state = dataset.state_dict()
    next(iterator)
    dataset.load_state_dict(state)
    assert dataset.state_dict() == state
    next(iter(dataset))
    assert dataset.state_dict() == {**state, "step": 2}


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_that_go_on_read_the_epoch_that_is_named(splits, context):
    dataset = BatchDataset(splits["train"], global_batch_size=20, seed=7)
    loader = DataLoader(
        dataset, batch_size=None, num_workers=2, persistent_workers=True, multiprocessing_context=context
    )
    epochs = []
    for epoch in (0, 1, 0):
        dataset.set_epoch(epoch)
        epochs.append(read_ids(loader))
    assert epochs[0] == epochs[2] != epochs[1]
    assert len({tuple(sorted(chain.from_iterable(epoch))) for epoch in epochs}) == 1


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


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA devices")
def test_pinning_without_a_device_warns_and_changes_nothing(splits):
    options = {"global_batch_size": 8, "shuffle": False}
    with pytest.warns(UserWarning, match="pin_memory=True does nothing"):
        found = read_ids(loader_of(BatchDataset(splits["train"], pin_memory=True, **options)))
    assert found == read_ids(loader_of(BatchDataset(splits["train"], **options)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_every_tensor_is_pinned(splits):
    options = {"global_batch_size": 8, "shuffle": False, "remainder": "pad"}
    plain = list(BatchDataset(splits["train"], **options))[-1]
    pinned = list(BatchDataset(splits["train"], pin_memory=True, **options))[-1]
    assert pinned.keys() == plain.keys() >= {"word/present", "mask"}
    assert (pinned["word"], type(pinned["tokens"])) == (plain["word"], RaggedTensors)
    tensors = [v for v in pinned.values() if isinstance(v, torch.Tensor)] + [*pinned["tokens"]]
    assert all(tensor.is_pinned() for tensor in tensors)
    assert torch.equal(pinned["id"].to("cuda", non_blocking=True).cpu(), plain["id"])


def test_loader_workers_leave_pinning_to_their_loader(splits):
    dataset = BatchDataset(splits["train"], global_batch_size=8, pin_memory=True)
    with pytest.raises(UsageError, match="Give pin_memory=True to the DataLoader"):
        next(iter(loader_of(dataset, num_workers=1)))


def test_half_a_place_is_refused(splits):
    with pytest.raises(UsageError, match="belong together"):
        BatchDataset(splits["train"], global_batch_size=8, rank=1)
    with pytest.raises(UsageError, match="no multiple of the 3 workers"):
        BatchDataset(splits["train"], global_batch_size=8, rank=1, world_size=3)


def test_a_loader_of_torch_gives_batches():
    rows = [{"x": float(i), "grid": np.full((2, 2), i)} for i in range(5)]
    loader = DataLoader(rows, batch_size=2)
    assert [row["x"] for row in in_rows(loader)] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert in_rows(loader)[3]["grid"] == [[3, 3], [3, 3]]
    batches = DataLoader(rows, batch_sampler=[[4, 0], [2]])
    assert [row["x"] for row in in_rows(batches)] == [4, 0, 2]
    assert [row["x"] for row in in_rows(DataLoader(rows, batch_size=None))] == [0, 1, 2, 3, 4]


def in_rows(data):
    return [row for batch in batches_of(data) for row in batch.to_pylist()]
