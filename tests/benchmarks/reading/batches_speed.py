"""Batches as a training loop gets them: shardkit's reader and stock tf.data take turns on the same gzip files.

    python -m tests.benchmarks.reading.batches_speed --folder /some/disk --rounds 5

The kinds of data are those of read_speed.py, converted with the defaults. What counts is CPU time of all threads of a
process for one epoch, after a first one, Python's objects included:

    NumPy    shardkit: shuffled batches of `Split.batches`, with `decodes_text=False` (bytes, as tf.data gives them) in
             the thread that asks, as tf.data does it, and by a thread ahead, and with text as `str`; tf.data:
             `TFRecordDataset(files, "GZIP").batch(N).map(parse_example)`, in the stored order, each tensor as
             `.numpy()`.
    tensors  shardkit: `adapters.tensorflow.batches`, likewise; tf.data: the same graph without `.numpy()`. The loop
             looks at the shape of each tensor.

Every reader is a process of its own, shardkit's without TensorFlow and a new one each round. Memory is the highest that
a process took, less what it had when the dataset was open. Two threads are compared with one by wall time over several
epochs, the best of all rounds, which says little on a machine that does other work. For resuming, a reader stops in
the middle of an epoch and another goes on: the time from `restore` to the first batch, and, with 8 lanes, how many
blocks more the two of them read than one that is not stopped.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from tests.benchmarks.measure import Cell, Check, is_installed, print_checks, print_machine, print_table
from tests.benchmarks.reading.read_speed import KINDS, Job, Kind, Reader, prepare, tensorflow_pass

ARRAYS, TEXT, TENSORS = "arrays", "text", "tensors"
SHARDKIT, SHARDKIT_TENSORS, TF_DATA = "shardkit", "shardkit.adapters.tensorflow", "tf.data"
MIN_S = 0.5
MAX_SEEK_S = 0.2
MIN_SPEEDUP = 1.8
# An epoch of these takes a tenth of a second, in which threads do little but begin and end.
NUM_EPOCHS = 12
# Fewer than there are blocks, so that what is read twice could be more than one a lane.
FEW_LANES = 8
# Times less CPU time than tf.data.
TARGETS = {
    "columns": {ARRAYS: 5, TENSORS: 2.5},
    "tokens": {ARRAYS: 2.5, TENSORS: 2},
    "floats": {ARRAYS: 2, TENSORS: 2},
    "images": {ARRAYS: 1.4, TENSORS: 1.4},
}


class Delivery(NamedTuple):
    """What a reader is asked for.

    Attributes:
        form: ARRAYS (text as bytes), TEXT (text as `str`) or TENSORS.
    """

    reader: str
    form: str
    num_threads: int = 1


TENSORS_ALONE = Delivery(SHARDKIT_TENSORS, TENSORS, 0)
ALONE, ONE_THREAD, TWO_THREADS = (Delivery(SHARDKIT, ARRAYS, num_threads) for num_threads in (0, 1, 2))
DELIVERIES = (
    ALONE,
    ONE_THREAD,
    TWO_THREADS,
    Delivery(SHARDKIT, TEXT),
    Delivery(TF_DATA, ARRAYS),
    TENSORS_ALONE,
    Delivery(SHARDKIT_TENSORS, TENSORS),
    Delivery(TF_DATA, TENSORS),
)


# ---- In the processes that read ----


def serve(name: str, requests: TextIO, answers: TextIO) -> None:
    """Answers requests, a line each, until there are no more."""
    passes: dict[str, Callable[[], int]] = {}
    for line in requests:
        request = json.loads(line)
        folder, num_rows = Path(request["folder"]), request["num_batch_rows"]
        if request["what"] == "resume":
            answer: Any = resume(folder, num_rows, None)
            few = resume(folder, num_rows, FEW_LANES)
            answer |= {name: few[name] for name in ("blocks_twice", "blocks", "num_lanes")}
        else:
            key = json.dumps([request["folder"], request["delivery"]])
            if key not in passes:
                passes[key] = _pass(folder, num_rows, Delivery(*request["delivery"]))
            answer = time_epochs(passes[key], request["min_s"])
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def time_epochs(read: Callable[[], int], min_s: float) -> dict[str, float]:
    """Returns what an epoch takes, the mean of as many as take `min_s` of CPU time, and the memory beyond the start."""
    start_mib = _status_mib("VmRSS")
    read()
    num_epochs = num_rows = 0
    cpu, wall = time.process_time(), time.monotonic()
    while num_epochs == 0 or time.process_time() - cpu < min_s:
        num_rows += read()
        num_epochs += 1
    return {
        "rows": num_rows / num_epochs,
        "cpu_s": (time.process_time() - cpu) / num_epochs,
        "wall_s": (time.monotonic() - wall) / num_epochs,
        "memory_mib": _status_mib("VmHWM") - start_mib,
    }


def _status_mib(name: str) -> float:
    status = Path("/proc/self/status").read_text()
    return int(re.findall(rf"{name}:\s+(\d+) kB", status)[0]) / 1024


def _pass(folder: Path, num_rows: int, delivery: Delivery) -> Callable[[], int]:
    """Returns what reads one epoch and counts its rows."""
    if delivery.reader == TF_DATA:
        read = tensorflow_pass(folder, num_rows, Job(TF_DATA, "balanced"))
        return lambda: sum(map(_touch if delivery.form == TENSORS else _to_arrays, read()))
    import shardkit

    train = shardkit.open(str(folder / "balanced"))["train"]
    settings: dict[str, Any] = {"global_batch_size": num_rows, "num_threads": delivery.num_threads}
    if delivery.form == TENSORS:
        from shardkit.adapters.tensorflow import batches

        return lambda: sum(map(_touch, batches(train, **settings)))
    settings["decodes_text"] = delivery.form == TEXT
    if delivery in (ONE_THREAD, TWO_THREADS):
        settings["num_epochs"] = NUM_EPOCHS
    return lambda: sum(map(_num_rows, train.batches(**settings)))


def _touch(tensors: dict[str, Any]) -> int:
    return max(int(tensor.shape[0]) for tensor in tensors.values())


def _to_arrays(tensors: dict[str, Any]) -> int:
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    return len(next(iter(arrays.values())))


def _num_rows(batch: Any) -> int:
    return len(next(iter(batch.values())))


def resume(folder: Path, num_rows: int, num_lanes: int | None) -> dict[str, float]:
    """Returns the seconds from `restore` in the middle of an epoch to the first batch, and what is read twice."""
    import shardkit

    train = shardkit.open(str(folder / "balanced"))["train"]
    settings: dict[str, Any] = {"global_batch_size": num_rows, "seed": 1, "num_threads": 0, "num_lanes": num_lanes}
    first = train.batches(**settings)
    with _BlocksRead() as whole:
        for _batch in train.batches(**settings):
            pass
    with _BlocksRead() as before:
        for _, _batch in zip(range(first.num_steps // 2), first, strict=False):
            pass
    state = json.loads(json.dumps(first.state()))
    first.close()
    seconds = []
    for _ in range(5):
        started = time.monotonic()
        second = train.batches(**settings)
        second.restore(state)
        with _BlocksRead() as at_once:
            next(iter(second))
        seconds.append(time.monotonic() - started)
        second.close()
    second = train.batches(**settings)
    second.restore(state)
    with _BlocksRead() as after:
        for _batch in second:
            pass
    return {
        "seek_s": statistics.median(seconds),
        "first_blocks": at_once.count,
        "blocks_twice": before.count + after.count - whole.count,
        "blocks": whole.count,
        "num_lanes": first.order_options.num_lanes,
        "state_bytes": len(json.dumps(state)),
    }


class _BlocksRead:
    """Counts what is read of local files: each block with one call."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> _BlocksRead:
        from shardkit.dataset import stored_blocks

        self._module, self._read_at = stored_blocks, stored_blocks.read_at
        self._module.read_at = self._note
        return self

    def __exit__(self, *_: object) -> None:
        self._module.read_at = self._read_at
        if not self.count:
            raise RuntimeError("no block was counted: the reader reads them in another way")

    def _note(self, *args: Any) -> Any:
        self.count += 1
        return self._read_at(*args)


# ---- In the process that asks ----


class Measured(NamedTuple):
    """One kind of data.

    Attributes:
        medians: By delivery; `best_wall_s` is the best of all rounds.
        resumed: What `resume` found, medians.
    """

    kind: Kind
    medians: dict[Delivery, dict[str, float]]
    resumed: dict[str, float]

    def rate(self, delivery: Delivery) -> float:
        """Returns rows a CPU second."""
        found = self.medians[delivery]
        return found["rows"] / found["cpu_s"]

    def ratio(self, ours: Delivery, theirs: Delivery) -> float | None:
        """Returns how many times as fast a delivery is, a CPU second."""
        return self.rate(ours) / self.rate(theirs) if {ours, theirs} <= self.medians.keys() else None

    def speedup(self) -> float:
        """Returns how many times as fast two threads are, by wall time."""
        one, two = (self.medians[delivery]["best_wall_s"] for delivery in (ONE_THREAD, TWO_THREADS))
        return one / two


def measure(kind: Kind, folder: Path, deliveries: Sequence[Delivery], rounds: int) -> Measured:
    """Lets readers take turns."""
    start = functools.partial(Reader, program=__spec__.name)
    request = {"folder": str(folder), "num_batch_rows": kind.num_batch_rows}
    readers = {name: start(name) for name in dict.fromkeys(d.reader for d in deliveries) if name != SHARDKIT}
    found: dict[Delivery, list[dict[str, float]]] = {d: [] for d in deliveries}
    resumed = []
    for number in range(rounds):
        # What memory costs depends on the layout of the heap, by chance: so several processes are measured, not one.
        for delivery in (*deliveries[number % len(deliveries) :], *deliveries[: number % len(deliveries)]):
            reader = start(SHARDKIT) if delivery.reader == SHARDKIT else readers[delivery.reader]
            found[delivery].append(reader.ask(what="epochs", delivery=delivery, min_s=MIN_S, **request))
            if delivery.reader == SHARDKIT:
                reader.close()
        reader = start(SHARDKIT)
        resumed.append(reader.ask(what="resume", **request))
        reader.close()
    for reader in readers.values():
        reader.close()
    medians = {d: _medians(answers) for d, answers in found.items()}
    for delivery, answers in found.items():
        medians[delivery]["best_wall_s"] = min(answer["wall_s"] for answer in answers)
        # A process that reads several kinds in turn has had its highest memory before.
        medians[delivery]["memory_mib"] = answers[0]["memory_mib"]
    return Measured(kind, medians, _medians(resumed))


def _medians(answers: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(answer[name] for answer in answers) for name in answers[0]}


HEADERS = (
    "rows",
    "delivered as",
    "shardkit rows/s",
    "tf.data rows/s",
    "ratio",
    "target",
    "memory MiB",
    "of tf.data",
)


def rows_of(measured: Measured) -> list[tuple[Cell, ...]]:
    """Returns the lines of the table of speed."""
    lines: list[tuple[Cell, ...]] = []
    for ours, title in (
        (ALONE, "NumPy"),
        (ONE_THREAD, "NumPy, by a thread ahead"),
        (Delivery(SHARDKIT, TEXT), "NumPy, text as str, by a thread ahead"),
        (TENSORS_ALONE, "tensors"),
        (Delivery(SHARDKIT_TENSORS, TENSORS), "tensors, by a thread ahead"),
    ):
        theirs = Delivery(TF_DATA, TENSORS if ours.form == TENSORS else ARRAYS)
        if ours not in measured.medians:
            continue
        has_theirs = theirs in measured.medians
        lines.append(
            (
                measured.kind.title,
                title,
                measured.rate(ours),
                measured.rate(theirs) if has_theirs else None,
                measured.ratio(ours, theirs),
                TARGETS[measured.kind.name].get(ours.form) if ours in (ALONE, TENSORS_ALONE) else None,
                measured.medians[ours]["memory_mib"],
                measured.medians[theirs]["memory_mib"] if has_theirs else None,
            )
        )
    return lines


RESUME_HEADERS = ("rows", "2 threads / 1", "resume ms", "blocks of the first batch", "blocks read twice", "of", "lanes")


def resume_row_of(measured: Measured) -> tuple[Cell, ...]:
    """Returns the line of the table of threads and resuming."""
    found = measured.resumed
    counts = [int(found[name]) for name in ("first_blocks", "blocks_twice", "blocks", "num_lanes")]
    return (measured.kind.title, measured.speedup(), 1000 * found["seek_s"], *counts)


def checks_of(measured: Measured) -> list[Check]:
    """Returns what was asked and what was measured."""
    title, targets, resumed = measured.kind.title, TARGETS[measured.kind.name], measured.resumed
    arrays = measured.ratio(ALONE, Delivery(TF_DATA, ARRAYS))
    tensors = measured.ratio(TENSORS_ALONE, Delivery(TF_DATA, TENSORS))
    return [
        Check(f"{title}: NumPy, speed / tf.data", arrays, targets[ARRAYS]),
        Check(f"{title}: tensors, speed / tf.data", tensors, targets[TENSORS]),
        Check(f"{title}: two threads / one", measured.speedup(), MIN_SPEEDUP),
        Check(f"{title}: {MAX_SEEK_S} s / time to resume", MAX_SEEK_S / resumed["seek_s"], 1),
        Check(f"{title}: lanes less blocks read twice", resumed["num_lanes"] - resumed["blocks_twice"], 0),
    ]


def print_markdown(headers: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Prints a table in Markdown."""
    print()
    for line in (headers, ["---"] * len(headers), *rows):
        print("| " + " | ".join(_cell(cell) for cell in line) + " |")


def _cell(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if cell >= 100 else f"{cell:.2f}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def main() -> None:
    """Prints the tables of speed and of resuming, then the targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="Where inputs and datasets go; they are kept.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="Times the usual number of rows.")
    parser.add_argument("--kinds", nargs="+", default=[k.name for k in KINDS], choices=[k.name for k in KINDS])
    parser.add_argument("--markdown", action="store_true", help="Print the tables in Markdown.")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, sys.stdin, sys.stdout)
        return
    if options.folder is None:
        parser.error("--folder is needed")
    print_machine("numpy", "pyarrow", "deflate", "tensorflow")
    print(f"others on the machine: a load of {os.getloadavg()[0]:.1f} before")
    deliveries = [d for d in DELIVERIES if d.reader == SHARDKIT or is_installed("tensorflow")]
    found = []
    for kind in (k for k in KINDS if k.name in options.kinds):
        prepare(kind, options.folder / kind.name, options.scale)
        found.append(measure(kind, options.folder / kind.name, deliveries, options.rounds))
        print(f"measured {kind.title}", file=sys.stderr, flush=True)
    speed = [line for measured in found for line in rows_of(measured)]
    resumed = [resume_row_of(measured) for measured in found]
    if options.markdown:
        print_markdown(HEADERS, speed)
        print_markdown(RESUME_HEADERS, resumed)
        return
    print_table("batches, a CPU second", HEADERS, speed)
    print_table("two threads by wall time; resuming in the middle of an epoch", RESUME_HEADERS, resumed)
    print_checks([check for measured in found for check in checks_of(measured)])


if __name__ == "__main__":
    main()
