"""--dry-run shows what the run and its readers really do and leaves nothing; --profile-steps leaves a profile."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import UsageError
from shardkit.reading.splits import open_splits
from tests.support.training.inprocess import Recorder
from train.dry_run import dry_run
from train.input.shares import worker_shares
from train.optimization.memory_estimate import estimate_memory
from train.optimization.optimizers import make_optimizer
from train.optimization.updater import Updater
from train.options.config import TrainOptions
from train.options.optimizer_options import OptimizerOptions
from train.options.schedules import plan_schedule
from train.reporting.profiler import Profiler
from train.runs.request import resolve
from train.runs.restore_model import restore_model
from train.runs.run_folder import RunFolder

pytestmark = pytest.mark.full

SHARDS = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=6), min_size=1, max_size=8)


@given(SHARDS, st.integers(1, 4), st.integers(1, 20), st.integers(0, 3))
def test_shares_are_even_and_cover_the_steps(shards, num_workers, worker_batch, seed) -> None:
    size = num_workers * worker_batch
    blocks_each, block_examples = np.array([len(s) for s in shards]), np.concatenate(shards)
    shares = worker_shares(blocks_each, block_examples, global_batch_size=size, num_workers=num_workers, seed=seed)
    num_steps = sum(map(sum, shards)) // size
    assert [s.num_examples for s in shares] == [num_steps * worker_batch] * num_workers
    assert {s.num_step_examples for s in shares} == {worker_batch}
    assert all(s.num_shards <= min(len(shards), s.num_blocks) for s in shares)
    assert all(bool(s.num_blocks) == bool(num_steps) for s in shares)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_share_is_what_the_reader_reads(place, num_workers) -> None:
    split = open_splits(place / "data")["train"]
    shards = split.dataset.split_shards("train")
    size = 20
    shares = worker_shares(*shards.block_examples(), global_batch_size=size, num_workers=num_workers, seed=5)
    block_of = [i for i, n in enumerate(split.block_num_examples) for _ in range(n)]
    shard_of = [i for i, s in enumerate(shards) for _ in range(s.num_examples)]
    for share in shares:
        reader = split.batches(
            global_batch_size=size, seed=5, worker_index=share.worker_index, num_workers=num_workers, features=["id"]
        )
        ids = [int(i) for batch in reader for i in batch["id"]]
        assert len(ids) == share.num_examples
        assert len({block_of[i] for i in ids}) == share.num_blocks
        assert len({shard_of[i] for i in ids}) == share.num_shards


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


def test_a_profile_of_steps_that_are_not_there(tmp_path) -> None:
    with pytest.raises(UsageError, match="begins where the run has ended"):
        Profiler((30, 40), tmp_path, 30, print)


@pytest.mark.parametrize(("num_workers", "is_one"), [(1, True), (2, False)])
def test_what_is_said_of_one_replica_is_said_of_one_only(place, tmp_path, num_workers, is_one) -> None:
    options = TrainOptions(
        dataset=str(place / "data"), output=str(tmp_path / "run"), label="sides", reduce_in="bfloat16"
    )
    reporter = Recorder()
    dry_run(resolve(options), RunFolder(options.output), reporter, num_workers)
    assert any("there is one replica" in text for text in reporter.texts) == is_one


@pytest.mark.slow
def test_the_command(place, tmp_path) -> None:
    (tmp_path / "run.toml").write_text('label = "sides"\nepochs = 3\nglobal-batch-size = 50\noutput = "run"\n')

    def shardkit(*arguments):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "KERAS_", "SHARDKIT_"))}
        found = subprocess.run(
            [sys.executable, "-m", "shardkit", "train", str(place / "data"), "--config", "run.toml", *arguments],
            capture_output=True, text=True, timeout=280, env=environment, cwd=tmp_path,
        )  # fmt: skip
        assert found.returncode == 0, found.stderr
        return found

    shown = shardkit("--dry-run", "--set", "epochs=2").stdout
    assert "12, 6 an epoch" in shown
    assert "activations" in shown
    several = shardkit("--dry-run", "--strategy", "multi-worker", "--workers-per-host", "2")
    assert "2 workers of 1 device (CPU)" in several.stderr
    assert "50, 25 on each replica" in several.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["run.toml"]
    trained = shardkit("--set", "epochs=1", "--profile-steps", "2:4", "--set", "export=model")
    assert "of 2 steps: tensorboard --logdir" in trained.stderr
    assert [p.stat().st_size > 1000 for p in (tmp_path / "run").rglob("*.xplane.pb")] == [True]
    assert (tmp_path / "model" / "saved_model" / "saved_model.pb").is_file()
    assert "epoch 1 of 1" in trained.stderr
