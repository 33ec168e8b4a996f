"""The settings of an engine: defaults, what a user gives instead, and what Beam makes of them."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor

import grpc
import msgspec
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from click.testing import CliRunner

from beam_pipelines.engines.engine import class_of, engine_for
from beam_pipelines.engines.portable import FLINK_JAR
from beam_pipelines.engines.settings import EngineOptions, Facts, beam_flags, choose_settings, parse_option
from shardkit.cli.convert import command
from shardkit.cli.shell.engine_options import engine_rows, split_flags
from shardkit.conversion.engines import ENGINES as ALL
from shardkit.conversion.prepare import prepare
from shardkit.conversion.request import parse_request
from shardkit.conversion.space.disk_space import estimate_sizes
from shardkit.errors import OutOfSpaceError, StorageError, UsageError
from shardkit.units import format_size

pytestmark = pytest.mark.full

ENGINES = {name: class_of(name).spec for name, facts in ALL.items() if facts.has_options}
BEAM = {name: spec for name, spec in ENGINES.items() if spec.runner}
FACTS = Facts(num_workers=3, num_input_splits=40, environment={})


def check_engine(options):
    return engine_for(options).check()


def check_typed(runner, typed):
    return engine_for(EngineOptions(runner=runner, flags=tuple(typed))).check_flags()


def flags(runner, *typed, facts=FACTS, values=()):
    options = EngineOptions(runner=runner, values=values, flags=typed)
    engine = ENGINES[runner]
    return beam_flags(engine, choose_settings(engine, runner, options, facts), typed)


def as_beam_sees(runner, *typed, **more):
    return PipelineOptions(flags(runner, *typed, **more)).get_all_options()


def test_beam_understands_every_flag():
    known = PipelineOptions(["--runner=DirectRunner"]).get_all_options()
    for name, engine in ENGINES.items():
        for setting in engine.settings:
            if setting.flag is not None:
                assert setting.flag in known, (name, setting.flag)


@pytest.mark.parametrize(("runner", "extra"), [("beam", "beam"), ("flink", "beam"), ("dataflow", "dataflow")])
def test_without_beam_the_extra_of_the_engine_is_named(monkeypatch, runner, extra):
    monkeypatch.setattr("beam_pipelines.engines.engine.find_spec", lambda name: None)
    with pytest.raises(UsageError) as caught:
        check_engine(EngineOptions(runner=runner))
    assert caught.value.next_step == f"Run: pip install 'shardkit[{extra}]'"


def test_a_dry_run_shows_no_secret_of_beams_flags():
    flags = ("--s3_secret_access_key=one", "--s3_session_token", "two", "--region", "three")
    shown = [value for _, value, _ in engine_rows((), flags)]
    assert shown == ["--s3_secret_access_key=***", "--s3_session_token", "***", "--region", "three"]


def test_a_dry_run_shows_no_secret_of_sparks_settings():
    values = (("conf.spark.hadoop.fs.s3a.secret.key", "one"), ("conf.spark.executor.memory", "2g"))
    chosen = choose_settings(
        class_of("spark").spec, "spark", EngineOptions(runner="spark", values=values), Facts(2, 2, {})
    )
    shown = [value for key, value, _ in engine_rows(chosen, ()) if key in dict(values)]
    assert shown == ["***", "2g"]


def test_flink_gets_suitable_settings():
    seen = as_beam_sees("flink", facts=FACTS._replace(environment={FLINK_JAR: "/jars/flink.jar"}))
    assert seen["runner"] == "FlinkRunner"
    assert (seen["flink_master"], seen["parallelism"], seen["environment_type"]) == ("[local]", 3, "LOOPBACK")
    assert seen["flink_job_server_jar"] == "/jars/flink.jar"
    assert seen["save_main_session"] is False
    far = as_beam_sees("flink", values=(("master", "10.0.0.5:8081"), ("environment-type", "EXTERNAL")))
    assert (far["flink_master"], far["environment_type"]) == ("10.0.0.5:8081", "EXTERNAL")


NO_WORKERS = {"beam": "", "portable": "", "prism": "", "spark": "master", "ray": "address", "dask": "address"}


@pytest.mark.parametrize("runner", NO_WORKERS)
def test_workers_that_an_engine_does_not_heed_are_refused(runner):
    request = parse_request({}, ("a.csv",), "out")
    values = ((NO_WORKERS[runner], "10.0.0.5:1"),) if NO_WORKERS[runner] else ()
    engine = engine_for(EngineOptions(runner=runner, values=values))
    assert engine.prepare(request, None) == request
    with pytest.raises(UsageError, match=f"--workers means nothing here to --runner {runner}: "):
        engine.prepare(request, 2)


@pytest.mark.parametrize("runner", ["local", "spark", "ray", "dask", "flink"])
def test_others_heed_them(runner, monkeypatch):
    request = parse_request({}, ("a.csv",), "out")
    assert engine_for(EngineOptions(runner=runner)).prepare(request, 2) == request
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    if runner == "spark":
        with pytest.raises(UsageError, match="spark-submit says what does the work"):
            engine_for(EngineOptions(runner=runner)).prepare(request, 2)


@pytest.mark.parametrize(("runner", "factor"), [("beam", 6.9), ("portable", 12), ("prism", 24)])
def test_records_that_do_not_fit_into_memory_are_refused(tmp_path, monkeypatch, runner, factor):
    (tmp_path / "a.csv").write_text("id\n" + "".join(f"{i}\n" for i in range(100_000)))
    plan = prepare(parse_request({}, (str(tmp_path / "a.csv"),), str(tmp_path / "out"))).plan
    far = msgspec.structs.replace(plan, exchange="s3://bucket/work")
    needed, said = int(estimate_sizes(plan).spool * factor), []
    engine = engine_for(EngineOptions(runner=runner))
    for free in (needed - 1, needed + 1):
        monkeypatch.setattr("beam_pipelines.engines.beam_engine.free_bytes", lambda free=free: free)
        engine._check_memory(plan, [], said.append)
        engine._check_memory(far, ["--job_endpoint=10.0.0.5:8099"], said.append)
        if free > needed:
            engine._check_memory(far, ["--job_endpoint=embed"], said.append)
        else:
            with pytest.raises(OutOfSpaceError, match=f"the engine {runner} keeps all records in memory, about "):
                engine._check_memory(far, [], said.append)
    assert len(said) == 1
    assert format_size(needed) in said[0]


def test_flags_of_beam_win_over_ours():
    seen = as_beam_sees("flink", "--parallelism=9", "--flink_version", "1.20", "--save_main_session")
    assert (seen["parallelism"], seen["flink_version"], seen["save_main_session"]) == (9, "1.20", True)
    assert sum(flag.startswith("--parallelism") for flag in flags("flink", "--parallelism=9")) == 1


@pytest.mark.parametrize("runner", ENGINES)
def test_an_option_that_is_none_is_refused_with_the_nearest(runner):
    with pytest.raises(UsageError, match="did you mean stall-minutes"):
        flags(runner, values=(("stal-minutes", "3"),))
    with pytest.raises(UsageError, match="given twice"):
        flags(runner, values=(("stall-minutes", "3"), ("stall-minutes", "4")))


def test_a_flag_that_beam_refuses_ends_with_its_words_before_anything_is_read():
    found = CliRunner().invoke(command, ["gone.csv", "out", "--runner", "portable", "--", "--parallelism=x"])
    assert isinstance(found.exception, UsageError), found.output
    assert "argument --parallelism: invalid int value: 'x'" in str(found.exception)
    assert "usage:" not in found.output


@pytest.mark.parametrize("runner", BEAM)
def test_a_flag_that_beam_does_not_know_is_named(runner):
    notes = check_typed(runner, ["--paralelism=3", "--parallelism=2", "--own", "value"])
    assert [note.split(";")[0] for note in notes] == [
        "Beam's Python package knows no flag --own",
        "Beam's Python package knows no flag --paralelism",
    ]
    assert notes[1].endswith("(did you mean --parallelism?)")
    assert check_typed(runner, ["--parallelism=2", "--experiments=a", "--labels", "a=b"]) == ()


@pytest.mark.parametrize(
    ("runner", "option", "words"),
    [
        ("dask", "address=", "--engine-option address has no value"),
        ("portable", "environment-type=WRONG", "Choose one of LOOPBACK, EXTERNAL, DOCKER, PROCESS"),
        ("portable", "environment-type=EXTERNAL", "environment-config=HOST:PORT"),
        ("portable", "stall-minutes=nan", "no positive number"),
    ],
)
def test_options_unknown_to_an_engine_are_refused_before_reading(tmp_path, runner, option, words):
    typed = [str(tmp_path / "gone.csv"), str(tmp_path / "out"), "--runner", runner, "--engine-option", option]
    found = CliRunner().invoke(command, typed)
    assert isinstance(found.exception, UsageError), found.output
    assert words in str(found.exception)
    assert not found.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("endpoint={}",), "job service"),
        (("environment-type=external", "environment-config={}"), "worker pool"),
    ],
)
def test_an_address_without_a_listener_is_reported_at_once(tmp_path, options, what):
    with socket.socket() as taken:
        # Bound and not listening: nobody else gets it, and whoever connects is refused.
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        typed = [item for text in options for item in ("--engine-option", text.format(address))]
        found = CliRunner().invoke(command, [str(tmp_path / "gone.csv"), "out", "--runner", "portable", *typed])
    assert isinstance(found.exception, StorageError), found.output
    assert str(found.exception).startswith(f"there is no {what} in {address}: Connection refused")


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("nonsense", "missing port number"),
        ("http://127.0.0.1:8786", "unknown address scheme 'http'"),
        ("tcp://127.0.0.1:x", "'tcp://127.0.0.1:x' is no address of a scheduler of Dask"),
    ],
)
def test_an_address_of_dask_that_is_none_is_refused_before_anything_is_read(tmp_path, address, words):
    typed = ["--engine-option", f"address={address}"]
    found = CliRunner().invoke(command, [str(tmp_path / "gone.csv"), "out", "--runner", "dask", *typed])
    assert isinstance(found.exception, UsageError), found.output
    assert words in str(found.exception)


@pytest.mark.parametrize("form", ["{}", "tcp://{}", "tls://{}"])
def test_a_missing_scheduler_of_dask_is_reported_at_once(form):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = form.format(f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(StorageError, match=f"no scheduler of Dask in {address}: Connection refused"):
            check_engine(EngineOptions(runner="dask", values=(("address", address),)))


def test_what_listens_there_and_is_something_else_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("shardkit.clusters.addresses.CONNECT_S", 0.5)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        pool = (("environment-type", "EXTERNAL"), ("environment-config", address))
        for runner, values, words in (
            ("dask", (("address", f"tcp://{address}"),), "no scheduler of Dask in .*: the program there does not"),
            ("portable", (("endpoint", address),), "no job service in .*: it does not speak gRPC"),
            ("portable", pool, "no worker pool in .*: it does not speak gRPC"),
        ):
            with pytest.raises(StorageError, match=words):
                check_engine(EngineOptions(runner=runner, values=values))


@pytest.mark.parametrize("values", [("endpoint=foo",), ("environment-type=EXTERNAL", "environment-config=foo")])
def test_an_address_without_a_port_is_none(values):
    with pytest.raises(UsageError, match="'foo' is no address of a "):
        check_engine(EngineOptions(runner="portable", values=tuple(map(parse_option, values))))


def test_a_scheduler_file_that_is_none_is_refused(tmp_path):
    for content in (None, "", "[]", '{"id": 1}'):
        if content is not None:
            (tmp_path / "scheduler.json").write_text(content)
        with pytest.raises(UsageError, match="the scheduler file cannot be read"):
            check_engine(EngineOptions(runner="dask", values=(("address", f"{tmp_path}/scheduler.json"),)))


def test_options_of_stores_that_would_not_arrive_are_refused(monkeypatch):
    monkeypatch.setenv("SHARDKIT_STORAGE_OPTIONS", '{"s3": {"anon": true}}')
    for options in (
        EngineOptions(runner="dask", values=(("address", "tcp://127.0.0.1:1"),)),
        EngineOptions(runner="portable", flags=("--environment_type=EXTERNAL", "--environment_config=127.0.0.1:1")),
    ):
        with pytest.raises(UsageError, match="--storage-options do not reach workers that others start"):
            check_engine(options)
    assert check_engine(EngineOptions(runner="portable")) == ()


def test_docker_is_asked_for_before_anything_is_read(tmp_path, monkeypatch):
    options = EngineOptions(runner="portable", values=(("environment-type", "docker"),))
    program = tmp_path / "docker"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="no program docker is on the path"):
        check_engine(options)
    program.write_text("#!/bin/sh\necho first >&2\necho is the daemon running? >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(StorageError, match=r"Docker, which does not answer: is the daemon running\?"):
        check_engine(options)
    program.write_text("#!/bin/sh\nexit 0\n")
    assert check_engine(options) == ()


def test_docker_on_other_machines_is_not_looked_for_here(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    jar = tmp_path / "job-server.jar"
    with zipfile.ZipFile(jar, "w"):
        pass
    values = (("jar", str(jar)), ("environment-type", "DOCKER"))
    assert check_engine(EngineOptions(runner="flink", values=(*values, ("master", "10.0.0.5:8081")))) == ()
    with pytest.raises(UsageError, match="no program docker"):
        check_engine(EngineOptions(runner="flink", values=values))


def test_flags_of_beam_say_where_somebody_has_to_listen():
    service = grpc.server(ThreadPoolExecutor(1))
    with socket.socket() as taken:
        here = f"127.0.0.1:{service.add_insecure_port('127.0.0.1:0')}"
        service.start()
        taken.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
        pool = (("environment-type", "EXTERNAL"), ("environment-config", nobody))
        elsewhere = EngineOptions(runner="portable", values=pool, flags=(f"--job_endpoint={here}",))
        assert check_engine(elsewhere) == (), "its network is not ours"
        with pytest.raises(StorageError, match=f"no job service in {nobody}"):
            check_engine(EngineOptions(runner="portable", flags=(f"--job_endpoint={nobody}",)))
        service.stop(None)


@pytest.mark.parametrize("runner", ["spark", "ray", "dask"])
def test_a_flag_that_nobody_reads_is_refused(runner):
    with pytest.raises(UsageError, match=f"--runner {runner} takes no flags of Beam: --parallelism=3 was given"):
        check_engine(EngineOptions(runner=runner, flags=("--parallelism=3",)))


def test_an_option_without_a_value_is_refused():
    assert parse_option("stall_minutes= 3") == ("stall-minutes", "3")
    for text in ("stall-minutes", "=3"):
        with pytest.raises(UsageError, match="has no value"):
            parse_option(text)


def test_what_is_missing_is_named_and_not_downloaded(tmp_path):
    engine, options = ENGINES["flink"], EngineOptions(runner="flink")
    error = engine.needs(options, FACTS)
    assert error is not None
    assert FLINK_JAR in str(error)
    gone = engine.needs(options, FACTS._replace(environment={FLINK_JAR: str(tmp_path / "gone")}))
    assert gone is not None
    assert str(tmp_path / "gone") in str(gone)
    with zipfile.ZipFile(tmp_path / "there", "w"):
        pass
    assert engine.needs(options, FACTS._replace(environment={FLINK_JAR: str(tmp_path / "there")})) is None


def test_a_job_server_that_is_no_jar_file_is_named(tmp_path):
    (tmp_path / "x.jar").write_text("x")
    error = ENGINES["flink"].needs(EngineOptions(runner="flink", values=(("jar", str(tmp_path / "x.jar")),)), FACTS)
    assert error is not None
    assert "x.jar is no job server for" in str(error)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (("environment-type=PROCESS",), "the job service in this process starts no workers as processes"),
        (("environment-type=PROCESS", "endpoint={}"), "no option says which program workers run"),
        (("environment-type=PROCESS", "endpoint={}", "environment-config=boot"), "no option says which program"),
    ],
)
def test_workers_as_processes_need_a_program_and_a_job_service_that_starts_it(values, words):
    service = grpc.server(ThreadPoolExecutor(1))
    address = f"127.0.0.1:{service.add_insecure_port('127.0.0.1:0')}"
    service.start()
    try:
        typed = tuple(parse_option(text.format(address)) for text in values)
        with pytest.raises(UsageError, match=words):
            check_engine(EngineOptions(runner="portable", values=typed))
        config = ("environment-config", '{"command": "/boot"}')
        named = (("environment-type", "PROCESS"), ("endpoint", address), config)
        assert check_engine(EngineOptions(runner="portable", values=named)) == ()
    finally:
        service.stop(None)


def test_what_follows_two_dashes_is_for_beam_if_it_has_dashes_too():
    assert split_flags(["a.csv", "out", "--", "--parallelism=2", "--x"]) == (
        ["a.csv", "out"],
        ("--parallelism=2", "--x"),
    )
    assert split_flags(["--seed", "1", "--", "-odd.csv", "out"]) == (["--seed", "1", "--", "-odd.csv", "out"], ())
    assert split_flags(["a", "b"]) == (["a", "b"], ())


@pytest.mark.parametrize("runner", ENGINES)
def test_every_engine_has_a_page(runner):
    found = CliRunner().invoke(command, ["--engine-help", runner], prog_name="shardkit convert")
    assert found.exit_code == 0, found.output
    for setting in ENGINES[runner].settings:
        assert f"\n  {setting.key}  " in found.output
    assert f"--runner {runner}" in found.output.partition("Examples")[2]


def shardkit(*arguments):
    own = [sys.executable, "-m", "shardkit", "convert", *map(str, arguments)]
    return subprocess.run(own, capture_output=True, text=True, check=False, timeout=120)


def test_a_dry_run_shows_the_settings_of_the_engine(tmp_path):
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    place = (tmp_path / "a.csv", tmp_path / "out")
    found = shardkit(
        *place, "--runner", "portable", "--dry-run", "--engine-option", "stall-minutes=3", "--", "--job_port=0"
    )
    assert found.returncode == 0, found.stderr
    assert re.search(r"stall-minutes +3 +as asked for", found.stdout)
    assert "--environment_type=LOOPBACK" in found.stdout
    assert "--job_port=0" in found.stdout
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--engine-option", "a=b"), "--runner local takes no options"),
        (("--", "--parallelism=2"), "flags of Beam were given"),
        (("--runner", "flink"), "there is no job server for Flink"),
        (("--runner", "portable", "--engine-option", "stall-minutes=soon"), "is no positive number"),
        (("--runner", "portable", "--engine-option", "job=3"), "has no option 'job'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_read(tmp_path, arguments, message):
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    found = shardkit(tmp_path / "a.csv", tmp_path / "out", *arguments)
    assert found.returncode == 2, found.stderr
    assert message in found.stderr
    assert "Traceback" not in found.stderr
    assert list(tmp_path.glob("out/manifests/*")) == []
