"""What held a run up, in words, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from train.config import Precision, ReaderChoice
from train.metrics import EpochMetrics

TOLERABLE_SHARE = 0.1


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """What decides which advice applies.

    Attributes:
        reader: What reads the shards.
        compression: Of the shards.
        has_images: Whether images are decoded.
        reduce_in: Type that gradients travel in.
        num_cores: That this process may use.
    """

    reader: ReaderChoice
    compression: str
    has_images: bool
    reduce_in: Precision
    num_cores: int


def mean_share(epochs: Sequence[EpochMetrics], name: str) -> float | None:
    """Returns a share of the time of all steps that were measured; None if none was.

    Args:
        epochs: Of the run.
        name: Of the share's field.
    """
    # All epochs have as many steps; the wall time of the first one has the start in it, which is not measured.
    known = [(share, line.step_ms or 0.0) for line in epochs if (share := getattr(line, name)) is not None]
    total_ms = sum(step_ms for _, step_ms in known)
    return sum(share * step_ms for share, step_ms in known) / total_ms if total_ms else None


def give_verdict(epochs: Sequence[EpochMetrics], circumstances: Circumstances) -> str | None:
    """Returns what was the bottleneck and what helps; None if too little was measured to tell.

    Args:
        epochs: That this process trained.
        circumstances: Of the run.
    """
    waiting = mean_share(epochs, "waiting_share")
    communication = mean_share(epochs, "communication_share") or 0.0
    if waiting is None:
        return None
    if max(waiting, communication) <= TOLERABLE_SHARE:
        busy = 1.0 - waiting - communication
        return f"the device is the bottleneck, which is what one wants: it computes {busy:.0%} of the time"
    if waiting >= communication:
        return (
            f"input is the bottleneck: {waiting:.0%} of the time the device waits for examples. "
            f"What helps: {', or '.join(_for_input(circumstances))}"
        )
    return (
        f"communication is the bottleneck: up to {communication:.0%} of the time workers add up gradients. "
        f"What helps: {', or '.join(_for_communication(circumstances))}"
    )


def _for_input(found: Circumstances) -> list[str]:
    advice = []
    if found.reader != "shardkit":
        advice.append("--reader shardkit")
    if found.has_images:
        advice.append("a smaller --image-size")
    advice.append("a larger --global-batch-size, where a step does little")
    if found.compression != "none":
        advice.append("to convert with --compression none, where the disk is fast")
    cores = "1 core" if found.num_cores == 1 else f"{found.num_cores} cores"
    return [*advice, f"more cores than the {cores} here"]


def _for_communication(found: Circumstances) -> list[str]:
    advice = ["a larger --global-batch-size"]
    if found.reduce_in == "float32":
        advice.append("--reduce-in bfloat16")
    return [*advice, "a faster network between the hosts"]
