"""What a URL gives, after redirects and several tries, without asking any host too often."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import SplitResult, urljoin

from shardkit.runtime.threads import current_stop_event
from shardkit.transforms.fetch.limits import FetchError, Limits
from shardkit.transforms.fetch.request import Answer, parse_url, request
from shardkit.transforms.fetch.robots import KNOWN_HOSTS, Robots, check_header
from shardkit.units import KiB

_ROBOTS_BYTES = 512 * KiB


class Client:
    """Fetches URLs, for any number of threads.

    Args:
        heeds_robots: Whether to leave out what a host or an answer disallows.
    """

    def __init__(self, limits: Limits, *, heeds_robots: bool = True) -> None:
        self._limits = limits
        self._robots = Robots(self._fetch_robots) if heeds_robots else None
        self._lock = threading.Lock()
        self._hosts: dict[str, threading.BoundedSemaphore] = {}

    def fetch(self, text: str) -> bytes:
        """Returns what a URL gives.

        Raises:
            FetchError: If it gives nothing, or may not be fetched.
        """
        answer = self._tried(parse_url(text), self._limits, self._robots)
        if self._robots is not None:
            check_header(answer.headers)
        return answer.content

    def _fetch_robots(self, url: SplitResult) -> bytes:
        try:
            return self._tried(url, replace(self._limits, max_bytes=_ROBOTS_BYTES), None).content
        except FetchError as error:
            # A host without the file disallows nothing, one that is out of order everything (RFC 9309, 2.3.1).
            if error.why.startswith("status 4") and not error.may_pass:
                return b""
            raise

    def _tried(self, url: SplitResult, limits: Limits, robots: Robots | None) -> Answer:
        pause_s = limits.first_pause_s
        for number in range(1, limits.num_tries + 1):
            try:
                return self._followed(url, limits, robots)
            except FetchError as error:
                if number == limits.num_tries or not error.may_pass or error.pause_s > limits.longest_pause_s:
                    raise
                asked_s = error.pause_s
            if current_stop_event().wait(max(pause_s, asked_s)):
                break
            pause_s *= 2
        raise FetchError("given up")

    def _followed(self, url: SplitResult, limits: Limits, robots: Robots | None) -> Answer:
        left_s = limits.whole_s
        for _ in range(limits.num_redirects + 1):
            if robots is not None:
                robots.check(url)
            with self._turn(url):
                # Waiting for a turn takes no time of the request.
                began = time.monotonic()
                answer = request(url, limits, began + left_s)
                left_s -= time.monotonic() - began
            if answer.location is None:
                return answer
            url = parse_url(urljoin(url.geturl(), answer.location))
        raise FetchError(f"more than {limits.num_redirects} redirects")

    @contextmanager
    def _turn(self, url: SplitResult) -> Iterator[None]:
        with self._lock:
            host = self._hosts.setdefault(url.netloc, threading.BoundedSemaphore(self._limits.num_of_host))
            if len(self._hosts) > KNOWN_HOSTS:
                del self._hosts[next(iter(self._hosts))]
        with host:
            yield
