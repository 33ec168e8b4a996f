"""What a host disallows: robots.txt, and the header X-Robots-Tag of an answer."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from email.message import Message
from urllib.parse import SplitResult
from urllib.robotparser import RobotFileParser

from shardkit.transforms.fetch.limits import FetchError
from shardkit.transforms.fetch.request import AGENT

# Those that img2dataset heeds: of search engines, and of those who would not have their works in data sets.
_OPT_OUTS = frozenset({"noai", "noimageai", "noindex", "noimageindex", "none"})

# A list of millions of URLs may name as many hosts; the one that was met first is forgotten.
KNOWN_HOSTS = 10_000
# So long a host is not asked again that did not say what it disallows.
_FAILED_S = 60.0


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
        """Checks that a URL may be fetched.

        Raises:
            FetchError: If it may not, or the host does not say.
        """
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
    """Checks that an answer does not opt out of being used.

    Raises:
        FetchError: If it does.
    """
    for value in headers.get_all("X-Robots-Tag", []):
        agent, colon, rest = str(value).lower().partition(":")
        # A directive such as `unavailable_after: ...` holds a colon, too, and no name of an agent.
        directives = rest if colon and agent.strip() == AGENT else "" if colon and "," not in agent else str(value)
        if refused := _OPT_OUTS & {directive.strip() for directive in directives.lower().split(",")}:
            raise FetchError(f"its header X-Robots-Tag says {min(refused)}")
