"""Speed of `shardkit convert` in every format, beside a hand-written Beam pipeline, a TFDS builder and MDSWriter.

    pip install '.[bench]'
    python -m tests.benchmarks.formats.peers --install /some/disk/peers
    python -m tests.benchmarks.formats.formats_speed --peers /some/disk/peers --folder /some/disk/out [--cases geo text]

Inputs are the real files of `../shared/data` beside the checkout (a case whose files are not there is left out), 1 GB
of generated text, the same kind of text with a tokenizer, and 512 token ids a row (`format_cases.py`). The command runs
with its defaults (split train, global shuffle, gzip, statistics, all cores), every time in a process of its own, on
the whole input. The peers (`format_peers.py`) convert the first rows of the same input, as many as the table says. They
get CSV files unpacked. They have imported all they need before their time starts.

Rates leave out the start on both sides: before each conversion comes, in the same round, one of about 200 rows, and
the rate is (rows - few rows) / (time - time of few rows). Per core means per CPU second of all processes and threads.
Ratios are taken within a round; medians of all rounds. Wall, CPU and MB/s of shardkit's rows are whole runs, start
included; those of peers come without their imports. Small inputs are multiplied: the taxi files by 10, the photos by 8.
Peers need not read timestamps, they keep them as text; Beam passes TFRecords on as they are; MDS compresses with zstd,
photos not at all. The count of rows that each has written is compared with that of shardkit on the same rows.

Beam's local runner works in one process with one thread (`--beam-mode in_memory`): with multi_threading it takes more
CPU time for the same rows, with multi_processing every conversion waits for workers that import TensorFlow.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from shardkit.dataset.open import open_dataset
from shardkit.features import Feature
from tests.benchmarks.formats.format_cases import CASES, Case, Inputs
from tests.benchmarks.formats.format_measure import (
    FailedRunError,
    PeerProcess,
    Spent,
    count_rows,
    num_output_bytes,
    run_command,
)
from tests.benchmarks.formats.format_rows import Job
from tests.benchmarks.formats.peers import PEERS, find_python
from tests.benchmarks.measure import Cell, print_machine, print_table
from tests.support.paths import DATA

PROGRAM = "tests.benchmarks.formats.format_peers"

FEW_ROWS = 200
OWN = "shardkit"
# What each needs beyond its own packages, by kind of input.
NEEDS = {"parquet": ("pyarrow",), "token_ids": ("pyarrow",), "avro": ("fastavro",), "tokenize": ("tokenizers",)}
HEADERS = (
    *("case", "tool", "rows", "wall s", "CPU s", "MB/s", "rows/s per core", "peak MB", "output MB", "B a row"),
    *("times per core", "times by wall", "target", "outcome"),
)


class Turn(NamedTuple):
    """What one contender took in one round."""

    whole: Spent
    few: Spent


class Result(NamedTuple):
    """A contender in a case.

    Attributes:
        num_rows: Converted by each run.
        num_few: Converted by each short run.
        turns: One a round; None where it failed.
    """

    num_rows: int
    num_few: int
    num_bytes: int
    output_bytes: int
    turns: list[Turn | None]

    def rates(self, pick: Callable[[Spent], float]) -> list[float | None]:
        """Returns rows a second of each round, the start left out."""
        times = [pick(turn.whole) - pick(turn.few) if turn else 0.0 for turn in self.turns]
        return [(self.num_rows - self.num_few) / seconds if seconds > 0 else None for seconds in times]

    def median(self, pick: Callable[[Spent], float]) -> float:
        """Returns the median of whole runs."""
        return statistics.median(pick(turn.whole) for turn in self.turns if turn)


def _cpu(spent: Spent) -> float:
    return spent.cpu_s


def _wall(spent: Spent) -> float:
    return spent.wall_s


def kind_of(feature: Feature) -> str:
    """Returns what a peer makes of a column that shardkit has found."""
    if feature.shape:
        return "ids"
    if feature.dtype == "string" or feature.dtype.startswith("timestamp"):
        return "text"
    if feature.dtype == "bytes":
        return "bytes"
    return "float" if feature.dtype.startswith("float") else "int"


class Bench:
    """One case: its inputs, its contenders, its rounds."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        """Makes the inputs and converts the peers' rows once with shardkit, which also gives their columns."""
        self.case: Case = CASES[name]
        self.folder: Path = options.folder / name
        self.options = options
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        megabytes = options.text_mb if self.case.kind == "text" else options.token_mb
        self.inputs: Inputs = self.case.prepare(self.folder, options.data, megabytes)
        self.few, self.part = self.folder / "few", self.folder / "part"
        self.num_few = self.inputs.make(self.few, FEW_ROWS)
        self.num_part = self.inputs.make(self.part, options.peer_rows or self.case.peer_rows)
        self.convert(self.part)
        written = count_rows(OWN, self.output(OWN))
        if written != self.num_part:
            raise SystemExit(f"{name}: shardkit has written {written} rows of {self.num_part}")
        features = open_dataset(str(self.output(OWN))).manifest.features
        # Only shardkit looks into images for their size.
        unread = {"height", "width", "channels"} if self.case.kind == "images" else set()
        self.columns = [(f.name, kind_of(f)) for f in features if f.name not in unread]

    def output(self, tool: str) -> Path:
        """Returns where a contender writes."""
        return self.folder / f"out-{tool}"

    def convert(self, source: Path) -> Spent:
        """Converts with shardkit, in a process of its own."""
        output = self.output(OWN)
        shutil.rmtree(output, ignore_errors=True)
        workers = ("--workers", str(self.options.workers)) if self.options.workers else ()
        command = [sys.executable, "-m", "shardkit", "convert", str(source), str(output)]
        return run_command([*command, *self.inputs.options, *workers])

    def start_peers(self) -> dict[str, PeerProcess]:
        """Returns the peers that are installed, ready to convert."""
        job = Job(
            self.case.kind,
            self.columns,
            self.case.header,
            self.inputs.tokenizer,
            self.options.workers or 2,
            self.options.beam_mode,
            self.case.mds_compression,
        )
        started = {}
        for tool in self.options.tools:
            peer = PEERS[tool]._replace(modules=(*PEERS[tool].modules, *NEEDS.get(self.case.kind, ())))
            python = find_python(peer, self.options.peers)
            if python is None:
                print(f"{self.case.title}, {peer.title}: not installed ({', '.join(peer.modules)})", flush=True)
                continue
            command = [python, "-m", PROGRAM, tool, json.dumps(job._asdict())]
            started[tool] = PeerProcess(command, self.folder / f"{tool}.log")
        return {tool: process for tool, process in started.items() if self.is_ready(tool, process)}

    def is_ready(self, tool: str, process: PeerProcess) -> bool:
        """Returns whether a peer that was started can convert, and says why if it cannot."""
        try:
            process.wait_until_ready()
        except FailedRunError as error:
            print(f"{self.case.title}, {PEERS[tool].title}: FAILED\n{error}", flush=True)
            return False
        return True

    def run(self) -> dict[str, Result]:
        """Returns what each contender took; they take turns, the first one changes with the round."""
        peers = self.start_peers()
        turns: dict[str, list[Turn | None]] = {tool: [] for tool in (OWN, *peers)}
        sizes: dict[str, int] = {}
        for number in range(self.options.rounds):
            order = list(turns)
            shift = number % len(order)
            for tool in (*order[shift:], *order[:shift]):
                turns[tool].append(self.turn(tool, peers))
                if turns[tool][-1] is not None and tool not in sizes:
                    sizes[tool] = self.check(tool)
        for peer in peers.values():
            peer.close()
        own = Result(self.inputs.num_rows, self.num_few, self.inputs.num_bytes, sizes[OWN], turns.pop(OWN))
        part_bytes = num_output_bytes(self.part)
        return {OWN: own} | {
            tool: Result(self.num_part, self.num_few, part_bytes, sizes[tool], found)
            for tool, found in turns.items()
            if tool in sizes
        }

    def turn(self, tool: str, peers: dict[str, PeerProcess]) -> Turn | None:
        """Converts few rows and then all that are meant for the tool."""
        try:
            if tool == OWN:
                few = self.convert(self.few)
                return Turn(self.convert(self.inputs.whole), few)
            few = peers[tool].convert(self.few, self.output(tool))
            return Turn(peers[tool].convert(self.part, self.output(tool)), few)
        except FailedRunError as error:
            if tool == OWN:
                raise SystemExit(f"{self.case.title}: {error}") from error
            print(f"{self.case.title}, {PEERS[tool].title}: FAILED, the run does not count\n{error}", flush=True)
            return None

    def check(self, tool: str) -> int:
        """Returns the size of what a tool has written, whose rows must be all that it was given."""
        output = self.output(tool)
        expected = self.inputs.num_rows if tool == OWN else self.num_part
        if tool == OWN:
            written = sum(shard.num_examples for shard in open_dataset(str(output)).shards)
        else:
            written = count_rows(tool, output)
        if written != expected:
            raise SystemExit(f"{self.case.title}: {tool} has written {written} rows of {expected}")
        return num_output_bytes(output)


def table_rows(case: Case, results: dict[str, Result]) -> list[tuple[Cell, ...]]:
    """Returns the rows of the table for a case."""
    own = results[OWN]
    rows: list[tuple[Cell, ...]] = []
    for tool, result in results.items():
        core = None if tool == OWN else _ratio(own.rates(_cpu), result.rates(_cpu))
        wall = None if tool == OWN else _ratio(own.rates(_wall), result.rates(_wall))
        wall_s = result.median(_wall)
        outcome = "not measured" if core is None else "met" if core >= case.target else "MISSED"
        rows.append(
            (
                case.title,
                tool if tool != "mds" or not case.mds_compression else f"mds, {case.mds_compression}",
                result.num_rows,
                wall_s,
                result.median(_cpu),
                result.num_bytes / 1e6 / wall_s,
                _median(result.rates(_cpu)),
                max(turn.whole.peak_bytes for turn in result.turns if turn) / 1e6,
                result.output_bytes / 1e6,
                result.output_bytes / result.num_rows,
                core,
                wall,
                "" if tool == OWN else f">= {case.target:g}",
                "" if tool == OWN else outcome,
            )
        )
    return rows


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _ratio(own: Sequence[float | None], peer: Sequence[float | None]) -> float | None:
    """Returns the median of the ratios within rounds."""
    return _median(a / b if a and b else None for a, b in zip(own, peer, strict=True))


def print_markdown(rows: Sequence[Sequence[Cell]]) -> None:
    """Prints the table for a page."""
    print()
    for line in (HEADERS, ["---"] * len(HEADERS), *rows):
        print("| " + " | ".join(_cell(cell) for cell in line) + " |", flush=True)


def _cell(cell: Cell) -> str:
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.1f}" if abs(cell) >= 10 else f"{cell:.2f}"
    return "" if cell is None else f"{cell:,}" if isinstance(cell, int) else cell


def run(options: argparse.Namespace) -> None:
    """Runs the cases; each prints its table when it is done, and all together in the end."""
    everything: list[tuple[Cell, ...]] = []
    for name in options.cases:
        if not (options.data / CASES[name].needs).exists() and CASES[name].needs:
            print(f"{CASES[name].title}: left out, its files are not in {options.data}", flush=True)
            continue
        bench = Bench(name, options)
        rows = table_rows(bench.case, bench.run())
        everything += rows
        print_table(bench.case.title, HEADERS[1:], [row[1:] for row in rows])
        if not options.keep:
            shutil.rmtree(bench.folder)
    print_markdown(everything) if options.markdown else print_table("all cases", HEADERS, everything)


def main() -> None:
    """Reads the options and runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="Where inputs and outputs go; 4 GB at 1 GB of text.")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="Environments made by peers.py --install.")
    parser.add_argument("--data", type=Path, default=DATA, help="Folder of the real data sets.")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--tools", nargs="*", choices=("beam", "tfds", "mds"), default=["beam", "tfds", "mds"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--text-mb", type=float, default=1000, help="Of the text case.")
    parser.add_argument("--token-mb", type=float, default=20, help="Of text to tokenise; 4 times that of token ids.")
    parser.add_argument("--peer-rows", type=int, help="Rows for the peers, instead of each case's own number.")
    parser.add_argument("--workers", type=int, help="Of shardkit, and of Beam where it has several.")
    parser.add_argument(
        "--beam-mode", choices=("in_memory", "multi_threading", "multi_processing"), default="in_memory"
    )
    parser.add_argument("--markdown", action="store_true", help="Print the last table as Markdown.")
    parser.add_argument("--keep", action="store_true", help="Leave inputs and outputs there.")
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    print_machine(OWN, "apache-beam", "pyarrow", "numpy", "isal", "tokenizers")
    run(options)


if __name__ == "__main__":
    main()
