"""The local engine and Beam's own: the same bytes."""

import pytest

from tests.support.engines import conversions


@pytest.mark.full
@pytest.mark.parametrize("options", [("--runner", "beam"), ("--workers", "9")])
def test_every_way_to_run_on_this_machine_gives_the_same_bytes(tmp_path, inputs, clean, options):
    result = conversions.convert(inputs, tmp_path / "out", *options)
    assert result.returncode == 0, result.stderr
    assert conversions.shards_of(tmp_path / "out") == clean
