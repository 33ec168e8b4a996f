"""What may be asked for, what is tried again, and what a host disallows; nothing here asks a server."""

from email.message import Message

import pytest

from shardkit.transforms.fetch import client as client_module
from shardkit.transforms.fetch import request as request_module
from shardkit.transforms.fetch.client import KNOWN_HOSTS, Client, Robots, check_header
from shardkit.transforms.fetch.limits import FetchError, Limits
from shardkit.transforms.fetch.request import Answer, is_public, parse_url, request

FAST = Limits(max_bytes=1000, first_pause_s=0.001, longest_pause_s=0.5)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fc00::1", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:8.8.8.8", True),
        ("2002:7f00:1::", False),  # 6to4 of 127.0.0.1
        ("64:ff9b::a00:1", False),  # NAT64 of 10.0.0.1
        ("64:ff9b::808:808", True),
    ],
)
def test_only_addresses_of_the_public_internet_are_public(address, public):
    assert is_public(address) is public


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no URL that begins with"),
        ("photo.jpg", "no URL that begins with"),
        ("ftp://host/a", "no URL that begins with"),
        ("file:///etc/passwd", "no URL that begins with"),
        ("http://", "names no host"),
        ("http:///a", "names no host"),
        ("http://[::1/a", "no URL"),
        ("http://host:port/", "no URL"),
        ("http://user:pass@host/", "a user name"),
    ],
)
def test_what_is_no_address_of_the_web_is_refused_without_being_repeated(text, said):
    with pytest.raises(FetchError, match=said) as caught:
        parse_url(text)
    assert not text or text not in caught.value.why
    assert "pass@" not in caught.value.why


def test_an_address_is_asked_for_as_ascii():
    url = parse_url(" http://host/ein bild/ä%20.jpg?q=ö x&y=%41#part ")
    assert (url.path, url.query, url.fragment) == ("/ein%20bild/%C3%A4%20.jpg", "q=%C3%B6%20x&y=%41", "")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "2130706433", "[::1]", "[::ffff:10.0.0.1]", "169.254.169.254"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_private_hosts_are_refused_before_a_connection(monkeypatch, host, scheme):
    monkeypatch.setattr(request_module.socket, "create_connection", lambda *_: pytest.fail("it was connected"))
    with pytest.raises(FetchError, match="private address; --fetch-private") as caught:
        request(parse_url(f"{scheme}://{host}/a"), FAST, 1e12)
    assert not caught.value.may_pass


def test_a_name_with_one_private_address_among_others_is_refused(monkeypatch):
    found = [(2, 1, 6, "", ("8.8.8.8", 80)), (2, 1, 6, "", ("10.0.0.1", 80))]
    monkeypatch.setattr(request_module.socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(request_module.socket, "create_connection", lambda *_: pytest.fail("it was connected"))
    with pytest.raises(FetchError, match="private address"):
        request(parse_url("http://example.com/"), FAST, 1e12)


def test_the_address_that_was_checked_is_the_one_that_is_connected_to(monkeypatch):
    asked = []

    def connect(place, timeout):
        asked.append(place)
        raise ConnectionRefusedError(111, "Connection refused")

    found = [(2, 1, 6, "", ("8.8.8.8", 80)), (2, 1, 6, "", ("8.8.4.4", 80))]
    monkeypatch.setattr(request_module.socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(request_module.socket, "create_connection", connect)
    with pytest.raises(FetchError, match="no connection: Connection refused") as caught:
        request(parse_url("http://example.com/"), FAST, 1e12)
    assert caught.value.may_pass
    assert asked == [("8.8.8.8", 80), ("8.8.4.4", 80)]


def answering(monkeypatch, *answers):
    """Lets requests have these answers, in order, and returns the list of URLs that were asked for."""
    left, asked = list(answers), []

    def asks(url, limits, deadline):
        asked.append(url.geturl())
        answer = left.pop(0)
        if isinstance(answer, FetchError):
            raise answer
        return answer

    monkeypatch.setattr(client_module, "request", asks)
    return asked


def given(content, **headers):
    message = Message()
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    return Answer(message, content)


def test_what_may_pass_is_tried_again_and_what_is_final_is_not(monkeypatch):
    busy, gone = FetchError("status 503", may_pass=True), FetchError("status 404")
    asked = answering(monkeypatch, busy, busy, given(b"x"))
    assert Client(FAST, heeds_robots=False).fetch("http://a/b") == b"x"
    assert len(asked) == 3
    for answers, number in (((busy, busy, busy), 3), ((gone,), 1), ((busy, gone), 2)):
        asked = answering(monkeypatch, *answers)
        with pytest.raises(FetchError, match="status"):
            Client(FAST, heeds_robots=False).fetch("http://a/b")
        assert len(asked) == number


def test_a_server_that_asks_for_too_long_a_pause_is_not_waited_for(monkeypatch):
    asked = answering(monkeypatch, FetchError("status 429", may_pass=True, pause_s=3600))
    with pytest.raises(FetchError, match="status 429"):
        Client(FAST, heeds_robots=False).fetch("http://a/b")
    assert len(asked) == 1


def test_redirects_are_followed_and_each_is_checked(monkeypatch):
    asked = answering(monkeypatch, Answer(Message(), b"", "../c?d"), given(b"x"))
    assert Client(FAST, heeds_robots=False).fetch("http://a/b/e") == b"x"
    assert asked == ["http://a/b/e", "http://a/c?d"]
    asked = answering(monkeypatch, Answer(Message(), b"", "gopher://a"))
    with pytest.raises(FetchError, match="no URL that begins"):
        Client(FAST, heeds_robots=False).fetch("http://a/b")
    rules = given(b"User-agent: *\nDisallow: /no")
    asked = answering(monkeypatch, rules, Answer(Message(), b"", "/no/1"))
    with pytest.raises(FetchError, match="disallows it"):
        Client(FAST).fetch("http://a/b")
    assert asked == ["http://a/robots.txt", "http://a/b"]
    answering(monkeypatch, *[Answer(Message(), b"", "/next")] * 6)
    with pytest.raises(FetchError, match="more than 5 redirects"):
        Client(FAST, heeds_robots=False).fetch("http://a/b")


def test_a_host_without_robots_disallows_nothing_and_one_that_is_out_of_order_everything(monkeypatch):
    answering(monkeypatch, FetchError("status 404"), given(b"x"))
    assert Client(FAST).fetch("http://a/b") == b"x"
    down = [FetchError("status 500", may_pass=True)] * 3
    answering(monkeypatch, *down)
    client = Client(FAST)
    for _ in range(2):
        with pytest.raises(FetchError, match=r"robots\.txt of its host gives status 500"):
            client.fetch("http://a/b")
    monkeypatch.setattr(client_module, "_FAILED_S", -1.0)
    asked = answering(monkeypatch, *down, given(b""), given(b"x"))
    client = Client(FAST)
    with pytest.raises(FetchError, match="gives status 500"):
        client.fetch("http://a/b")
    assert client.fetch("http://a/b") == b"x"
    assert len(asked) == 5


def test_the_rules_for_shardkit_count_and_each_host_is_asked_once():
    asked = []

    def fetch(url):
        asked.append(url.geturl())
        return b"User-agent: shardkit\nDisallow: /mine\n\nUser-agent: *\nDisallow: /\n"

    robots = Robots(fetch)
    robots.check(parse_url("https://a:8443/yours?x=1"))
    with pytest.raises(FetchError, match="disallows"):
        robots.check(parse_url("https://a:8443/mine/1"))
    robots.check(parse_url("http://a/"))
    assert asked == ["https://a:8443/robots.txt", "http://a/robots.txt"]
    for number in range(KNOWN_HOSTS + 5):
        robots._rules[("http", f"{number}")] = robots._rules[("http", "a")]
    robots.check(parse_url("http://b/"))
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("values", "refused"),
    [
        ([], None),
        (["all"], None),
        (["nofollow"], None),
        (["noai"], "noai"),
        (["NoImageAI, noarchive"], "noimageai"),
        (["nofollow", "noindex"], "noindex"),
        (["otherbot: noai"], None),
        (["shardkit: noai"], "noai"),
        (["unavailable_after: 25 Jun 2010 15:00:00 PST"], None),
        (["noai, unavailable_after: 25 Jun 2010 15:00:00 PST"], "noai"),
    ],
)
def test_headers_that_opt_out(values, refused):
    message = Message()
    for value in values:
        message["X-Robots-Tag"] = value
    if refused is None:
        check_header(message)
    else:
        with pytest.raises(FetchError, match=f"X-Robots-Tag says {refused}"):
            check_header(message)
