"""Keywords of a call say what the options of the command say."""

import pytest

from shardkit.conversion.memory.keywords import request_of
from shardkit.conversion.request import parse_request
from shardkit.errors import UsageError


def test_keywords_are_the_options_of_the_command():
    found = request_of(
        {
            "split": {"train": 0.9, "test": "10%"}, "shard_size": "64MiB", "shuffle": False, "seed": 7,
            "cast": {"x": "float32"}, "group_by": ["a", "b"], "null_value": "NA", "dedup": True, "map": "f.py:g",
            "limit": 5, "separator": 3, "format": None,
        },
        ("a.csv",),
        "out",
    )  # fmt: skip
    typed = {
        "splits": ("train=0.9", "test=10%"), "shard_bytes": 64 * 2**20, "shuffle": False, "seed": 7,
        "cast": ("x=float32",), "group_by": "a,b", "null_values": ("NA",), "dedup_all": True, "map_path": "f.py:g",
        "limit": 5, "separator": "3",
    }  # fmt: skip
    assert found == parse_request(typed, ("a.csv",), "out")
    assert request_of({"split": ["a=0.5", "b=0.5"]}, (), "o") == request_of({"split": {"a": 0.5, "b": 0.5}}, (), "o")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shard_sise": "1MiB"}, "Did you mean 'shard_size'?"),
        ({"runner": "dask"}, "there is no option 'runner'"),
        ({"shuffle": "no"}, "shuffle is True or False"),
        ({"num_shards": 0}, "num_shards is at least 1, and not 0"),
        ({"seed": float("nan")}, "seed is"),
        ({"shard_size": "big"}, "'big' is not a size"),
        ({"compression": "zip"}, "an option cannot be used"),
        ({"cast": "x"}, "--cast x is not"),
    ],
)
def test_wrong_keywords_are_named(options, said):
    with pytest.raises(UsageError) as caught:
        request_of(options, ("a.csv",), "out")
    assert said in str(caught.value)
