"""What clients' libraries raise, told apart: refused, missing, or worth another try."""

import pytest

from shardkit.errors import StorageError, UnsafeError
from shardkit.storage.locations import protocol_of
from shardkit.storage.requests import with_retries
from shardkit.storage.responses import failure_of, is_missing, is_passing, is_refusal


def caused(error, cause):
    error.__cause__ = cause
    return error


def with_status(status):
    error = RuntimeError("of a client")
    error.status_code = status
    return error


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again(status):
    assert is_passing(with_status(status))
    assert is_passing(caused(OSError(22, "unclear"), with_status(status)))


@pytest.mark.parametrize("error", [ConnectionResetError(), TimeoutError(), OSError("the connection was lost")])
def test_no_answer_may_be_one_later(error):
    assert is_passing(error)


@pytest.mark.parametrize(
    "error", [with_status(401), with_status(403), PermissionError(), OSError("Forbidden: b/o\nno")]
)
def test_a_refusal_is_final_and_says_which_right_is_missing(error):
    assert not is_passing(error)
    assert is_refusal(error)
    assert "refuses to be written to" in str(failure_of(error, "gs://b/o", "", is_written=True))


def test_what_is_missing_is_final():
    assert is_missing(FileNotFoundError())
    assert is_missing(with_status(404))
    assert not is_passing(with_status(404))


def test_of_what_a_client_goes_on_to_say_the_first_line_is_shown():
    def refuse(left_s):
        raise ValueError("the key is wrong\nRequestId:17\nContent: <?xml version='1.0'?>")

    with pytest.raises(StorageError) as caught:
        with_retries(refuse, "s3://bucket/x")
    assert str(caught.value.why) == "ValueError: the key is wrong"


@pytest.mark.parametrize("protocol", ["http", "https"])
def test_nothing_is_written_to_web_servers_and_it_is_said_so(protocol):
    with pytest.raises(UnsafeError, match="web servers are read from as datasets only"):
        protocol_of(f"{protocol}://host/x")
    assert protocol_of(f"{protocol}://host/x", is_written=False) == protocol
