"""How work is cut and dealt: several pieces at the same time in one process, cuts that other files do not move."""

import threading

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to

from beam_pipelines.threads import ThreadedDoFn
from shardkit.conversion.prepare import prepare
from shardkit.conversion.request import ConvertRequest
from shardkit.units import MiB

pytestmark = pytest.mark.full

NUM_THREADS = 3
met = threading.Barrier(NUM_THREADS, timeout=30)
begun = []


class Meet(ThreadedDoFn):
    def work(self, element):
        met.wait()
        yield element
        yield beam.pvalue.TaggedOutput("squares", element**2)


class FailFirst(ThreadedDoFn):
    def work(self, element):
        begun.append(element)
        if element == 0:
            raise ValueError("element 0 is bad")
        yield element


def run(step, elements):
    pipeline = beam.Pipeline(FnApiRunner())
    outputs = pipeline | beam.Create(elements, reshuffle=False) | beam.ParDo(step).with_outputs("squares", main="same")
    return pipeline, outputs


def test_pieces_of_work_run_at_the_same_time_and_all_results_arrive():
    pipeline, outputs = run(Meet(NUM_THREADS), range(2 * NUM_THREADS))
    assert_that(outputs.same, equal_to(list(range(2 * NUM_THREADS))), label="same")
    assert_that(outputs.squares, equal_to([n**2 for n in range(2 * NUM_THREADS)]), label="squares")
    # With fewer threads the barrier would break.
    pipeline.run().wait_until_finish()


def test_the_first_failure_ends_the_step_and_what_has_not_begun_never_does():
    begun.clear()
    pipeline, _ = run(FailFirst(1), range(2000))
    with pytest.raises(ValueError, match="element 0 is bad"):
        pipeline.run()
    assert begun == [0]


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
