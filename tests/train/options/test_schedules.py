"""A schedule ends its warm-up within the run."""

from __future__ import annotations

import pytest

from shardkit.errors import UsageError
from train.options.optimizer_options import plan_schedule


def test_a_warm_up_longer_than_the_run_is_refused() -> None:
    with pytest.raises(UsageError, match="--warmup-steps"):
        plan_schedule("cosine", 0.1, 100, 100)
