"""Compares the kernel, the reference and stock TensorFlow on random records, whole ones and damaged ones.

    python -m tests.fuzz.fuzz_kernel --seed 1 --count 1000000 [--alone 0.02] [--tensorflow 0.05]

Every record is decoded by the kernel and by the reference: all buffers, validities and problems must be the same. Each
call of the kernel gets many records side by side; with --alone a share of them is decoded again, each in a buffer of
exactly its size, where a sanitizer notices whatever is read behind it. With --tensorflow a share of the records is
parsed by `tf.io.parse_example` too, but for the classes in `tensorflow_rules.py`. Besides, framed buffers are damaged
and scanned, and pieces gathered, by both. Prints counts by class; ends with status 1 at the first difference, after
printing the smallest record that shows it in hex.
"""

import argparse
import random
import sys
import time
from collections import Counter

import numpy as np

from shardkit import _kernel
from shardkit.encoding import kernel_reference as reference
from shardkit.encoding.tfrecord import frame
from tests.support.wire.kernel_comparison import (
    DifferenceFound,
    exact,
    find_difference,
    find_difference_alone,
    find_scan_difference,
    frame_all,
    smaller,
)
from tests.support.wire.tensorflow_rules import TensorFlow, compare_with_tensorflow
from tests.support.wire.wire_forms import NAMES, Writer, mutate, random_specs

# Kinds by name, as `Writer` gives them to most records.
KINDS = {name: 1 + i % 3 for i, name in enumerate(NAMES)}
_CALL_RECORDS = 1000


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100_000, help="records that the kernel and the reference decode")
    parser.add_argument("--tensorflow", type=float, default=0.0, metavar="SHARE", help="of the records, 0 to 1")
    parser.add_argument("--alone", type=float, default=0.02, metavar="SHARE", help="of the records, 0 to 1")
    options = parser.parse_args(arguments)
    counts = Counter()
    start = time.process_time()
    try:
        fuzz(random.Random(options.seed), options.count, options.alone, options.tensorflow, counts)
    except DifferenceFound as found:
        print(f"DIFFERENCE: {found}", file=sys.stderr)
        return 1
    finally:
        for name in sorted(counts):
            print(f"{counts[name]:>10,}  {name}")
        print(f"{time.process_time() - start:>10.1f}  seconds of CPU time")
    return 0


def fuzz(rng, count, alone_share, tensorflow_share, counts):
    """Compares until `count` records were decoded.

    Raises:
        DifferenceFound: At the first difference.
    """
    tensorflow = TensorFlow(KINDS) if tensorflow_share else None
    wanted = [(name, kind, -1, False) for name, kind in KINDS.items()]
    done = 0
    while done < count:
        records = random_records(rng, min(_CALL_RECORDS, count - done))
        done += len(records)
        _compare_decoders(records, random_specs(rng), counts)
        for record in records:
            if rng.random() < alone_share:
                _compare_alone(record, random_specs(rng))
        _compare_scans(rng, records, counts)
        if tensorflow is not None:
            sample = [record for record in records if rng.random() < tensorflow_share]
            _compare_decoders(sample, wanted, Counter())
            compare_with_tensorflow(tensorflow, sample, wanted, counts)


def random_records(rng, count):
    """Returns records of all forms: half as they were written, half with a few bytes changed."""
    writer = Writer(rng, rng.choice([0, 0, 0, 0.02, 0.1, 0.3]), rng.choice([0, 0, 0, 0.001, 0.005, 0.02]))
    written = [writer.record() for _ in range(max(1, count // 2))]
    changed = [mutate(rng, rng.choice(written), rng.choice(written)) for _ in range(count)]
    records = (written + changed)[:count]
    rng.shuffle(records)
    return records


def _compare_decoders(records, specs, counts):
    frames, starts, lengths = frame_all(records)
    what = find_difference(_kernel, frames, starts, lengths, specs)
    if what is None:
        problems = len(reference.decode(frames, starts, lengths, specs).problems)
        damaged = len(reference.decode(frames, starts, lengths, []).problems)
        counts["kernel = reference: decoded"] += len(records) - problems
        counts["kernel = reference: no tf.train.Example"] += damaged
        counts["kernel = reference: does not fit the specs"] += problems - damaged
        return
    bad = next((record for record in records if find_difference_alone(_kernel, record, specs) is not None), None)
    if bad is None:
        raise DifferenceFound(f"only side by side: {what[:2000]}\nspecs {specs}\n{[r.hex() for r in records]}")
    bad = smaller(bad, lambda record: find_difference_alone(_kernel, record, specs) is not None)
    specs = next(([spec] for spec in specs if find_difference_alone(_kernel, bad, [spec])), specs)
    raise DifferenceFound(f"{find_difference_alone(_kernel, bad, specs)}\nspecs {specs}\nrecord {bad.hex()}")


def _compare_alone(record, specs):
    _, start, length = frame_all([record])
    what = find_difference(_kernel, exact(record), start, length, specs)
    if what is not None:
        raise DifferenceFound(f"only alone: {what}\nspecs {specs}\nrecord {record.hex()}")


def _compare_scans(rng, records, counts):
    frames = b"".join(frame(record) for record in records[: rng.randint(0, 20)])
    for changed in [frames, *(mutate(rng, frames, frames) for _ in range(10))]:
        what = find_scan_difference(_kernel, changed)
        if what is not None:
            raise DifferenceFound(f"{what}\nframes {changed.hex()}")
        counts["kernel = reference: scanned buffers"] += 1
    starts = np.array([rng.randint(0, len(frames)) for _ in range(rng.randint(0, 9))], np.int64)
    sizes = np.array([rng.randint(0, min(300, len(frames) - start)) for start in starts.tolist()], np.int64)
    if bytes(_kernel.gather(frames, starts, sizes)) != reference.gather(frames, starts, sizes):
        raise DifferenceFound(f"gather: {starts.tolist()}, {sizes.tolist()} of {frames.hex()}")
    counts["kernel = reference: gathered buffers"] += 1


if __name__ == "__main__":
    sys.exit(main())
