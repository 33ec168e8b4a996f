"""Trains a small regression on a shardkit dataset with JAX, each batch divided over all devices.

    export XLA_FLAGS=--xla_force_host_platform_device_count=2
    python examples/jax_train.py out/flights arr_delay dep_delay distance

That flag makes two devices of one CPU. Label and features are numbers. After each epoch it prints the loss, how many
examples all devices saw, and the sum of their labels: both are those of the split, as every example comes once.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np

import shardkit
from shardkit.adapters.jax import batches


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("label")
    parser.add_argument("features", nargs="+")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--global-batch-size", type=int, default=256)
    return parser.parse_args()


def main() -> None:
    asked = parse_arguments()
    splits = shardkit.open(asked.dataset)
    statistics = splits.manifest.split("train").statistics  # Means and deviations are in the manifest already.
    # Rows of a batch lie on the devices side by side; the weights are on all of them.
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    rows, everywhere = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (("data",), ()))

    def scale(batch: dict[str, jax.Array], name: str) -> jax.Array:
        scaled = (batch[name].astype(jnp.float32) - statistics[name].mean) / (statistics[name].std or 1.0)
        return jnp.where(batch.get(f"{name}/present", True) & ~jnp.isnan(scaled), scaled, 0.0)  # A null is the mean.

    def compute_loss(weights: dict[str, jax.Array], batch: dict[str, jax.Array]) -> jax.Array:
        hidden = jax.nn.relu(jnp.stack([scale(batch, n) for n in asked.features], 1) @ weights["w1"] + weights["b1"])
        errors = ((hidden @ weights["w2"])[:, 0] + weights["b2"] - scale(batch, asked.label)) ** 2
        is_known = find_known(batch)
        return jnp.where(is_known, errors, 0.0).sum() / jnp.maximum(is_known.sum(), 1)

    def find_known(batch: dict[str, jax.Array]) -> jax.Array:
        is_real = batch.get("mask", jnp.ones(batch[asked.label].shape, bool))  # False in rows that fill a batch up.
        return is_real & batch.get(f"{asked.label}/present", True)

    @jax.jit  # Devices add up among themselves what the sums of a step need.
    def step(weights: dict[str, jax.Array], batch: dict[str, jax.Array]) -> tuple[dict[str, jax.Array], jax.Array]:
        loss, gradients = jax.value_and_grad(compute_loss)(weights, batch)
        return jax.tree.map(lambda w, g: w - 0.05 * g, weights, gradients), loss

    keys = jax.random.split(jax.random.key(0), 2)
    width = len(asked.features)
    weights = {"w1": jax.random.normal(keys[0], (width, 32)) / width**0.5, "b1": jnp.zeros(32)}
    weights |= {"w2": jax.random.normal(keys[1], (32, 1)) / 32**0.5, "b2": jnp.zeros(())}
    weights = jax.device_put(weights, everywhere)
    settings = {"global_batch_size": asked.global_batch_size, "seed": 1, "features": [asked.label, *asked.features]}
    print(f"{jax.device_count()} devices")
    for epoch in range(asked.epochs):
        num_examples, num_labels, label_sum, total = 0, 0, 0.0, 0.0
        # "pad" fills the last batch up, so that all are of one shape and are compiled once.
        for batch in batches(splits["train"], sharding=rows, remainder="pad", epoch=epoch, **settings):
            weights, loss = step(weights, batch)
            is_known = np.asarray(find_known(batch))
            num_examples += int(batch["mask"].sum()) if "mask" in batch else len(is_known)
            num_labels += int(is_known.sum())
            label_sum += float(np.asarray(batch[asked.label])[is_known].sum(dtype=np.float64))
            total += float(loss) * int(is_known.sum())
        mean = total / max(num_labels, 1)
        print(f"epoch {epoch + 1}  loss {mean:.4f}  examples {num_examples}  sum of labels {label_sum:.0f}")


if __name__ == "__main__":
    main()
