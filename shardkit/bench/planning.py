"""The measurements to make, and the results from a rate: arithmetic without I/O and clock.

The share of time that accelerators are busy is the accelerator utilisation (AU) of the MLPerf Storage benchmark: the
time they compute, divided by the time it all takes.
"""

from __future__ import annotations

from typing import NamedTuple

from shardkit.dataset.manifest import Manifest, SplitInfo
from shardkit.errors import UsageError
from shardkit.units import MiB

ENOUGH_BUSY = 0.9
NUM_ACCELERATORS = (1, 2, 4, 8)
STEP_TIMES_S = (0.01, 0.05, 0.1, 0.25)

_BATCH_SIZE = 1024
_BATCH_BYTES = 32 * MiB
# At the end of an epoch nothing is read ahead, and small splits would be measured for nothing else.
_MIN_BATCHES = 8


class Feeding(NamedTuple):
    """How many accelerators with one step time are kept busy, computed from a rate.

    Attributes:
        step_time_s: Of one step of one accelerator.
        needed_per_s: Examples that one accelerator takes in a second.
        shares_busy: With each number of `NUM_ACCELERATORS`.
        num_fed: The most accelerators that are busy `ENOUGH_BUSY` of the time.
    """

    step_time_s: float
    needed_per_s: float
    shares_busy: tuple[float, ...]
    num_fed: int


def choose_split(manifest: Manifest, name: str | None) -> SplitInfo:
    """Returns the split that is named, else `train`, else the largest one.

    Raises:
        UsageError: If there is no such split, or it holds no examples.
    """
    if name is None:
        known = [s.name for s in manifest.splits]
        if not known:
            raise UsageError(
                "there is nothing to read",
                why="the dataset holds no examples",
                next_step="Convert inputs that hold rows, and read that dataset",
            )
        name = "train" if "train" in known else max(manifest.splits, key=lambda s: s.num_examples).name
    split = manifest.split(name)
    if not split.num_examples:
        with_examples = [s.name for s in manifest.splits if s.num_examples]
        raise UsageError(
            "there is nothing to read",
            where=f"split {name!r}",
            why="it holds no examples",
            next_step=f"Choose one of: {', '.join(with_examples)}" if with_examples else None,
        )
    return split


def choose_batch_size(wanted: int | None, num_examples: int, mean_num_bytes: float) -> int:
    """Returns the examples of a batch, never more than there are.

    Args:
        wanted: None means 1,024, or if that is less the largest power of two whose records take 32 MiB, and of which an
            epoch has eight.
        num_examples: Of the split, at least one.
        mean_num_bytes: Of a framed record.
    """
    if wanted is None:
        affordable = max(1, min(int(_BATCH_BYTES / max(1.0, mean_num_bytes)), num_examples // _MIN_BATCHES))
        wanted = min(_BATCH_SIZE, 1 << (affordable.bit_length() - 1))
    return min(wanted, num_examples)


def share_busy(examples_per_s: float, batch_size: int, step_time_s: float, num_accelerators: int) -> float:
    """Returns the share of time that accelerators compute which take a batch each a step, while reading goes on."""
    return min(1.0, examples_per_s * step_time_s / (batch_size * num_accelerators))


def compute_feeding(examples_per_s: float, batch_size: int, step_time_s: float) -> Feeding:
    """Returns what a rate, which reading reaches with all its threads, means for accelerators."""
    return Feeding(
        step_time_s=step_time_s,
        needed_per_s=batch_size / step_time_s,
        shares_busy=tuple(share_busy(examples_per_s, batch_size, step_time_s, n) for n in NUM_ACCELERATORS),
        num_fed=int(examples_per_s * step_time_s / batch_size / ENOUGH_BUSY),
    )
