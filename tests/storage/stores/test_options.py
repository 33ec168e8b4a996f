"""Options for the clients of stores: they reach every process, and nobody reads them anywhere."""

import json
import os
from functools import partial
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import StorageError, UsageError
from shardkit.storage import files as storage
from shardkit.storage.clients import client_of
from shardkit.storage.options import VARIABLE, hide_secrets, options_for, parse_options, without_options, without_values
from tests.support.commands import run_shardkit


def test_options_are_for_all_stores_or_for_one():
    texts = ["anon=true", "s3:key=123456", 's3:client_kwargs={"verify": false}', "gs:project=p=q", "az:account_name=x"]
    assert parse_options(texts) == {
        "*": {"anon": True},
        "s3": {"key": "123456", "client_kwargs": {"verify": False}},
        "gs": {"project": "p=q"},
        "az": {"account_name": "x"},
    }


def test_one_store_has_the_same_options_by_all_its_names(monkeypatch):
    monkeypatch.setenv(VARIABLE, json.dumps({"*": {"a": 1, "b": 1}, "az": {"b": 2}}))
    assert options_for("az") == options_for("abfs") == options_for("abfss") == {"a": 1, "b": 2}
    assert options_for("s3") == {"a": 1, "b": 1}


@pytest.mark.parametrize("text", ["hunter22", "=hunter22", "a b=hunter22", "ftp:key=hunter22", "s3:=hunter22"])
def test_what_is_no_option_is_refused_and_not_repeated(text):
    with pytest.raises(UsageError) as caught:
        parse_options([text])
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize("text", ["[]", "{", '{"s3": 3}'])
def test_a_variable_that_holds_anything_else_is_refused(monkeypatch, text):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(UsageError, match=VARIABLE):
        options_for("s3")


@pytest.mark.full
def test_an_option_that_the_client_does_not_know_is_named(monkeypatch):
    pytest.importorskip("s3fs")
    monkeypatch.setenv(VARIABLE, json.dumps({"s3": {"endpoint_ulr": "http://localhost:1"}}))
    with pytest.raises(UsageError, match=r"no option 'endpoint_ulr'\. Did you mean 'endpoint_url'\?"):
        client_of("s3://bucket/a")


@pytest.mark.parametrize("spell", [str, quote, quote_plus, partial(quote, safe="")])
def test_secrets_are_hidden_as_urls_spell_them(monkeypatch, spell):
    monkeypatch.setenv(VARIABLE, json.dumps({"gs": {"token": "ya29.A/b+c=="}}))
    assert hide_secrets(f"no answer of /info?t={spell('ya29.A/b+c==')} (") == "no answer of /info?t=*** ("


@pytest.mark.full
def test_a_traceback_shows_no_secret(tmp_path):
    pytest.importorskip("gcsfs")
    done = run_shardkit(
        "inspect", "gs://bucket/x", "--debug", "--storage-options", "gs:token=ya29.SECRET/a",
        env=os.environ | {"HTTPS_PROXY": "http://127.0.0.1:9"},
    )  # fmt: skip
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert "SECRET" not in done.stdout + done.stderr


def test_a_profile_is_one_of_the_options_of_s3(monkeypatch):
    pytest.importorskip("s3fs")
    monkeypatch.setenv(VARIABLE, json.dumps({"s3": {"profile": "that-is-not-there"}}))
    with pytest.raises(StorageError, match=r"the store cannot be asked .* \(that-is-not-there\) could not be found"):
        storage.list_folder("s3://bucket/a")


@given(st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=4), st.text(), st.text())
def test_secrets_are_hidden_wherever_they_stand(secret, before, after):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, json.dumps({"*": {"client_kwargs": {"aws_secret": secret}, "anon": True}}))
        shown = hide_secrets(f"{before} {secret} {after}")
    assert "***" in shown
    assert secret not in shown.replace("***", "")


def test_a_command_line_is_kept_without_values():
    words = ["shardkit", "train", "--storage-options", "s3:secret=x", "--label", "y", "--storage-options=key=z"]
    kept = ["shardkit", "train", "--storage-options", "s3:secret=***", "--label", "y", "--storage-options=key=***"]
    assert list(without_values(words)) == kept


def test_the_command_line_of_another_process_is_without_options():
    words = ["shardkit", "train", "--storage-options", "s3:secret=x", "--label", "y", "--storage-options=key=z"]
    assert list(without_options(words)) == ["shardkit", "train", "--label", "y"]


@pytest.mark.full
def test_options_alone_reach_a_store_from_every_process(servers_by_name, tmp_path, monkeypatch):
    server = servers_by_name("moto")
    given = {"endpoint_url": "AWS_ENDPOINT_URL", "key": "AWS_ACCESS_KEY_ID", "secret": "AWS_SECRET_ACCESS_KEY"}
    options = [f"--storage-options=s3:{key}={server.environment[name]}" for key, name in given.items()]
    for part in range(4):
        (tmp_path / f"{part}.csv").write_text("a,b\n" + "".join(f"{i},{part}\n" for i in range(500)))
    url = f"{server.url}/{tmp_path.name}/set"
    said = []
    for command in (
        ("convert", tmp_path, url, "--workers", "2"),
        ("inspect", url),
        ("inspect", url, "--recipe"),
        ("verify", url),
    ):
        done = run_shardkit(*command, *options)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout + done.stderr)
    assert "2,000 examples" in said[0]
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    type(client_of(url)).clear_instance_cache()
    for file in storage.expand_input(url).files:
        content = storage.read_bytes(file.path)
        assert not any(secret.encode() in content for secret in server.secrets)
    assert not any(secret in text for secret in server.secrets for text in said)


@pytest.mark.full
def test_a_store_that_refuses_says_so_without_the_key(servers_by_name, tmp_path):
    server = servers_by_name("seaweedfs")
    endpoint = server.environment["AWS_ENDPOINT_URL"]
    options = [
        f"--storage-options={text}" for text in (f"endpoint_url={endpoint}", "key=weedkey", "secret=wrong-secret")
    ]
    done = run_shardkit("inspect", f"{server.url}/set", *options)
    assert done.returncode == 5
    assert "the store refuses to be read" in done.stderr
    assert "credentials" in done.stderr
    assert "wrong-secret" not in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
