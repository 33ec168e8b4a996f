"""A store that breaks a promise: a proxy on loopback before a real server of S3, which it lets keep all the others."""

from __future__ import annotations

import http.client
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

# Of the hop from one end of a connection to the other.
_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "te", "upgrade", "expect"})
_LARGE = 16 * 2**20


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def key(self):
        return urlsplit(self.path).path

    @property
    def query(self):
        return parse_qs(urlsplit(self.path).query, keep_blank_values=True)

    @property
    def is_object(self):
        return self.method == "GET" and self.key.count("/") > 1 and not self.query

    @property
    def is_listing(self):
        return self.method == "GET" and "list-type" in self.query


class Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def with_body(self, body, status=None):
        kept = [(k, v) for k, v in self.headers if not k.lower().startswith("x-amz-checksum")]
        return Answer(self.status if status is None else status, kept, body)


class Fault:
    """Hands every request on, and every answer back.

    Conditional requests one after the other: moto looks whether an object is there, and writes it some time later.
    """

    def __init__(self):
        self.lock = threading.Lock()
        self.conditional = threading.Lock()
        self.num_times = 0

    def answer(self, request, ask):
        return ask(request)

    def count(self):
        with self.lock:
            self.num_times += 1


class IgnoresConditions(Fault):
    def answer(self, request, ask):
        headers = {k: v for k, v in request.headers.items() if k.lower() != "if-none-match"}
        if len(headers) < len(request.headers):
            self.count()
        return ask(request._replace(headers=headers))


class ForgetsConditionsOfLarge(Fault):
    def answer(self, request, ask):
        headers = {
            k: v for k, v in request.headers.items() if k.lower() != "if-none-match" or len(request.body) < 2**20
        }
        if len(headers) < len(request.headers):
            self.count()
        return ask(request._replace(headers=headers))


class ShortensRanges(Fault):
    def answer(self, request, ask):
        answer = ask(request)
        if request.is_object and "Range" in request.headers and len(answer.body) > 1000:
            self.count()
            return answer.with_body(answer.body[:-1])
        return answer


class FillsRangesOverTheEnd(Fault):
    def answer(self, request, ask):
        answer = ask(request)
        if answer.status == 206:
            first, _, last = request.headers["Range"].removeprefix("bytes=").partition("-")
            lacking = int(last) - int(first) + 1 - len(answer.body)
            if lacking > 0:
                self.count()
                return answer.with_body(answer.body + bytes(lacking))
        return answer


class ListsLate(Fault):
    """Each listing is that of the one before."""

    def __init__(self):
        super().__init__()
        self.before = {}

    def answer(self, request, ask):
        answer = ask(request)
        if not request.is_listing:
            return answer
        with self.lock:
            self.num_times += 1
            before = self.before.get(request.path, answer)
            self.before[request.path] = answer
        return before


class ReadsOldContent(Fault):
    """What was replaced is read once more."""

    def __init__(self):
        super().__init__()
        self.now, self.old = {}, {}

    def answer(self, request, ask):
        answer = ask(request)
        with self.lock:
            if request.method == "PUT" and not request.query and answer.status == 200:
                if request.key in self.now:
                    self.old[request.key] = self.now[request.key]
                self.now[request.key] = request.body
            elif request.method == "DELETE":
                self.now.pop(request.key, None)
                self.old.pop(request.key, None)
            elif request.is_object and "Range" not in request.headers and request.key in self.old:
                self.num_times += 1
                return answer.with_body(self.old.pop(request.key))
        return answer


class KeepsDeleted(Fault):
    """What is deleted stays until it is deleted once more."""

    def __init__(self):
        super().__init__()
        self.asked = set()

    def answer(self, request, ask):
        if request.method == "DELETE" and not request.query:
            with self.lock:
                is_first = request.key not in self.asked
                self.asked.add(request.key)
            if is_first:
                self.count()
                return Answer(204, [], b"")
        return ask(request)


class DamagesLarge(Fault):
    def answer(self, request, ask):
        answer = ask(request)
        if request.is_object and "Range" not in request.headers and len(answer.body) > _LARGE:
            self.count()
            middle = len(answer.body) // 2
            flipped = bytes([answer.body[middle] ^ 1])
            return answer.with_body(answer.body[:middle] + flipped + answer.body[middle + 1 :])
        return answer


class ShowsParts(Fault):
    """A part of an upload is an object from then on."""

    def answer(self, request, ask):
        answer = ask(request)
        if request.method == "PUT" and "partNumber" in request.query:
            self.count()
            headers = {k: v for k, v in request.headers.items() if not k.lower().startswith("x-amz-checksum")}
            ask(request._replace(path=request.key, headers=headers))
        return answer


class Hangs(Fault):
    """Requests of a kind are taken and never answered, from one of them on.

    Attributes:
        asked: Set when one is not answered.

    Args:
        is_meant: Tells the requests.
        first: Which of them is the first without an answer, from 1 on.
    """

    def __init__(self, is_meant, first=1):
        super().__init__()
        self.asked = threading.Event()
        self.is_meant, self.first = is_meant, first
        self.end = threading.Event()

    def answer(self, request, ask):
        if self.is_meant(request):
            self.count()
            if self.num_times >= self.first:
                self.asked.set()
                self.end.wait()
        return ask(request)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        # A client that was stopped takes no answer.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def proxied(upstream: str, fault: Fault) -> Iterator[str]:
    """Starts a proxy with a fault before a server and yields its address."""
    host, _, port = urlsplit(upstream).netloc.partition(":")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self):
            length = int(self.headers.get("Content-Length") or 0)
            request = Request(self.command, self.path, dict(self.headers), self.rfile.read(length))
            answer = fault.answer(request, self.ask)
            self.send_response_only(answer.status)
            for name, value in answer.headers:
                self.send_header(name, value)
            is_empty = self.command == "HEAD"
            size = next((v for k, v in answer.headers if k == "X-Head-Length"), None) if is_empty else None
            if answer.status != 204:
                self.send_header("Content-Length", size or str(len(answer.body)))
            self.end_headers()
            if not is_empty:
                self.wfile.write(answer.body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

        def ask(self, request):
            connection = http.client.HTTPConnection(host, int(port), timeout=60)
            headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP}
            is_conditional = any(name.lower() == "if-none-match" for name in headers)
            try:
                with fault.conditional if is_conditional else nullcontext():
                    return self.exchange(connection, request, headers)
            finally:
                connection.close()

        def exchange(self, connection, request, headers):
            connection.request(request.method, request.path, request.body or None, headers)
            got = connection.getresponse()
            body = got.read()
            kept = [(k, v) for k, v in got.getheaders() if k.lower() not in _HOP]
            if request.method == "HEAD":
                kept.append(("X-Head-Length", got.getheader("Content-Length") or "0"))
            return Answer(got.status, kept, body)

        def log_message(self, *args):
            pass

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        if isinstance(fault, Hangs):
            fault.end.set()
        server.shutdown()
        server.server_close()
        thread.join()
