"""Length buckets of a run: equal steps, little padding, the same result however often it is stopped or divided."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.cli import main
from shardkit.errors import UsageError
from shardkit.features import arrow_schema, make_feature
from shardkit.reading.lengths import count_lengths
from shardkit.reading.splits import Splits as OpenSplits
from shardkit.testing import write_dataset as write_blocks
from tests.support.training.inprocess import Interrupted, Recorder, train
from tests.support.training.outputs import assert_same, learned
from tests.support.training.sounds import tone, wav
from train.dry_run import dry_run
from train.input.preparation import Preparation
from train.input.reader_input import Assignment, ReaderInput, read_lengths
from train.input.shares import bucketed_shares
from train.models.builtin import outputs
from train.options.choices import Splits
from train.options.config import TrainOptions
from train.options.length_buckets import bucket_split, check_length_buckets, fit_boundaries
from train.options.step_plan import Position, TrainPlan, choose_lanes
from train.runs.request import resolve
from train.runs.run_folder import RunFolder
from train.setup import make_steps, set_up

pytestmark = pytest.mark.full

TEXT = (make_feature("text", "string"), make_feature("sides", "string"), make_feature("id", "int64"))
SETTINGS = {"model": "text", "features": ("text",), "epochs": 2, "global_batch_size": 24}
NUM_TRAIN, NUM_TEST = 130, 50

lengths = st.lists(st.integers(0, 70), min_size=1, max_size=60).map(lambda values: np.array(values, np.int32))
ends = st.sets(st.integers(1, 60), min_size=1, max_size=6).map(lambda values: tuple(sorted(values)))


def sentences(num_rows: int, seed: int) -> list[dict[str, Any]]:
    """Returns texts of 0 to 40 words, short ones more often."""
    draw = random.Random(seed)
    rows = []
    for i in range(num_rows):
        words = draw.choices(["sea,", "sky", "wind", "and", "sand"], k=int(40 * draw.random() ** 2))
        rows.append({"text": " ".join(words), "sides": "many" if words.count("sky") > 1 else "few", "id": i})
    return rows


@pytest.fixture
def dataset(write) -> Path:
    return write(TEXT, {"train": sentences(NUM_TRAIN, 0), "test": sentences(NUM_TEST, 1)})


def with_buckets(dataset: Path, tmp_path: Path, **settings: Any) -> Any:
    options = {"dataset": str(dataset), "output": str(tmp_path / "run"), "label": "sides", **SETTINGS, **settings}
    return set_up(resolve(TrainOptions(**options)))


@given(ends, lengths)
def test_every_bucket_has_examples_and_every_example_a_bucket(wanted, lengths) -> None:
    found = fit_boundaries(wanted, count_lengths(lengths))
    own = np.searchsorted(found, lengths)
    assert set(own.tolist()) == set(range(len(found)))
    longer = {int(lengths.max())} - set(range(wanted[-1] + 1))
    assert set(found) <= set(wanted) | longer
    # Examples are in the least bucket that was asked for.
    assert all(found[i] == min([e for e in wanted if e >= n] or longer) for i, n in zip(own, lengths, strict=True))


@given(st.none() | ends, lengths)
def test_padding_is_the_share_that_no_example_fills(wanted, lengths) -> None:
    buckets = bucket_split("t", wanted, lengths, count_lengths(lengths))
    filled_up = np.array(buckets.boundaries)[buckets.bucket_of]
    assert (filled_up >= lengths).all()
    assert buckets.padding == pytest.approx(1 - lengths.sum() / filled_up.sum())


@given(st.integers(1, 6), st.integers(1, 40))
def test_all_workers_that_can_share_a_batch_share_its_groups(num_workers, worker_batch) -> None:
    plan = TrainPlan(
        num_train_examples=10**6, num_validation_examples=0, num_replicas=num_workers, num_epochs=1,
        global_batch_size=num_workers * worker_batch, num_workers=num_workers,
        num_lanes=choose_lanes(None, num_workers),
    )  # fmt: skip
    assert plan.num_groups % num_workers == 0
    assert plan.global_batch_size % plan.num_groups == plan.num_lanes % plan.num_groups == 0


def test_a_run_that_was_stopped_in_an_epoch_goes_on_bit_for_bit(dataset, tmp_path) -> None:
    settings = {**SETTINGS, "length_buckets": "auto", "checkpoint_every": 2}
    train(dataset, tmp_path / "whole", **settings)
    with pytest.raises(Interrupted):
        train(dataset, tmp_path / "cut", Recorder(8), **settings)
    train(dataset, tmp_path / "cut", resume=True, **settings)
    assert_same(tmp_path / "whole", tmp_path / "cut")
    assert learned(tmp_path / "whole") == learned(tmp_path / "cut")
    assert [line[1] for line in learned(tmp_path / "whole")] == [5, 10]
    with pytest.raises(UsageError, match="other bucket boundaries"):
        train(dataset, tmp_path / "cut", resume=True, **{**settings, "length_buckets": (4, 40)})


def test_a_graph_is_made_for_no_more_than_each_bucket(dataset, tmp_path) -> None:
    setup = with_buckets(dataset, tmp_path, length_buckets=(4, 8, 16, 32))
    assert setup.buckets.boundaries[:4] == (4, 8, 16, 32)
    steps = make_steps(setup)
    shapes = []
    for batch in setup.input.training(Position(0, 0)):
        steps.train(batch, np.float32(0))
        shapes.append(tuple(batch.inputs["tokens"].shape))
    assert len(shapes) == 2 * (NUM_TRAIN // 24)
    assert {shape[0] for shape in shapes} == {24}
    assert {shape[1] for shape in shapes} <= set(setup.buckets.boundaries)
    assert len(set(shapes)) > 2
    assert steps.train.experimental_get_tracing_count() <= len(set(shapes))


def test_validation_counts_every_example_once_with_what_its_bucket_cannot_change(dataset, tmp_path) -> None:
    """The outputs for examples in batches of their own length are those in batches of the longest."""
    outputs = []
    for asked in ("auto", (40,), None):
        setup = with_buckets(dataset, tmp_path, length_buckets=asked)
        setup.bundle.model.set_weights(
            [np.random.default_rng(0).normal(size=w.shape) for w in setup.bundle.model.get_weights()]
        )
        batches = list(setup.input.validation())
        assert len(batches) == -(-NUM_TEST // 24)
        assert sum(float(np.sum(batch.weights)) for batch in batches) == NUM_TEST
        found = [
            (np.trim_zeros(tokens).tolist(), output.tolist())
            for batch in batches
            for tokens, output, weight in zip(
                batch.inputs["tokens"].numpy(), setup.bundle.model(batch.inputs).numpy(), batch.weights, strict=True
            )
            if weight
        ]
        outputs.append(sorted(found))
    for others in outputs[1:]:
        assert [tokens for tokens, _ in outputs[0]] == [tokens for tokens, _ in others]
        np.testing.assert_allclose([o for _, o in outputs[0]], [o for _, o in others], rtol=1e-6, atol=1e-6)


def ids_by_worker(dataset: Path, tmp_path: Path, num_workers: int) -> list[list[Any]]:
    """Returns the labels and the tokens of each batch of each worker."""
    setup = with_buckets(dataset, tmp_path, length_buckets="auto", label="id", task="regression")
    made = TrainPlan(
        num_train_examples=NUM_TRAIN, num_validation_examples=0, num_replicas=num_workers, num_epochs=2,
        global_batch_size=24, num_workers=num_workers, num_lanes=choose_lanes(None, num_workers),
    )  # fmt: skip
    preparation = Preparation(setup.bundle, setup.label, setup.request.label_feature, 96)
    opened = OpenSplits(setup.request.dataset)
    opened["train"].set_lengths("text", read_lengths(opened["train"], setup.bundle))
    splits = Splits(train="train", validation=None)
    inputs = [
        ReaderInput(opened, preparation, Assignment(splits, made, i, 5), {"train": setup.buckets})
        for i in range(num_workers)
    ]
    return [[(b.labels.numpy().tolist(), b.inputs["tokens"].shape) for b in i.training(Position(0, 0))] for i in inputs]


def test_workers_share_the_batches_of_one_and_have_the_same_length_at_every_step(dataset, tmp_path) -> None:
    (alone,) = ids_by_worker(dataset, tmp_path, 1)
    assert len(alone) == 2 * (NUM_TRAIN // 24)
    for epoch in (alone[:5], alone[5:]):
        seen = [label for labels, _ in epoch for label in labels]
        assert len(seen) == len(set(seen)) == 120
    for one, *parts in zip(alone, *ids_by_worker(dataset, tmp_path, 3), strict=True):
        assert [label for labels, _ in parts for label in labels] == one[0]
        assert {shape for _, shape in parts} == {(8, one[1][1])}
    assert alone[:5] != alone[5:]


@pytest.mark.slow
@pytest.mark.campaign
def test_two_replicas_end_where_one_does(dataset, tmp_path, monkeypatch) -> None:
    """Without dropout, which every replica draws for itself."""
    monkeypatch.setattr(outputs, "_DROPOUT", 0.0)
    train(dataset, tmp_path / "one", **SETTINGS, length_buckets=(8, 16))
    code = "from train.models.builtin import outputs; outputs._DROPOUT = 0.0\nfrom shardkit.cli import script; script()"
    command = (
        sys.executable, "-c", code, "train", dataset, "--output", tmp_path / "two", "--label", "sides",
        "--model", "text", "--features", "text", "--epochs", 2, "--global-batch-size", 24,
        "--length-buckets", "8, 16", "--strategy", "mirrored", "--replicas", 2,
    )  # fmt: skip
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=480, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 virtual CPU devices, mirrored" in done.stderr
    assert_same(tmp_path / "one", tmp_path / "two", atol=1e-5)


def example(kind: str, draw: random.Random) -> Any:
    """Returns one sequence of that kind, of any length."""
    if kind == "tokens":
        return [draw.randrange(9) for _ in range(draw.randint(1, 30))]
    if kind == "series":
        return tone(440, draw.randint(1, 30)).tolist()
    samples = tone(440, draw.randint(900, 2500))
    return wav(samples) if kind == "audio" else samples.tolist()


@pytest.mark.parametrize(
    ("kind", "feature"),
    [
        ("series", make_feature("x", "float32", (None,))),
        ("samples", make_feature("x", "float32", (None,))),
        ("tokens", make_feature("x", "int64", (None,))),
        ("audio", make_feature("x", "bytes", media_type="audio/wav")),
    ],
)
def test_the_length_of_any_sequence_is_what_it_takes_of_the_inputs(write, tmp_path, kind, feature) -> None:
    draw = random.Random(0)
    rows = [{"x": example(kind, draw), "sides": "ab"[i % 2]} for i in range(40)]
    dataset = write((feature, make_feature("sides", "string")), {"train": rows, "test": rows})
    settings = {"model": "sequence", "features": ("x",), "global_batch_size": 8}
    setup = with_buckets(dataset, tmp_path, length_buckets="auto", **settings)
    plain = with_buckets(dataset, tmp_path, **settings)
    name = "tokens" if kind == "tokens" else "mask"
    held = [int((row != 0).sum()) for batch in plain.input.validation() for row in batch.inputs[name].numpy()]
    assert read_lengths(OpenSplits(setup.request.dataset)["test"], setup.bundle).tolist() == held
    found = [batch.inputs[name].numpy() for batch in setup.input.validation()]
    assert sorted(int((row != 0).sum()) for rows in found for row in rows) == sorted(held)
    assert {rows.shape[1] for rows in found} <= set(setup.buckets.boundaries)


def test_the_plan_that_is_shown_is_that_of_the_batches(dataset, tmp_path, capsys) -> None:
    options = TrainOptions(
        dataset=str(dataset), output=str(tmp_path / "run"), label="sides", **SETTINGS, length_buckets=(8, 100)
    )
    reporter = Recorder()
    dry_run(resolve(options), RunFolder(options.output), reporter, num_workers=2)
    shown = capsys.readouterr().out
    assert "10, 5 an epoch" in shown
    assert "10 examples of each epoch" in shown
    assert [line.split()[-2:] for line in shown.splitlines() if line.split()[:2] in (["0", "24"], ["1", "24"])] == [
        ["60", "12"],
        ["60", "12"],
    ]
    (said,) = (text for text in reporter.texts if "length buckets" in text)
    assert "length buckets of text up to 8, 100; " in said


@pytest.mark.parametrize(
    ("model", "reader", "words"),
    [
        ("tabular", "shardkit", "the model is tabular"),
        ("my.py:build", "shardkit", "the model is my.py:build"),
        ("text", "tfdata", "--reader tfdata was given"),
    ],
)
def test_models_and_readers_without_buckets_are_named(model, reader, words) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        check_length_buckets(model, reader)
    assert refused.value.next_step


@pytest.mark.parametrize(
    ("asked", "more", "words"),
    [
        ("16,8", (), "'16,8' are no lengths of buckets; write auto, or up to 63 ascending numbers"),
        ("0,8", (), "ascending numbers from 1"),
        ("many", (), "ascending numbers from 1"),
        (",".join(map(str, range(1, 70))), (), "up to 63"),
        ("auto", ("--reader", "tfdata"), "--reader tfdata was given. Leave one of them out."),
        ("auto", ("--model", "tabular"), "the model is tabular. Leave it out, or use --model text or sequence."),
    ],
)
def test_what_cannot_be_is_one_sentence(dataset, tmp_path, capsys, asked, more, words) -> None:
    output = tmp_path / "run"
    command = ("train", dataset, "--label", "sides", "--features", "text", "--model", "text", "--output", output)
    assert main([*map(str, command), "--length-buckets", asked, *more]) in (1, 2)
    said = capsys.readouterr().err
    assert words in " ".join(said.split())
    assert "Traceback" not in said
    assert not output.exists()


@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_a_share_is_what_the_reader_reads(tmp_path, num_workers) -> None:
    values = np.random.default_rng(0).integers(0, 40, 500)
    features = (make_feature("id", "int64"),)
    rows = pa.record_batch([pa.array(np.arange(500))], arrow_schema(features))
    split = OpenSplits(write_blocks(tmp_path / "set", features, {"train": rows}, num_shards=5, block_examples=9))[
        "train"
    ]
    split.set_lengths("id", values)
    plan = TrainPlan(
        num_train_examples=500, num_validation_examples=0, num_replicas=num_workers, num_epochs=1,
        global_batch_size=24, num_workers=num_workers, num_lanes=choose_lanes(None, num_workers),
    )  # fmt: skip
    buckets = bucket_split("id", (5, 20), values.astype(np.int32), count_lengths(values))
    shards = split.dataset.split_shards("train")
    shares = bucketed_shares(*shards.block_examples(), buckets, plan, seed=3)
    block_of = np.repeat(np.arange(len(split.block_num_examples)), split.block_num_examples)
    shard_of = np.repeat(np.arange(len(shards)), [shard.num_examples for shard in shards])
    for share in shares:
        batches = split.batches(
            global_batch_size=24, buckets=buckets.request(plan.num_groups), num_lanes=plan.num_lanes, seed=3,
            worker_index=share.worker_index, num_workers=num_workers,
        )  # fmt: skip
        ids = np.concatenate([batch["id"] for batch in batches])
        assert len(ids) == share.num_examples == plan.steps_per_epoch * share.num_step_examples
        assert len(np.unique(block_of[ids])) == share.num_blocks
        assert len(np.unique(shard_of[ids])) == share.num_shards
