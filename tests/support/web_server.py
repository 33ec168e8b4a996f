"""A web server on this machine that gives images, and fails in every way that a list of URLs meets.

The first part of a path says what happens, the rest names the thing: `/ok/7`, `/missing/7`, `/flaky/7`.
"""

import io
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
from PIL import Image

ROBOTS = b"User-agent: *\nDisallow: /forbidden/\n"
BIG_BYTES = 300_000


def picture(name):
    """Returns the PNG of a path's last part, a number."""
    number = int(name)
    pixels = np.full((6 + number % 5, 7, 3), number % 251, np.uint8)
    sink = io.BytesIO()
    Image.fromarray(pixels).save(sink, "PNG")
    return sink.getvalue()


class WebServer(ThreadingHTTPServer):
    """As a context, serves until its end.

    Attributes:
        asked: Requests by path, without queries.
        agents: User agents that asked.
        most_at_once: How many requests but those for robots.txt were answered at the same time.
        works_again: Whether what failed works by now.
        release: Set where hanging requests are to end.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, robots=ROBOTS):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.robots = robots
        self.asked, self.agents = Counter(), set()
        self.now = self.most_at_once = 0
        self.works_again = False
        self.release, self.lock = threading.Event(), threading.Lock()

    def __enter__(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.release.set()
        self.shutdown()
        self.server_close()

    def url(self, path):
        """Returns the address of a path, with a query that must not be shown."""
        return f"http://127.0.0.1:{self.server_port}/{path}?token=secret"

    def handle_error(self, *_):
        """Clients that leave are no error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    is_counted = False

    def log_message(self, *_):
        pass

    def do_GET(self):
        server, path = self.server, self.path.partition("?")[0]
        with server.lock:
            server.asked[path] += 1
            server.agents.add(self.headers["User-Agent"])
        if path == "/robots.txt":
            self.give(200 if server.robots is not None else 404, server.robots or b"")
            return
        with server.lock:
            server.now += 1
            server.most_at_once = max(server.most_at_once, server.now)
        self.is_counted = True
        try:
            kind, _, name = path[1:].partition("/")
            getattr(self, "ok" if server.works_again and kind != "missing" else kind)(name)
        finally:
            self.end_count()

    def end_count(self):
        with self.server.lock:
            self.server.now -= self.is_counted
            self.is_counted = False

    def give(self, status, content=b"", **headers):
        # A client that has the whole answer may ask again before this thread goes on.
        self.end_count()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def first(self):
        return self.server.asked[self.path.partition("?")[0]] == 1

    def ok(self, name):
        self.give(200, picture(name))

    def forbidden(self, name):
        self.give(200, picture(name))

    def missing(self, name):
        self.give(404, b"there is nothing")

    def broken(self, name):
        self.give(500)

    def flaky(self, name):
        self.give(503) if self.first() else self.ok(name)

    def busy(self, name):
        self.give(429, Retry_After="0.2") if self.first() else self.ok(name)

    def later(self, name):
        self.give(429, Retry_After="3600")

    def hang(self, name):
        self.server.release.wait(60)
        self.ok(name)

    def drip(self, name):
        self.send_response(200)
        self.end_headers()
        while not self.server.release.wait(0.05):
            self.wfile.write(b"x")

    def big(self, name):
        self.give(200, bytes(BIG_BYTES))

    def endless(self, name):
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        for _ in range(BIG_BYTES // 1000):
            self.wfile.write(bytes(1000))
        self.close_connection = True

    def short(self, name):
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"only this")
        self.close_connection = True

    def packed(self, name):
        self.give(200, picture(name), Content_Encoding="gzip")

    def page(self, name):
        self.give(200, b"<html>a page</html>")

    def unwilling(self, name):
        self.give(200, picture(name), X_Robots_Tag="noai, noimageai")

    def loop(self, name):
        self.give(302, Location=self.path)

    def moved(self, name):
        self.give(301, Location=f"/ok/{name}")

    def inward(self, name):
        self.give(302, Location="http://169.254.169.254/latest/meta-data")

    def elsewhere(self, name):
        self.give(302, Location="file:///etc/passwd")

    def barred(self, name):
        self.give(302, Location=f"/forbidden/{name}")
