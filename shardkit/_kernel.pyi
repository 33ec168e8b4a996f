from typing import Any

class Buffer:
    def __len__(self) -> int: ...

def encode(schema_capsule: object, array_capsule: object, /) -> tuple[Any, Any]: ...
def crc32c(data: Any, start: int = 0, /) -> int: ...
def scan(frames: Any, /) -> tuple[Any, Any, Any, int]: ...
def decode(
    frames: Any,
    starts: Any,
    lengths: Any,
    specs: list[tuple[bytes, int, int, bool]],
    refuse_others: bool = False,
    /,
) -> tuple[list[tuple[Any, ...]], Any]: ...
def decode_avro(
    pieces: list[tuple[Any, int, int]], fields: list[tuple[int, int, bool, Any]], stop_bytes: int, /
) -> tuple[list[tuple[Any, ...]] | None, int, int, int, int]: ...
def gather(data: Any, starts: Any, sizes: Any, /) -> Any: ...
def count_keys(
    slots: Any,
    kind: str,
    max_keys: int,
    dropped: int,
    num_keys: int,
    values: Any,
    is_float32: bool,
    source: int,
    counts: Any | None,
    /,
) -> tuple[int, int]: ...
def hash_slices(offsets: Any | None, data: Any, /) -> Any: ...
def count_slices(offsets: Any, data: Any, /) -> tuple[Any, Any]: ...
