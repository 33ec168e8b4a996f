"""Steps on threads and processes of this machine: results in order, and after an error no other step begins."""

import pytest

from shardkit.conversion.run.local import _each_on_threads
from tests.support.engines import conversions


def test_results_come_in_the_order_of_the_items():
    each = _each_on_threads(lambda step, item: step(None, item), 3)
    assert each(lambda opened, item: item**2, range(50)) == [n**2 for n in range(50)]


def test_after_an_error_no_other_step_begins():
    begun = []

    def fail_first(opened, item):
        begun.append(item)
        raise ValueError("item 0 is bad")

    with pytest.raises(ValueError, match="item 0 is bad"):
        _each_on_threads(lambda step, item: step(None, item), 1)(fail_first, range(2000))
    assert begun == [0]


@pytest.mark.full
def test_an_error_of_a_worker_process_reaches_the_command(tmp_path):
    for number in range(8):
        (tmp_path / f"{number}.csv").write_text("x\n1\n" if number else "x\n1\nword\n")
    result = conversions.convert(f"{tmp_path}/?.csv", tmp_path / "out", "--workers", "6", "--cast", "x=int64")
    assert result.returncode == 3
    assert "0.csv" in result.stderr
    assert "'word'" in result.stderr
    assert "Traceback" not in result.stderr
