"""A web server of a folder that waits before it answers and takes little of the processor: the kernel sends the files.

What a benchmark measures beside it is the reader. Ranges, whole files and the names in a folder are all it knows.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

_RANGE = re.compile(rb"\r\nrange: *bytes=(\d+)-(\d+)", re.IGNORECASE)
_MAX_HEAD_BYTES = 64 * 1024


class SendfileServer:
    """Serves a folder to any number of connections, with a thread for each.

    Args:
        latency_s: Before each answer to a range.

    Attributes:
        num_ranges: Requests for ranges so far.
        num_bytes: Bytes of ranges that were asked for.
        most_at_once: Range requests that were in work at the same time, at most.
    """

    def __init__(self, folder: Path | str, latency_s: float) -> None:
        self._folder = Path(folder)
        self._latency_s = latency_s
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.reset()
        threading.Thread(target=self._accept, daemon=True).start()

    def reset(self) -> None:
        """Counts from zero."""
        self.num_ranges = self.num_bytes = self.most_at_once = self._at_once = 0

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        received = b""
        # A client that went away is nothing to tell.
        with connection, suppress(ConnectionError):
            while True:
                while b"\r\n\r\n" not in received:
                    more = connection.recv(_MAX_HEAD_BYTES)
                    if not more:
                        return
                    received += more
                head, _, received = received.partition(b"\r\n\r\n")
                self._answer(connection, head)

    def _answer(self, connection: socket.socket, head: bytes) -> None:
        method, target, _ = head.partition(b"\r\n")[0].decode().split(" ")
        path = self._folder / unquote(target.partition("?")[0]).strip("/")
        has_body = method == "GET"
        if path.is_dir():
            names = [f"{found.name}{'/' * found.is_dir()}" for found in sorted(path.iterdir())]
            links = "".join(f'<a href="{name}">{name}</a>\n' for name in names).encode()
            connection.sendall(_head("200 OK", len(links), "text/html") + links * has_body)
        elif not path.is_file():
            connection.sendall(_head("404 Not Found", 0))
        elif wanted := _RANGE.search(head):
            self._answer_range(connection, path, int(wanted[1]), int(wanted[2]) + 1, has_body=has_body)
        else:
            _send(connection, path, 0, path.stat().st_size, "200 OK", has_body=has_body)

    def _answer_range(self, connection: socket.socket, path: Path, start: int, stop: int, *, has_body: bool) -> None:
        with self._lock:
            self.num_ranges += 1
            self.num_bytes += stop - start
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            time.sleep(self._latency_s)
            _send(connection, path, start, min(stop, path.stat().st_size), "206 Partial Content", has_body=has_body)
        finally:
            with self._lock:
                self._at_once -= 1


def _head(status: str, num_bytes: int, kind: str = "application/octet-stream") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {num_bytes}\r\nContent-Type: {kind}\r\n\r\n".encode()


def _send(connection: socket.socket, path: Path, start: int, stop: int, status: str, *, has_body: bool) -> None:
    connection.send(_head(status, stop - start), socket.MSG_MORE if has_body else 0)
    with path.open("rb") as file:
        while has_body and start < stop:
            start += os.sendfile(connection.fileno(), file.fileno(), start, stop - start)
