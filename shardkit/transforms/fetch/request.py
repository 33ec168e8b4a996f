"""One request for a web address: bounded in time and size, and only to an address that was checked."""

from __future__ import annotations

import functools
import http.client
import io
import ipaddress
import socket
import ssl
import time
from contextlib import suppress
from email.message import Message
from typing import Any, NamedTuple
from urllib.parse import SplitResult, quote, urlsplit

from shardkit._version import __version__
from shardkit.transforms.fetch.limits import FetchError, Limits
from shardkit.units import KiB, format_count

AGENT = "shardkit"

_PIECE_BYTES = 64 * KiB
_PASSING_STATUS = (408, 425, 429)
_REDIRECTS = (301, 302, 303, 307, 308)
_HEADERS = {"User-Agent": f"{AGENT}/{__version__}", "Accept": "*/*", "Accept-Encoding": "identity"}
# What a URL may hold as it is; all else is percent-encoded.
_SAFE = "!#$%&'()*+,/:;=?@[]~"
# An IPv6 address of these holds an IPv4 address in its last 32 bits (RFC 6052).
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class Answer(NamedTuple):
    """What a server gave.

    Attributes:
        content: The body; empty for a redirect.
        location: Where a redirect leads, as the server says it; None if it is none.
    """

    headers: Message
    content: bytes
    location: str | None = None


def parse_url(text: str) -> SplitResult:
    """Returns the parts of a URL that may be asked for. Raises FetchError if it is none, or not of the web."""
    try:
        url = urlsplit(text.strip())
        host, _ = url.hostname, url.port
    except ValueError as error:
        raise FetchError("it is no URL") from error
    if url.scheme not in ("http", "https"):
        raise FetchError("it is no URL that begins with http:// or https://")
    if not host:
        raise FetchError("the URL names no host")
    if "@" in url.netloc:
        raise FetchError("the URL holds a user name, which is not sent")
    return url._replace(path=quote(url.path, safe=_SAFE), query=quote(url.query, safe=_SAFE), fragment="")


def is_public(address: str) -> bool:
    """Whether an IP address is one of the public Internet, and not of this machine, a private network or a protocol."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour
        if inner is None and found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is not None:
            found = inner
    return found.is_global and not found.is_multicast


def request(url: SplitResult, limits: Limits, deadline: float) -> Answer:
    """Returns the answer of a server to one request.

    Args:
        url: As `parse_url` gives it.
        deadline: On the monotonic clock.

    Raises:
        FetchError: If there is no answer, or not a good one.
    """
    try:
        connection = _connected(url, limits, deadline)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _failure(error, "no connection") from error
    try:
        connection.request("GET", url._replace(scheme="", netloc="", path=url.path or "/").geturl(), headers=_HEADERS)
        return _answer(connection.getresponse(), limits.max_bytes)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _failure(error, "the connection broke off") from error
    finally:
        connection.close()


def _answer(response: http.client.HTTPResponse, max_bytes: int) -> Answer:
    headers, status = response.headers, response.status
    if status in _REDIRECTS and (location := headers.get("Location")):
        return Answer(headers, b"", location)
    if status != 200:
        may_pass = status >= 500 or status in _PASSING_STATUS
        raise FetchError(f"status {status}", may_pass=may_pass, pause_s=_seconds(headers.get("Retry-After")))
    if (encoding := headers.get("Content-Encoding", "identity").lower()) not in ("identity", ""):
        raise FetchError(f"it is encoded as {encoding[:20]!a}, which was not asked for")
    if response.length is not None and response.length > max_bytes:
        raise _too_large(max_bytes)
    parts, num_bytes = [], 0
    while part := response.read(_PIECE_BYTES):
        num_bytes += len(part)
        if num_bytes > max_bytes:
            raise _too_large(max_bytes)
        parts.append(part)
    if response.length:
        raise FetchError(f"cut off: {format_count(response.length)} bytes are missing", may_pass=True)
    return Answer(headers, b"".join(parts))


def _connected(url: SplitResult, limits: Limits, deadline: float) -> http.client.HTTPConnection:
    host, is_secure = url.hostname or "", url.scheme == "https"
    port = url.port or (443 if is_secure else 80)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(address[0]) for *_, address in found]
    if not limits.allows_private and not all(map(is_public, addresses)):
        raise FetchError("its host has a private address; --fetch-private allows such")
    connection = http.client.HTTPConnection(host, port)
    if is_secure:
        connection.default_port = 443  # Decides whether the header `Host` names the port.
    # The address that was checked: another look-up of the name could give another one.
    connected = _connect(addresses, port, limits, deadline)
    try:
        if is_secure:
            connected.settimeout(_left(deadline))
            connected = _tls().wrap_socket(connected, server_hostname=host)
    except BaseException:
        connected.close()
        raise
    connection.sock = connected
    connection.response_class = functools.partial(_Response, deadline=deadline)  # type: ignore[assignment]
    return connection


def _connect(addresses: list[str], port: int, limits: Limits, deadline: float) -> socket.socket:
    failure: OSError = TimeoutError()
    for address in dict.fromkeys(addresses):
        try:
            return socket.create_connection((address, port), min(limits.connect_s, _left(deadline)))
        except OSError as error:
            failure = error
    raise failure


@functools.cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


class _Response(http.client.HTTPResponse):
    """Ends at the deadline, however slowly the bytes come."""

    def __init__(self, sock: socket.socket, *args: Any, deadline: float, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = io.BufferedReader(_Until(sock, self.fp, deadline))


class _Until(io.RawIOBase):
    def __init__(self, sock: socket.socket, file: io.BufferedIOBase, deadline: float) -> None:
        # The file keeps the socket open once the connection is closed.
        self._socket, self._file, self._deadline = sock, file, deadline

    def close(self) -> None:
        self._file.close()
        super().close()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._socket.settimeout(_left(self._deadline))
        return self._socket.recv_into(buffer)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _failure(error: Exception, what: str) -> FetchError:
    if isinstance(error, TimeoutError):
        return FetchError("it took too long", may_pass=True)
    if isinstance(error, ssl.SSLCertVerificationError):
        return FetchError(f"{what}: {error.verify_message}")
    if isinstance(error, socket.gaierror):
        return FetchError("the name of its host is unknown", may_pass=error.errno == socket.EAI_AGAIN)
    if isinstance(error, OSError):
        return FetchError(f"{what}: {error.strerror or type(error).__name__}", may_pass=True)
    # The text of others may repeat what the server sent, or the URL.
    return FetchError(f"{what}: {type(error).__name__}", may_pass=isinstance(error, http.client.HTTPException))


def _too_large(max_bytes: int) -> FetchError:
    return FetchError(f"more than {format_count(max_bytes)} bytes, which --max-record-size allows")


def _seconds(text: str | None) -> float:
    """Returns for how long a header asks to wait; a date is left to the usual pauses."""
    with suppress(ValueError):
        return max(0.0, float(text or 0))
    return 0.0
