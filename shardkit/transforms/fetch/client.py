"""What a URL gives, after redirects and several tries, without asking any host too often."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from email.message import Message
from urllib.parse import SplitResult, urljoin
from urllib.robotparser import RobotFileParser

from shardkit.runtime.threads import current_stop_event
from shardkit.transforms.fetch.limits import FetchError, Limits
from shardkit.transforms.fetch.request import AGENT, Answer, parse_url, request
from shardkit.units import KiB

# Those that img2dataset heeds: of search engines, and of those who would not have their works in data sets.
_OPT_OUTS = frozenset({"noai", "noimageai", "noindex", "noimageindex", "none"})
# A list of millions of URLs may name as many hosts; the one that was met first is forgotten.
KNOWN_HOSTS = 10_000
# So long a host is not asked again that did not say what it disallows.
_FAILED_S = 60.0

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
        """Returns what a URL gives. Raises FetchError if it gives nothing, or may not be fetched."""
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


class Robots:
    """The robots.txt of every host that was asked for, each fetched once.

    Args:
        fetch: Returns what a URL gives, empty where the server says that there is no such file; raises FetchError.
    """

    def __init__(self, fetch: Callable[[SplitResult], bytes]) -> None:
        self._fetch = fetch
        self._lock = threading.Lock()
        self._rules: dict[tuple[str, str], _Rules] = {}

    def check(self, url: SplitResult) -> None:
        """Checks that a URL may be fetched. Raises FetchError if it may not, or the host does not say."""
        with self._lock:
            rules = self._rules.setdefault((url.scheme, url.netloc), _Rules())
            if len(self._rules) > KNOWN_HOSTS:
                del self._rules[next(iter(self._rules))]
        with rules.lock:
            if rules.found is None or rules.until < time.monotonic():
                rules.found = self._load(url)
                rules.until = time.monotonic() + _FAILED_S if isinstance(rules.found, FetchError) else math.inf
        if isinstance(rules.found, FetchError):
            why = rules.found.why
            raise FetchError(f"robots.txt of its host gives {why}" if why.startswith("status") else why)
        if not rules.found.can_fetch(AGENT, url.geturl()):
            raise FetchError("robots.txt of its host disallows it")

    def _load(self, url: SplitResult) -> RobotFileParser | FetchError:
        parser = RobotFileParser()
        try:
            text = self._fetch(url._replace(path="/robots.txt", query=""))
        except FetchError as error:
            return error
        parser.parse(text.decode(errors="replace").splitlines())
        return parser


class _Rules:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.found: RobotFileParser | FetchError | None = None
        self.until = math.inf


def check_header(headers: Message) -> None:
    """Checks that an answer does not opt out of being used. Raises FetchError if it does."""
    for value in headers.get_all("X-Robots-Tag", []):
        agent, colon, rest = str(value).lower().partition(":")
        # A directive such as `unavailable_after: ...` holds a colon, too, and no name of an agent.
        directives = rest if colon and agent.strip() == AGENT else "" if colon and "," not in agent else str(value)
        if refused := _OPT_OUTS & {directive.strip() for directive in directives.lower().split(",")}:
            raise FetchError(f"its header X-Robots-Tag says {min(refused)}")
