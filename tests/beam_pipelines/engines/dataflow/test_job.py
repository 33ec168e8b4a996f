"""What is read of a job from afar: counters, also of threads that Beam does not know, and how often."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import apache_beam as beam
import pytest
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from hypothesis import given
from hypothesis import strategies as st

from beam_pipelines.engines.dataflow.job import counters_of, delay_s, explain_end
from beam_pipelines.metrics import NAMESPACE, PLANNED, CountedProgress, totals_of
from shardkit.conversion.progress import Totals, read_totals
from tests.support.engines.conversions import TRACE, TRIED

pytestmark = pytest.mark.full

VALUES = st.integers(0, 2**40)


def metric(name, value, step="s1", *, namespace=NAMESPACE, origin="user", **context):
    name = SimpleNamespace(name=name, origin=origin, context={"namespace": namespace, "step": step, **context})
    return SimpleNamespace(name=name, scalar=value)


@given(tentative=VALUES, committed=VALUES, other=VALUES)
def test_steps_are_added_up_and_the_larger_of_two_values_counts(tentative, committed, other):
    job_metrics = [
        metric("num_rows", float(tentative), tentative="true"),
        metric("num_rows", float(committed)),
        metric("num_rows", float(other), "s2"),
        metric("num_rows", 7.0, namespace="others"),
        metric("num_rows", 7.0, origin="dataflow/v1b3"),
        metric("num_rows", None, "s3"),
    ]
    totals, planned = totals_of(counters_of(job_metrics))
    assert totals == Totals(num_rows=max(tentative, committed) + other)
    assert planned is None
    assert totals_of(counters_of([*job_metrics, metric(PLANNED, 5.0)]))[1] == 5


@given(st.floats(0.01, 600), st.integers(0, 10**6))
def test_pauses_grow_with_every_failure_up_to_a_minute(poll_s, failures):
    assert delay_s(poll_s, 0) == poll_s
    assert poll_s <= delay_s(poll_s, failures) <= delay_s(poll_s, failures + 1) <= max(60.0, poll_s)


@pytest.mark.parametrize(
    ("state", "messages", "code", "expected"),
    [
        ("FAILED", [TRACE, TRIED], 3, "a.csv, line 3: expected 2 fields, got 1. Nothing was committed."),
        ("FAILED", ["Traceback\nOSError: a", "Traceback\nValueError: b\n"] * 2, 5, "URL: OSError: a; ValueError: b."),
        ("FAILED", ["something else", TRIED], 5, "the job failed in URL: something else."),
        ("FAILED", [TRIED], 5, "the job failed in URL: Workflow failed. Causes: the work item"),
        ("FAILED", ["ModuleNotFoundError: No module named 'shardkit'"], 5, "the workers have no shardkit in URL"),
        ("FAILED", [], 5, "the job failed in URL: Dataflow gave no reason."),
        ("CANCELLED", [], 5, "the job was cancelled in URL"),
        ("DRAINED", [], 5, "the job was drained in URL"),
        ("UPDATED", [], 5, "the job was replaced in URL"),
    ],
)
def test_every_end_but_a_good_one_is_a_sentence(state, messages, code, expected):
    error = explain_end(f"JOB_STATE_{state}", messages, "URL", "Nothing was committed")
    assert error.exit_code == code
    assert expected in str(error)
    assert "URL" in str(error)
    assert "Nothing was committed" in str(error)
    assert "Traceback" not in str(error)


class TickInThreads(beam.DoFn):
    def __init__(self, folder):
        self._folder = folder

    def setup(self):
        self._progress = CountedProgress(self._folder)

    def process(self, element):
        threads = [threading.Thread(target=self._progress.add, kwargs={"num_rows": element}) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._progress.add(num_rejected=1)

    def finish_bundle(self):
        self._progress.flush()


def test_what_threads_count_reaches_beam_and_the_folder(tmp_path):
    pipeline = beam.Pipeline(runner=FnApiRunner())
    _ = pipeline | beam.Create([1, 2, 3]) | beam.ParDo(TickInThreads(tmp_path))
    result = pipeline.run()
    result.wait_until_finish()
    found = result.metrics().query(MetricsFilter().with_namespace(NAMESPACE))["counters"]
    totals, _ = totals_of((c.key.metric.name, c.committed) for c in found)
    assert totals == Totals(num_rows=18, num_rejected=3)
    assert read_totals(tmp_path) == totals
