"""Converts every input of the real data sets and compares what the shards hold with readers that are not shardkit.

    python -m tests.benchmarks.real_data.all_data --data ../shared/data --workers 2 --only csv-dirty numpy

Every conversion is a run of the command in a process of its own. Stock TensorFlow reads the shards, in a process that
never imports shardkit; another reader reads the raw file (`independent_readers.py`); both become multisets of hashes of
stored rows (`stored_rows.py`) and have to be equal. The shuffled batches of three workers of shardkit's own reader have
to be the same multiset as what TensorFlow reads. What is refused is converted once more with `--on-bad-record
quarantine`, and then the rows that the other reader finds to fit are those that have to be there. Prints a table in
Markdown and ends with code 1 if contents differ or a traceback was seen. An empty text field counts as null here,
because the standard library does not tell `""` from nothing.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.benchmarks.real_data import reader_rows
from tests.benchmarks.real_data.data_cases import Case, all_cases
from tests.benchmarks.real_data.stored_rows import Stored, compare, encode, storable_rows
from tests.support.paths import DATA

HERE = Path(__file__).parent
TIMEOUT_S = 120


class Outcome(NamedTuple):
    """What became of one conversion: a line of the table."""

    label: str
    format: str
    result: str
    checked: str
    is_fine: bool


class TensorFlow:
    """Stock TensorFlow in a process of its own, which may crash."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def read(self, folder: Path, paths: list[str], features: list[Any], **settings: Any) -> dict[str, Stored]:
        """Returns the columns of TFRecords, in order."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        job = {"paths": paths, "features": features, "output": str(folder), "is_input": False, **settings}
        reply = self._ask(json.dumps(job))
        if "error" in reply:
            raise ValueError(reply["error"])
        return {f["name"]: _load(folder, position, f) for position, f in enumerate(features)}

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _ask(self, line: str) -> dict[str, Any]:
        if self._process is None:
            command = [sys.executable, str(HERE / "tensorflow_server.py")]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: PT018
        print(line, file=self._process.stdin, flush=True)
        reply = self._process.stdout.readline()
        if not reply:
            self.close()
            return {"error": "TensorFlow crashed"}
        answer: dict[str, Any] = json.loads(reply)
        return answer


def _load(folder: Path, position: int, feature: dict[str, Any]) -> Stored:
    counts = np.load(folder / f"{position}.counts.npy")
    if feature["stored_as"] != "bytes_list":
        kind = {"int64_list": np.int64, "float_list": np.float32}.get(feature["stored_as"], np.float64)
        return Stored(counts, np.load(folder / f"{position}.values.npy").astype(kind))
    stops = np.cumsum(np.load(folder / f"{position}.lengths.npy")).tolist()
    raw = (folder / f"{position}.bytes").read_bytes()
    values = np.empty(len(stops), object)
    values[:] = [raw[a:b] for a, b in zip([0, *stops], stops, strict=False)]
    return Stored(counts, values)


def run_case(case: Case, work: Path, tensorflow: TensorFlow, policy: str) -> Outcome:
    """Converts one input and compares."""
    destination = work / "dataset"
    shutil.rmtree(destination, ignore_errors=True)
    command = [sys.executable, "-m", "shardkit", "convert", *map(str, case.inputs), str(destination), *case.options]
    command += ["--on-bad-record", policy] if policy != "fail" else []
    label = case.label if policy == "fail" else f"{case.label} ({policy})"
    started = time.perf_counter()
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, errors="backslashreplace", timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Outcome(label, "", f"HANGS: over {TIMEOUT_S} s", "", False)
    seconds = time.perf_counter() - started
    if "Traceback" in run.stderr or run.returncode not in (0, 2, 3, 6, 7):
        return Outcome(label, "", f"CRASHES: code {run.returncode}: {run.stderr[-300:]}", "", False)
    if run.returncode:
        return Outcome(label, "", f"refused, {run.returncode}: {_first_line(run.stderr)}", "", True)
    manifest = json.loads(next(destination.glob("manifests/*.json")).read_text())
    found = re.search(r"read as (\S+)", run.stderr)
    stated = re.search(r" in ([0-9.]+) s \(", run.stdout)
    rows = manifest["accounting"]
    speed = sum(i["num_bytes"] for i in rows["inputs"]) / (float(stated[1]) if stated else seconds) / 1e6
    result = f"{rows['num_rows']:,} in, {rows['num_examples']:,} out, {rows.get('num_rejected', 0):,} rejected"
    result += f", {rows['num_damaged_files']} damaged files" if rows.get("num_damaged_files") else ""
    result += f", {speed:.2g} MB/s, {seconds:.1f} s"
    checked, is_fine = _check(case, manifest, destination, work, tensorflow)
    return Outcome(label, found[1] if found else "", result, checked, is_fine)


def _first_line(stderr: str) -> str:
    lines = stderr[stderr.find("error[") :].splitlines()
    return lines[0] if lines else "(no message)"


def _check(case: Case, manifest: dict[str, Any], out: Path, work: Path, tensorflow: TensorFlow) -> tuple[str, bool]:
    features, paths = manifest["features"], case.paths or case.inputs
    shards = sorted(map(str, out.glob("data/*/*.tfrecord*")))
    found = tensorflow.read(work / "found", shards, features, compression="GZIP")
    num_found = len(next(iter(found.values())).counts)
    if num_found != manifest["accounting"]["num_examples"]:
        return f"TensorFlow reads {num_found:,} rows", False
    by_reader = compare(found, reader_rows.read(out, features))
    if by_reader.num_missing or by_reader.num_extra:
        return f"the reader's batches differ from TensorFlow's: {by_reader}", False
    if case.reader is None:
        return "count by TensorFlow", True
    try:
        wanted = _wanted(case, features, list(paths), manifest, work, tensorflow)
    except NotImplementedError as error:
        return f"count by TensorFlow; {case.checked_by} cannot read it: {error}", True
    except Exception as error:  # noqa: BLE001 - readers fail in ways of their own; that is an answer, too.
        return f"{case.checked_by} cannot read it: {type(error).__name__}: {str(error)[:80]!r}", False
    difference = compare(wanted, _without_empty(found, case))
    return f"{case.checked_by}: {difference}", not (difference.num_missing or difference.num_extra)


def _wanted(
    case: Case, features: list[Any], paths: list[Path], manifest: dict[str, Any], work: Path, tensorflow: TensorFlow
) -> dict[str, Stored]:
    if isinstance(case.reader, str):
        is_gzip = paths[0].read_bytes()[:2] == b"\x1f\x8b"
        settings = {"is_input": True, "is_sequence": "sequence" in str(paths[0])}
        compression = "GZIP" if is_gzip else ""
        return tensorflow.read(work / "wanted", [str(p) for p in paths], features, compression=compression, **settings)
    assert case.reader is not None
    table = case.reader(paths)
    if table.keys() != {f["name"] for f in features}:
        return {name: Stored(np.empty(0, np.int64), np.empty(0)) for name in table}
    if manifest["accounting"].get("num_rejected"):
        kept = storable_rows(table, features)
        table = {name: [values[i] for i in kept] for name, values in table.items()}
    return _without_empty({f["name"]: encode(table[f["name"]], f) for f in features}, case)


def _without_empty(columns: dict[str, Stored], case: Case) -> dict[str, Stored]:
    if "csv" not in case.checked_by:
        return columns
    return {name: _drop_empty(column) for name, column in columns.items()}


def _drop_empty(column: Stored) -> Stored:
    if column.values.dtype != object:
        return column
    filled = np.fromiter((len(v) > 0 for v in column.values), bool, len(column.values))
    counts = column.counts.copy()
    counts[counts > 0] = filled
    return Stored(counts, column.values[filled])


def run_cases(cases: list[Case], work: Path, num_workers: int) -> list[Outcome]:
    """Runs all cases, some at the same time, and prints each when it and those before it are done."""
    tensorflows = [TensorFlow() for _ in range(num_workers)]
    free = collections.deque(range(num_workers))

    def run(case: Case) -> list[Outcome]:
        number = free.popleft()
        folder = work / str(number)
        folder.mkdir(exist_ok=True)
        try:
            outcomes = [run_case(case, folder, tensorflows[number], "fail")]
            if "refused, 3" in outcomes[0].result:
                outcomes.append(run_case(case, folder, tensorflows[number], "quarantine"))
            return outcomes
        finally:
            free.append(number)

    found: list[Outcome] = []
    print("| input | format | result | checked against |\n|---|---|---|---|", flush=True)
    with ThreadPoolExecutor(num_workers) as pool:
        for outcomes in pool.map(run, cases):
            for o in outcomes:
                cells = (o.label, o.format, o.result, o.checked)
                print("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |", flush=True)
            found += outcomes
    for tensorflow in tensorflows:
        tensorflow.close()
    return found


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--only", nargs="*", default=[""], help="parts of the names of inputs")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    cases = [c for c in all_cases(arguments.data.resolve()) if any(part in c.label for part in arguments.only)]
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as work:
        outcomes = run_cases(cases, Path(work), arguments.workers)
    wrong = [o for o in outcomes if not o.is_fine]
    converted = sum("rejected" in o.result for o in outcomes)
    took = time.perf_counter() - started
    print(f"\n{len(outcomes)} conversions in {took:.0f} s: {converted} converted, {len(wrong)} to look at")
    for outcome in wrong:
        print(f"- {outcome.label}: {outcome.result}; {outcome.checked}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
