"""ArrayRecord files, which Grain and TensorFlow Datasets read by position: the examples of the shards as they are."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path

import numpy as np

from shardkit.encoding.encoder import encode_batch
from shardkit.encoding.tfrecord import FOOTER_BYTES, HEADER_BYTES
from shardkit.exporting.base import ExportFormat, Rows


class ArrayRecord(ExportFormat):
    """ArrayRecord of one record a group, as random access needs it."""

    title = "ArrayRecord"
    suffix = "array_record"
    notes = "each record is a tf.train.Example as in the shards; a null is an absent key"
    extra = ("array-record", "array_record")
    reader = """import glob, grain
files = sorted(glob.glob("{files}"))
print(grain.sources.ArrayRecordDataSource(files)[0])"""

    def write(self, path: Path, rows: Rows) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        try:
            writer = ArrayRecordWriter(str(path), "group_size:1")
            for batch in rows.batches:
                data, sizes = encode_batch(batch, rows.features)
                for start, stop in itertools.pairwise(np.cumsum([0, *sizes]).tolist()):
                    writer.write(bytes(data[start + HEADER_BYTES : stop - FOOTER_BYTES]))
            writer.close()
        except RuntimeError as error:
            # Its words for what the disk refuses.
            number = errno.ENOSPC if os.strerror(errno.ENOSPC) in str(error) else errno.EIO
            raise OSError(number, str(error)) from error
