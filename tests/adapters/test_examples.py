"""The training programs in `examples/`: two processes of PyTorch, two devices of JAX, Keras; every example once."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pyarrow as pa
import pytest

from shardkit.features import arrow_schema, make_feature
from shardkit.testing import write_dataset
from tests.support.paths import ROOT

pytestmark = pytest.mark.full

FEATURES = (make_feature("x", "float32"), make_feature("y", "int64", nullable=True))
# Labels are powers of two: a row that is lost or comes twice shows in their sum.
NUM_LABELLED = 31
NUM_ROWS = NUM_LABELLED + 2
NUM_EPOCHS = 4


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    labels = [2**i for i in range(NUM_LABELLED)] + [None] * (NUM_ROWS - NUM_LABELLED)
    inputs = [float(i) for i in range(NUM_ROWS)]
    arrays = [pa.array(values, f.arrow_type) for values, f in zip((inputs, labels), FEATURES, strict=True)]
    rows = pa.record_batch(arrays, arrow_schema(FEATURES))
    folder = tmp_path_factory.mktemp("examples") / "set"
    return write_dataset(folder, FEATURES, {"train": rows}, num_shards=2, block_examples=3)


@pytest.mark.parametrize(
    ("package", "program", "settings", "first_line"),
    [
        pytest.param(
            "torch",
            ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "examples/torch_ddp.py"],
            {"OMP_NUM_THREADS": "1"},
            "2 processes",
            marks=pytest.mark.slow,
        ),
        (
            "jax",
            ["examples/jax_train.py"],
            {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"},
            "2 devices",
        ),
    ],
    ids=["torch", "jax"],
)
def test_every_example_is_seen_once_an_epoch(dataset, package, program, settings, first_line):
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    sizes = ["--epochs", str(NUM_EPOCHS), "--global-batch-size", "8"]
    run = subprocess.run(
        [sys.executable, *program, dataset.url, "y", "x", *sizes],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **settings},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert run.returncode == 0, run.stderr
    first, *epochs = run.stdout.splitlines()
    assert first == first_line
    found = [re.fullmatch(r"epoch (\d+)  loss (\S+)  examples (\d+)  sum of labels (\d+)", line) for line in epochs]
    assert [m.group(1, 3, 4) for m in found] == [
        (str(epoch + 1), str(NUM_ROWS), str(2**NUM_LABELLED - 1)) for epoch in range(NUM_EPOCHS)
    ]
    losses = [float(m[2]) for m in found]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param(name, marks=pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed"))
        for name in ("tensorflow", "jax", "torch")
    ],
)
def test_keras_goes_on_with_the_next_epoch(dataset, tmp_path, backend):
    epochs = []
    for num_epochs in (1, 3):
        options = ("--state", tmp_path / "state.npz", "--epochs", num_epochs, "--global-batch-size", 8)
        run = subprocess.run(
            [sys.executable, "examples/keras_fit.py", dataset.url, "y", "x", *map(str, options)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": backend},
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert run.returncode == 0, run.stderr
        first, *lines = run.stdout.splitlines()
        assert first == f"Keras on {backend}"
        epochs += [re.fullmatch(r"epoch (\d+)  loss (\S+)  examples (\d+)", line).groups() for line in lines]
    assert [(number, seen) for number, _, seen in epochs] == [(f"{n}", f"{NUM_LABELLED}") for n in (1, 2, 3)]
    losses = [float(loss) for _, loss, _ in epochs]
    assert losses[-1] < losses[0]
