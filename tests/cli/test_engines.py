"""`shardkit engines` as a user meets it: which engines are ready, and a program that is installed."""

import json

import pytest
from click.testing import CliRunner

from beam_pipelines.engines.prism_program import beam_version
from shardkit.cli.engines import command
from shardkit.conversion.engines import ENGINES
from shardkit.errors import UsageError

pytestmark = pytest.mark.full


def engines(*args):
    found = CliRunner().invoke(command, [*map(str, args)], catch_exceptions=True)
    return found.exception if isinstance(found.exception, UsageError) else found


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for variable in ("SHARDKIT_PRISM", "SHARDKIT_FLINK_JOB_SERVER_JAR"):
        monkeypatch.delenv(variable, raising=False)


def test_every_engine_is_listed_with_what_it_lacks():
    found = {e["name"]: e for e in json.loads(engines("list", "--json").output)}
    assert list(found) == list(ENGINES)
    assert found["local"] == {"name": "local", "versions": [], "lacks": None}
    assert found["beam"] == {"name": "beam", "versions": [f"apache-beam {beam_version()}"], "lacks": None}
    assert found["prism"]["lacks"].startswith("there is no program of Prism. Run: shardkit engines install prism")
    assert found["flink"]["lacks"].startswith("there is no job server for Flink. ")
    table = engines("list").output
    assert "there is no program of Prism. Run: shardkit engines install prism" in table


def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr("beam_pipelines.engines.engine.find_spec", lambda name: None)
    found = {e["name"]: e for e in json.loads(engines("list", "--json").output)}
    assert found["local"]["lacks"] is None
    assert found["ray"]["lacks"].endswith("Run: pip install 'shardkit[ray]'")


def test_a_program_is_installed_and_then_found(tmp_path):
    file = tmp_path / "mine"
    file.write_text(f"#!/bin/sh\n# apache/beam_go_sdk:{beam_version()}\n")
    done = engines("install", "prism", "--program", file)
    assert done.output == (
        f"installed {tmp_path}/data/shardkit/prism-{beam_version()}\n"
        "Next: shardkit convert INPUT... DESTINATION --runner prism\n"
    )
    (prism,) = [e for e in json.loads(engines("list", "--json").output) if e["name"] == "prism"]
    assert prism["lacks"] is None
    assert prism["versions"][-1] == f"Prism {beam_version()}"


def test_only_what_is_a_program_can_be_installed(tmp_path):
    assert engines("install", "spark").exit_code == 2
    (tmp_path / "text").write_text("x")
    error = engines("install", "prism", "--program", tmp_path / "text")
    assert isinstance(error, UsageError)
    assert "is no program of Prism" in str(error)
