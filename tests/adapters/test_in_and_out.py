"""Every library's rows become a dataset, and a dataset rows of every library, with the same values."""

import numpy as np
import pyarrow as pa
import pytest

import shardkit

pytestmark = pytest.mark.full

NUM_ROWS = 50
ROWS = [
    {"i": 2**62 - i, "x": i / 8, "s": f"wört {i}", "v": [float(i), -0.5], "l": list(range(i % 3))}
    for i in range(NUM_ROWS)
]
TABLE = pa.Table.from_pylist(ROWS)


def numpy():
    """Returns the columns whose rows are alike: NumPy has no lists of several lengths."""
    return {name: np.array([row[name] for row in ROWS]) for name in "ixv"} | {"s": [row["s"] for row in ROWS]}


def torch_dataset(torch):
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return NUM_ROWS

        def __getitem__(self, index):
            row = ROWS[index]
            return row | {"v": torch.tensor(row["v"], dtype=torch.float64), "l": torch.tensor(row["l"])}

    return Rows()


INS = {
    "pandas": lambda pandas: pandas.DataFrame(ROWS),
    "polars": lambda polars: polars.DataFrame(ROWS),
    "duckdb": lambda duckdb: duckdb.connect().from_arrow(TABLE),
    "datasets": lambda datasets: datasets.Dataset.from_list(ROWS),
    "numpy": lambda _: numpy(),
    "torch": torch_dataset,
    "tensorflow": lambda tf: tf.data.Dataset.from_generator(
        lambda: iter(ROWS),
        output_signature={
            "i": tf.TensorSpec([], tf.int64), "x": tf.TensorSpec([], tf.float64), "s": tf.TensorSpec([], tf.string),
            "v": tf.TensorSpec([2], tf.float64), "l": tf.TensorSpec([None], tf.int64),
        },
    ),
}  # fmt: skip


def plain(value):
    """Returns a value as Python has it."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return value.decode() if isinstance(value, bytes) else value


def plain_rows(rows):
    return [{name: plain(row[name]) for name in sorted(row)} for row in rows]


def expected(names):
    return [{name: row[name] for name in sorted(names)} for row in ROWS]


@pytest.mark.parametrize("library", INS)
def test_rows_of_a_library_become_a_dataset(library, tmp_path):
    data = INS[library](pytest.importorskip(library))
    split = shardkit.convert(data, tmp_path / "set", shuffle=False)["train"]
    names = [name for name in "ixsvl" if library != "numpy" or name != "l"]
    assert plain_rows(split.to_arrow().to_pylist()) == expected(names)


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    return shardkit.convert(TABLE, tmp_path_factory.mktemp("out") / "set", shuffle=False)["train"]


def torch_rows(torch, split):
    adapter = pytest.importorskip("shardkit.adapters.torch")
    return list(adapter.ExampleDataset(split))


OUTS = {
    "pandas": lambda _, split: split.to_pandas().to_dict("records"),
    "polars": lambda _, split: split.to_polars().to_dicts(),
    "duckdb": lambda duckdb, split: duckdb.sql("from split").to_arrow_table().to_pylist(),
    "datasets": lambda datasets, split: list(datasets.Dataset(split.to_arrow())),
    "numpy": lambda _, split: list(split),
    "torch": torch_rows,
}


@pytest.mark.parametrize("library", OUTS)
def test_a_dataset_becomes_rows_of_a_library(library, split):
    assert plain_rows(OUTS[library](pytest.importorskip(library), split)) == expected("ixsvl")
