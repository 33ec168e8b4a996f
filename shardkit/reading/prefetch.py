"""Loading blocks before the steps that need them, in the order of need and within a limit of memory."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from shardkit.reading.order import Rows

B = TypeVar("B")


class Step(NamedTuple):
    """One batch of a run of epochs."""

    epoch: int
    step: int


class Planned(NamedTuple, Generic[B]):
    """What one step needs."""

    step: Step
    rows: list[Rows]
    blocks: list[B]


class BlockPrefetcher(Generic[B]):
    """Begins to load the blocks of steps to come, those of several steps at once, so that neighbours are seen.

    It holds the blocks that the steps need from the one that was asked for up to the last one planned. A block is held
    until the steps that need it are through with it.

    Args:
        steps: In the order in which they are asked for.
        begin: Begins to load blocks of an epoch, in the order of need.
        num_bytes_of: Says what a block of an epoch takes.
        max_steps: How far ahead is planned.
        max_bytes: No further step is planned while blocks of at least so many bytes wait for their first step. Where
            it is reached, a quarter of it must be free before more is begun.
    """

    def __init__(
        self,
        steps: Iterator[Step],
        rows_of: Callable[[Step], list[Rows]],
        begin: Callable[[int, list[Any]], list[B]],
        num_bytes_of: Callable[[int, Any], int],
        *,
        max_steps: int,
        max_bytes: int,
    ) -> None:
        self._steps = steps
        self._rows_of = rows_of
        self._begin = begin
        self._num_bytes_of = num_bytes_of
        self._max_steps = max_steps
        self._max_bytes = max_bytes
        self._planned: deque[tuple[Step, list[Rows], int]] = deque()
        self._num_planned = 0
        self._num_taken = 0
        # By epoch: the same place is another block in the next one.
        self._blocks: defaultdict[int, dict[Any, B]] = defaultdict(dict)
        self._last_need: defaultdict[int, dict[Any, int]] = defaultdict(dict)
        self._waiting_bytes = 0
        self._total_bytes = 0

    @property
    def mean_step_bytes(self) -> float:
        """Returns the bytes of the blocks of a step that was planned, each block counted once."""
        return self._total_bytes / max(1, self._num_planned)

    def __iter__(self) -> Iterator[Planned[B]]:
        while True:
            self._plan()
            if not self._planned:
                return
            step, rows, new_bytes = self._planned.popleft()
            self._waiting_bytes -= new_bytes
            # Only now is it known whether this step needs the blocks of the one before it.
            self._drop_unneeded()
            self._num_taken += 1
            blocks = self._blocks[step.epoch]
            yield Planned(step, rows, [blocks[place] for place, _, _ in rows])

    def _drop_unneeded(self) -> None:
        for epoch in list(self._last_need):
            last_need, blocks = self._last_need[epoch], self._blocks[epoch]
            for place in [place for place, step in last_need.items() if step < self._num_taken]:
                del blocks[place], last_need[place]
            if not last_need:
                del self._last_need[epoch], self._blocks[epoch]

    def _plan(self) -> None:
        if self._planned and self._waiting_bytes > self._max_bytes * 3 // 4:
            return
        new: defaultdict[int, dict[Any, None]] = defaultdict(dict)
        while not self._planned or (len(self._planned) <= self._max_steps and self._waiting_bytes < self._max_bytes):
            step = next(self._steps, None)
            if step is None:
                break
            epoch, rows, new_bytes = step.epoch, self._rows_of(step), 0
            blocks, last_need, new_blocks = self._blocks[epoch], self._last_need[epoch], new[epoch]
            for place, _, _ in rows:
                if place not in blocks and place not in new_blocks:
                    new_blocks[place] = None
                    new_bytes += self._num_bytes_of(epoch, place)
                last_need[place] = self._num_planned
            self._planned.append((step, rows, new_bytes))
            self._waiting_bytes += new_bytes
            self._total_bytes += new_bytes
            self._num_planned += 1
        for epoch, places in new.items():
            if places:
                self._blocks[epoch].update(zip(places, self._begin(epoch, list(places)), strict=True))
