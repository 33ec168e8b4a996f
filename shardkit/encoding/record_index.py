"""DALI's index of an uncompressed shard: a line a record, with its first byte and its framed size."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


def index_lines(starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> bytes:
    """Returns a line `start size` for each record."""
    start_texts, size_texts = (pa.array(numbers).cast(pa.string()) for numbers in (starts, sizes))
    lines = pc.binary_join_element_wise(start_texts, pc.binary_join_element_wise(size_texts, "", "\n"), " ")
    # One list of all lines: its join is the whole text, without a Python string a record.
    whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    text: str = pc.binary_join(whole, "")[0].as_py()
    return text.encode()
