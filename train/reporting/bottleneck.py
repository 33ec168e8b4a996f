"""The bottleneck of a run, in words, and advice. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from train.options.config import CacheChoice, Precision, ReaderChoice
from train.reporting.metrics import EpochMetrics

# A smaller share is a cost, but the run still waits for the device most of the time.
MAIN_SHARE = 0.25
TOLERABLE_SHARE = 0.1
USUAL_SYNC_EVERY = 8


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """What decides which advice applies.

    Attributes:
        reduce_in: Type that gradients travel in.
        is_remote: Whether the dataset is in a store, not on a disk of this host.
        sync_every: Steps between two averages of workers that step on their own; None if they add up gradients.
        can_sync: Whether workers could step on their own.
        num_epochs: Of the run; kept examples are read again from the second one on.
    """

    reader: ReaderChoice
    compression: str
    has_images: bool
    reduce_in: Precision
    num_cores: int
    is_remote: bool = False
    cache: CacheChoice = "none"
    sync_every: int | None = None
    can_sync: bool = False
    num_epochs: int = 2


def mean_share(epochs: Sequence[EpochMetrics], name: str, first_part: float = 1.0) -> float | None:
    """Returns a share of the time of all steps that were measured; None if none was.

    Args:
        first_part: Of the steps of the first epoch, those that were measured: a run that goes on begins anywhere.
    """
    # All epochs have as many steps; the wall time of the first one has the start in it, which is not measured.
    parts = [first_part, *[1.0] * len(epochs)]
    known = [
        (share, part * (line.step_ms or 0.0))
        for line, part in zip(epochs, parts, strict=False)
        if (share := getattr(line, name)) is not None
    ]
    total_ms = sum(step_ms for _, step_ms in known)
    return sum(share * step_ms for share, step_ms in known) / total_ms if total_ms else None


def find_bottleneck(
    epochs: Sequence[EpochMetrics], circumstances: Circumstances, first_part: float = 1.0
) -> str | None:
    """Returns the bottleneck and advice; None if too little was measured.

    Args:
        epochs: That this process trained.
        first_part: Of the first of them that this process trained.
    """
    waiting = mean_share(epochs, "waiting_share", first_part)
    communication = mean_share(epochs, "communication_share", first_part) or 0.0
    if waiting is None:
        return None
    if max(waiting, communication) <= TOLERABLE_SHARE:
        busy = 1.0 - waiting - communication
        return f"the device is the bottleneck, as it should be: it computes {busy:.0%} of the time"
    if waiting >= communication:
        what = "input is the bottleneck" if waiting >= MAIN_SHARE else "input costs time"
        return (
            f"{what}: {waiting:.0%} of the time the device waits for examples. "
            f"What helps: {', or '.join(_for_input(circumstances))}"
        )
    what = "add up gradients" if circumstances.sync_every is None else "average their weights"
    is_main = communication >= MAIN_SHARE
    return (
        f"communication {'is the bottleneck' if is_main else 'costs time'}: up to {communication:.0%} of the time "
        f"workers {what}. "
        f"What helps: {', or '.join(_for_communication(circumstances))}"
    )


def _for_input(found: Circumstances) -> list[str]:
    advice = []
    if found.reader != "shardkit":
        advice.append("--reader shardkit")
    elif found.cache == "none" and found.num_epochs > 1:
        kept = "--cache disk, which asks the store" if found.is_remote else "--cache memory, which reads the disk"
        advice.append(f"{kept} once and not in each epoch")
    if found.has_images:
        advice.append("a smaller --image-size")
    advice.append("a larger --global-batch-size, where a step does little")
    if found.compression != "none":
        advice.append("to convert with --compression none, where the disk is fast")
    cores = "1 core" if found.num_cores == 1 else f"{found.num_cores} cores"
    return [*advice, f"more cores than the {cores} here"]


def _for_communication(found: Circumstances) -> list[str]:
    advice = ["a larger --global-batch-size"]
    if found.sync_every is not None:
        advice.append(f"--sync-every with more than {found.sync_every}")
    elif found.reduce_in == "float32":
        advice.append("--reduce-in bfloat16")
    if found.can_sync:
        advice.append(f"--sync-every {USUAL_SYNC_EVERY}, with which workers learn a little differently")
    return [*advice, "a faster network between the hosts"]
