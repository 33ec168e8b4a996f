"""Keras on each backend reads each example once, and goes on mid-epoch as if it had not been stopped."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

import shardkit
from tests.support.paths import ROOT
from tests.support.stores.servers import free_port

pytestmark = pytest.mark.full

BACKENDS = [
    pytest.param(name, marks=pytest.mark.skipif(find_spec(module) is None, reason=f"{module} is not installed"))
    for name, module in (("tensorflow", "tensorflow"), ("jax", "jax"), ("torch", "torch"))
]
# Trains for three epochs, or until it is stopped after some steps, and prints what the model saw and learned.
PROGRAM = """
import json, sys
import keras, numpy as np, shardkit
from shardkit.adapters.keras import Batches, Resume

class Stop(keras.callbacks.Callback):
    num_steps = int(sys.argv[3])
    def on_train_batch_end(self, batch, logs=None):
        self.num_steps -= 1
        if not self.num_steps:
            raise KeyboardInterrupt

keras.utils.set_random_seed(3)
x = keras.Input((), name="x")
hidden = keras.layers.Dense(8, activation="relu")(keras.ops.expand_dims(x, -1))
model = keras.Model({"x": x}, keras.layers.Dense(1)(keras.layers.Dropout(0.3, seed=5)(hidden)))
model.compile("adam", "mse", weighted_metrics=["mse"])
train = shardkit.open(sys.argv[1])["train"]
data = Batches(train, label="y", global_batch_size=16, remainder="pad", seed=2, features=["x", "y"])
try:
    Resume(sys.argv[2], model, data, every_steps=4).fit(epochs=3, callbacks=[Stop()], verbose=0)
except KeyboardInterrupt:
    pass
seen = [data[i] for i in range(data.num_batches)]
print(json.dumps({
    "steps": int(model.optimizer.iterations),
    "weights": [keras.ops.convert_to_numpy(v).tolist() for v in model.variables],
    "seen": sorted(float(v) for x, y, w in seen for v, weight in zip(x["x"], w) if weight),
}))
"""
# Each process has two devices of a CPU; the batch lies on all four.
TWO_PROCESSES = """
import json, sys
import jax, keras, shardkit
jax.distributed.initialize(sys.argv[2], 2, int(sys.argv[3]))
from shardkit.adapters.keras import Batches
keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
keras.utils.set_random_seed(3)
x = keras.Input((), name="x")
model = keras.Model({"x": x}, keras.layers.Dense(1)(keras.ops.expand_dims(x, -1)))
model.compile("sgd", "mse")
seen = []
def examples(batch):
    seen.extend(batch["x"].tolist())
    return {"x": batch["x"]}, batch["y"]
data = Batches(shardkit.open(sys.argv[1])["train"], examples=examples, global_batch_size=20, seed=2)
steps = data.num_batches
model.fit(data, epochs=1, shuffle=False, verbose=0)
print(json.dumps({"steps": steps, "seen": seen, "weights": [v.numpy().tolist() for v in model.weights]}))
"""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    url = tmp_path_factory.mktemp("keras") / "out"
    rows = {"x": [i / 100 for i in range(100)], "y": [i / 50 for i in range(100)], "name": ["a"] * 100}
    shardkit.convert(rows, url, cast={"x": "float32", "y": "float32"})
    return url


def start(program, backend, *arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)} | environment,
        text=True,
    )


def result_of(process):
    out, _ = process.communicate(timeout=250)
    assert process.returncode == 0
    return json.loads(out.splitlines()[-1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_that_was_stopped_learns_the_same(dataset, tmp_path, backend):
    runs = {name: start(PROGRAM, backend, dataset, tmp_path / f"{name}.npz", n) for name, n in (("a", 0), ("b", 13))}
    whole, stopped = (result_of(run) for run in runs.values())
    assert (whole["steps"], stopped["steps"]) == (21, 13)
    # A batch of 4 examples is filled up to 16; each example came once.
    assert whole["seen"] == pytest.approx([i / 100 for i in range(100)])
    resumed = result_of(start(PROGRAM, backend, dataset, tmp_path / "b.npz", 0))
    assert resumed["steps"] == 21
    assert resumed["weights"] == whole["weights"]


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="tensorflow is not installed")
def test_a_stopped_run_leaves_nothing_that_a_collection_hangs_on(dataset, tmp_path):
    program = """
import gc, sys, threading, time
import keras, shardkit
from shardkit.adapters.keras import Batches, Resume
is_stopped = threading.Event()
def collect(batch):
    time.sleep(0.1)
    if is_stopped.is_set():
        gc.collect()
    return batch
class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise KeyboardInterrupt
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
data = Batches(
    shardkit.open(sys.argv[1])["train"].map(collect),
    examples=lambda batch: (batch["x"][:, None], batch["y"]),
    global_batch_size=2,
    num_threads=1,
)
gc.disable()
try:
    Resume(sys.argv[2], model, data).fit(epochs=1, callbacks=[Stop()], verbose=0)
except KeyboardInterrupt:
    is_stopped.set()
print(sum(len(data[i][1]) for i in range(data.num_batches)))
"""
    process = start(program, "tensorflow", dataset, tmp_path / "state.npz")
    assert process.communicate(timeout=250)[0].split() == ["100"]


@pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed")
def test_two_processes_of_jax_share_each_batch(dataset):
    address = f"127.0.0.1:{free_port()}"
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    runs = [start(TWO_PROCESSES, "jax", dataset, address, index, **flags) for index in range(2)]
    one, other = map(result_of, runs)
    assert one["steps"] == other["steps"] == 5
    assert one["weights"] == other["weights"]
    # What Keras looks at first is looked at again.
    seen = set(one["seen"]) | set(other["seen"])
    assert len(seen) == 100
    assert not set(one["seen"]) & set(other["seen"])


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="tensorflow is not installed")
def test_what_keras_cannot_take_is_refused(dataset, tmp_path):
    program = """
import sys, keras, numpy as np, shardkit
from shardkit.adapters.keras import Batches, Resume
from shardkit.errors import DamageError, UsageError
train = shardkit.open(sys.argv[1])["train"]
def test_rows_of_no_weight_hold_no_nan(tmp_path):
    from shardkit.adapters.keras import Batches

    table = pa.table({"x": pa.array([0.5] * 5, pa.float32()), "y": pa.array([1.0, None, 2.0, 3.0, 4.0], pa.float32())})
    shardkit.convert(table, str(tmp_path / "set"))
    train = shardkit.open(tmp_path / "set")["train"]
    data = Batches(train, label="y", global_batch_size=4, remainder="pad", features=["x", "y"])
    found = [data[i] for i in range(data.num_batches)]
    assert sum(float(weights.sum()) for _, _, weights in found) == 4
    assert all(np.isfinite(columns["x"]).all() and np.isfinite(y).all() for columns, y, _ in found)


def message_of(act):
    try:
        act()
    except UsageError as error:
        return str(error)
print(message_of(lambda: Batches(train, label="y", global_batch_size=10)[0]))
data = Batches(train, label="y", global_batch_size=10, features=["x", "y"])
print(message_of(lambda: [data[i] for i in (0, 3)]))
def model_of(width):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(width)])
    model.compile("sgd", "mse")
    return model
one = Resume(sys.argv[2], model_of(1), data)
one.set_model(model_of(1)); one.model.optimizer.build(one.model.trainable_variables); one.on_epoch_end(0)
print(message_of(lambda: Resume(sys.argv[2], model_of(2), data)))
for damage in (b"no archive", open(sys.argv[2], "rb").read()[:400]):
    open(sys.argv[2] + ".cut.npz", "wb").write(damage)
    try:
        Resume(sys.argv[2] + ".cut.npz", model_of(1), data)
    except DamageError as error:
        print(error)
other = Batches(train, label="y", global_batch_size=20, features=["x", "y"])
print(message_of(lambda: Resume(sys.argv[2], model_of(1), other)))
"""
    process = start(program, "tensorflow", dataset, tmp_path / "state.npz")
    lines = process.communicate(timeout=250)[0].splitlines()
    assert "'name' is no array of numbers" in lines[0]
    assert "shuffle=False" in lines[1]
    assert "the state is of another model" in lines[2]
    assert all("the state cannot be read" in line for line in lines[3:5])
    assert "global_batch_size" in lines[5]
