"""What every test stands on."""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# A runner that was started in the background has these ignored, and hands that on to every process the tests start.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# How fast a busy machine draws inputs and runs a test says nothing about what is tested.
settings.register_profile("shardkit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shardkit")

# Each has servers and models of its own, of a gigabyte and more.
MAX_PROCESSES = 4


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    return min(len(os.sched_getaffinity(0)), MAX_PROCESSES)


def pytest_collection_modifyitems(items):
    """Puts files with long tests first, so that no process is left alone with one at the end."""
    long = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in long)
