"""Readers that nobody closes: they end when they are dropped, and whoever ends them, or forks, nothing hangs."""

import gc
import itertools
import signal
import subprocess
import sys
import textwrap
import threading
import weakref

import numpy as np
import pyarrow as pa
import pytest

import shardkit
from shardkit.errors import UsageError
from shardkit.features import arrow_schema, make_feature
from shardkit.testing import write_dataset
from tests.support.forked import exit_codes, fork
from tests.support.stores.range_server import serve

WAIT_S = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dropped")
    features = (make_feature("id", "int64"),)
    data = pa.record_batch([pa.array(np.arange(500))], arrow_schema(features))
    write_dataset(folder, features, {"train": data}, block_examples=20)
    return folder


def own_threads():
    return [t for t in threading.enumerate() if t.name.startswith("shardkit-")]


@pytest.mark.full
@pytest.mark.parametrize("drop", ["iterator", "reader and iterator", "loop"])
def test_what_is_dropped_ends_without_the_collector(folder, drop):
    train = shardkit.open(str(folder))["train"]
    gc.collect()
    gc.disable()
    try:
        reader = train.batches(global_batch_size=10)
        if drop == "loop":
            for _batch in reader:
                break
        iterator = iter(reader)
        next(iterator)
        threads, dropped = own_threads(), weakref.ref(iterator)
        assert threads
        if drop == "reader and iterator":
            del reader
        del iterator
        assert dropped() is None
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
    finally:
        gc.enable()


def test_a_reader_that_is_closed_waits_for_its_threads_and_goes_on_where_it_stood(folder):
    reader = shardkit.open(str(folder))["train"].batches(global_batch_size=10, shuffle=False)
    iterator = iter(reader)
    first = next(iterator)["id"].tolist()
    threads = own_threads()
    reader.close()
    assert threads
    assert not any(thread.is_alive() for thread in threads)
    assert next(iterator, None) is None
    rest = [row for batch in reader for row in batch["id"].tolist()]
    assert first + rest == list(range(500))


@pytest.mark.full
@pytest.mark.parametrize("made", ["split.batches(global_batch_size=10)", "split"])
def test_the_collector_may_end_a_reader_while_a_thread_is_being_begun(folder, made):
    # What it interrupts there holds a lock that waiting for a thread takes.
    program = f"""
        import contextlib, faulthandler, gc, threading
        import shardkit

        faulthandler.dump_traceback_later({WAIT_S}, exit=True)
        split = shardkit.open({str(folder)!r})["train"]
        gc.disable()
        cycle = [iter({made})]
        next(cycle[0])
        cycle.append(cycle)
        del cycle
        with getattr(threading, "_shutdown_locks_lock", contextlib.nullcontext()):
            gc.collect()
        print("went on")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr


@pytest.mark.full
def test_the_collector_may_end_a_reader_in_a_thread_that_waits_for_its_ending(folder):
    """At any line of what waits before a busy store is asked again, with whatever is locked there."""
    program = f"""
        import faulthandler, gc, sys, threading
        import shardkit
        from shardkit.dataset import stored_blocks

        class Collecting:
            def __init__(self, number):
                self.left, self.dropped, self.is_done = number, threading.Event(), False

            def trace(self, frame, event, _):
                while frame is not None and frame.f_code is not stored_blocks._pause.__code__:
                    frame = frame.f_back
                return self.count if frame is not None and frame.f_locals["number"] else None

            def count(self, frame, event, _):
                self.left -= event == "line"
                if self.left < 0 and not self.is_done:
                    self.is_done = True
                    self.dropped.wait()
                    gc.collect()
                return self.count

        faulthandler.dump_traceback_later({WAIT_S}, exit=True)
        gc.disable()
        stored_blocks._FIRST_PAUSE_S = 1e-3
        train = shardkit.open(sys.argv[1])["train"]
        for number in range(12):
            collecting = Collecting(number)
            threading.settrace(collecting.trace)
            cycle = [iter(train.batches(global_batch_size=10, shuffle=False))]
            next(cycle[0])
            cycle.append(cycle)
            del cycle
            collecting.dropped.set()
            for thread in threading.enumerate():
                if thread.name.startswith("shardkit-"):
                    thread.join()
        print("all ended")
    """
    with serve(folder) as server:
        server.fault = lambda path, *_: "busy" if "00001-of" in path.name else None
        command = [sys.executable, "-c", textwrap.dedent(program), server.url]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "all ended\n"), done.stderr


@pytest.mark.full
@pytest.mark.parametrize("num_threads", [0, 2])
def test_an_iterator_is_of_no_use_in_a_forked_process_and_a_new_one_goes_on(folder, num_threads):
    """With threads it would wait for ever: they are not there."""
    reader = shardkit.open(str(folder))["train"].batches(global_batch_size=10, num_threads=num_threads)
    iterator = iter(reader)
    first = [next(iterator)["id"].tolist() for _ in range(3)]

    def goes_on():
        signal.alarm(WAIT_S)
        with pytest.raises(UsageError, match=r"belongs to another process.*Begin one with iter\(\) there"):
            next(iterator)
        rest = [batch["id"].tolist() for batch in reader]
        return sorted(itertools.chain(*first, *rest)) == list(range(500))

    assert exit_codes([fork(goes_on)]) == [0]
    assert len(first) + sum(1 for _ in iterator) == 50
