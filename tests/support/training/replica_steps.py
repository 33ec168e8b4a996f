"""Runs steps of training on one replica and on two, and stores what came out; a process of its own, for its devices.

    python replica_steps.py OUT.npz [CASE ...]

Every case is trained with the same global batches; the keys of the result are `CASE/REPLICAS/what`.
"""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from train.models.batch import Batch
from train.optimization.gradients import gradient_function
from train.optimization.objectives import Classification
from train.optimization.precision import set_precision
from train.optimization.recompute import recomputing
from train.optimization.step import train_step
from train.optimization.updater import Updater, make_optimizer
from train.options.config import LabelSpec
from train.options.optimizer_options import OptimizerOptions, plan_schedule

NUM_STEPS = 8
BATCH_SIZE = 16
MAKES_DENSE = "UnsortedSegmentSum"
OVERFLOW_AT = 4

ADAM = {"name": "adamw", "learning_rate": 0.01}
CASES: dict[str, dict[str, Any]] = {
    "plain": ADAM,
    "adamw": ADAM | {"weight_decay": 0.01},
    "sgd": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    "lion": {"name": "lion", "learning_rate": 0.001},
    "sparse": {"name": "sgd", "learning_rate": 0.1, "accumulate": 2},
    "clipped": ADAM | {"clip_norm": 0.05},
    "accumulated": ADAM | {"accumulate": 4},
    "everything": ADAM | {"weight_decay": 0.01, "clip_norm": 0.05, "accumulate": 2, "ema": 0.9, "sparsity": 0.5},
    "batch_norm": ADAM | {"batch_norm": True},
    "batch_norm_accumulated": ADAM | {"batch_norm": True, "accumulate": 2},
    "recomputed": ADAM | {"batch_norm": True, "recompute": True},
    "xla": ADAM | {"xla": True},
    "overflow": ADAM | {"precision": "float16", "ema": 0.9, "overflow": True},
    "overflow_accumulated": ADAM | {"precision": "float16", "accumulate": 2, "overflow": True},
    "bfloat16": ADAM | {"precision": "bfloat16"},
    "reduced_in_bfloat16": ADAM | {"reduce_in": "bfloat16"},
    "reduced_in_float16": ADAM | {"reduce_in": "float16"},
}


def make_model(*, batch_norm: bool) -> keras.Model:
    """Returns a small model with an embedding, two inputs, a regularizer and, where asked, batch normalization."""
    ids = keras.Input([3], dtype="int32", name="ids")
    numbers = keras.Input([4], name="numbers")
    embedded = keras.layers.Flatten()(keras.layers.Embedding(40, 5)(ids))
    hidden = keras.layers.Concatenate()([embedded, numbers])
    hidden = keras.layers.Dense(8, activation="relu", kernel_regularizer=keras.regularizers.L2(0.01))(hidden)
    if batch_norm:
        hidden = keras.layers.BatchNormalization(synchronized=True)(hidden)
    return keras.Model([ids, numbers], keras.layers.Dense(3, dtype="float32")(hidden))


def make_batch(draw: np.random.Generator, *, overflow: bool) -> Batch:
    """Returns a random batch; where asked, the gradients of its last example are too large for float16."""
    numbers = draw.normal(size=(BATCH_SIZE, 4)).astype(np.float32)
    if overflow:
        numbers[-1] = 3_000.0
    weights = (draw.random(BATCH_SIZE) > 0.2).astype(np.float32)
    weights[-1] = 1.0
    inputs = [tf.constant(draw.integers(0, 40, (BATCH_SIZE, 3)), tf.int32), tf.constant(numbers)]
    return Batch(inputs, tf.constant(draw.integers(0, 3, BATCH_SIZE), tf.int32), tf.constant(weights))


def run_case(case: dict[str, Any], strategy: tf.distribute.Strategy) -> dict[str, Any]:
    """Trains and returns weights of each replica, averages, loss scales and sums of every step."""
    settings = dict(case)
    names = ("xla", "overflow", "batch_norm", "recompute")
    xla, overflow, batch_norm, recompute = (settings.pop(name, False) for name in names)
    options = OptimizerOptions(**settings)
    keras.utils.set_random_seed(3)
    set_precision(options.precision)
    schedule = plan_schedule("cosine", options.learning_rate, NUM_STEPS, 2)
    with strategy.scope():
        model = make_model(batch_norm=batch_norm)
        updater = Updater(make_optimizer(options, schedule), model.trainable_variables, options, NUM_STEPS)
    forward = recomputing(model) if recompute else None
    objective = Classification(LabelSpec(name="y", task="classification", classes=("a", "b", "c")))
    backward = gradient_function(model, objective, num_micro_batches=options.accumulate, xla=xla, forward=forward)
    size = BATCH_SIZE // strategy.num_replicas_in_sync

    def replica_step(batch: Batch) -> tf.Tensor:
        first = tf.distribute.get_replica_context().replica_id_in_sync_group * size
        own = tf.nest.map_structure(lambda t: tf.ensure_shape(t[first : first + size], [size, *t.shape[1:]]), batch)
        return train_step(backward, updater, objective, own)

    @tf.function
    def step(batch: Batch) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(replica_step, args=(batch,)), axis=None)

    draw = np.random.default_rng(5)
    sums, scales = [], []
    for i in range(NUM_STEPS):
        sums.append(step(make_batch(draw, overflow=overflow and i == OVERFLOW_AT)).numpy())
        scales.append(1.0 if updater.loss_scale is None else float(updater.loss_scale.scale.numpy()))
    result: dict[str, Any] = {"sums": np.array(sums), "scales": np.array(scales)}
    result["num_updates"] = updater.optimizer.iterations.numpy()
    for i, variable in enumerate(model.trainable_variables):
        for replica, own in enumerate(strategy.experimental_local_results(variable.value)):
            result[f"weights{replica}/{i}"] = own.numpy()
    if updater.averages is not None:
        for i, average in enumerate(updater.averages.values):
            result[f"averages/{i}"] = average.numpy()
    batch = make_batch(draw, overflow=False)
    nodes = nodes_of(step, batch)
    # Counts of classes are made with the same operation.
    metrics = nodes_of(tf.function(lambda b, outputs: objective.sums(b, outputs)), batch, tf.zeros([BATCH_SIZE, 3]))
    num_of_metrics = sum(n.op == MAKES_DENSE for n in metrics) * strategy.num_replicas_in_sync
    result["num_made_dense"] = sum(n.op == MAKES_DENSE for n in nodes) - num_of_metrics
    kinds = {tf.as_dtype(n.attr["T"].type).name for n in nodes if n.op in ("CollectiveReduceV2", "AddN")}
    result["reduced_in"] = np.array(sorted(kinds))
    return result


def nodes_of(function: Any, *arguments: Any) -> list[Any]:
    """Returns the operations of a graph and of the functions that it calls."""
    graph = function.get_concrete_function(*arguments).graph.as_graph_def()
    return [*graph.node, *(n for f in graph.library.function for n in f.node_def)]


def main(path: str, *names: str) -> None:
    """Runs the named cases, or all."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategies = {1: tf.distribute.get_strategy(), 2: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])}
    results = {}
    for name in names or CASES:
        for num_replicas, strategy in strategies.items():
            for what, value in run_case(CASES[name], strategy).items():
                results[f"{name}/{num_replicas}/{what}"] = value
    np.savez(path, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
