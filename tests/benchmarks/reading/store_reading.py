"""Batches from a store against the same dataset on the local disk, with a server that waits before every answer.

    python -m tests.benchmarks.reading.store_reading --latency-ms 50

A dataset of 20-column rows, of tokens or of images is read in shuffled and in stored order: from the local folder; from
a web server on this machine that waits before it answers; and from the server by way of a cache that holds all blocks.
Each way has a process of its own and reads several epochs. `cold` is the first, with opening and the wait for the first
blocks; `epochs` are those after it, with what the end of one and the beginning of the next cost; `warm` is the middle
of each of these, where as much is read ahead at the end as at the beginning of what is measured.

The server is a process of this machine. It sends files from the kernel (sendfile_server.py), and still takes time from
the cores that decode: its CPU time stands beside the reader's, and `reader alone` relates the CPU times of the readers
only, which is what a server elsewhere would leave. `plain client` is the ceiling: threads that ask for as much in
requests of the same size with the standard library and do nothing with what comes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec

from shardkit.dataset.open import open_dataset
from shardkit.reading.batches import ReadingOptions
from shardkit.units import MiB
from tests.benchmarks.measure import Check, print_checks, print_machine, print_table
from tests.benchmarks.reading.sendfile_server import SendfileServer
from tests.benchmarks.workloads import rows_of_columns, rows_of_images, rows_of_tokens

KINDS = {"columns": (rows_of_columns, 458), "tokens": (rows_of_tokens, 1000), "images": (rows_of_images, 18_800)}
BATCH_ROWS = {"columns": 1024, "tokens": 512, "images": 64}
TARGET = 0.8
AHEAD_MIB = ReadingOptions().ahead_bytes // MiB
# Beside what is read ahead, the blocks of the lanes: less would count what was loaded before the clock ran.
LANES_MIB = 48


def write(folder: Path, kind: str, num_mib: int) -> None:
    """Writes a dataset of 8 shards with blocks of about a MiB of framed records."""
    from shardkit.testing import write_dataset

    make, row_bytes = KINDS[kind]
    num_rows = num_mib * 2**20 // row_bytes
    work = make(num_rows)
    block_examples = 2**20 // row_bytes
    write_dataset(folder, work.features, {"train": work.batch}, num_shards=8, block_examples=block_examples)


def serve(folder: str, latency_s: float, pipe: Any) -> None:
    """Serves a folder until the pipe ends; answers each message with what was asked of it since the one before."""
    server = SendfileServer(folder, latency_s)
    pipe.send(server.url)
    while pipe.recv():
        found = {"requests": server.num_ranges, "at_once": server.most_at_once, "bytes": server.num_bytes}
        pipe.send({**found, "server_s": time.process_time()})
        server.reset()


@contextmanager
def server_of(folder: Path, latency_s: float) -> Iterator[Any]:
    """Yields address of and pipe to a server in a process of its own."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(str(folder), latency_s, theirs))
    process.start()
    try:
        yield ours.recv(), ours
    finally:
        ours.send(None)
        process.join(timeout=10)
        process.kill()


def read_pass(options: argparse.Namespace) -> dict[str, Any]:
    """Reads an epoch and returns examples a second, CPU time and memory, whole and without the first window."""
    import shardkit

    cache = {"cache_dir": options.cache_dir} if options.cache_dir else {}
    started = time.perf_counter()
    train = shardkit.open(options.url, **cache)["train"]
    rows = BATCH_ROWS[options.kind]
    reader = train.batches(
        global_batch_size=rows,
        shuffle=options.shuffle,
        num_threads=options.num_threads,
        num_epochs=1 + options.num_warm,
    )
    reader._reading = msgspec.structs.replace(reader._reading, ahead_bytes=options.ahead_mib * MiB)
    num_steps = reader.num_steps
    num_edge = min(num_steps // 3, (options.ahead_mib + LANES_MIB) * MiB // (rows * KINDS[options.kind][1]))
    marks = {}
    for step, _ in enumerate(reader, 1):
        if step % num_steps in (0, num_edge, num_steps - num_edge):
            marks[step] = (time.perf_counter(), time.process_time())
    middles = [(n * num_steps + num_edge, (n + 1) * num_steps - num_edge) for n in range(1, 1 + options.num_warm)]
    wall_s, cpu_s = (sum(marks[stop][i] - marks[start][i] for start, stop in middles) for i in range(2))
    num_warm = rows * sum(stop - start for start, stop in middles)
    last = num_steps * (1 + options.num_warm)
    return {
        "cold": rows * num_steps / (marks[num_steps][0] - started),
        "epochs": rows * num_steps * options.num_warm / (marks[last][0] - marks[num_steps][0]),
        "warm": num_warm / wall_s,
        "warm_cpu_us": 1e6 * cpu_s / num_warm,
        "peak_mib": peak_mib(),
    }


def download(options: argparse.Namespace) -> dict[str, Any]:
    """Asks for all shards in ranges, as many at once as the reader, and returns the same for what only comes."""
    host, num_threads = options.url.removeprefix("http://"), ReadingOptions().num_requests
    ranges = [
        (path, start, min(start + options.request_bytes, num_bytes) - 1)
        for path, num_bytes in options.shards
        for start in range(0, num_bytes, options.request_bytes)
    ]
    rest, lock = iter(ranges * options.num_warm), threading.Lock()

    def work() -> None:
        with closing(HTTPConnection(host)) as connection:
            buffer = memoryview(bytearray(options.request_bytes))
            while True:
                with lock:
                    path, first, last = next(rest, (None, 0, 0))
                if path is None:
                    return
                connection.request("GET", f"/{path}", headers={"Range": f"bytes={first}-{last}"})
                answer = connection.getresponse()
                while answer.readinto(buffer):
                    pass

    threads = [threading.Thread(target=work) for _ in range(num_threads)]
    started = (time.perf_counter(), time.process_time())
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    num_rows = options.num_rows * options.num_warm
    rate = num_rows / (time.perf_counter() - started[0])
    cpu_us = 1e6 * (time.process_time() - started[1]) / num_rows
    return {"cold": rate, "epochs": rate, "warm": rate, "warm_cpu_us": cpu_us, "peak_mib": peak_mib()}


def peak_mib() -> float:
    """Returns the most memory that this process had."""
    return int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) / 1024


def run_pass(options: argparse.Namespace, url: str, **settings: Any) -> dict[str, Any]:
    """Does `read_pass` or, where shards are named, `download` in a process of its own."""
    settings = {"cache_dir": None, "shards": None, **vars(options), "url": url, **settings}
    command = [sys.executable, "-m", __spec__.name, "--pass", json.dumps(settings)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def compare(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Returns the best of some rounds of each way."""
    found: dict[str, list[dict[str, Any]]] = {}
    dataset = folder / options.kind
    with server_of(dataset, options.latency_ms / 1000) as (url, pipe), tempfile.TemporaryDirectory(dir=folder) as cache:

        def measure(way: str, where: str, **settings: Any) -> dict[str, Any]:
            pipe.send(True)
            before = pipe.recv()["server_s"]
            result = run_pass(options, where, **settings)
            pipe.send(True)
            counts = pipe.recv()
            result |= counts | {"way": way, "server_s": counts["server_s"] - before}
            found.setdefault(way, []).append(result)
            return result

        opened = open_dataset(str(dataset))
        shards = [(shard.path, shard.num_bytes) for shard in opened.shards]
        num_rows = sum(shard.num_examples for shard in opened.shards)
        for _ in range(options.rounds):
            measure("local", str(dataset))
            store = measure("store", url)
            request_bytes = store["bytes"] // store["requests"]
            measure("plain client", url, shards=shards, num_rows=num_rows, request_bytes=request_bytes)
            if not os.listdir(cache):
                measure("store, filling a cache", url, cache_dir=cache)
            measure("cache", url, cache_dir=cache)
    return [max(rounds, key=lambda r: r["warm"]) for rounds in found.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=list(KINDS), default=None, help="all, if left out")
    parser.add_argument("--mib", type=int, default=384, help="of framed records")
    parser.add_argument("--ahead-mib", type=int, default=AHEAD_MIB, help="that are read ahead")
    parser.add_argument("--latency-ms", type=float, default=50)
    parser.add_argument("--num-threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--num-warm", type=int, default=2, help="epochs after the first")
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--pass", dest="one_pass", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.mib < 3 * (options.ahead_mib + LANES_MIB):
        parser.error(f"--mib must be at least {3 * (options.ahead_mib + LANES_MIB)}")
    if options.one_pass:
        one = argparse.Namespace(**json.loads(options.one_pass))
        print(json.dumps(download(one) if one.shards else read_pass(one)))
        return
    print_machine()
    kinds = [options.kind] if options.kind else list(KINDS)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        checks = []
        for kind in kinds:
            write(Path(folder, kind), kind, options.mib)
            for shuffle in (True, False):
                case = argparse.Namespace(**{**vars(options), "kind": kind, "shuffle": shuffle, "folder": None})
                checks += report(case, compare(case, Path(folder)))
        print_checks(checks)


def report(options: argparse.Namespace, found: list[dict[str, Any]]) -> list[Check]:
    """Prints the table of one case and returns what it proves."""
    local = found[0]
    title = f"{options.kind}, {'shuffled' if options.shuffle else 'stored order'}, {options.latency_ms:g} ms a request"
    header = (
        "way",
        "cold rows/s",
        "epochs rows/s",
        "warm rows/s",
        "warm/local",
        "CPU us/row",
        "reader alone",
        "requests",
        "at once",
        "server CPU s",
        "peak MiB",
    )
    rows = [
        [
            r["way"],
            f"{r['cold']:,.0f}",
            f"{r['epochs']:,.0f}",
            f"{r['warm']:,.0f}",
            f"{r['warm'] / local['warm']:.2f}",
            f"{r['warm_cpu_us']:.2f}",
            f"{local['warm_cpu_us'] / r['warm_cpu_us']:.2f}",
            r["requests"],
            r["at_once"],
            f"{r['server_s']:.2f}",
            f"{r['peak_mib']:.0f}",
        ]
        for r in found
    ]
    print_table(title, header, rows)
    return [
        Check(f"{title}: {r['way']} warm / local", r["warm"] / local["warm"], TARGET)
        for r in found
        if r["way"] in ("store", "cache")
    ]


if __name__ == "__main__":
    main()
