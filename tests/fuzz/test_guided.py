"""The fuzzer finds bugs that are planted in a parser, and finds none in the parsers of the product."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.fuzz.guided.campaign import run_target
from tests.fuzz.guided.target import Job, Limits, Target
from tests.support.paths import ROOT

pytestmark = pytest.mark.full

MiB = 2**20
HELD = []


def raise_index_error(data):
    _ = data.partition(b"*")[2][0] if b"*" in data else None


def end_process(data):
    if b"*" in data:
        os.kill(os.getpid(), signal.SIGKILL)


def never_end(data):
    while b"*" in data:
        time.sleep(0.001)


def hold_memory(data):
    if b"*" in data and not HELD:
        HELD.append(b"x" * 100 * MiB)


def refuse(data):
    if b"*" in data:
        raise ValueError("no stars")


def fuzzed(run, refusals=(), **limits):
    target = Target("planted", lambda: [b"a valid input of some length", b"another *"], run, refusals)
    return run_target(target, Job(1, 300, False, Limits(**limits)))


@pytest.mark.parametrize(
    ("run", "kind", "what"),
    [
        (raise_index_error, "escaped", "IndexError: index out of range"),
        (end_process, "crashed", "exit code -9"),
        (never_end, "hung", "over 1 s"),
        (hold_memory, "memory", "MiB more than any input before"),
    ],
)
def test_a_planted_bug_is_found_with_its_input(run, kind, what):
    found = fuzzed(run, max_s=1.0, max_bytes=50 * MiB).findings
    assert {f.kind for f in found} == {kind}
    assert all(what in f.what and b"*" in f.data for f in found)
    if kind == "escaped":
        assert found[0].data == b"*"


def test_what_a_parser_documents_is_no_finding():
    assert fuzzed(refuse).findings[0].what == "ValueError: no stars"
    outcome = fuzzed(refuse, (ValueError,))
    assert (outcome.findings, outcome.num_runs) == ([], 300)


def test_the_same_seed_gives_the_same_inputs():
    def digest(data):
        raise ValueError(str(sum(data)))

    one, other = fuzzed(digest), fuzzed(digest)
    assert one.findings == other.findings


@pytest.mark.slow
def test_no_parser_of_the_product_has_a_finding(tmp_path):
    command = [sys.executable, "-m", "tests.fuzz.guided", "--no-guidance", "--runs", "100", "--keep", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Random mutations without guidance" in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_target_is_refused():
    command = [sys.executable, "-m", "tests.fuzz.guided", "--no-guidance", "tar", "rar"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert result.returncode == 2
    assert "no target rar; there are kernel-records" in result.stderr
