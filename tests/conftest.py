"""What every test stands on: signals, Hypothesis, the tiers."""

import gc
import os
import resource
import signal
import time

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings

from shardkit.runtime import process_limits
from tests.support import fork_server
from tests.support.examples import PROFILE, draws
from tests.support.fast_tier import TookLongError, check_cpu_seconds, install_guard, is_fast, switch_guard
from tests.support.skips import note_skip, unknown_skips

# A runner that was started in the background has these ignored, and hands that on to every process the tests start.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# How fast a busy machine draws inputs and runs a test says nothing about what is tested.
settings.register_profile(PROFILE, max_examples=draws(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(PROFILE)

install_guard()
# A command that a test runs in this process shares its memory with gigabytes of other tests, however little is free.
process_limits._MIN_MEMORY_BYTES = process_limits._MAX_MEMORY_BYTES
fork_server.install()

# Each has servers and models of its own, of a gigabyte and more.
MAX_PROCESSES = 4


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    return min(len(os.sched_getaffinity(0)), MAX_PROCESSES)


def pytest_make_parametrize_id(val, argname):
    """Names bytes by their argument: a compressed file may hold the time, and workers must collect equal names."""
    return argname if isinstance(val, bytes) else None


def pytest_collection_modifyitems(items):
    """Puts files with long tests first, so that no process is left alone with one at the end."""
    long = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in long)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    """Refuses processes, ports and frameworks to a test of the fast tier.

    Runs a test once more that took too much CPU time: the first time counts imports, and the garbage of other tests.
    """
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    switch_guard(is_fast(item))
    fork_server.is_on = not item.get_closest_marker("fresh_start")
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        # Reports of tests outside of this folder have no such mark.
        if any(getattr(report, "took_long", False) for report in reports):
            item._initrequest()
            gc.collect()
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
    finally:
        switch_guard(False)
        # A command that ran in this process limits its memory, which the next tests may need.
        resource.setrlimit(resource.RLIMIT_DATA, limits)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Fails a test of the fast tier that takes too much CPU time; other profiles draw more examples."""
    start = time.process_time()
    result = yield
    if is_fast(item) and PROFILE == "dev":
        check_cpu_seconds(time.process_time() - start)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Notes that a test took too much CPU time."""
    report = yield
    report.took_long = call.excinfo is not None and call.excinfo.errisinstance(TookLongError)
    return report


def pytest_runtest_logreport(report):
    """Keeps the skips of tests."""
    note_skip(report)


def pytest_collectreport(report):
    """Keeps the skips of whole files."""
    note_skip(report)


def pytest_sessionfinish(session):
    """Fails the run if it skipped what `tests/support/skips.py` does not name."""
    if unknown_skips() and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter):
    """Names these skips."""
    for line in unknown_skips():
        terminalreporter.write_line(f"SKIPPED, and not in tests/support/skips.py: {line}", red=True)


@pytest.fixture(scope="session")
def own_wheel(tmp_path_factory, worker_id):
    """The wheel of this checkout, which the first process that asks for it builds."""
    from tests.support.wheel import built_wheel

    base = tmp_path_factory.getbasetemp()
    return built_wheel((base if worker_id == "master" else base.parent) / "own-wheel")
