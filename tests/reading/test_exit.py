"""Programs that end in the midst of reading: at once, with their own exit code, and without a word."""

import subprocess
import sys
import textwrap
import threading

import numpy as np
import pyarrow as pa
import pytest

from shardkit.features import arrow_schema, make_feature
from shardkit.testing import write_dataset
from tests.support.stores.range_server import serve

pytestmark = pytest.mark.full

FEATURES = (make_feature("id", "int64"), make_feature("noise", "bytes"), make_feature("word", "string"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """4 MB whose blocks take some time to inflate and decode."""
    num_rows = 20_000
    noise = np.random.default_rng(0).integers(0, 20, 200 * num_rows, np.uint8).tobytes()
    arrays = [
        pa.array(range(num_rows)),
        pa.array([noise[i * 200 : (i + 1) * 200] for i in range(num_rows)]),
        pa.array([f"word {i}" for i in range(num_rows)]),
    ]
    folder = tmp_path_factory.mktemp("exits")
    write_dataset(folder, FEATURES, {"train": pa.record_batch(arrays, arrow_schema(FEATURES))}, block_examples=500)
    return folder


def run(program, *args):
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_a_program_that_fails_ends_while_the_store_hangs(folder):
    program = """
        import sys, shardkit

        iterator = iter(shardkit.open(sys.argv[1])["train"].batches(global_batch_size=10, shuffle=False))
        next(iterator)
        raise ValueError("a bug in the training step")
    """
    is_over = threading.Event()
    with serve(folder) as server:
        server.fault = lambda path, *_: is_over.wait() and None if "00001-of" in path.name else None
        try:
            done = run(program, server.url)
        finally:
            is_over.set()
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: a bug in the training step\n")
    assert "Exception ignored" not in done.stderr


def test_a_program_ends_while_a_thread_of_its_own_reads(folder):
    program = """
        import sys, threading, shardkit

        def read():
            for batch in shardkit.open(sys.argv[1])["train"].batches(global_batch_size=10, num_epochs=1000):
                has_begun.set()

        has_begun = threading.Event()
        threading.Thread(target=read, daemon=True).start()
        has_begun.wait()
    """
    done = run(program, folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.campaign
@pytest.mark.slow
def test_a_program_ends_at_any_moment_of_reading(folder):
    """Threads in compiled code meanwhile come back to an interpreter that is there, or not at all."""
    program = """
        import os, random, sys, time
        import shardkit

        train = shardkit.open(sys.argv[1])["train"]
        for number in range(200):
            child = os.fork()
            if not child:
                # From here on as if it was a program of its own, to the end of its interpreter.
                chance = random.Random(number)
                num_threads, num_ahead = chance.choice([1, 2, 4]), chance.choice([1, 8, 100])
                reader = train.batches(
                    global_batch_size=1000, num_epochs=1000, num_threads=num_threads, num_ahead=num_ahead
                )
                iterator = iter(reader)
                for _ in range(chance.randrange(1, 5)):
                    next(iterator)
                time.sleep(chance.uniform(0, 0.003))
                break
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if code:
                print("ended with", code)
    """
    done = run(program, folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
