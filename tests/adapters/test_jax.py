"""JAX: global batches on two devices, every example once; what a device cannot hold is refused."""

import json
import os
import subprocess
import sys

import pyarrow as pa
import pytest

from tests.support.paths import ROOT

jax = pytest.importorskip("jax")

from shardkit.adapters.jax import batches  # noqa: E402
from shardkit.errors import BadInputError, UsageError  # noqa: E402
from shardkit.features import arrow_schema, make_feature  # noqa: E402
from shardkit.reading.splits import Splits  # noqa: E402
from shardkit.testing import write_dataset  # noqa: E402

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def sharding():
    return jax.NamedSharding(jax.make_mesh((1,), ("data",)), jax.P("data"))


@pytest.mark.parametrize("remainder", ["drop", "pad"])
def test_two_devices_hold_every_example_once(splits, remainder):
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(ROOT / "tests/support/adapters/jax_reader.py"), splits.dataset.url, remainder]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    num_rows = len(splits["train"])
    assert len(found["batches"]) == found["len"] == num_rows // 24 + (remainder == "pad")
    seen = [number for batch in found["batches"] for number in batch]
    assert len(set(seen)) == len(seen) == (num_rows if remainder == "pad" else num_rows // 24 * 24)
    numpy_batches = splits["train"].batches(global_batch_size=24, seed=3, remainder=remainder)
    assert found["batches"][0] == next(iter(numpy_batches))["id"].tolist()
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


@pytest.mark.parametrize(
    ("dtype", "fits", "exceeds"),
    [
        ("uint64", [0, 2**32 - 1], 2**32),
        ("int64", [-(2**31), 2**31 - 1], -(2**31) - 1),
        ("float64", [-3e38, float("inf")], 1e300),
    ],
)
def test_the_range_of_32_bits_is_that_of_each_type(tmp_path, sharding, dtype, fits, exceeds):
    feature = make_feature("a", dtype, nullable=True)

    def read(name, *values):
        rows = pa.record_batch([pa.array(values, feature.arrow_type)], arrow_schema((feature,)))
        split = Splits(write_dataset(tmp_path / name, (feature,), {"train": rows}, num_shards=1))["train"]
        return next(iter(batches(split, global_batch_size=len(values), sharding=sharding, shuffle=False)))

    found = read("fits", *fits, None)
    assert found["a"].tolist()[:2] == pytest.approx(fits)
    assert found["a/present"].tolist() == [True, True, False]
    with pytest.raises(BadInputError, match="more than 32 bits"):
        read("exceeds", *fits, exceeds)
