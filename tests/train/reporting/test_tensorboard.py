"""TensorBoard gets scalars of steps, at most one of each a second, with the loss of what came since the last one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from train.reporting.metrics import EpochMetrics, Meter
from train.reporting.tensorboard import TensorBoardWriter

pytestmark = pytest.mark.full


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted((folder / "train").glob("events.*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, float(tf.make_ndarray(value.tensor))))
    return found


def running_meter() -> Meter:
    meter = Meter()
    meter.start_epoch()
    for _ in range(3):
        meter.wants_input()
        meter.got_input()
        meter.finished_step(10)
    return meter


def test_many_steps_in_no_time_are_written_once(tmp_path) -> None:
    tensorboard, meter = TensorBoardWriter(tmp_path, lambda: 0.25), running_meter()
    for step in range(1, 200):
        tensorboard.write_step(step, np.array([10.0 * step, 20.0 * step]), meter)
    tensorboard.close()
    found = scalars(tmp_path)
    assert set(found) == {f"step/{name}" for name in ("loss", "learning_rate", "examples_per_s", "waiting_share")}
    assert {name: values[0][0] for name, values in found.items()} == dict.fromkeys(found, 1)
    assert [len(values) for values in found.values()] == [1] * 4
    assert found["step/loss"] == [(1, 2.0)]
    assert found["step/learning_rate"] == [(1, 0.25)]


def test_the_loss_is_that_of_the_steps_since_the_last_one(tmp_path) -> None:
    tensorboard, meter = TensorBoardWriter(tmp_path, lambda: 0.1, steps_every_s=0.0), running_meter()

    def write(step: int, weight: float, loss: float) -> None:
        tensorboard.write_step(step, np.array([weight, loss]), meter)

    write(1, 10, 30)
    write(2, 20, 40)
    write(3, 20, 40)  # The sums of this step are not known yet.
    line = EpochMetrics(
        epoch=0,
        step=3,
        train={"loss": 2.0},
        validation=None,
        examples_per_s=None,
        waiting_share=None,
        train_s=1.0,
        validation_s=0.0,
    )
    tensorboard.write(line)
    write(6, 30, 15)
    tensorboard.close()
    assert scalars(tmp_path)["step/loss"] == [(1, 3.0), (2, 1.0), (6, 0.5)]
