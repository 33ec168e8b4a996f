"""Ctrl-C at any moment of reading: what is read next is right, and nobody else's file is closed."""

import os
import sys
from contextlib import suppress
from itertools import count

import numpy as np
import pyarrow as pa
import pytest

import shardkit
from shardkit.dataset import block_reader as blocks
from shardkit.dataset import stored_blocks
from shardkit.dataset.block_index import list_blocks
from shardkit.dataset.block_reader import BlockReader
from shardkit.features import arrow_schema, make_feature
from shardkit.storage import regular_files
from shardkit.testing import write_dataset

WATCHED = {module.__file__ for module in (blocks, regular_files, stored_blocks)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("interrupted")
    features = (make_feature("id", "int64"),)
    data = pa.record_batch([pa.array(np.arange(60))], arrow_schema(features))
    write_dataset(folder, features, {"train": data}, num_shards=2, block_examples=10)
    return folder


class Interrupted:
    """Raises KeyboardInterrupt before the n-th instruction that runs in the modules that read blocks."""

    def __init__(self, number):
        self.left = number

    def __enter__(self):
        sys.settrace(self.trace)

    def __exit__(self, *_):
        sys.settrace(None)

    def trace(self, frame, event, _):
        if frame.f_code.co_filename not in WATCHED:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self.trace


def moments():
    """Yields what interrupts at the first moment, at the second, and so on; whoever was not interrupted breaks."""
    for number in count(1):
        yield Interrupted(number)
    raise AssertionError


def test_blocks_are_read_after_an_interrupt_at_any_moment(folder, tmp_path):
    dataset = shardkit.open(str(folder)).dataset
    refs = [ref for shard in dataset.shards for ref in list_blocks(shard)[:2]]
    expected = [bytes(BlockReader(dataset).read(ref)) for ref in refs]
    tmp_path.joinpath("stranger").write_bytes(b"s")
    reader, num_interrupts = BlockReader(dataset), 0
    for moment in moments():
        assert reader.read(refs[0]) == expected[0]
        was_interrupted = True
        with suppress(KeyboardInterrupt), moment:
            # Of another shard: the file that is open is closed.
            reader.read(refs[2])
            was_interrupted = False
        # They get the numbers of the descriptors that were closed.
        strangers = [os.open(tmp_path / "stranger", os.O_RDONLY) for _ in range(3)]
        assert [reader.read(ref) for ref in refs] == expected
        reader.close()
        for stranger in strangers:
            assert os.read(stranger, 2) == b"s"
            os.close(stranger)
        if not was_interrupted:
            break
        num_interrupts += 1
    assert num_interrupts > 100
