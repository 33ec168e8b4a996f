"""A web server of a folder with ranges, latency and faults, that counts what it is asked."""

import random
import re
import socket
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

FAULTS = ("short", "flip", "busy", "close")


class RangeServer(ThreadingHTTPServer):
    """Serves files below a folder; folders are answered with links to what is in them.

    Attributes:
        latency_s: Before each answer to a range.
        page_of_any_name: The answer to a name without a file, as web applications give it; None says it is missing.
        fault: Says for a range request `(path, first byte, last byte)` which of `FAULTS` befalls it, None if none; a
            number flips the byte there in the file.
        num_ranges: Requests for ranges so far.
        num_bytes: Bytes of ranges that were asked for.
        most_at_once: Range requests that were in work at the same time, at most.
        faults: How many of each there were.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, folder, latency_s=0.0):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = Path(folder)
        self.latency_s = latency_s
        self.page_of_any_name = None
        self.fault = lambda *_: None
        self.lock = threading.Lock()
        self.connections = []
        self.reset()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def reset(self):
        self.num_ranges = self.num_bytes = self.most_at_once = self._at_once = 0
        self.faults = Counter()

    def handle_error(self, request, client_address):
        """A client that went away is nothing to tell."""

    def process_request(self, request, client_address):
        self.connections.append(request)
        super().process_request(request, client_address)

    def server_close(self):
        super().server_close()
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def counted(self, num_bytes):
        with self.lock:
            self.num_ranges += 1
            self.num_bytes += num_bytes
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            yield
        finally:
            with self.lock:
                self._at_once -= 1


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = self.server.folder / unquote(self.path).strip("/")
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if path.is_dir():
            links = "".join(f'<a href="{p.name}{"/" * p.is_dir()}">{p.name}</a>\n' for p in sorted(path.iterdir()))
            self.answer(200, links.encode(), kind="text/html")
        elif not path.is_file():
            page = self.server.page_of_any_name
            self.answer(404 if page is None else 200, page or b"no such file")
        elif wanted is None:
            self.answer(200, path.read_bytes())
        else:
            self.answer_range(path, int(wanted[1]), int(wanted[2]))

    def answer_range(self, path, first, last):
        with self.server.counted(last + 1 - first):
            fault = self.server.fault(path, first, last)
            if fault:
                with self.server.lock:
                    self.server.faults["flip" if isinstance(fault, int) else fault] += 1
            time.sleep(self.server.latency_s)
            with path.open("rb") as file:
                file.seek(first)
                content = file.read(last + 1 - first)
            if not content:
                self.answer(416, b"")
            elif fault == "busy":
                self.answer(503, b"busy")
            elif fault == "close":
                self.answer(206, content, num_sent=len(content) // 2)
            elif fault == "short":
                self.answer(206, content[: len(content) // 2])
            elif fault == "flip" or isinstance(fault, int):
                place = len(content) // 2 if fault == "flip" else fault - first
                self.answer(206, content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            else:
                self.answer(206, content)

    def answer(self, status, content, kind="application/octet-stream", num_sent=None):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[:num_sent])
        if num_sent is not None:
            self.close_connection = True


def some_requests(share, seed=0):
    """Returns what makes a share of the requests fail, in all ways in turn."""
    chance, lock = random.Random(seed), threading.Lock()

    def fault(*_):
        with lock:
            return chance.choice(FAULTS) if chance.random() < share else None

    return fault


@contextmanager
def serve(folder, latency_s=0.0):
    """Yields a server of a folder that works in threads."""
    with RangeServer(folder, latency_s) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
