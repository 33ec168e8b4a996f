"""What turns gradients into steps, as chosen and as said."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import UsageError
from train.options.config import TrainOptions
from train.options.model_table import Defaults
from train.options.optimizer_options import OptimizerOptions, check_micro_batches, choose_optimizer, describe_optimizer

DEFAULTS = Defaults(epochs=5, global_batch_size=256, learning_rate=2e-3, weight_decay=1e-3)


def options(**typed: object) -> TrainOptions:
    return TrainOptions(dataset="d", label="l", output="o", **typed)


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_a_learning_rate_is_scaled_by_the_batch_and_says_so(scaling: str, factor: float) -> None:
    chosen = choose_optimizer(options(scale_learning_rate=scaling, learning_rate=0.01), DEFAULTS, 1024)
    assert math.isclose(chosen.learning_rate, 0.01 * factor)
    text = describe_optimizer(chosen, 25, scaling, 1024, 256)
    assert "warm-up 25 steps" in text
    assert f"learning rate {0.01 * factor:g}" in text
    assert (f"(0.01 x {factor:g}" in text) == (scaling != "none")


def test_every_optimizer_has_its_own_defaults() -> None:
    chosen = {name: choose_optimizer(options(optimizer=name), DEFAULTS, 256) for name in ("adamw", "sgd", "lion")}
    assert (chosen["adamw"].learning_rate, chosen["adamw"].weight_decay) == (2e-3, 1e-3)
    assert (chosen["sgd"].momentum, chosen["sgd"].weight_decay) == (0.9, 0.0)
    product = chosen["lion"].learning_rate * chosen["lion"].weight_decay
    assert product == pytest.approx(chosen["adamw"].learning_rate * chosen["adamw"].weight_decay)
    with pytest.raises(UsageError, match="--momentum is for sgd"):
        choose_optimizer(options(momentum=0.5), DEFAULTS, 256)


def test_the_options_survive_the_record_of_a_run() -> None:
    chosen = choose_optimizer(options(optimizer="sgd", clip_norm=1.0, ema=0.9, prune=0.5, accumulate=3), DEFAULTS, 9)
    assert msgspec.json.decode(msgspec.json.encode(chosen), type=OptimizerOptions) == chosen


@given(st.integers(1, 16), st.integers(1, 8), st.integers(1, 5000))
def test_micro_batches_that_do_not_divide_name_a_batch_that_does(parts: int, replicas: int, batch: int) -> None:
    if batch % (parts * replicas) == 0:
        check_micro_batches(parts, batch, replicas)
        return
    with pytest.raises(UsageError) as error:
        check_micro_batches(parts, batch, replicas)
    advised = str(error.value.next_step).partition("--global-batch-size ")[2].partition(",")[0]
    for size in map(int, advised.split(" or ")):
        check_micro_batches(parts, size, replicas)
