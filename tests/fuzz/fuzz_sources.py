"""Reads randomly damaged files of every format: each must be refused or read, and no row may get lost.

    python -m tests.fuzz.fuzz_sources --seed 1 --count 20000 [--formats csv parquet] [--jobs 2]

Small files are written by independent writers (`source_files.py`), then bytes of them are flipped, cut out, repeated,
moved or cut off. Each is read twice, once ending at the first bad row and once tolerating them, in a process of its
own kind that may take 10 s a file. Counted are

    refused     a sentence for the user and nothing read
    read        all rows, by both readings
    tolerated   some rows rejected; the first reading ended with an error
    CRASHED, HUNG, ESCAPED (an exception that is no sentence for the user)
    LOST        the tolerant reading gives neither all rows of the strict one, nor as many rows, rejected ones
                included, as an independent reader counts in the same bytes

The last three lines of failures of each kind are printed with what makes the file again. Ends with status 1 if there
are any. Cuts that fall on a border between records of Avro, TFRecord, CSV, JSON Lines and text leave whole files.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from shardkit.errors import ShardkitError
from shardkit.sources import choose_source, list_inputs
from shardkit.sources.base import SourceOptions
from tests.fuzz.source_files import FORMATS, SourceFile

MAX_S = 10.0
FAILURES = ("CRASHED", "HUNG", "ESCAPED", "LOST")


class Outcome(NamedTuple):
    """What became of one file."""

    kind: str
    detail: str = ""


def damage(content: bytes, rng: random.Random) -> bytes:
    """Returns a file with one to four damages."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if not data:
            break
        start = rng.randrange(len(data))
        size = min(len(data) - start, rng.choice((1, 1, 2, 4, 16, 64, 300)))
        kind = rng.randrange(8)
        if kind <= 1:
            data[start] ^= 1 << rng.randrange(8)
        elif kind == 2:
            data[start : start + size] = rng.randbytes(size)
        elif kind == 3:
            del data[start : start + size]
        elif kind == 4:
            data[start:start] = data[start : start + size] * rng.choice((1, 2, 30))
        elif kind == 5:
            data[start:start] = rng.choice(_ODD_BYTES)
        elif kind == 6:
            other = rng.randrange(len(data))
            piece = bytes(data[start : start + size])
            data[other : other + len(piece)] = piece
        else:
            del data[start:]
    return bytes(data)


_ODD_BYTES = (
    *(b"\0", b"\xff\xff\xff\xff", b'"', b"\n", b"\r", b"\\", b"{", b"]", b",", b"-"),
    *(b"\xef\xbb\xbf", b"\xf0\x9f", b"1e999"),
)


def read(path: Path, options: SourceOptions) -> tuple[list[str], int]:
    """Returns the rows as text, and how many were rejected."""
    files = list_inputs([str(path)], options).files
    source = choose_source(files, options)
    features = source.infer(files, options)
    source.notes(files, options)
    rows: list[str] = []
    num_rejected = 0
    for split in source.split(files, options):
        for found in source.read(split, files, features, options):
            if found.batch.num_rows != len(found.identities):
                raise AssertionError(f"{found.batch.num_rows} rows have {len(found.identities)} identities")
            found.batch.validate(full=True)
            rows += map(repr, found.batch.to_pylist())
            num_rejected += len(found.rejected)
    return rows, num_rejected


def judge(path: Path, file: SourceFile) -> Outcome:
    """Returns what reading the file came to."""
    strict, refusal = None, ""
    try:
        strict, _ = read(path, file.options(tolerates_bad_rows=False))
    except ShardkitError as error:
        refusal = str(error)
    try:
        rows, num_rejected = read(path, file.options(tolerates_bad_rows=True))
    except ShardkitError as error:
        if strict is not None:
            return Outcome("LOST", f"read strictly, refused tolerantly: {error}")
        return Outcome("refused")
    if strict is not None and (rows != strict or num_rejected):
        return Outcome("LOST", f"{len(strict)} rows read strictly, {len(rows)} tolerantly, {num_rejected} rejected")
    counted = file.count(path.read_bytes())
    if counted is not None and counted != len(rows) + num_rejected:
        return Outcome("LOST", f"{counted} rows counted, {len(rows)} read and {num_rejected} rejected ({refusal})")
    return Outcome("read" if strict is not None else "tolerated")


def check_whole(name: str) -> None:
    """Checks that undamaged files are read, so that what is refused is refused for its damage."""
    for file in FORMATS[name]():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, file.name)
            path.write_bytes(file.content)
            outcome = judge(path, file)
            if outcome.kind != "read":
                _, refused = "", ""
                try:
                    read(path, file.options(tolerates_bad_rows=False))
                except ShardkitError as error:
                    refused = str(error)
                raise SystemExit(f"{name}: the whole file {file.name} is not read: {outcome} {refused}")


def damaged(name: str, seed: int, number: int) -> tuple[SourceFile, bytes]:
    """Returns the file of that number again."""
    rng = random.Random(f"{name} {seed} {number}")
    file = rng.choice(FORMATS[name]())
    return file, damage(file.content, rng)


def work(pipe: Connection, name: str, seed: int, first: int, step: int, count: int) -> None:
    """Judges files and sends each outcome."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(first, count, step):
            file, content = damaged(name, seed, number)
            path = Path(folder, file.name)
            path.write_bytes(content)
            pipe.send((number, None))
            try:
                outcome = judge(path, file)
            except Exception as error:  # noqa: BLE001 - that is what is looked for
                outcome = Outcome("ESCAPED", f"{type(error).__name__}: {error}")
            pipe.send((number, outcome))
    pipe.send(None)


def fuzz(name: str, seed: int, count: int, jobs: int) -> tuple[Counter[str], list[str], float]:
    """Returns counts, what failed, and the longest time that a file took."""
    context = multiprocessing.get_context("fork")
    counts: Counter[str] = Counter()
    failures: list[str] = []
    longest = 0.0

    def start(first: int) -> tuple[Connection, multiprocessing.Process]:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(there, name, seed, first, jobs, count), daemon=True)
        process.start()
        there.close()
        return here, process

    def note(number: int, outcome: Outcome) -> None:
        counts[outcome.kind] += 1
        if outcome.kind in FAILURES:
            failures.append(f"{outcome.kind} --formats {name} --seed {seed} --only {number}: {outcome.detail[:300]}")

    running = [start(first) for first in range(min(jobs, count))]
    began = [(-1, time.monotonic())] * len(running)
    while running:
        ready = multiprocessing.connection.wait([pipe for pipe, _ in running], timeout=1.0)
        for i in reversed(range(len(running))):
            pipe, process = running[i]
            number, since = began[i]
            message, kind = "", ""
            if pipe in ready:
                try:
                    message = pipe.recv()
                except EOFError:
                    kind = "CRASHED"
            elif number >= 0 and time.monotonic() - since > MAX_S:
                kind = "HUNG"
            else:
                continue
            if kind:
                process.kill()
                process.join()
                note(number, Outcome(kind, f"exit code {process.exitcode}"))
                running[i], began[i] = start(number + jobs), (-1, time.monotonic())
            elif message is None:
                process.join()
                del running[i], began[i]
            elif message[1] is None:
                began[i] = (message[0], time.monotonic())
            else:
                longest = max(longest, time.monotonic() - since)
                began[i] = (-1, time.monotonic())
                note(*message)
    return counts, failures, longest


def main(arguments: list[str] | None = None) -> int:
    """Prints a line for each format."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20_000, help="damaged files of each format")
    parser.add_argument("--formats", nargs="+", choices=sorted(FORMATS), default=sorted(FORMATS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", type=int, help="number of one file, which is written here and read")
    options = parser.parse_args(arguments)
    if options.only is not None:
        file, content = damaged(options.formats[0], options.seed, options.only)
        path = Path(file.name)
        path.write_bytes(content)
        print(f"{path}: {judge(path, file)}")
        return 0
    failed = False
    for name in options.formats:
        check_whole(name)
        began = time.monotonic()
        counts, failures, longest = fuzz(name, options.seed, options.count, options.jobs)
        parts = ", ".join(f"{counts[kind]:,} {kind}" for kind in ("refused", "read", "tolerated", *FAILURES))
        print(f"{name}: {parts}; longest {longest:.2f} s, all {time.monotonic() - began:.0f} s", flush=True)
        for kind in FAILURES:
            for line in [line for line in failures if line.startswith(kind)][:3]:
                print(f"  {line}", flush=True)
        failed = failed or bool(failures)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
