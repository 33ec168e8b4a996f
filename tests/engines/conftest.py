from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import conversions


@pytest.fixture(scope="session")
def inputs(tmp_path_factory):
    return conversions.write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="session")
def clean(tmp_path_factory, inputs):
    """What the local engine makes of the inputs."""
    destination = tmp_path_factory.mktemp("clean") / "out"
    result = conversions.convert(inputs, destination)
    assert result.returncode == 0, result.stderr
    return conversions.shards_of(destination)
