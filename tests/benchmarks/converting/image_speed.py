"""CPU time and memory of converting a folder of JPEG files, beside TensorFlow's own writer doing the same work.

    python -m tests.benchmarks.converting.image_speed --files 13000 --rounds 5 --folder /some/disk

Makes JPEG files of 192 x 192 pixels (about 18 KB) in ten class folders, then converts them in turn with the `shardkit`
command and with `tf.io.TFRecordWriter`, uncompressed. That writer runs twice: once with image and label only, once with
all features that shardkit stores (sizes read by Pillow). Every run is a process of its own that imports first and
then takes the CPU time of its work, on all threads; wall time and memory are those of the whole process. Ratios are of
medians over interleaved rounds, to the writer of images and labels and to that of all features.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
from PIL import Image

NUM_CLASSES = 10
PIXELS = 192
COMMAND = """
import json, os, sys, time
import shardkit.cli
from shardkit.runtime.process_limits import lighten_process
lighten_process()
import beam_pipelines.engines.local, rich.progress, shardkit.cli.run_convert, shardkit.cli.convert
started = time.process_time()
exit_code = shardkit.cli.main(["convert", *sys.argv[1:]])
print(json.dumps(time.process_time() - started), flush=True)
os._exit(exit_code)
"""
PEER = """
import io, json, os, sys, time
import tensorflow as tf
from PIL import Image, JpegImagePlugin
source, destination, with_sizes = sys.argv[1], sys.argv[2], sys.argv[3] == "sizes"
Example, Features, Feature = tf.train.Example, tf.train.Features, tf.train.Feature
Int64List, BytesList = tf.train.Int64List, tf.train.BytesList
Example().SerializeToString()
started = time.process_time()
with tf.io.TFRecordWriter(destination) as writer:
    for label, folder in enumerate(sorted(os.listdir(source))):
        for name in sorted(os.listdir(f"{source}/{folder}")):
            with open(f"{source}/{folder}/{name}", "rb") as file:
                data = file.read()
            feature = {
                "image": Feature(bytes_list=BytesList(value=[data])),
                "label": Feature(int64_list=Int64List(value=[label])),
            }
            if with_sizes:
                image = JpegImagePlugin.JpegImageFile(io.BytesIO(data))
                feature["filename"] = Feature(bytes_list=BytesList(value=[f"{folder}/{name}".encode()]))
                feature["height"] = Feature(int64_list=Int64List(value=[image.height]))
                feature["width"] = Feature(int64_list=Int64List(value=[image.width]))
                feature["channels"] = Feature(int64_list=Int64List(value=[len(image.getbands())]))
            writer.write(Example(features=Features(feature=feature)).SerializeToString())
print(json.dumps(time.process_time() - started))
"""


class Cost(NamedTuple):
    """What one run took."""

    cpu_s: float
    wall_s: float
    peak_bytes: int


def image_of(number: int) -> bytes:
    """Returns a JPEG file: smooth colours with more or less grain, the same for the same number."""
    rng = np.random.default_rng(number)
    coarse = Image.fromarray(rng.integers(0, 256, (12, 12, 3), np.uint8))
    smooth = np.asarray(coarse.resize((PIXELS, PIXELS), Image.Resampling.BICUBIC), np.int16)
    grain = int(rng.integers(4, 28))
    pixels = smooth + rng.integers(-grain, grain + 1, (PIXELS, PIXELS, 1))
    buffer = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=92)
    return buffer.getvalue()


def write_image(folder: Path, number: int) -> int:
    """Writes one image into the folder of its class and returns its size."""
    data = image_of(number)
    (folder / f"class-{number % NUM_CLASSES}" / f"{number:06d}.jpg").write_bytes(data)
    return len(data)


def generate(folder: Path, num_files: int) -> int:
    """Makes the folder of images, unless it is there, and returns the bytes in it."""
    found = list(folder.glob("*/*.jpg"))
    if len(found) == num_files:
        return sum(path.stat().st_size for path in found)
    shutil.rmtree(folder, ignore_errors=True)
    for number in range(NUM_CLASSES):
        (folder / f"class-{number}").mkdir(parents=True)
    with ProcessPoolExecutor() as processes:
        return sum(processes.map(write_image, [folder] * num_files, range(num_files), chunksize=100))


def tree_bytes(process: psutil.Process) -> int:
    """Returns the proportional set size of a process and all below it."""
    total = 0
    for member in (process, *process.children(recursive=True)):
        try:
            total += member.memory_full_info().pss
        except psutil.Error:
            continue
    return total


def measure(script: str, *arguments: str) -> Cost:
    """Runs a script that prints the CPU seconds of its work on the last line."""
    started = time.monotonic()
    command = [sys.executable, "-c", script, *arguments]
    process = psutil.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    peak = 0
    while process.poll() is None:
        with contextlib.suppress(psutil.Error):
            peak = max(peak, tree_bytes(process))
        # Looking stops the process for a moment, so that it must not be done often.
        time.sleep(0.2)
    wall = time.monotonic() - started
    output = process.stdout.read()
    if process.wait() != 0:
        raise SystemExit(f"{arguments} ended with {process.returncode}: {output}")
    return Cost(json.loads(output.splitlines()[-1]), wall, peak)


def convert(source: Path, destination: Path, workers: int, compression: str) -> Cost:
    """Converts with the command. Up to four workers are threads of one process."""
    shutil.rmtree(destination, ignore_errors=True)
    options = ["--workers", str(workers), "--compression", compression]
    return measure(COMMAND, str(source), str(destination), *options)


def write_with_tensorflow(source: Path, destination: Path, features: str) -> Cost:
    """Writes one uncompressed file with the peer."""
    shutil.rmtree(destination, ignore_errors=True)
    destination.mkdir()
    return measure(PEER, str(source), str(destination / "records"), features)


def main() -> None:
    """Prints one line a contender: medians over interleaved rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=13_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    source, out = options.folder / f"images-{options.files}", options.folder / "out"
    num_bytes = generate(source, options.files)
    contenders = {
        "TFRecordWriter, image and label": lambda: write_with_tensorflow(source, out, "label"),
        "TFRecordWriter, all features": lambda: write_with_tensorflow(source, out, "sizes"),
        "shardkit, 1 worker, gzip": lambda: convert(source, out, 1, "gzip"),
        "shardkit, 2 workers, gzip": lambda: convert(source, out, 2, "gzip"),
        "shardkit, 1 worker, none": lambda: convert(source, out, 1, "none"),
    }
    costs: dict[str, list[Cost]] = {name: [] for name in contenders}
    for _ in range(options.rounds):
        for name, run in contenders.items():
            costs[name].append(run())
    shutil.rmtree(out, ignore_errors=True)
    print(f"{options.files:,} files, {num_bytes / 1e6:.0f} MB, {num_bytes / options.files:,.0f} bytes each")
    print(f"{'':34} {'CPU s':>7} {'us/file':>8} {'wall s':>7} {'peak MB':>8} {'to label':>9} {'to all':>7}")
    medians = {name: statistics.median(c.cpu_s for c in runs) for name, runs in costs.items()}
    label, everything = list(medians.values())[:2]
    for name, runs in costs.items():
        cpu, wall = medians[name], statistics.median(c.wall_s for c in runs)
        peak = max(c.peak_bytes for c in runs)
        print(
            f"{name:34} {cpu:7.2f} {cpu / options.files * 1e6:8.1f} {wall:7.2f} {peak / 1e6:8.0f} "
            f"{cpu / label:9.2f} {cpu / everything:7.2f}"
        )


if __name__ == "__main__":
    main()
