"""Conversions in this process, on one worker."""

import pytest

from shardkit.conversion.convert_options import ConvertOptions
from shardkit.conversion.prepare import prepare
from tests.support.in_process import run_plan


@pytest.fixture
def convert(tmp_path):
    def run(inputs, name="dataset", **options):
        destination = str(tmp_path / name)
        inputs = (str(inputs),) if not isinstance(inputs, list | tuple) else tuple(map(str, inputs))
        return run_plan(prepare(ConvertOptions(inputs=inputs, destination=destination, **options)).plan)

    return run
