"""What a run left in its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf


def weights(output: Path) -> dict[str, Any]:
    """Returns every tensor of the newest checkpoint, by name."""
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(output / "checkpoints")))
    names = [n for n in reader.get_variable_to_shape_map() if "OBJECT_GRAPH" not in n]
    return {n: reader.get_tensor(n) for n in names if "save_counter" not in n}


def learned(output: Path) -> list[Any]:
    """Returns what each epoch says of what was learned, without its times."""
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [(line["epoch"], line["step"], line["train"], line["validation"]) for line in lines]


def assert_same(one: Path, other: Path, *, atol: float = 0.0) -> None:
    """Checks that two runs ended with the same weights."""
    expected, found = weights(one), weights(other)
    assert expected.keys() == found.keys()
    assert any(np.abs(v).max() > 0.1 for v in expected.values() if v.dtype == np.float32)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=atol, rtol=0, err_msg=name)
