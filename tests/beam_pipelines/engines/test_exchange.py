"""Workers that share no disk: files go through a store, records through the engine's shuffle, bytes stay the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shardkit.dataset.open import list_versions
from shardkit.storage import files as storage
from tests.support.campaign import in_campaign
from tests.support.engines.conversions import convert, shards_of, start, wait_for
from tests.support.engines.native import dask_workers, processes_below
from tests.support.stores.servers import KINDS, serve, use

pytestmark = [pytest.mark.slow, pytest.mark.full]

PORTABLE = ("--runner", "portable")
MAP = "def shout(batch):\n    import pyarrow.compute as pc\n    i = batch.schema.get_field_index('word')\n"
MAP += "    return batch.set_column(i, 'word', pc.utf8_upper(batch['word']))\n"


@pytest.fixture(scope="module")
def store(tmp_path_factory, inputs):
    """A server that holds the inputs, which processes started from here find."""
    if KINDS["moto"].find() is None:
        pytest.skip(KINDS["moto"].install)
    with serve("moto", tmp_path_factory.mktemp("moto")) as server, pytest.MonkeyPatch.context() as patch:
        use(server, patch)
        for path in inputs.iterdir():
            storage.put_file(path, f"{server.url}/in/{path.name}")
        (bad := tmp_path_factory.mktemp("bad") / "bad.csv").write_text(
            "id,x,word\n1,0.5,a\n2,,b\nthree,0.5,a\n1,0.5,a\n"
        )
        storage.put_file(bad, f"{server.url}/bad/bad.csv")
        yield server.url


@pytest.fixture
def temporary_folder(tmp_path, monkeypatch):
    """Where workers keep what they fetch."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


CASES = {
    "shuffled": ("in", ()),
    "in-order": ("in", ("--no-shuffle",)),
    "without-duplicates": ("in", ("--dedup-by", "word")),
    "stratified": ("in", ("--stratify", "word")),
    "with-a-map": ("in", ("--map", "FUNCTIONS:shout")),
    "with-bad-rows": ("bad", ("--on-bad-record", "quarantine", "--schema", "SCHEMA")),
}


@pytest.mark.parametrize("case", ["with-a-map", *in_campaign(*(case for case in CASES if case != "with-a-map"))])
def test_it_gives_the_bytes_of_the_local_engine(store, tmp_path, temporary_folder, case):
    folder, options = CASES[case]
    (tmp_path / "functions.py").write_text(MAP)
    (tmp_path / "schema.json").write_text('{"features": {"id": "int64", "x": "float64", "word": "string"}}')
    places = {"FUNCTIONS:shout": f"{tmp_path}/functions.py:shout", "SCHEMA": f"{tmp_path}/schema.json"}
    options = [places.get(option, option) for option in options]
    shards = ("--num-shards", 1) if folder == "bad" else ()
    here = convert(f"{store}/{folder}", f"{store}/{case}/here", *options, *shards)
    assert here.returncode == 0, here.stderr
    far = convert(
        f"{store}/{folder}", f"{store}/{case}/far", *PORTABLE, "--work-dir", f"{store}/work", *options, *shards
    )
    assert far.returncode == 0, far.stderr
    assert shards_of(f"{store}/{case}/far") == shards_of(f"{store}/{case}/here")
    assert far.stdout.splitlines()[:5] == here.stdout.splitlines()[:5]
    assert storage.list_files(f"{store}/work") == []
    assert [p for p in temporary_folder.iterdir() if p.name.startswith("shardkit")] == []


@pytest.mark.campaign
def test_a_worker_that_dies_after_a_shard_was_written_changes_no_byte(store, tmp_path, inputs, clean):
    pytest.importorskip("distributed")
    place = f"{store}/killed"
    process = start(
        f"{store}/in", f"{place}/far", "--runner", "dask", "--workers", 2, "--work-dir", f"{place}/work",
        "--num-shards", 40,
    )  # fmt: skip
    wait_for(process, lambda: storage.list_names(f"{place}/far/data") != [], limit_s=200, pause_s=0.05)
    dask_workers(processes_below(process))[0].kill()
    stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stderr
    here = convert(f"{store}/in", f"{place}/here", "--num-shards", 40)
    assert here.returncode == 0, here.stderr
    assert shards_of(f"{place}/far") == shards_of(f"{place}/here")
    assert "80,000 rows in, 80,000 examples out" in stdout
    assert list_versions(f"{place}/far") == [1]
    assert "Traceback" not in stderr


def test_what_was_read_before_an_interrupt_is_not_read_again(store, tmp_path, clean):
    place = f"{store}/interrupted"
    options = (*PORTABLE, "--work-dir", f"{place}/work")
    process = start(f"{store}/in", f"{place}/far", *options)
    found = f"{place}/work"
    wait_for(process, lambda: any(".msgpack" in f.path for f in storage.list_files(found)), pause_s=0.1)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "Nothing was committed; run the same command again" in stderr
    assert "Traceback" not in stderr
    result = convert(f"{store}/in", f"{place}/far", *options)
    assert result.returncode == 0, result.stderr
    assert "Going on" in result.stderr
    assert "read before" in result.stdout
    assert shards_of(f"{place}/far") == clean


@pytest.mark.campaign
def test_conversions_of_the_same_inputs_do_not_meet(store, tmp_path, clean):
    place = f"{store}/apart"
    options = (*PORTABLE, "--work-dir", f"{place}/work")
    one = start(f"{store}/in", f"{place}/one", *options)
    other = start(f"{store}/in", f"{place}/other", *options)
    wait_for(other, lambda: any(".run" in f.path for f in storage.list_files(f"{place}/work")), pause_s=0.1)
    other.send_signal(signal.SIGINT)
    _, stderr = one.communicate(timeout=120)
    assert one.returncode == 0, stderr
    assert shards_of(f"{place}/one") == clean
    other.communicate(timeout=60)
    assert other.returncode == 130
    result = convert(f"{store}/in", f"{place}/other", *options)
    assert result.returncode == 0, result.stderr
    assert shards_of(f"{place}/other") == clean


@pytest.mark.campaign
def test_what_was_read_of_an_input_that_changed_is_read_again(store, tmp_path, inputs):
    place = f"{store}/changed"
    names = sorted(path.name for path in inputs.iterdir())[:3]
    for name in names:
        storage.put_file(inputs / name, f"{place}/in/{name}")
    options = (*PORTABLE, "--work-dir", f"{place}/work")
    process = start(f"{place}/in", f"{place}/far", *options)
    wait_for(process, lambda: any(".msgpack" in f.path for f in storage.list_files(f"{place}/work")), pause_s=0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    for name in names:
        (tmp_path / name).write_text((inputs / name).read_text().replace(",word1", ",term1"))
        storage.put_file(tmp_path / name, f"{place}/in/{name}")
    result = convert(f"{place}/in", f"{place}/far", *options)
    assert result.returncode == 0, result.stderr
    # And the local engine goes on with what is here, which is less than it seems.
    here = convert(f"{place}/in", f"{place}/here")
    assert here.returncode == 0, here.stderr
    assert shards_of(f"{place}/far") == shards_of(f"{place}/here")
    assert storage.list_files(f"{place}/work") == []


def test_the_local_engine_goes_on_with_what_such_workers_began(store, tmp_path, clean):
    place = f"{store}/taken-over"
    process = start(f"{store}/in", f"{place}/far", *PORTABLE, "--work-dir", f"{place}/work")
    wait_for(process, lambda: any(".msgpack" in f.path for f in storage.list_files(f"{place}/work")), pause_s=0.1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    again = start(f"{store}/in", f"{place}/far", *PORTABLE, "--work-dir", f"{place}/work")
    wait_for(
        again, lambda: len([f for f in storage.list_files(f"{place}/work") if "/plan-" in f.path]) == 2, pause_s=0.1
    )
    again.send_signal(signal.SIGINT)
    again.communicate(timeout=60)
    result = convert(f"{store}/in", f"{place}/far")
    assert result.returncode == 0, result.stderr
    assert shards_of(f"{place}/far") == clean


def test_what_a_killed_command_left_in_the_store_is_cleaned_away(store, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = f"{store}/cleaned"
    work = f"{place}/work"
    process = start(f"{store}/in", f"{place}/far", *PORTABLE, "--work-dir", work)
    wait_for(process, lambda: any(".run" in f.path for f in storage.list_files(work)), pause_s=0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    storage.put_file(Path(__file__), f"{work}/{'0' * 16}-{'0' * 32}/of-another-dataset.run")
    left = storage.list_files(work)
    command = [sys.executable, "-m", "shardkit", "clean", f"{place}/far", "--work-dir", work]
    young = subprocess.run([*command, "--delete"], capture_output=True, text=True, check=False)
    assert (young.returncode, storage.list_files(work)) == (0, left), young.stderr
    assert "too young" in young.stdout
    result = subprocess.run([*command, "--older-than", "0s", "--delete"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "files that workers of such conversions handed over" in result.stdout
    assert [f.path.rsplit("/", 1)[1] for f in storage.list_files(work)] == ["of-another-dataset.run"]


def test_a_row_that_does_not_fit_is_named_as_ever(store, tmp_path):
    (tmp_path / "schema.json").write_text('{"features": {"id": "int64", "x": "float64", "word": "string"}}')
    options = ("--work-dir", f"{store}/work", "--schema", tmp_path / "schema.json", "--num-shards", 1)
    result = convert(f"{store}/bad", f"{store}/named", *PORTABLE, *options)
    assert result.returncode == 3, result.stderr
    assert "bad.csv" in result.stderr
    assert "three" in result.stderr
    assert "Traceback" not in result.stderr
    assert storage.list_files(f"{store}/work") == []


@pytest.mark.parametrize(
    ("source", "destination", "options", "sentence"),
    [
        ("{store}/in", "{folder}/out", PORTABLE, "the destination is a folder of this machine"),
        ("{inputs}", "{store}/refused", PORTABLE, "an input lies on this machine"),
        ("{store}/in", "{store}/refused", (), "must be a folder of this machine with --runner local"),
    ],
)
def test_what_such_workers_cannot_reach_is_refused(store, inputs, tmp_path, source, destination, options, sentence):
    places = {"store": store, "folder": tmp_path, "inputs": inputs}
    result = convert(source.format(**places), destination.format(**places), *options, "--work-dir", f"{store}/work")
    assert result.returncode == 2, result.stderr
    assert sentence in result.stderr
    assert storage.list_files(f"{store}/refused") == []


def test_workers_of_another_environment_need_no_disk_of_ours(store, tmp_path, clean):
    python = os.environ.get("SHARDKIT_WORKER_PYTHON")
    if not python:
        pytest.skip("SHARDKIT_WORKER_PYTHON names no environment for external workers")
    if subprocess.run([python, "-c", "import s3fs"], capture_output=True, check=False).returncode:
        pytest.skip("that environment has no client for the store")
    from tests.beam_pipelines.engines.test_external_workers import worker_pool

    found = {k: v for k, v in os.environ.items() if k.startswith(("AWS_", "SHARDKIT_", "S3"))}
    (tmp_path / "pool").mkdir()
    with worker_pool(tmp_path / "pool", python, **found) as (address, _):
        options = ("environment-type=EXTERNAL", f"environment-config={address}")
        typed = [word for option in options for word in ("--engine-option", option)]
        result = convert(f"{store}/in", f"{store}/pool/far", *PORTABLE, *typed, "--work-dir", f"{store}/work")
    assert result.returncode == 0, result.stderr
    assert shards_of(f"{store}/pool/far") == clean
