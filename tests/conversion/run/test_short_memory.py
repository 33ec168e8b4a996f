"""Two threads that run out of memory at once: whichever is first, the error names the file that a thread read."""

import threading

import pytest
from msgspec.structs import replace

from shardkit.conversion import failures
from shardkit.conversion.extract import extract
from shardkit.conversion.prepare import prepare
from shardkit.conversion.request import ConvertRequest
from shardkit.conversion.rows import isolation
from shardkit.errors import OutOfSpaceError
from tests.support.in_process import run_plan


@pytest.mark.parametrize("first", [0, 1])
def test_the_error_names_the_file_in_either_order(tmp_path, monkeypatch, first):
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("x\n1\n")
    plan = prepare(ConvertRequest(inputs=(f"{tmp_path}/*.csv",), destination=str(tmp_path / "out"))).plan
    # Files so small are read in one split otherwise.
    apart = (replace(part, index=i) for i, part in enumerate(plan.input_splits[0].parts))
    plan = replace(plan, input_splits=tuple(apart))
    one, other = (plan.files[plan.input_splits[i].file_start].name for i in (first, 1 - first))
    is_reported, leave = threading.Event(), failures._leave

    def leave_and_tell(*args):
        leave(*args)
        is_reported.set()

    def give_no_memory(plan, index, *args):
        # The memory that this thread asks for is the other one's.
        if index != first:
            assert is_reported.wait(60)
        raise MemoryError

    monkeypatch.setattr(failures, "_leave", leave_and_tell)
    monkeypatch.setattr(extract, "extract_here", give_no_memory)
    monkeypatch.setattr(isolation, "run_isolated", give_no_memory)
    with pytest.raises(OutOfSpaceError) as caught:
        run_plan(plan, num_workers=2)
    assert caught.value.where == one != other


def test_a_process_that_runs_out_of_memory_at_no_row_is_of_memory(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("x\n1\n")
    plan = prepare(ConvertRequest(inputs=(f"{tmp_path}/a.csv",), destination=str(tmp_path / "out"))).plan
    monkeypatch.setattr(isolation, "_try", lambda *arguments: isolation._OUT_OF_MEMORY)
    with pytest.raises(OutOfSpaceError, match=r"not enough memory to read a file in .*a.csv"):
        isolation.run_isolated(plan, 0, "extract")
