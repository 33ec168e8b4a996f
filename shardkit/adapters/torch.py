"""PyTorch: an iterable dataset of ready batches, and a map-style dataset, for any number of processes.

    loader = DataLoader(BatchDataset(train, global_batch_size=1024, seed=1), batch_size=None, num_workers=4)

Ranks (of `torch.distributed`, or of RANK and WORLD_SIZE as torchrun sets them) and the workers of a `DataLoader` share
an epoch: each worker process reads other lanes, so no block is inflated by two of them, and every example comes
once. All ranks have the same number of batches.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from shardkit.errors import UsageError
from shardkit.reading.batch import Batch, Ragged
from shardkit.reading.hooks import BatchSource
from shardkit.reading.reader import BatchReader
from shardkit.reading.split import Split

Value = Any

_FIRST_EPOCH = "first_epoch"


class RaggedTensors(NamedTuple):
    """Lists of any length, row after row.

    Attributes:
        row_splits: int32 `[n + 1]`: row i is `values[row_splits[i] : row_splits[i + 1]]`.
    """

    values: torch.Tensor | list[Any]
    row_splits: torch.Tensor


class BatchDataset(IterableDataset[dict[str, Value]]):
    """Batches of one epoch after the other, as a dict of tensors by feature name.

    Numbers and bools are tensors that share the memory of the NumPy columns; times are int64 counts of their unit since
    the epoch or of their duration; text, bytes and decimals are lists of `str`, `bytes` and `Decimal`; lists of any
    length are `RaggedTensors`. Where a feature is nullable, `NAME/present` is a bool tensor, and a null itself is 0,
    NaN, empty or, of times, -2**63; where the last batch is filled up, `mask` is a bool tensor.

    With k workers of a `DataLoader`, batch i of a rank comes from worker i % k, which alone reads its lanes: the order
    depends on k, the number of batches does not.

    It has `state_dict` and `load_state_dict` as torchdata's `StatefulDataLoader` uses them.

    Functions on batches, as in `BatchDataset(train.map(function).filter(other), ...)`, run in the processes that make
    the batches. Where a `DataLoader` starts those anew (`spawn`), they are functions of a module.

    Args:
        split: What is read: a split, a mixture, or one of them with functions on its batches.
        global_batch_size: Examples that all ranks together take a step; None if `buckets` say how many.
        rank: Of this process; None asks `torch.distributed`, then the environment.
        world_size: How many ranks there are; None likewise.
        epoch: The first one. `set_epoch` changes it.
        pin_memory: Whether tensors are copied into page-locked memory, for `tensor.to(device, non_blocking=True)`, in a
            loop over the dataset itself. Without a CUDA device it warns and does nothing, as a `DataLoader` does. With
            workers of a `DataLoader`, pinning is for that: `DataLoader(..., pin_memory=True)`.
        **settings: Others of `Split.batches`, such as `seed`, `shuffle`, `remainder`, `buckets`, `features`.

    Raises:
        UsageError: If the numbers do not fit together; says what would fit.
    """

    def __init__(
        self,
        split: BatchSource,
        *,
        global_batch_size: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        epoch: int = 0,
        pin_memory: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__()
        self._split = split
        self._global_batch_size = global_batch_size
        self._rank, self._world_size = place_of_process(rank, world_size)
        # Shared, so that workers which outlive an epoch (`persistent_workers`) see what `set_epoch` names.
        self._epoch = torch.tensor(epoch).share_memory_()
        self._pin_memory = pin_memory
        self._settings = settings
        self._reader: BatchReader | None = None
        self._state: dict[str, Any] | None = None
        self._first_epoch = epoch
        self._open(0, 1, epoch)

    def __iter__(self) -> Iterator[dict[str, Value]]:
        # At once, not in a generator: StatefulDataLoader asks for the state before it asks for a batch.
        info = get_worker_info()
        pins = self._pin_memory and _can_pin(is_loader_worker=info is not None)
        state = self._state
        self._first_epoch = int(self._epoch) if state is None else self._epoch_of(state)
        worker_id, num_workers = (0, 1) if info is None else (info.id, info.num_workers)
        reader = self._reader = self._open(worker_id, num_workers, self._first_epoch)
        if state is not None:
            reader.restore({name: value for name, value in state.items() if name != _FIRST_EPOCH})
            self._state = None
        if not pins:
            return map(to_tensors, reader)
        return ({name: _pinned(value) for name, value in to_tensors(batch).items()} for batch in reader)

    def __len__(self) -> int:
        return self._open(0, 1, int(self._epoch)).num_steps

    def set_epoch(self, epoch: int) -> None:
        """Names the epoch that the next iterator reads; one that goes on from a state reads that of the state."""
        self._epoch.fill_(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Returns where the iterator of this process is; with workers of a `DataLoader` that is none of theirs."""
        if self._state is not None:
            return self._state
        if self._reader is not None:
            return {**self._reader.state(), _FIRST_EPOCH: self._first_epoch}
        epoch = int(self._epoch)
        return {**self._open(0, 1, epoch).state(), _FIRST_EPOCH: epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next iterator go on where another one stood, of as many `DataLoader` workers, in the same epoch.

        If that one had finished its epoch, there is nothing left of it, unless `set_epoch` names the following one.
        """
        self._state = state

    def __getstate__(self) -> dict[str, Any]:
        # A process that is started anew opens its own.
        return {**vars(self), "_reader": None}

    def _epoch_of(self, state: dict[str, Any]) -> int:
        """Returns the first epoch of the iterator that goes on from a state."""
        named, then = int(self._epoch), state.get("epoch", 0)
        # A state at the end of an epoch and one at the start of the next epoch are equal.
        first: int = named if then == named else state.get(_FIRST_EPOCH, then)
        return first

    def _open(self, worker_id: int, num_workers: int, epoch: int) -> BatchReader:
        reader: BatchReader = self._split.batches(
            global_batch_size=self._global_batch_size,
            worker_index=self._rank,
            num_workers=self._world_size,
            turn=worker_id,
            num_turns=num_workers,
            epoch=epoch,
            **self._settings,
        )
        return reader


class ExampleDataset(Dataset[dict[str, Value]]):
    """The examples of a split by position: for samplers of PyTorch. Whole batches of positions are read at once.

    Values are those of `BatchDataset`, without the first axis. Lists of any length differ in length from example to
    example, which the `DataLoader` stacks only with a `collate_fn` of one's own.
    """

    def __init__(self, split: Split) -> None:
        self._split = split

    def __len__(self) -> int:
        return len(self._split)

    def __getitem__(self, position: int) -> dict[str, Value]:
        return self.__getitems__([position])[0]

    def __getitems__(self, positions: Sequence[int]) -> list[dict[str, Value]]:
        """Returns several examples; each block is loaded once."""
        tensors = to_tensors(self._split.take(positions))
        return [{name: _row(value, i) for name, value in tensors.items()} for i in range(len(positions))]


def to_tensors(batch: Batch) -> dict[str, Value]:
    """Returns the columns of a batch; numbers are not copied."""
    tensors: dict[str, Value] = {name: _to_tensor(column) for name, column in batch.items()}
    for name, bools in batch.present.items():
        tensors[f"{name}/present"] = torch.from_numpy(bools)
    if batch.mask is not None:
        tensors["mask"] = torch.from_numpy(batch.mask)
    return tensors


def _to_tensor(column: Any) -> Value:
    if isinstance(column, Ragged):
        return RaggedTensors(_to_tensor(column.values), torch.from_numpy(column.row_splits))
    if column.dtype.kind in "OUS":
        return column.tolist()
    if column.dtype.kind in "mM":
        return torch.from_numpy(column.view(np.int64))
    return torch.from_numpy(column)


def _can_pin(*, is_loader_worker: bool) -> bool:
    # CUDA is asked here and not before: a process that has asked for devices cannot fork others that use them.
    if is_loader_worker:
        raise UsageError(
            "a worker of a DataLoader cannot pin memory",
            why="its tensors are copied to other memory on their way to another process",
            next_step="Give pin_memory=True to the DataLoader instead",
        )
    has_cuda = torch.cuda.is_available()
    if not has_cuda:
        warnings.warn("pin_memory=True does nothing: there is no CUDA device", stacklevel=3)
    return has_cuda


def _pinned(value: Value) -> Value:
    if isinstance(value, RaggedTensors):
        return RaggedTensors(_pinned(value.values), _pinned(value.row_splits))
    return value.pin_memory() if isinstance(value, torch.Tensor) else value


def _row(value: Value, index: int) -> Value:
    if isinstance(value, RaggedTensors):
        return value.values[int(value.row_splits[index]) : int(value.row_splits[index + 1])]
    return value[index]


def place_of_process(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """Returns the rank of this process and how many there are: as given, of `torch.distributed`, or of torchrun.

    Raises:
        UsageError: If only one is given.
    """
    if (rank is None) != (world_size is None):
        raise UsageError(
            "rank and world_size belong together",
            why=f"rank is {rank}, world_size {world_size}",
            next_step="Give both, or neither",
        )
    if rank is not None and world_size is not None:
        return rank, world_size
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
