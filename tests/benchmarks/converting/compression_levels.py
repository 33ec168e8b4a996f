"""What a compression level costs: size, CPU time to compress and to inflate, and what inflating in threads gains.

    python -m tests.benchmarks.converting.compression_levels --rounds 5
    shardkit convert flights.csv out/flights --compression none
    python -m tests.benchmarks.converting.compression_levels --dataset out/flights --dataset out/photos

Blocks of about 1 MiB of each kind of rows, generated or of datasets that were converted without compression. First the
compressors that could serve, each block as raw deflate with a full flush; libdeflate (`pip install deflate`) has none
and is there for comparison. Then the levels of shardkit, which store what does not shrink enough. Speeds are megabytes
of framed records by second of CPU time; size is a fraction of them. Threads are measured in wall time, on free cores.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import deflate
from isal import isal_zlib
from zlib_ng import zlib_ng

from shardkit.dataset.block_index import list_blocks
from shardkit.dataset.block_reader import map_blocks, read_block
from shardkit.dataset.open import Dataset, open_dataset
from shardkit.encoding.codec import BLOCK_BYTES, CompressionLevel, compress_block, inflate_block
from shardkit.testing import write_dataset
from tests.benchmarks.measure import Contender, median_seconds, print_machine, print_table
from tests.benchmarks.workloads import Workload, rows_of_columns, rows_of_floats, rows_of_images, rows_of_tokens

NUM_BLOCKS = 4
WORKLOADS: tuple[tuple[Callable[[int], Workload], int], ...] = (
    (rows_of_columns, 2200),
    (rows_of_tokens, 960),
    (rows_of_floats, 335),
    (rows_of_images, 56),
)
LEVELS: tuple[CompressionLevel, ...] = ("fast", "balanced", "small")


class Blocks(NamedTuple):
    """Framed records of one kind."""

    title: str
    blocks: list[bytes]

    @property
    def num_bytes(self) -> int:
        """Returns the size of all blocks."""
        return sum(map(len, self.blocks))


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dataset", type=Path, action="append", default=[], help="Converted with --compression none.")
    parser.add_argument("--skip-slow", action="store_true", help="Leave zlib 9 out.")
    options = parser.parse_args()
    print_machine("isal", "zlib-ng", "deflate")
    print(f"zlib {zlib.ZLIB_RUNTIME_VERSION}")
    with tempfile.TemporaryDirectory() as folder:
        kinds = [*generated(Path(folder)), *(converted(path) for path in options.dataset)]
        for kind in kinds:
            compare_compressors(kind, options.rounds, with_slow=not options.skip_slow)
        for kind in kinds:
            compare_levels(kind, options.rounds)
        compare_threads(Path(folder), options.rounds)


def generated(folder: Path) -> Iterator[Blocks]:
    """Yields blocks of the rows that all benchmarks measure."""
    for make_rows, block_examples in WORKLOADS:
        workload = make_rows(block_examples * NUM_BLOCKS)
        dataset = write(folder / workload.title, workload, block_examples, "none")
        yield Blocks(workload.title, [read_block(dataset, ref) for ref in list_blocks(dataset.shards[0])])


def write(folder: Path, workload: Workload, block_examples: int, compression: Any) -> Dataset:
    """Returns the rows as a dataset of one shard."""
    splits = {"train": workload.batch}
    options = {"num_shards": 1, "block_examples": block_examples, "compression": compression}
    return write_dataset(folder, workload.features, splits, **options)


def converted(folder: Path) -> Blocks:
    """Returns blocks of an uncompressed dataset, evenly spread over its first shard."""
    dataset = open_dataset(str(folder))
    if dataset.manifest.compression != "none":
        raise SystemExit(f"{folder} was not converted with --compression none")
    refs = list_blocks(dataset.shards[0])
    whole = refs[:-1] or refs
    chosen = whole[:: max(1, len(whole) // NUM_BLOCKS)][:NUM_BLOCKS]
    return Blocks(folder.name, [read_block(dataset, ref) for ref in chosen])


def flushed(library: Any, level: int) -> Callable[[bytes], bytes]:
    """Returns a compressor to raw deflate that ends with a full flush."""

    def compress(data: bytes) -> bytes:
        compressor = library.compressobj(level, library.DEFLATED, -15)
        return compressor.compress(data) + compressor.flush(library.Z_FULL_FLUSH)

    return compress


def compressors(*, with_slow: bool) -> dict[str, Callable[[bytes], bytes]]:
    """Returns what is compared, by name."""
    found = {f"isal {level}": flushed(isal_zlib, level) for level in (1, 2, 3)}
    found["zlib-ng 6"] = flushed(zlib_ng, 6)
    found["zlib 6"] = flushed(zlib, 6)
    if with_slow:
        found["zlib 9"] = flushed(zlib, 9)
    found["libdeflate 6 (no flush)"] = lambda data: bytes(deflate.deflate_compress(data, 6))
    return found


def compare_compressors(kind: Blocks, rounds: int, *, with_slow: bool) -> None:
    """Prints a line a compressor."""
    compress = compressors(with_slow=with_slow)
    packed = {name: [work(block) for block in kind.blocks] for name, work in compress.items()}
    print_speeds(f"compressors: {kind.title}", kind, compress, packed, "isal", rounds)


def compare_levels(kind: Blocks, rounds: int) -> None:
    """Prints a line a level of shardkit, stored blocks included."""
    compress = {level: shardkit_level(level) for level in LEVELS}
    packed = {name: [work(block) for block in kind.blocks] for name, work in compress.items()}
    print_speeds(f"levels of shardkit: {kind.title}", kind, compress, packed, "shardkit", rounds)


def shardkit_level(level: CompressionLevel) -> Callable[[bytes], bytes]:
    """Returns shardkit's compressor of that level."""
    return lambda data: compress_block(data, "gzip", level)


def isal_inflate(packed: bytes, block: bytes) -> bytes:
    """Returns a block inflated by ISA-L."""
    return isal_zlib.decompressobj(-15).decompress(packed, len(block) + 1)


def shardkit_inflate(packed: bytes, block: bytes) -> bytearray:
    """Returns a block inflated as shardkit does."""
    return inflate_block(packed, len(block), "benchmark")


def zlib_inflate(packed: bytes, block: bytes) -> bytes:
    """Returns a block inflated by stock zlib, as TensorFlow does."""
    return zlib.decompressobj(-15).decompress(packed, len(block) + 1)


INFLATERS = {"isal": isal_inflate, "shardkit": shardkit_inflate}


def print_speeds(
    title: str,
    kind: Blocks,
    compress: dict[str, Callable[[bytes], bytes]],
    packed: dict[str, list[bytes]],
    inflater: str,
    rounds: int,
) -> None:
    """Measures and prints one table."""
    inflate = INFLATERS[inflater]
    for name, blocks in packed.items():
        for data, block in zip(blocks, kind.blocks, strict=True):
            if inflate(data, block) != block or zlib_inflate(data, block) != block:
                raise SystemExit(f"{name} does not give {kind.title} back")
    packing = [
        Contender(name, lambda work=work: [work(block) for block in kind.blocks]) for name, work in compress.items()
    ]
    to_pack = median_seconds(packing, rounds, min_s=0)
    to_inflate = median_seconds([opening(name, inflate, packed[name], kind) for name in compress], rounds)
    to_open = median_seconds([opening(name, zlib_inflate, packed[name], kind) for name in compress], rounds)
    megabytes = kind.num_bytes / 1e6
    rows = [
        (
            name,
            sum(map(len, packed[name])) / kind.num_bytes,
            sum(len(p) > len(b) for p, b in zip(packed[name], kind.blocks, strict=True)),
            megabytes / to_pack[name],
            megabytes / to_inflate[name],
            megabytes / to_open[name],
        )
        for name in compress
    ]
    headers = ("", "size", "stored", "compress MB/s", f"{inflater} inflate MB/s", "zlib inflate MB/s")
    print_table(
        f"{title}, {len(kind.blocks)} blocks of {kind.num_bytes / len(kind.blocks) / BLOCK_BYTES:.2f} MiB",
        headers,
        rows,
    )


def opening(name: str, inflate: Callable[[bytes, bytes], bytes], packed: Sequence[bytes], kind: Blocks) -> Contender:
    """Returns inflating all blocks, one after the other."""
    return Contender(name, lambda: [len(inflate(p, b)) for p, b in zip(packed, kind.blocks, strict=True)])


def compare_threads(folder: Path, rounds: int) -> None:
    """Prints what `map_blocks` gains by threads, in wall time, on the blocks of one shard."""
    rows: list[tuple[str, int, float, float]] = []
    for make_rows, block_examples in WORKLOADS:
        workload = make_rows(block_examples * 16)
        dataset = write(folder / f"{workload.title} gzip", workload, block_examples, "gzip")
        refs = list_blocks(dataset.shards[0]) * 4
        megabytes = sum(ref.num_uncompressed_bytes for ref in refs) / 1e6
        wall: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(rounds):
            for num_threads, seconds in wall.items():
                started = time.perf_counter()
                for _ in map_blocks(dataset, refs, lambda _, block: len(block), num_threads=num_threads, max_ahead=8):
                    pass
                seconds.append(time.perf_counter() - started)
        # The best of each: a second core that others use is no second core.
        one, two = (min(seconds) for seconds in wall.values())
        rows.append((workload.title, len(refs), megabytes / one, one / two))
    print_table("map_blocks: read and inflate", ("", "blocks", "1 thread, MB/s wall", "2 threads, times faster"), rows)


if __name__ == "__main__":
    main()
