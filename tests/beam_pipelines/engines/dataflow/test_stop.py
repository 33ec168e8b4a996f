"""Signals, Ctrl-C and terminals that close while Dataflow runs the job."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from tests.support.campaign import in_campaign
from tests.support.engines.dataflow_bucket import IMAGE, JOB, URL, finish, in_terminal, one_line, read_until, wait_until

pytestmark = pytest.mark.full

pytest.importorskip("google.cloud.dataflow")


def test_two_signals_at_once_cancel_the_job(bucket, service):
    process = bucket.start(*IMAGE)
    wait_until(lambda: service.num_looks > 2)
    service.answers.clear()
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.send_signal(signal.SIGTERM)
    service.answers.set()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 143, stderr
    assert service.cancelled == [JOB]
    assert f"the job {JOB} is being cancelled: {URL}" in one_line(stderr)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), *in_campaign((signal.SIGINT, 130))])
def test_without_a_terminal_a_signal_cancels_the_job(bucket, service, number, code):
    process = bucket.start(*IMAGE)
    wait_until(lambda: service.num_looks > 2)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == code, stderr
    assert service.cancelled == [JOB]
    assert f"the job {JOB} was cancelled. Nothing was committed; run the same command again" in one_line(stderr)


def test_a_terminal_that_closes_leaves_the_job_running(bucket, service, tmp_path):
    process = bucket.start(*IMAGE)
    wait_until(lambda: service.num_looks > 2)
    process.send_signal(signal.SIGHUP)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 129, stderr
    assert service.cancelled == []
    assert f"the job {JOB} goes on" in stderr
    # Its workers read the plan whenever they begin.
    plans = list(tmp_path.rglob("plan-*.json"))
    again = bucket.run(*IMAGE)
    assert again.returncode == 4, again.stderr
    assert f"the same conversion is running already on Dataflow in {URL}" in one_line(again.stderr)
    assert len(plans) == 1
    assert list(tmp_path.rglob("plan-*.json")) == plans


def test_a_signal_in_the_midst_of_handing_over_says_that_the_job_may_run(bucket, service, tmp_path):
    service.is_open.clear()
    (tmp_path / "tmp").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path / "tmp"))
        process = bucket.start(*IMAGE)
    wait_until(lambda: service.num_submitted > 0)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    service.is_open.set()
    assert process.returncode == 143, stderr
    assert "the job was being handed over, so it may run all the same" in stderr
    assert list((tmp_path / "tmp").glob("shardkit-*")) == []


def asked(bucket, service):
    leader, process = in_terminal(bucket)
    wait_until(lambda: service.num_looks > 2)
    os.write(leader, b"\x03")
    read_until(leader, lambda text: "Cancel it? [y/N] " in text)
    return leader, process


def test_ctrl_c_asks_and_yes_cancels_the_job(bucket, service):
    leader, process = asked(bucket, service)
    assert service.cancelled == []
    os.write(leader, b"y\n")
    code, text = finish(leader, process)
    assert code == 130, text
    assert service.cancelled == [JOB]
    assert f"the job {JOB} was cancelled. Nothing was committed" in one_line(text)


def test_a_second_ctrl_c_does_not_wait_for_the_end_of_the_job(bucket, service):
    service.is_slow_to_end = True
    leader, process = asked(bucket, service)
    os.write(leader, b"y\n")
    wait_until(lambda: service.cancelled == [JOB])
    os.write(leader, b"\x03")
    code, text = finish(leader, process)
    assert code == 130, text
    assert f"the job {JOB} is being cancelled: {URL}" in one_line(text)


@pytest.mark.parametrize("answer", [b"n\n", *in_campaign(b"\n", b"\x03")])
def test_ctrl_c_asks_and_everything_else_leaves_it_running(bucket, service, answer):
    leader, process = asked(bucket, service)
    os.write(leader, answer)
    code, text = finish(leader, process)
    assert code == 130, text
    assert service.cancelled == []
    assert f"the job {JOB} goes on and commits the dataset by itself; look at it at {URL}" in one_line(text)
    assert "reading" not in text
