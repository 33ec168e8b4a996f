"""The doctor finds nothing wrong with stores that keep their promises, and each promise that a store breaks."""

import json
import os
from contextlib import nullcontext

import pytest

from shardkit.doctor.store_guarantees import PROMISES
from shardkit.doctor.store_trials import examine_store
from shardkit.errors import StorageError, UsageError
from shardkit.storage import files as storage
from shardkit.storage.clients import client_of
from tests.support.campaign import in_campaign
from tests.support.commands import run_shardkit
from tests.support.stores.faulty_proxy import (
    DamagesLarge,
    Fault,
    FillsRangesOverTheEnd,
    ForgetsConditionsOfLarge,
    IgnoresConditions,
    KeepsDeleted,
    ListsLate,
    ReadsOldContent,
    ShortensRanges,
    ShowsParts,
    proxied,
)
from tests.support.stores.servers import KINDS, free_port, use

NUM_ROUNDS = 6
NEVER_CHECKED = {"power_cut", "other_places"}

FAULTS = {
    IgnoresConditions: {"exclusive_create", "refused_create", "large_exclusive_create"},
    ForgetsConditionsOfLarge: {"large_exclusive_create"},
    ShortensRanges: {"ranges", "range_past_end"},
    FillsRangesOverTheEnd: {"range_past_end"},
    ListsLate: {"list_after_write", "delete"},
    ReadsOldContent: {"overwrite"},
    KeepsDeleted: {"delete"},
    DamagesLarge: {"large_put"},
    ShowsParts: {"given_up_upload"},
}


def states(report):
    return {finding.promise: finding.state for finding in report.findings}


def everything_below(url):
    client = client_of(url)
    client.invalidate_cache()
    # Where folders are kept, that one stays which the user named.
    return [path for path in client.find(url) if not url.endswith(path)]


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("server", [*(n for n in KINDS if n != "seaweedfs"), *in_campaign("seaweedfs")], indirect=True)
def test_every_server_keeps_its_promises_and_nothing_is_left(server, tmp_path, monkeypatch):
    url = f"{server.url}/{tmp_path.name}"
    upstream = server.environment.get("AWS_ENDPOINT_URL")
    with proxied(upstream, Fault()) if server.name == "moto" else nullcontext(upstream) as address:
        if address is not None:
            use(server._replace(environment={**server.environment, "AWS_ENDPOINT_URL": address}), monkeypatch)
        report = examine_store(url, num_rounds=NUM_ROUNDS)
    use(server, monkeypatch)
    found = states(report)
    # The clients of HDFS and of the hub send no part of a file alone.
    not_checked = NEVER_CHECKED | ({"given_up_upload"} if server.name in ("hdfs", "hub") else set())
    assert {name for name, state in found.items() if state == "not checked"} == not_checked
    assert set(found) == set(PROMISES) - {"lock"}
    assert [f for f in report.findings if f.state == "broken"] == []
    assert report.verdict.keeps_promises
    assert report.is_tidy
    assert everything_below(url) == []
    assert storage.list_uploads(url) == []


@pytest.mark.full
def test_a_folder_keeps_its_promises_and_is_as_it_was(tmp_path):
    folder = tmp_path / "new" / "deep"
    report = examine_store(str(folder), num_rounds=NUM_ROUNDS)
    assert set(states(report)) == set(PROMISES)
    assert [f for f in report.findings if f.state == "broken"] == []
    assert list(tmp_path.iterdir()) == []


def test_what_lies_there_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("x")
    examine_store(str(tmp_path), num_rounds=1)
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]
    assert (tmp_path / "mine").read_text() == "x"


@pytest.fixture
def behind(servers_by_name, monkeypatch):
    """Returns a function that puts a fault before moto and returns the bucket, which is reached by way of it."""
    server = servers_by_name("moto")

    def reach(address):
        use(server._replace(environment={**server.environment, "AWS_ENDPOINT_URL": address}), monkeypatch)
        return server.url

    reach.upstream = server.environment["AWS_ENDPOINT_URL"]
    return reach


CI_FAULTS = (IgnoresConditions, ShowsParts)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [*CI_FAULTS, *in_campaign(*(kind for kind in FAULTS if kind not in CI_FAULTS))],
    ids=lambda kind: kind.__name__,
)
def test_the_promise_that_is_broken_is_found_and_no_other_one(behind, kind, tmp_path):
    fault = kind()
    with proxied(behind.upstream, fault) as address:
        url = f"{behind(address)}/{tmp_path.name}"
        report = examine_store(url, num_rounds=NUM_ROUNDS)
    expected = FAULTS.get(kind, set())
    assert {name for name, state in states(report).items() if state == "broken"} == expected, report.findings
    assert report.verdict.keeps_promises == (not expected)
    assert bool(fault.num_times) == bool(expected)
    for name in expected:
        assert f"{PROMISES[name].breach}." in report.verdict.sentences
    behind(behind.upstream)
    assert everything_below(url) == []
    assert storage.list_uploads(url) == []


@pytest.mark.full
@pytest.mark.slow
def test_the_command_says_it_and_ends_with_1(behind, tmp_path):
    with proxied(behind.upstream, IgnoresConditions()) as address:
        url = f"{behind(address)}/{tmp_path.name}"
        done = run("doctor", url, "--rounds", "5")
        as_json = run("doctor", url, "--rounds", "5", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    assert "Two writers both got the answer that they had won: concurrent conversions to one place" in done.stdout
    assert "one at a time" in done.stdout or "only one conversion at a time" in done.stdout
    assert "is removed again." in done.stdout
    assert as_json.returncode == 1
    document = json.loads(as_json.stdout)
    findings = {f["promise"]: f for f in document["store"]["findings"]}
    assert findings["exclusive_create"]["state"] == "broken"
    assert findings["exclusive_create"]["num_trials"] == 5
    assert not document["store"]["verdict"]["keeps_promises"]


def run(*args, **environment):
    return run_shardkit(*args, env={**os.environ, **environment})


@pytest.mark.full
def test_no_secret_is_printed(server, tmp_path):
    done = run("doctor", f"{server.url}/{tmp_path.name}", "--rounds", "1", "--json")
    # Without a proxy moto lets two writers win now and then, which the report says.
    assert done.returncode == 0 or server.name == "moto", done.stderr
    assert json.loads(done.stdout)["store"]["findings"]
    assert not any(secret in done.stdout + done.stderr for secret in server.secrets)


@pytest.mark.full
def test_a_bucket_that_is_missing_is_named(server, tmp_path, monkeypatch):
    if server.name in ("seaweedfs", "hdfs"):
        pytest.skip("it makes each bucket that is named")
    with pytest.raises(UsageError, match="there is no bucket or container") as caught:
        examine_store(f"{server.url}-that-is-missing/{tmp_path.name}", num_rounds=1)
    assert caught.value.state == "Nothing was written"


@pytest.mark.full
def test_a_store_that_does_not_answer_is_named_within_its_deadline(behind, monkeypatch):
    monkeypatch.setenv("SHARDKIT_STORAGE_DEADLINE", "0.5")
    url = behind(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(StorageError, match="the store does not answer") as caught:
        examine_store(url, num_rounds=1)
    assert caught.value.state in ("Nothing was written", "All that the doctor wrote is removed again")


@pytest.mark.full
def test_a_store_that_goes_away_is_said_to_hold_the_rest(behind, tmp_path, monkeypatch):
    # A busy machine takes over a second for the first answer.
    monkeypatch.setenv("SHARDKIT_STORAGE_DEADLINE", "5")
    with proxied(behind.upstream, GoesAway(50)) as address:
        url = f"{behind(address)}/{tmp_path.name}"
        with pytest.raises(StorageError) as caught:
            examine_store(url, num_rounds=NUM_ROUNDS)
    assert caught.value.state.startswith(f"Files of the doctor could not be removed: delete {url}/.shardkit-doctor-")


class GoesAway(Fault):
    def __init__(self, num_answers):
        super().__init__()
        self.num_answers = num_answers

    def answer(self, request, ask):
        self.count()
        if self.num_times > self.num_answers:
            raise ConnectionAbortedError
        return ask(request)
