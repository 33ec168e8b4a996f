"""Shares of time add up, and lines of an older shardkit are still read."""

from __future__ import annotations

import math
import time

import msgspec
import numpy as np
import pytest
import tensorflow as tf

from train.asynchronous.loop import UnitMeter
from train.asynchronous.steps import UnitResult
from train.asynchronous.work_units import Unit
from train.distribution.devices import Devices
from train.optimization.gradients import dense_gradient_shapes, measure_all_reduce_s
from train.reporting.metrics import Meter, decode_lines
from train.reporting.report import Reporter

pytestmark = pytest.mark.full


def spend(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def measured(communication_s: float) -> Meter:
    meter = Meter(communication_s)
    meter.start_epoch()
    for _ in range(6):
        meter.wants_input()
        spend(0.01)
        meter.got_input()
        spend(0.03)
        meter.finished_step(10)
        spend(0.1)
        meter.leave_out()
    return meter


def test_shares_add_up_and_a_checkpoint_is_neither_waiting_nor_computing() -> None:
    meter = measured(0.0)
    assert meter.num_steps == 5
    assert meter.communication_share is None
    assert meter.waiting_share is not None
    assert meter.computing_share is not None
    assert meter.waiting_share + meter.computing_share == pytest.approx(1)
    assert meter.wait_s >= 0.05
    assert meter.busy_s >= 0.15
    assert meter.step_ms == pytest.approx(1000 * 10 / (meter.examples_per_s or 0))
    assert meter.step_ms < 140


def test_communication_is_at_most_what_a_step_took() -> None:
    for communication_s, limit in ((0.02, 0.02 * 5), (100.0, 1e9)):
        meter = measured(communication_s)
        total = meter.wait_s + meter.busy_s
        shares = (meter.waiting_share, meter.computing_share, meter.communication_share)
        assert sum(share or 0.0 for share in shares) == pytest.approx(1)
        assert all(share is not None and share >= 0 for share in shares)
        assert meter.communication_share == pytest.approx(min(limit, meter.busy_s) / total)


def test_the_work_between_two_steps_is_not_taken_for_waiting() -> None:
    meter = Meter()
    meter.start_epoch()
    for _ in range(3):
        meter.wants_input()
        meter.got_input()
        meter.finished_step(1)
        spend(0.02)
    assert meter.waiting_share is not None
    assert meter.waiting_share < 0.5


def test_a_line_of_an_older_shardkit_is_read_and_shown(capsys) -> None:
    old = (
        b'{"epoch":0,"step":5,"train":{"loss":1.5},"validation":null,"examples_per_s":100.0,"waiting_share":0.25,'
        b'"train_s":1.0,"validation_s":0.0}\n'
    )
    (line,) = decode_lines(old)
    assert line.step_ms is None
    assert line.communication_share is None
    Reporter().finished_epoch(line, 3)
    Reporter().final_table([line], ["train"])
    shown = capsys.readouterr()
    assert "epoch 1 of 3  step 5  train loss 1.5000  100 examples/s  25% waiting for input" in shown.err
    assert "25%" in shown.out
    assert "no number" not in shown.err
    Reporter().finished_epoch(msgspec.structs.replace(line, validation={"loss": math.nan}), 3)
    assert "warning: the validation loss is no number" in " ".join(capsys.readouterr().err.split())


def test_tables_of_embeddings_do_not_travel_whole() -> None:
    import keras

    inputs = keras.Input([3], dtype="int32")
    hidden = keras.layers.Flatten()(keras.layers.Embedding(1000, 4)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(2)(hidden))
    assert [tuple(shape) for shape in dense_gradient_shapes(model)] == [(12, 2), (2,)]
    assert measure_all_reduce_s(Devices(tf.distribute.get_strategy(), 1, "1 device"), model, "float32") == 0.0


def test_the_first_unit_of_each_worker_counts_nowhere() -> None:
    meter = UnitMeter(2)
    meter.start_epoch()
    for took_s, waited_s in ((9.0, 8.0), (7.0, 6.0)):
        meter.finished_unit(UnitResult(Unit(0, 4), np.zeros(3), waited_s, took_s), 40)
    assert meter.examples_per_s is meter.step_ms is meter.waiting_share is None
    meter.finished_unit(UnitResult(Unit(8, 4), np.zeros(3), 0.1, 0.4), 40)
    assert meter.waiting_share == pytest.approx(0.25)
    assert meter.step_ms == pytest.approx(100)
    assert meter.examples_per_s is not None


def test_a_line_that_is_no_text_is_left_out() -> None:
    assert decode_lines(b'{"epoch": "\xff"}\n[\n') == []


def test_a_line_whose_names_a_terminal_would_obey_is_none() -> None:
    line = {"epoch": 0, "step": 2, "examples_per_s": 1.0, "waiting_share": 0.0, "train_s": 1.0, "validation_s": 0.0}
    plain, hostile = {"loss": 0.5}, {"\x1b[31mloss": 0.5}
    for train, validation, number in ((plain, None, 1), (plain, plain, 1), (hostile, None, 0), (plain, hostile, 0)):
        raw = msgspec.json.encode({**line, "train": train, "validation": validation})
        assert len(decode_lines(raw)) == number
