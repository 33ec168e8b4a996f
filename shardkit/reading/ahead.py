"""Loading blocks before the steps that need them, in the order of need and within a limit of memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from shardkit.reading.order import Rows

B = TypeVar("B")


class Planned(NamedTuple, Generic[B]):
    """What one step needs.

    Attributes:
        rows: Of its batch.
        blocks: By their places.
    """

    rows: list[Rows]
    blocks: dict[Any, B]


class BlocksAhead(Generic[B]):
    """Begins to load the blocks of steps to come.

    What is held is what the steps between the one that was asked for and the last one planned need. A block that a
    step needs is in their hands until that step is through with it.

    Args:
        steps: In the order in which they are asked for.
        rows_of: Says what a step needs.
        begin: Begins to load a block.
        num_bytes_of: Says what a block takes.
        max_steps: How far ahead is planned.
        max_bytes: No further step is planned while blocks of at least so many bytes wait for their first step.
    """

    def __init__(
        self,
        steps: Iterator[int],
        rows_of: Callable[[int], list[Rows]],
        begin: Callable[[Any], B],
        num_bytes_of: Callable[[Any], int],
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
        self._planned: deque[tuple[list[Rows], int]] = deque()
        self._num_planned = 0
        self._num_taken = 0
        self._blocks: dict[Any, B] = {}
        self._last_need: dict[Any, int] = {}
        self._waiting_bytes = 0

    def __iter__(self) -> Iterator[Planned[B]]:
        while True:
            self._plan()
            if not self._planned:
                return
            rows, new_bytes = self._planned.popleft()
            self._waiting_bytes -= new_bytes
            # Only now is it known whether this step needs the blocks of the one before it.
            for place in [place for place, step in self._last_need.items() if step < self._num_taken]:
                del self._blocks[place], self._last_need[place]
            self._num_taken += 1
            yield Planned(rows, {row.place: self._blocks[row.place] for row in rows})

    def _plan(self) -> None:
        while not self._planned or (len(self._planned) <= self._max_steps and self._waiting_bytes < self._max_bytes):
            step = next(self._steps, None)
            if step is None:
                return
            rows = self._rows_of(step)
            new_bytes = 0
            for place in dict.fromkeys(row.place for row in rows):
                if place not in self._blocks:
                    self._blocks[place] = self._begin(place)
                    new_bytes += self._num_bytes_of(place)
                self._last_need[place] = self._num_planned
            self._planned.append((rows, new_bytes))
            self._waiting_bytes += new_bytes
            self._num_planned += 1
