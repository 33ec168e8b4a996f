"""What becomes of folders as people have them, by the obvious command.

    python -m tests.benchmarks.formats.folders [--only WORD] [--keep FOLDER]

A line for each folder: exit code, splits with their rows, rows of the folder, and how many of these TensorFlow finds in
the dataset with their split and label. A dataset that lacks one counts as wrong.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.folders import CASES
from tests.support.folders.parts import compare


def convert(case, folder):
    """Returns the exit code, the output, and the result of `compare` where there is a dataset."""
    source, target = folder / "in", folder / "out"
    source.mkdir(parents=True)
    expected = case.make(source)
    options = [option.replace("{folder}", str(source)) for option in case.options]
    inputs = sorted(source.iterdir())
    given = inputs[0] if len(inputs) == 1 and inputs[0].is_file() else source
    command = [sys.executable, "-m", "shardkit", "convert", str(given), str(target), *options]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    output = result.stdout + result.stderr
    return result.returncode, output, len(expected), compare(case, expected, target) if not result.returncode else None


def wrong_outcome(case, code, output, num_expected, found):
    """Returns what is wrong with the outcome; empty where nothing is."""
    words = " ".join(output.split())
    if case.refusal:
        missing = [word for word in case.refusal if word not in words]
        return "converted, not refused" if not code else f"the error lacks {missing[0]!r}" if missing else ""
    if code:
        return "refused"
    num_right, num_stored, _ = found
    return "" if num_right == num_stored == num_expected else "WRONG"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    counts = {}
    print(f"{'folder':43} code {'splits':42} rows  found  outcome")
    with tempfile.TemporaryDirectory() as temporary:
        for index, case in enumerate(CASES):
            if arguments.only not in case.name:
                continue
            code, output, num_expected, found = convert(case, (arguments.keep or Path(temporary)) / f"{index:02}")
            splits = ", ".join(f"{name} {number}" for name, number in found[2].items()) if found else "-"
            right = f"{found[0]} of {found[1]}" if found else "-"
            wrong = wrong_outcome(case, code, output, num_expected, found)
            counts[wrong] = counts.get(wrong, 0) + 1
            print(f"{case.name:43} {code:4} {splits:42} {num_expected:4}  {right:>8}  {wrong or 'right'}", flush=True)
            if arguments.only:
                print(output)
    print(", ".join(f"{wrong or 'right'}: {number}" for wrong, number in sorted(counts.items())))


if __name__ == "__main__":
    main()
