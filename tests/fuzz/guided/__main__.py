"""Fuzzes every parser of the product, each in a separate process, with guidance by coverage.

    python -m tests.fuzz.guided [TARGET ...] [--seed 1] [--runs 10000] [--no-guidance] [--keep FOLDER]
    python -m tests.fuzz.guided TARGET --input FILE

A target is a parser with small valid inputs. It must parse a mutated input, or refuse it by an error for the user or by
the exception that it documents. Findings are

    escaped   any other exception
    memory    an input that takes over 256 MiB
    hung      an input that takes over 10 s
    crashed   an input that ends the process

The bytes of each finding are written into the folder of --keep, cut down where that is possible, and printed if they
are short; --input runs a target on them again. Ends with status 1 if there are any.

Atheris guides the mutations by the bytecode of shardkit and Pillow that an input reaches. It does not see inside native
code: the compiled kernel, pyarrow, msgspec, libsndfile, zlib. Without Atheris (pip install 'shardkit[dev-fuzz]') or
with --no-guidance, mutations are random. The same seed gives the same mutations, as far as Atheris allows.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import io
import sys
import tempfile
import traceback
from pathlib import Path

_INSTRUMENTED = ["shardkit", "PIL"]
_MAX_SHOWN_BYTES = 300


def main(arguments: list[str] | None = None) -> int:
    """Prints a line for each target and each finding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="all if none is named")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=10_000, help="inputs of each target")
    parser.add_argument("--no-guidance", action="store_true", help="mutate at random")
    parser.add_argument("--keep", default="fuzz-findings", metavar="FOLDER", help="where findings are written")
    parser.add_argument("--input", metavar="FILE", help="run the target on this input alone")
    options = parser.parse_args(arguments)
    is_guided = not options.no_guidance and options.input is None
    if is_guided and importlib.util.find_spec("atheris") is None:
        is_guided = False
        print("Atheris is not installed (pip install 'shardkit[dev-fuzz]').", end=" ")
    with tempfile.TemporaryDirectory() as folder:
        table = _load_targets(folder, is_guided)
        unknown = set(options.targets) - set(table)
        if unknown:
            parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(table)}")
        chosen = [table[name] for name in options.targets or table]
        if options.input is not None:
            return _run_once(chosen[0], Path(options.input).read_bytes())
        print(f"{'Guided by coverage' if is_guided else 'Random mutations without guidance'}, seed {options.seed}.")
        return _run_all(chosen, options, is_guided)


def _load_targets(folder, is_guided):
    if is_guided:
        import atheris

        # It names every module.
        with contextlib.redirect_stderr(io.StringIO()), atheris.instrument_imports(include=_INSTRUMENTED):
            from tests.fuzz.guided.targets import all_targets
    else:
        from tests.fuzz.guided.targets import all_targets
    return all_targets(folder)


def _run_all(chosen, options, is_guided):
    from tests.fuzz.guided.campaign import run_target
    from tests.fuzz.guided.target import Job

    total = num_findings = 0
    print(f"{'target':16} {'runs':>8} {'seconds':>8} {'edges':>6} {'corpus':>6} {'findings':>8}")
    for target in chosen:
        outcome = run_target(target, Job(options.seed, options.runs, is_guided))
        edges, _, corpus = outcome.coverage or ("-", "-", "-")
        print(
            f"{target.name:16} {outcome.num_runs:>8,} {outcome.seconds:>8.1f} {edges:>6} {corpus:>6} "
            f"{len(outcome.findings):>8}",
            flush=True,
        )
        for finding in outcome.findings:
            _show(target.name, finding, Path(options.keep))
        if outcome.tail:
            print("    | " + outcome.tail.replace("\n", "\n    | "))
        total, num_findings = total + outcome.num_runs, num_findings + len(outcome.findings)
    print(f"{total:,} runs of {len(chosen)} targets, {num_findings} findings")
    return int(num_findings > 0)


def _show(name, finding, folder):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{hashlib.sha256(finding.data).hexdigest()[:12]}"
    path.write_bytes(finding.data)
    print(f"    {finding.kind} {finding.what} {finding.where}")
    shown = repr(finding.data) if len(finding.data) <= _MAX_SHOWN_BYTES else f"{len(finding.data):,} bytes"
    print(f"    python -m tests.fuzz.guided {name} --input {path}   {shown}", flush=True)


def _run_once(target, data):
    try:
        target.run(data)
    except Exception as error:  # noqa: BLE001 - shown as it is
        traceback.print_exception(error)
        from shardkit.errors import ShardkitError

        return int(not isinstance(error, (ShardkitError, *target.refusals)))
    print("parsed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
