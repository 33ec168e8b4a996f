"""How the learning rate of a run goes up and down. Pure."""

from __future__ import annotations

import msgspec

from shardkit.errors import UsageError
from train.options.config import ScheduleChoice

WARM_UP_SHARE = 0.05
FIRST_SHARE = 0.01
FINAL_SHARE = 0.01
DROPS = (0.5, 0.75)
DROP_FACTOR = 0.1


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """How the learning rate goes up to its peak and down again.

    Attributes:
        kind: `cosine` and `linear` end at a hundredth of the peak; `constant` stays; `step` falls to a tenth at half
            and again at three quarters of the steps after the warm-up.
        peak: Highest learning rate.
        num_warm_up_steps: From a hundredth of the peak straight to the peak.
    """

    kind: ScheduleChoice
    peak: float
    num_steps: int
    num_warm_up_steps: int


def plan_schedule(kind: ScheduleChoice, peak: float, num_steps: int, num_warm_up_steps: int | None) -> Schedule:
    """Returns the schedule of a run.

    Args:
        kind: Of the way down.
        peak: Highest learning rate.
        num_warm_up_steps: None takes a twentieth of the steps.

    Raises:
        UsageError: If the run ends before its warm-up does.
    """
    if num_warm_up_steps is None:
        num_warm_up_steps = round(WARM_UP_SHARE * num_steps)
    elif num_warm_up_steps >= num_steps:
        raise UsageError(
            f"a warm-up of {num_warm_up_steps:,} steps does not end within a run of {num_steps:,}",
            next_step="Use fewer --warmup-steps or more --epochs",
        )
    return Schedule(kind=kind, peak=peak, num_steps=num_steps, num_warm_up_steps=num_warm_up_steps)
