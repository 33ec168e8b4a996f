"""Steps to profile must be there."""

from __future__ import annotations

import pytest

from shardkit.errors import UsageError
from train.reporting.tensorboard import Profiler

pytestmark = pytest.mark.full


def test_a_profile_of_steps_that_are_not_there(tmp_path) -> None:
    with pytest.raises(UsageError, match="begins where the run has ended"):
        Profiler((30, 40), tmp_path, 30, print)
