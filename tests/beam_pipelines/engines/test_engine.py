"""The table of engines: its entries and their classes say the same."""

import os
from types import SimpleNamespace

import pytest

from beam_pipelines.engines.engine import Engine, class_of, engine_for
from beam_pipelines.engines.settings import EngineOptions
from beam_pipelines.engines.watch import _explained
from shardkit.cli.convert import command
from shardkit.conversion.engines import ENGINES


@pytest.mark.parametrize("name", ENGINES)
def test_an_entry_agrees_with_its_class(name):
    facts, engine = ENGINES[name], engine_for(EngineOptions(runner=name))
    assert isinstance(engine, Engine)
    assert engine.options.runner == name
    assert facts.has_options == (engine.spec is not None)
    assert set(facts.own_options) <= {s.key for s in (engine.spec.settings if engine.spec else ())}
    assert {f"--{key}" for key in facts.own_options} <= {flag for p in command.params for flag in p.opts}


def test_no_two_engines_share_a_class():
    assert len({class_of(name) for name in ENGINES}) == len(ENGINES)


def test_only_the_local_engine_runs_little_on_one_thread():
    few, many = (SimpleNamespace(files=(SimpleNamespace(num_bytes=n),)) for n in (1000, 10**9))
    engines = {name: engine_for(EngineOptions(runner=name)) for name in ENGINES}
    cores = len(os.sched_getaffinity(0))
    assert {e.default_workers(many) for e in engines.values()} == {cores}
    assert engines.pop("local").default_workers(few) == 1
    assert {e.default_workers(few) for e in engines.values()} == {cores}


GRPC = """<_MultiThreadedRendezvous of RPC that terminated with:
\tstatus = StatusCode.UNAVAILABLE
\tdetails = "Socket closed"
\tdebug_error_string = "UNKNOWN:Error received from peer"
>"""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (GRPC, "the connection to it ended: Socket closed"),
        ("Traceback\nbuiltins.ValueError: no such thing\n", "ValueError: no such thing"),
        ("one\ntwo", "RuntimeError: two"),
        ("", "RuntimeError: "),
    ],
)
def test_what_an_engine_raises_has_a_reason(text, why):
    assert _explained(RuntimeError(text), "prism", "beam").why == why
