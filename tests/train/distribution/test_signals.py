"""A run that is asked to stop saves what it has, wherever it is, and goes on as if it had not been stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardkit.features import make_feature
from tests.support.training.inprocess import Interrupted, Recorder, table
from tests.support.training.outputs import assert_same, learned
from train.distribution.signals import Stop
from train.options.config import TrainOptions
from train.run import run
from train.runs.request import resolve
from train.runs.run_folder import RunFolder, list_checkpoints

pytestmark = pytest.mark.full

FEATURES = (make_feature("x", "float64", nullable=True), make_feature("sides", "string", nullable=True))
STEPS_PER_EPOCH = 5


class StopsHere(Stop):
    """Ends a run without ending the tests."""

    def end(self) -> None:
        raise Interrupted


class Asking(Recorder):
    """Asks a run to stop once it has made so many steps."""

    def __init__(self, stop: Stop, num_steps: int) -> None:
        super().__init__()
        self.stop = stop
        self.ask_after = num_steps

    def step(self, *args: Any) -> None:
        super().step(*args)
        if self.num_steps == self.ask_after:
            self.stop.is_wanted = True


def train(dataset: Path, output: Path, ask_after: int = -1, *, resume: bool = False) -> None:
    options = TrainOptions(
        dataset=str(dataset), output=str(output), label="sides", epochs=3, global_batch_size=60, resume=resume
    )
    folder, request, stop = RunFolder(options.output), resolve(options), StopsHere()
    folder.open(resume=resume)
    run(request, folder, Asking(stop, ask_after), stop)


@pytest.mark.parametrize("ask_after", [2, 3, 4, 5, 6])
def test_a_run_that_is_asked_to_stop_loses_nothing(write, tmp_path, ask_after: int) -> None:
    rows = [{name: row[name] for name in ("x", "sides")} for row in table(400)]
    dataset = write(FEATURES, {"train": rows[:310], "test": rows[310:]})
    train(dataset, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(dataset, tmp_path / "cut", ask_after)
    # The next step carries the wish, the one after that learns of it; validation heeds it at once.
    found = list_checkpoints(tmp_path / "cut" / "checkpoints")[-1]
    assert found == (STEPS_PER_EPOCH if ask_after in (4, 5) else ask_after + 2)
    train(dataset, tmp_path / "cut", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "cut")
    assert learned(tmp_path / "whole") == learned(tmp_path / "cut")
