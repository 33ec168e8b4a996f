"""The memory of a replica is that of its variables and activations."""

from __future__ import annotations

import pytest

from train.optimization.memory_estimate import estimate_memory
from train.optimization.updater import Updater, make_optimizer
from train.options.optimizer_options import OptimizerOptions, plan_schedule
from train.runs.restore_model import restore_model

pytestmark = pytest.mark.full


def test_memory_is_that_of_the_variables(classified) -> None:
    import keras

    model = restore_model(classified).bundle.model
    optimizer = keras.optimizers.AdamW()
    optimizer.build(model.trainable_variables)
    one, ten = estimate_memory(model, optimizer, 1), estimate_memory(model, optimizer, 10)
    assert one.parameters == one.gradients == 4 * model.count_params()
    assert 2 * one.parameters <= one.optimizer < 2 * one.parameters + 100
    # Of the tabular model at least the two hidden layers.
    assert one.activations >= 4 * (256 + 128)
    assert ten.activations == 10 * one.activations
    assert ten.total == ten.parameters + ten.gradients + ten.optimizer + ten.activations


def test_averages_and_masks_take_memory_too(classified) -> None:
    model = restore_model(classified).bundle.model
    options = OptimizerOptions(name="adamw", learning_rate=1e-3, ema=0.9, sparsity=0.5)
    schedule = plan_schedule("cosine", options.learning_rate, 10, 2)
    updater = Updater(make_optimizer(options, schedule), model.trainable_variables, options, 10)
    plain = estimate_memory(model, updater.optimizer, 1)
    kept = estimate_memory(model, updater.optimizer, 1, updater.kept)
    assert plain.gradients < kept.total - plain.total <= 2 * plain.gradients
    assert {line[0] for line in kept.lines()} - {line[0] for line in plain.lines()} == {"averages, masks"}


def test_what_is_computed_again_takes_no_memory_but_that_of_the_largest_block() -> None:
    import keras

    sizes = [64] * 16
    layers = [keras.layers.Dense(size) for size in sizes]
    model = keras.Sequential([keras.Input([64]), *layers, keras.layers.Dense(2)])
    optimizer = keras.optimizers.SGD()
    optimizer.build(model.trainable_variables)
    whole = estimate_memory(model, optimizer, 1)
    again = estimate_memory(model, optimizer, 1, recompute=True)
    # 16 places to cut give 3 blocks of 5 layers between 4 cuts, and the output.
    assert whole.activations == 4 * (16 * 64 + 2)
    assert again.activations == 4 * ((4 + 4) * 64 + 2)
    assert again.lines()[-2][2] == "1 example x 514 values that 9 layers give, the others again"
