"""Fetches a list of URLs from a server on this machine, of which a tenth fails in five ways, and checks every row.

    python -m tests.benchmarks.converting.fetch_urls [--rows 10000] [--delay-ms 20]

The server is a separate process, answers after `--delay-ms`, and gives images of about 20 kB. The failures are: no
such page, a server out of order, more than --max-record-size, a page in place of an image, and what robots.txt
disallows. Rows must add up, every image must be the one of its row, and the rows that failed must be fetched by
`--append --fetch-again` once the server gives them.
"""

import argparse
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

from shardkit.dataset.open import open_dataset
from tests.benchmarks.measure import print_table
from tests.support.in_process import read_rows

KINDS = ("missing", "broken", "big", "page", "forbidden")
MAX_BYTES, IMAGE_BYTES = 100_000, 20_000


def image(number):
    """Returns bytes like those of an image: the first ones are those of a PNG, the others are noise of its seed."""
    noise = np.random.default_rng(number).bytes(IMAGE_BYTES + number % 1000)
    return b"\x89PNG\r\n\x1a\n" + noise


def path_of(number):
    """Returns the path of a row; every tenth fails."""
    return f"/{KINDS[number // 10 % len(KINDS)] if number % 10 == 3 else 'ok'}/{number}"


class Handler(BaseHTTPRequestHandler):
    def __init__(self, *args, delay_s, repaired):
        self.delay_s, self.repaired = delay_s, repaired
        super().__init__(*args)

    def log_message(self, *_):
        pass

    def do_GET(self):
        _, kind, *rest = self.path.split("/")
        if kind == "robots.txt":
            rules = b"" if self.repaired.is_set() else b"User-agent: *\nDisallow: /forbidden/\n"
            self.give(200, rules)
            return
        time.sleep(self.delay_s)
        if self.repaired.is_set() or kind == "ok":
            self.give(200, image(int(rest[0])))
        elif kind in ("missing", "broken"):
            self.give(404 if kind == "missing" else 500, b"")
        else:
            self.give(200, bytes(MAX_BYTES + 1) if kind == "big" else b"<html>a page</html>")

    def give(self, status, content):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, *_):
        pass


def serve(ports, delay_s, repaired):
    server = Server(("127.0.0.1", 0), partial(Handler, delay_s=delay_s, repaired=repaired))
    ports.put(server.server_port)
    server.serve_forever()


def convert(*arguments):
    """Runs a conversion and returns how long it took and the line of its sums."""
    started = time.monotonic()
    command = [sys.executable, "-P", "-m", "shardkit", "convert", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return time.monotonic() - started, next(line for line in done.stdout.splitlines() if " rows in, " in line)


def check(out, wanted):
    """Checks that a dataset holds the images of some rows, each once and whole."""
    rows = {int(row["n"]): row["image"] for row in read_rows(open_dataset(str(out)), "train")}
    assert rows.keys() == wanted
    assert all(content == image(number) for number, content in rows.items())


def reasons(out):
    command = [sys.executable, "-P", "-m", "shardkit", "inspect", str(out), "--rejected", "--json"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return Counter(json.loads(line)["reason"].partition(": ")[2] for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--delay-ms", type=float, default=20.0)
    asked = parser.parse_args()
    ports, repaired = multiprocessing.Queue(), multiprocessing.Event()
    server = multiprocessing.Process(target=serve, args=(ports, asked.delay_ms / 1000, repaired), daemon=True)
    server.start()
    port = ports.get()
    failing = {i for i in range(asked.rows) if not path_of(i).startswith("/ok/")}
    with tempfile.TemporaryDirectory() as folder:
        urls, out = Path(folder, "urls.csv"), Path(folder, "out")
        urls.write_text("url,n\n" + "".join(f"http://127.0.0.1:{port}{path_of(i)},{i}\n" for i in range(asked.rows)))
        options = ("--fetch", "url=image", "--fetch-private", "--max-record-size", MAX_BYTES)
        seconds, sums = convert(urls, out, *options, "--on-bad-record", "quarantine", "--max-bad", "11%")
        num_good = asked.rows - len(failing)
        assert sums == f"{asked.rows:,} rows in, {num_good:,} examples out, {len(failing):,} rejected", sums
        check(out, set(range(asked.rows)) - failing)
        counts = reasons(out)
        assert sum(counts.values()) == len(failing)
        repaired.set()
        again_seconds, again_sums = convert(out, "--append", "--fetch-again")
        check(out, set(range(asked.rows)))
    print_table("Rows that could not be fetched", ("reason of a rejected row", "rows"), sorted(counts.items()))
    runs = (("first run", asked.rows, seconds, sums), ("--fetch-again", len(failing), again_seconds, again_sums))
    rows = [(name, f"{took:.1f}", f"{number / took:.0f}", said) for name, number, took, said in runs]
    print_table("Runs", ("run", "seconds", "rows/s", "sums"), rows)
    server.terminate()


if __name__ == "__main__":
    main()
