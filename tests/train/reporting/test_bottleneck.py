"""The summary names the bottleneck and only options that exist."""

from __future__ import annotations

import re

import msgspec
import pytest

from shardkit.cli.convert import command as convert_command
from shardkit.cli.train import command as train_command
from tests.support.training.inprocess import TABLE, Recorder, table, train
from train.options.config import TrainOptions
from train.options.strategy_checks import can_sync
from train.reporting.bottleneck import TOLERABLE_SHARE, Circumstances, find_bottleneck, mean_share
from train.reporting.metrics import EpochMetrics

pytestmark = pytest.mark.full

LOCAL = Circumstances(reader="shardkit", compression="gzip", has_images=False, reduce_in="float32", num_cores=4)
TFDATA_IMAGES = Circumstances(reader="tfdata", compression="none", has_images=True, reduce_in="bfloat16", num_cores=1)


FAR = msgspec.structs.replace(LOCAL, is_remote=True)
KEPT = msgspec.structs.replace(FAR, cache="disk")
SEVERAL = msgspec.structs.replace(LOCAL, can_sync=True)
AVERAGING = msgspec.structs.replace(LOCAL, sync_every=8)


def line(waiting: float | None, communication: float | None = None, step_ms: float = 1.0) -> EpochMetrics:
    return EpochMetrics(
        epoch=0,
        step=1,
        train={"loss": 1.0},
        validation=None,
        examples_per_s=None,
        waiting_share=waiting,
        train_s=1.0,
        validation_s=0.0,
        step_ms=step_ms,
        communication_share=communication,
    )


def test_the_largest_share_decides() -> None:
    assert find_bottleneck([], LOCAL) is None
    assert find_bottleneck([line(None)], LOCAL) is None
    busy = find_bottleneck([line(0.02)], LOCAL)
    assert busy == "the device is the bottleneck, as it should be: it computes 98% of the time"
    waits = find_bottleneck([line(0.3, 0.2)], LOCAL)
    assert waits is not None
    assert waits.startswith("input is the bottleneck: 30% of the time the device waits for examples. What helps: ")
    costs = find_bottleneck([line(0.13, 0.1)], LOCAL)
    assert costs is not None
    assert costs.startswith("input costs time: 13% of the time the device waits for examples. What helps: ")
    talks = find_bottleneck([line(0.2, 0.3)], LOCAL)
    assert talks is not None
    assert talks.startswith("communication is the bottleneck: up to 30% of the time")


def test_an_epoch_that_a_run_went_on_in_counts_for_the_rest_of_it() -> None:
    epochs = [line(0.0, step_ms=60), line(0.5, step_ms=1), line(0.5, step_ms=1)]
    share = mean_share(epochs, "waiting_share", first_part=0.02)
    assert share == pytest.approx((0.5 + 0.5) / (60 * 0.02 + 1 + 1))
    sentence = find_bottleneck(epochs, LOCAL, first_part=0.02)
    assert sentence is not None
    assert sentence.startswith("input is the bottleneck: 31%")


def test_slow_epochs_count_more_than_fast_ones() -> None:
    epochs = [line(None, step_ms=50), line(0.5, step_ms=1), line(0.1, step_ms=3)]
    assert mean_share(epochs, "waiting_share") == pytest.approx(0.2)


@pytest.mark.parametrize("found", [LOCAL, TFDATA_IMAGES, FAR, KEPT, SEVERAL, AVERAGING])
@pytest.mark.parametrize("epoch", [line(0.9), line(0.1, 0.8)])
def test_advice_is_made_of_options_that_exist_and_change_something(epoch, found) -> None:
    text = find_bottleneck([epoch], found)
    assert text is not None
    known = {name for command in (train_command, convert_command) for p in command.params for name in p.opts}
    assert set(re.findall(r"--[a-z-]+", text)) <= known
    settings = msgspec.to_builtins(found)
    assert f"--reader {settings['reader']}" not in text
    assert f"--compression {settings['compression']}" not in text
    assert f"--reduce-in {settings['reduce_in']}" not in text
    assert ("--image-size" in text) == (found.has_images and epoch.waiting_share == 0.9)


@pytest.mark.parametrize(
    ("found", "advised"),
    [(LOCAL, "--cache memory"), (FAR, "--cache disk"), (KEPT, None), (TFDATA_IMAGES, None)],
)
def test_examples_that_are_read_again_and_again_can_be_kept(found, advised) -> None:
    text = find_bottleneck([line(0.9)], found)
    assert text is not None
    assert re.findall(r"--cache \w+", text) == ([] if advised is None else [advised])
    assert "--cache" not in str(find_bottleneck([line(0.1, 0.8)], found))


@pytest.mark.parametrize(
    ("found", "advised"),
    [
        (LOCAL, ["--reduce-in bfloat16"]),
        (SEVERAL, ["--reduce-in bfloat16", "--sync-every 8"]),
        (AVERAGING, ["--sync-every with more than 8"]),
    ],
)
def test_workers_that_wait_for_each_other_may_meet_less_often(found, advised) -> None:
    text = find_bottleneck([line(0.1, 0.8)], found)
    assert text is not None
    assert re.findall(r"--(?:sync-every|reduce-in) (?:with more than )?\w+", text) == advised
    assert "--sync-every" not in str(find_bottleneck([line(0.9)], found))


@pytest.mark.parametrize(
    ("asked", "num_replicas", "num_workers", "expected"),
    [
        ({}, 2, 2, True), ({}, 1, 1, False), ({}, 4, 2, False), ({"prune": 0.5}, 2, 2, False),
        ({"reduce_in": "bfloat16"}, 2, 2, False), ({"sync_every": 4}, 2, 2, False),
    ],
)  # fmt: skip
def test_averages_are_advised_only_where_they_are_accepted(asked, num_replicas, num_workers, expected) -> None:
    options = TrainOptions(dataset="d", label="l", output="o", **asked)
    assert can_sync(options, num_replicas, num_workers) == expected


def test_a_run_ends_with_the_bottleneck_that_its_log_shows(write, tmp_path) -> None:
    reporter = Recorder()
    lines = train(write(TABLE, {"train": table(100)}), tmp_path / "run", reporter, epochs=2, global_batch_size=10)
    (sentence,) = [text for text in reporter.texts if text.startswith("bottleneck  ")]
    waiting = mean_share(lines, "waiting_share")
    assert waiting is not None
    if waiting > TOLERABLE_SHARE:
        assert f"{waiting:.0%} of the time the device waits for examples" in sentence
    else:
        assert f"the device is the bottleneck, as it should be: it computes {1 - waiting:.0%}" in sentence


def test_a_cache_is_not_advised_for_one_epoch() -> None:
    once = find_bottleneck([line(0.3)], msgspec.structs.replace(LOCAL, num_epochs=1))
    assert once is not None
    assert "--cache" not in once
