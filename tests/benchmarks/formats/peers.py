"""One CSV file, converted by shardkit and by four other tools; then read back.

    pip install '.[bench]'
    python -m tests.benchmarks.formats.peers --install /some/disk/peers
    python -m tests.benchmarks.formats.peers --peers /some/disk/peers --folder /some/disk/out --rounds 2 [--read]

The file has 300,000 rows of 20 columns (8 floats, 8 integers, 4 short words; 50 MB) and is generated; `--csv` takes
another of the same columns. Contenders, each as its documentation shows and with its own defaults (`peer_work.py`):
`shardkit convert` with its global shuffle; a hand-written Beam pipeline to gzip TFRecords; a TFDS builder; MosaicML's
MDSWriter; `tf.io.TFRecordWriter`, gzip. Every run is a process of its own. CPU seconds are those of all threads and
child processes after imports; wall seconds once from start to end and once after imports; memory is the peak of the
proportional set size of the whole process tree, sampled 20 times a second, imports included. Afterwards the
rows that each has written are counted and two columns summed up from its bytes, and compared with the CSV.

`--install` makes the environments of the peers: DIR/tensorflow and DIR/mds. Without them contenders are looked for in
this environment; what cannot be imported is listed as not installed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import subprocess
import sys
import time
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.csv as pa_csv

from tests.benchmarks.measure import Cell, Check, print_checks, print_machine, print_table
from tests.benchmarks.process_memory import tree_bytes
from tests.support.paths import ROOT

PROGRAM = Path(__file__).with_name("peer_work.py")
NUM_ROWS = 300_000
SUMMED = ("i0", "i6")
SAMPLE_S = 0.05
# What is asked of a conversion of the file, start-up included.
MAX_WALL_S, MAX_BYTES = 3.0, 400e6
# Dependency groups of the project; their packages do not go with shardkit's own, so each has an environment.
ENVIRONMENTS = {"tensorflow": "bench-tensorflow", "mds": "bench-mds"}


class Peer(NamedTuple):
    """One contender.

    Attributes:
        environment: Name of its environment below --peers; "" for this one.
        target: Times shardkit's CPU time that it is to take at least, when it writes.
    """

    title: str
    modules: tuple[str, ...]
    environment: str
    target: float | None = None


PEERS = {
    "shardkit": Peer("shardkit convert", ("shardkit", "apache_beam"), ""),
    "beam": Peer("hand-written Beam, gzip", ("apache_beam", "tensorflow", "google_crc32c"), "tensorflow", 25),
    "tfds": Peer("TFDS builder", ("tensorflow_datasets", "tensorflow"), "tensorflow", 45),
    "mds": Peer("MosaicML MDS", ("streaming", "torch"), "mds", 10),
    "tf_writer": Peer("tf.io.TFRecordWriter, gzip", ("tensorflow",), "tensorflow"),
}
NO_READER = ("beam",)


class Cost(NamedTuple):
    """What one run took; CPU and wall after imports, `total_s` and memory with them."""

    cpu_s: float
    wall_s: float
    total_s: float
    peak_bytes: int
    num_rows: int | None


class FailedRunError(Exception):
    """A contender ended with an error."""


def install(folder: Path) -> None:
    """Makes the environments of the peers with pip; the one with TensorFlow also gets this checkout."""
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for name, group in ENVIRONMENTS.items():
        packages = configuration["dependency-groups"][group]
        venv.create(folder / name, with_pip=True, clear=True)
        python = str(_python(folder / name))
        own = configuration["project"]["dependencies"] if name == "tensorflow" else []
        subprocess.run([python, "-m", "pip", "install", "-q", *packages, *own], check=True)
        if name == "tensorflow":
            code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
            site = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
            (Path(site) / "shardkit_checkout.pth").write_text(f"{ROOT}\n")
        print(f"{folder / name}: ready")


def _python(environment: Path) -> Path:
    return environment / "bin" / "python"


def find_python(peer: Peer, peers: Path | None) -> str | None:
    """Returns an interpreter that has what a contender needs, None if there is none."""
    found = [sys.executable]
    if peers is not None and peer.environment and _python(peers / peer.environment).exists():
        found.insert(0, str(_python(peers / peer.environment)))
    names = ", ".join(repr(module) for module in peer.modules)
    code = f"import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, [{names}])))"
    for python in found:
        if subprocess.run([python, "-c", code], check=False).returncode == 0:
            return python
    return None


def make_csv(path: Path) -> None:
    """Writes the rows, unless they are there."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    words = np.array([f"word{i}" for i in range(200)])
    columns: dict[str, Any] = {f"f{i}": np.round(rng.normal(size=NUM_ROWS), 4).astype(np.float32) for i in range(8)}
    columns |= {f"i{i}": rng.integers(0, 10 ** (2 * i + 1), NUM_ROWS) for i in range(8)}
    columns |= {f"s{i}": words[rng.integers(0, 200, NUM_ROWS)] for i in range(4)}
    pa_csv.write_csv(pa.table(columns), path)


def measure(command: Sequence[str]) -> Cost:
    """Runs a command that prints what it took on its last line."""
    started = time.monotonic()
    process = psutil.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    peak = 0
    while process.poll() is None:
        peak = max(peak, tree_bytes(process))
        time.sleep(SAMPLE_S)
    total_s = time.monotonic() - started
    output, errors = process.communicate()
    lines = output.strip().splitlines()
    if process.returncode != 0 or not lines:
        raise FailedRunError(f"{' '.join(command)} ended with {process.returncode}:\n{errors[-2000:]}")
    spent = json.loads(lines[-1])
    return Cost(spent["cpu_s"], spent["wall_s"], total_s, peak, spent["num_rows"])


def sums_of_csv(path: Path) -> tuple[int, ...]:
    """Returns the number of rows and the sums of two integer columns."""
    table = pa_csv.read_csv(path, convert_options=pa_csv.ConvertOptions(include_columns=list(SUMMED)))
    return (table.num_rows, *(sum(table.column(name).to_pylist()) for name in SUMMED))


def sums_of_output(name: str, output: Path) -> tuple[int, ...]:
    """Returns the same of what a contender has written, by its bytes."""
    if name == "mds":
        return _sums([_mds_columns(output, path) for path in sorted(output.glob("*.mds"))])
    patterns = {"shardkit": "data/*/*.tfrecord.gz", "tfds": "*/*/*.tfrecord-*"}
    files = sorted(output.glob(patterns.get(name, "*.tfrecord.gz")))
    return _sums(
        [_record_columns(gzip.decompress(f.read_bytes()) if f.suffix == ".gz" else f.read_bytes()) for f in files]
    )


def _sums(parts: list[list[Any]]) -> tuple[int, ...]:
    num_rows = sum(len(columns[0]) for columns in parts)
    return (num_rows, *(sum(int(columns[i].sum()) for columns in parts) for i in range(len(SUMMED))))


def _record_columns(frames: bytes) -> list[Any]:
    from shardkit.encoding.kernel import decode, scan

    starts, lengths, states, end = scan(frames)
    if end != len(frames) or any(bytes(states)):
        raise SystemExit("an output holds damaged records")
    columns, problems = decode(frames, starts, lengths, [(name.encode(), 3, 1, True) for name in SUMMED])
    if memoryview(problems).nbytes:
        raise SystemExit("an output holds records without the columns")
    return [np.frombuffer(values, np.int64) for _, values in columns]


def _mds_columns(output: Path, path: Path) -> list[Any]:
    """Returns columns of an MDS shard: its number of rows, where each starts, then sizes and values of each row."""
    shards = json.loads((output / "index.json").read_text())["shards"]
    (shard,) = (s for s in shards if s["raw_data"]["basename"] == path.name)
    data = np.frombuffer(path.read_bytes(), np.uint8)
    num_rows = int(data[:4].view(np.uint32)[0])
    rows = data[4 : 4 + 4 * num_rows].view(np.uint32).astype(np.int64)
    sizes = dict(zip(shard["column_names"], shard["column_sizes"], strict=True))
    columns = []
    for wanted in SUMMED:
        before = [sizes[n] for n in shard["column_names"][: shard["column_names"].index(wanted)]]
        start = 4 * sum(size is None for size in sizes.values()) + sum(before)
        columns.append(data[(rows + start)[:, None] + np.arange(8)].view(np.int64).ravel())
    return columns


def compare(what: str, commands: dict[str, list[str]], rounds: int) -> dict[str, list[Cost]]:
    """Returns the costs of contenders that take turns, shardkit at the start and at the end of every round."""
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name in (*commands, *(["shardkit"] if len(commands) > 1 else [])):
            try:
                costs[name].append(measure(commands[name]))
            except FailedRunError as error:
                print(f"{what}, {PEERS[name].title}: FAILED, the run does not count\n{error}", flush=True)
                continue
            print(f"{what}, {PEERS[name].title}: {costs[name][-1].cpu_s:.2f} s CPU", file=sys.stderr, flush=True)
    if not costs["shardkit"]:
        raise SystemExit("shardkit itself failed: there is nothing to compare with")
    return {name: found for name, found in costs.items() if found}


def print_costs(title: str, costs: dict[str, list[Cost]], sizes: dict[str, int]) -> dict[str, float]:
    """Prints the table and returns the median CPU seconds."""
    cpu = {name: statistics.median(c.cpu_s for c in found) for name, found in costs.items()}
    rows: list[tuple[Cell, ...]] = [
        (
            PEERS[name].title,
            len(costs[name]),
            cpu[name],
            statistics.median(c.wall_s for c in costs[name]),
            _median_total_s(costs[name]),
            max(c.peak_bytes for c in costs[name]) / 1e6,
            sizes[name] / 1e6,
            cpu[name] / cpu["shardkit"],
        )
        for name in sorted(cpu, key=lambda name: cpu[name])
    ]
    headers = ("tool", "runs", "CPU s", "wall s", "wall s with start", "peak MB", "output MB", "CPU time, shardkit = 1")
    print_table(title, headers, rows)
    return cpu


def run(options: argparse.Namespace) -> None:
    """Compares the contenders that are there."""
    source: Path = options.csv or options.folder / "rows.csv"
    make_csv(source)
    expected = sums_of_csv(source)
    pythons = {name: find_python(PEERS[name], options.peers) for name in options.tools}
    here = {name: python for name, python in pythons.items() if python is not None}
    outputs = {name: options.folder / name for name in here}
    program = str(PROGRAM)
    commands = {n: [python, program, "write", n, str(source), str(outputs[n])] for n, python in here.items()}
    costs = compare("write", commands, options.rounds)
    outputs = {name: output for name, output in outputs.items() if name in costs}
    for name, output in outputs.items():
        if (found := sums_of_output(name, output)) != expected:
            raise SystemExit(f"{PEERS[name].title} has written {found}, not {expected}")
    sizes = {name: sum(f.stat().st_size for f in output.rglob("*") if f.is_file()) for name, output in outputs.items()}
    megabytes = source.stat().st_size / 1e6
    cpu = print_costs(f"write: CSV of {megabytes:.1f} MB, {expected[0]:,} rows", costs, sizes)
    print(f"each has written all {expected[0]:,} rows, and the same sums of {' and '.join(SUMMED)}")
    for name in (name for name, python in pythons.items() if python is None):
        print(f"{PEERS[name].title}: not installed")
    if options.read:
        commands = {n: [here[n], program, "read", n, str(outputs[n])] for n in outputs if n not in NO_READER}
        reading = compare("read", commands, options.rounds)
        for name, found in reading.items():
            if {c.num_rows for c in found} != {expected[0]}:
                raise SystemExit(f"{PEERS[name].title} has read {found[-1].num_rows} rows")
        print_costs(f"read: {expected[0]:,} rows, all columns, once", reading, sizes)
    print_checks(_checks(cpu, costs["shardkit"]))


def _checks(cpu: dict[str, float], own: list[Cost]) -> list[Check]:
    found = [
        # More is better in this table.
        Check("convert the CSV: 3 s / wall time of shardkit", MAX_WALL_S / _median_total_s(own), 1),
        Check("convert the CSV: 400 MB / peak memory of shardkit", MAX_BYTES / max(c.peak_bytes for c in own), 1),
    ]
    for name, peer in PEERS.items():
        if peer.target is not None:
            measured = cpu[name] / cpu["shardkit"] if name in cpu else None
            found.append(Check(f"convert the CSV: CPU time of {peer.title} / shardkit", measured, peer.target))
    return found


def _median_total_s(costs: list[Cost]) -> float:
    return statistics.median(c.total_s for c in costs)


def main() -> None:
    """Installs peers, or compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", type=Path, metavar="DIR", help="Make the environments of the peers, and stop.")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="Where --install has put them.")
    parser.add_argument("--folder", type=Path, help="Where the CSV and the outputs go; they are kept.")
    parser.add_argument("--csv", type=Path, help="A file of the same columns.")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tools", nargs="+", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--read", action="store_true", help="Also read back what was written.")
    options = parser.parse_args()
    if options.install:
        install(options.install)
        return
    if options.folder is None:
        parser.error("--folder is needed")
    if "shardkit" not in options.tools:
        options.tools.insert(0, "shardkit")
    print_machine("shardkit", "apache-beam", "pyarrow", "numpy", "isal")
    run(options)


if __name__ == "__main__":
    main()
