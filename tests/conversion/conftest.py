"""Conversions in this process, on one worker."""

import pytest

from shardkit.conversion.prepare import prepare
from shardkit.conversion.request import ConvertRequest
from tests.support.in_process import run_plan


@pytest.fixture
def convert(tmp_path):
    def run(inputs, name="dataset", **options):
        destination = str(tmp_path / name)
        inputs = (str(inputs),) if not isinstance(inputs, list | tuple) else tuple(map(str, inputs))
        return run_plan(prepare(ConvertRequest(inputs=inputs, destination=destination, **options)).plan)

    return run
