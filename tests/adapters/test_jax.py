"""JAX: global batches on two devices, every example once; what a device cannot hold is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

jax = pytest.importorskip("jax")

from shardkit.adapters.jax import batches  # noqa: E402
from shardkit.errors import BadInputError, UsageError  # noqa: E402


@pytest.fixture(scope="module")
def sharding():
    return jax.NamedSharding(jax.make_mesh((1,), ("data",)), jax.P("data"))


@pytest.mark.parametrize("remainder", ["drop", "pad"])
def test_two_devices_hold_every_example_once(splits, remainder):
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(Path(__file__).with_name("jax_reader.py")), splits.dataset.url, remainder]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    num_rows = len(splits["train"])
    assert len(found["batches"]) == found["len"] == num_rows // 24 + (remainder == "pad")
    seen = [number for batch in found["batches"] for number in batch]
    assert len(set(seen)) == len(seen) == (num_rows if remainder == "pad" else num_rows // 24 * 24)
    stock = splits["train"].batches(global_batch_size=24, seed=3, remainder=remainder)
    assert found["batches"][0] == next(iter(stock))["id"].tolist()
    assert found["state"]["epoch"] == 1


def test_what_no_device_holds_is_named(splits, sharding):
    with pytest.raises(UsageError, match="'word', 'at', 'tokens'"):
        batches(splits["train"], global_batch_size=8, sharding=sharding)


def test_numbers_of_more_than_32_bits_are_not_cut(splits, sharding):
    split = splits["train"]
    run = batches(split, global_batch_size=8, sharding=sharding, features=["key"])
    with pytest.raises(BadInputError, match="more than 32 bits"):
        list(run)
    with jax.enable_x64(True):
        first = next(iter(batches(split, global_batch_size=8, sharding=sharding, features=["key"], shuffle=False)))
        assert first["key"].tolist() == [2**40 + i for i in range(8)]
