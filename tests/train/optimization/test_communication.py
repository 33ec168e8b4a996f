"""Several workers say how much of their time goes into talking to each other."""

from __future__ import annotations

import json
import random

import pytest

from shardkit.features import make_feature
from tests.support.training.workers import finish_all, start_workers

pytestmark = pytest.mark.full

FEATURES = (make_feature("x", "float64"), make_feature("label", "bool"))


@pytest.mark.slow
def test_two_workers_show_their_communication(write, tmp_path) -> None:
    draw = random.Random(0)
    rows = [{"x": x, "label": x > 0} for x in (draw.uniform(-1, 1) for _ in range(300))]
    dataset = write(FEATURES, {"train": rows})
    settings = ("--label", "label", "--global-batch-size", 20, "--epochs", 2, "--output", tmp_path / "run")
    (code, table, said), other = finish_all(start_workers(2, dataset, *settings, folder=tmp_path))
    assert (code, other[0]) == (0, 0), said + other[2]
    assert "communi-" in table
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for i, line in enumerate(lines):
        assert line["communication_share"] > 0
        shares = [line[f"{name}_share"] for name in ("waiting", "computing", "communication")]
        assert sum(shares) == pytest.approx(1)
        shown = next(text for text in said.splitlines() if text.startswith(f"epoch {i + 1} of 2"))
        assert f"{shares[2]:.0%} communicating" in shown
