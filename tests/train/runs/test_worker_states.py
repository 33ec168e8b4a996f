"""What a worker that steps on its own remembers is there again when it goes on."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from train.distribution.devices import Devices
from train.loop.local_sgd import LocalSteps
from train.optimization.updater import Updater, make_optimizer
from train.options.optimizer_options import OptimizerOptions, plan_schedule

pytestmark = pytest.mark.full


def test_a_worker_that_skipped_updates_of_its_own_knows_how_many_it_made(tmp_path) -> None:
    options = OptimizerOptions(name="adamw", learning_rate=0.1, precision="float16")
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    schedule = plan_schedule("cosine", options.learning_rate, 10, 0)
    updater = Updater(make_optimizer(options, schedule), model.trainable_variables, options, 10)
    devices = Devices(tf.distribute.get_strategy(), 2, "2 workers", num_workers=2, worker_index=1)
    states = LocalSteps(devices, model, updater, 3).states(tmp_path, lambda step: None)
    iterations = updater.optimizer.iterations
    iterations.assign(5)
    states.save(6)
    iterations.assign(6)  # The chief's, out of the checkpoint.
    states.restore(6)
    assert int(iterations.numpy()) == 5
