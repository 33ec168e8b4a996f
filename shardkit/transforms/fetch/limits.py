"""Bounds of requests, and why one gives nothing. The client of HTTP is loaded where something is fetched only."""

from __future__ import annotations

from dataclasses import dataclass


class FetchError(Exception):
    """An address does not give what it should.

    Args:
        why: The reason, without the address, whose query may hold a secret.
        may_pass: Whether the same request may be answered later on.
    """

    def __init__(self, why: str, *, may_pass: bool = False, pause_s: float = 0.0) -> None:
        super().__init__(why)
        self.why = why
        self.may_pass = may_pass
        self.pause_s = pause_s


@dataclass(frozen=True)
class Limits:
    """Bounds of requests.

    Attributes:
        allows_private: Whether hosts may be asked that are not on the public Internet.
        connect_s: Until there is a connection to one address of a host.
        whole_s: Of one request, with its redirects.
        num_tries: Requests for one URL, the first one among them.
        first_pause_s: Before the second try; doubles with each further one.
        longest_pause_s: Of what a server may ask for.
        num_of_host: Requests to one host at the same time.
    """

    max_bytes: int
    allows_private: bool = False
    connect_s: float = 10.0
    whole_s: float = 30.0
    num_tries: int = 3
    first_pause_s: float = 1.0
    longest_pause_s: float = 30.0
    num_redirects: int = 5
    num_of_host: int = 8
