"""Checks that the compiled kernel is there, and that its results are those of the reference in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

KernelState = Literal["right", "wrong", "missing", "unloadable"]

# The check value of CRC-32C in the catalogues of CRCs.
_CRC_INPUT, _CRC32C = b"123456789", 0xE3069283


class KernelReport(NamedTuple):
    """What is known of the kernel."""

    state: KernelState
    detail: str = ""


def check_kernel() -> KernelReport:
    """Encodes, scans, decodes and orders a few rows with the kernel and with the reference, and compares."""
    from importlib import import_module
    from importlib.util import find_spec

    if find_spec("shardkit._kernel") is None:
        return KernelReport("missing", "encoding and reading take many times longer")
    try:
        _kernel = import_module("shardkit._kernel")
    except ImportError as error:
        return KernelReport("unloadable", str(error))
    found = find_differences(_kernel)
    return KernelReport("wrong", f"it differs in {', '.join(found)}") if found else KernelReport("right")


def find_differences(kernel: Any) -> list[str]:
    """Returns the functions in which a kernel differs from the reference or fails, in words."""
    import numpy as np
    import pyarrow as pa

    from shardkit.encoding import encoder, example
    from shardkit.encoding import kernel_reference as reference
    from shardkit.features import arrow_schema, make_feature

    features = (
        make_feature("number", "int64", nullable=True),
        make_feature("series", "float32", (None,)),
        make_feature("word", "string", nullable=True),
    )
    columns = [[0, -1, None, 2**63 - 1], [[], [1.0], [2.0, -0.0], [0.25] * 200], ["", "a", None, "word" * 100]]
    types = arrow_schema(features).types
    arrays = [pa.array(values, type_) for values, type_ in zip(columns, types, strict=True)]
    batch = pa.record_batch(arrays, schema=arrow_schema(features))
    expected = example.encode_batch(batch, features)
    frames, sizes = bytes(expected.data), np.asarray(expected.sizes)
    begins = np.cumsum(sizes) - sizes
    scanned = reference.scan(frames)
    specs = [
        (b"number", reference.INT64, 1, False),
        (b"series", reference.FLOAT, reference.ANY_NUMBER, False),
        (b"word", reference.BYTES, 1, False),
    ]

    def decode(codec: Any) -> Any:
        return codec.decode(frames, scanned.starts, scanned.lengths, specs)

    def gather(codec: Any) -> Any:
        return codec.gather(frames, begins[::-1].copy(), sizes[::-1].copy())

    trials: dict[str, Callable[[], bool]] = {
        "checksums": lambda: kernel.crc32c(_CRC_INPUT) == _CRC32C,
        "encoding": lambda: bytes(encoder.encode_batch(batch, features).data) == frames,
        "scanning": lambda: _bytes_of(kernel.scan(frames)) == _bytes_of(scanned),
        "decoding": lambda: _bytes_of(decode(kernel)) == _bytes_of(decode(reference)),
        "ordering": lambda: _bytes_of(kernel.permutation(1000, 7)) == _bytes_of(reference.permutation(1000, 7)),
        "gathering": lambda: _bytes_of(gather(kernel)) == _bytes_of(gather(reference)),
    }
    return [name for name, is_right in trials.items() if not _try(is_right)]


def _try(is_right: Callable[[], bool]) -> bool:
    try:
        return is_right()
    except Exception:  # noqa: BLE001 - one of another build may lack a function, or take other arguments
        return False


def _bytes_of(values: Any) -> Any:
    if values is None or isinstance(values, int):
        return values
    if isinstance(values, tuple | list):
        return [_bytes_of(value) for value in values]
    return memoryview(values).tobytes()
