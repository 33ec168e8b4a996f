"""How work is cut: other files move no cut."""

import pytest

from shardkit.conversion.prepare import prepare
from shardkit.conversion.request import ConvertRequest
from shardkit.units import MiB

pytestmark = pytest.mark.full


def test_where_a_file_is_cut_does_not_depend_on_other_files(tmp_path):
    line = b"1,0.5,some words of text\n"
    for name, size in (("a.csv", 20 * MiB), ("b.csv", 3 * MiB)):
        (tmp_path / name).write_bytes(b"id,x,text\n" + line * (size // len(line)))

    def cuts_of_a(*names):
        inputs = tuple(str(tmp_path / name) for name in names)
        plan = prepare(ConvertRequest(inputs=inputs, destination=str(tmp_path / "out"))).plan
        return [(s.start, s.stop) for s in plan.input_splits if plan.files[s.file_start].name == "a.csv"]

    alone = cuts_of_a("a.csv")
    assert len(alone) > 1
    assert cuts_of_a("a.csv", "b.csv") == alone
