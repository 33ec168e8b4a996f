"""A real server that fails in every way: what each address gives, and that no request takes longer than it may."""

import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from shardkit.transforms.fetch import request as request_module
from shardkit.transforms.fetch.client import Client
from shardkit.transforms.fetch.limits import FetchError, Limits
from tests.support.web_server import BIG_BYTES, WebServer, picture

pytestmark = pytest.mark.full

LIMITS = Limits(max_bytes=100_000, allows_private=True, whole_s=0.4, first_pause_s=0.01)


@pytest.fixture(scope="module")
def server():
    with WebServer() as server:
        yield server


def fetch(server, path, limits=LIMITS, **settings):
    return Client(limits, **settings).fetch(server.url(path))


@pytest.mark.parametrize("path", ["ok/1", "moved/1", "flaky/1", "busy/1"])
def test_what_can_be_had_is_had(server, path):
    began = time.monotonic()
    assert fetch(server, path) == picture(1)
    if path == "busy/1":
        assert time.monotonic() - began >= 0.2
    assert any(agent.startswith("shardkit/") for agent in server.agents)


@pytest.mark.parametrize(
    ("path", "said", "num_requests"),
    [
        ("missing/2", "status 404", 1),
        ("broken/2", "status 500", 3),
        ("later/2", "status 429", 1),
        ("hang/2", "it took too long", 3),
        ("drip/2", "it took too long", 3),
        ("big/2", "more than 100,000 bytes, which --max-record-size allows", 1),
        ("endless/2", "more than 100,000 bytes, which --max-record-size allows", 1),
        ("short/2", "cut off: 991 bytes are missing", 3),
        ("packed/2", "it is encoded as 'gzip'", 1),
        ("unwilling/2", "its header X-Robots-Tag says noai", 1),
        ("forbidden/2", r"robots\.txt of its host disallows it", 0),
        ("barred/2", r"robots\.txt of its host disallows it", 1),
        ("loop/2", "more than 5 redirects", 6),
        ("elsewhere/2", "it is no URL that begins with http", 1),
        ("unheard/2", "the connection broke off: RemoteDisconnected", 3),
    ],
)
def test_every_failure_has_its_reason_and_its_tries(server, path, said, num_requests):
    with pytest.raises(FetchError, match=said) as caught:
        fetch(server, path)
    assert "secret" not in caught.value.why
    assert server.asked[f"/{path}"] == num_requests


def test_what_hosts_disallow_is_fetched_if_that_is_asked_for(server):
    assert fetch(server, "unwilling/3", heeds_robots=False) == picture(3)
    assert fetch(server, "forbidden/3", heeds_robots=False) == picture(3)


def test_this_machine_is_refused_unless_it_is_allowed(server):
    before = sum(server.asked.values())
    with pytest.raises(FetchError, match="private address; --fetch-private"):
        fetch(server, "ok/4", Limits(max_bytes=1000))
    assert sum(server.asked.values()) == before


def test_a_redirect_to_a_private_address_is_refused(server, monkeypatch):
    monkeypatch.setattr(request_module, "is_public", lambda address: address == "127.0.0.1")
    with pytest.raises(FetchError, match="private address"):
        fetch(server, "inward/5", Limits(max_bytes=1000))
    assert server.asked["/inward/5"] == 1


def test_nobody_listens():
    with WebServer() as server:
        url = server.url("ok/1")
    with pytest.raises(FetchError, match="no connection: Connection refused"):
        Client(LIMITS, heeds_robots=False).fetch(url)


def test_a_name_that_is_not_there():
    with pytest.raises(FetchError, match="the name of its host is unknown"):
        Client(LIMITS, heeds_robots=False).fetch("http://no-such-host.invalid/")


def test_a_host_is_asked_by_few_threads_at_once():
    with WebServer() as server:
        client = Client(Limits(max_bytes=1000, allows_private=True, num_of_host=3))
        with ThreadPoolExecutor(16) as pool:
            assert list(pool.map(lambda i: client.fetch(server.url(f"ok/{i}")), range(60))) == [
                picture(i) for i in range(60)
            ]
        assert server.most_at_once <= 3
        assert server.asked["/robots.txt"] == 1


def test_waiting_for_a_turn_takes_no_time_of_a_request():
    with WebServer() as server:
        client = Client(Limits(max_bytes=1000, allows_private=True, num_of_host=1, whole_s=0.3, num_tries=1))
        with ThreadPoolExecutor(4) as pool:
            hanging = [pool.submit(client.fetch, server.url(f"hang/{i}")) for i in range(3)]
            assert pool.submit(client.fetch, server.url("ok/1")).result() == picture(1)
        assert all(isinstance(f.exception(), FetchError) for f in hanging)


def test_a_certificate_must_be_of_the_host(monkeypatch, server):
    # A server of plain HTTP stands for one whose handshake fails.
    with pytest.raises(FetchError, match="no connection"):
        Client(LIMITS, heeds_robots=False).fetch(server.url("ok/1").replace("http:", "https:"))
    context = request_module._tls()
    assert context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED


def test_a_handshake_that_never_ends_is_given_up(server):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        threading.Thread(target=silent.accept, daemon=True).start()
        began = time.monotonic()
        with pytest.raises(FetchError, match="it took too long"):
            Client(LIMITS, heeds_robots=False).fetch(f"https://127.0.0.1:{silent.getsockname()[1]}/")
        assert time.monotonic() - began < 3
    assert LIMITS.max_bytes < BIG_BYTES
