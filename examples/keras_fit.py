"""Trains a small regression on a shardkit dataset with Keras and `model.fit`, and goes on where it was stopped.

    KERAS_BACKEND=jax python examples/keras_fit.py out/flights arr_delay dep_delay distance --state runs/flights.npz

Label and features are numbers; `KERAS_BACKEND` is tensorflow, jax or torch. Started again after a Ctrl-C, it goes on in
the middle of the epoch. After each epoch it prints the loss and how many examples with a label Keras saw.
"""

import argparse
from typing import Any

import keras
import numpy as np

import shardkit
from shardkit.adapters.keras import Batches, Resume


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("label")
    parser.add_argument("features", nargs="+")
    parser.add_argument("--state", required=True, help="File that keeps weights and the place in the data.")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--global-batch-size", type=int, default=256)
    return parser.parse_args()


class Count(keras.metrics.Sum):
    """Counts the examples of an epoch that have a weight."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        super().update_state(keras.ops.ones_like(y_true), sample_weight)


def main() -> None:
    asked = parse_arguments()
    splits = shardkit.open(asked.dataset)
    statistics = splits.manifest.split("train").statistics  # Means and deviations are in the manifest already.

    def examples(batch: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        columns = []
        for name in asked.features:
            scaled = (batch[name] - statistics[name].mean) / (statistics[name].std or 1.0)
            is_present = batch.present.get(name, True) & ~np.isnan(scaled)
            columns.append(np.where(is_present, scaled, 0.0))  # A null is the mean.
        # Rows without a label, and those that fill up the last batch, weigh nothing.
        weights = batch.present.get(asked.label, True) & np.ones(len(columns[0]), bool)
        weights = weights if batch.mask is None else weights & batch.mask
        arrays = (np.stack(columns, axis=1), batch[asked.label], weights)
        return tuple(array.astype("float32") for array in arrays)

    names = [asked.label, *asked.features]
    settings = {"global_batch_size": asked.global_batch_size, "seed": 1, "remainder": "pad", "features": names}
    data = Batches(splits["train"], examples=examples, **settings)
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((len(asked.features),)), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse", weighted_metrics=[Count("seen")])
    print(f"Keras on {keras.backend.backend()}")
    each_epoch = keras.callbacks.LambdaCallback(on_epoch_end=report)
    Resume(asked.state, model, data).fit(epochs=asked.epochs, callbacks=[each_epoch], verbose=0)


def report(epoch: int, logs: dict[str, Any]) -> None:
    print(f"epoch {epoch + 1}  loss {logs['loss']:.4f}  examples {logs['seen']:.0f}")


if __name__ == "__main__":
    main()
