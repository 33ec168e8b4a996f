"""Spark, Ray and Dask give the local engine's bytes, whatever becomes of their workers, and leave nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import psutil
import pytest

from shardkit.dataset.open import list_versions
from shardkit.storage import files as storage
from tests.support.campaign import in_campaign
from tests.support.engines.conversions import convert, shards_of, start, wait_for
from tests.support.engines.native import WORKERS, processes_below
from tests.support.paths import ROOT
from tests.support.stores.servers import serve, use

pytestmark = [pytest.mark.slow, pytest.mark.full]

PACKAGES = {"spark": "pyspark", "ray": "ray", "dask": "distributed"}
PHOTOS = ROOT.parent / "shared/data/photos-cats-dogs"
PROGRESS = ("planning", "first pass", "comparing", "reading", "writing", "committing")
MOMENTS = {
    "in a split": lambda d: not any(d.glob("data/*/*.gz")),
    "after a shard was written": lambda d: any(d.glob("data/*/*.gz")),
}


@pytest.fixture(params=PACKAGES)
def engine(request):
    # CI takes neither skip: tests/support/skips.py.
    pytest.importorskip(PACKAGES[request.param])
    if request.param == "spark" and shutil.which("java") is None:
        pytest.skip("Spark finds no program java")
    return request.param


@pytest.fixture
def temporary_folder(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


def options(engine):
    return ("--runner", engine, "--workers", 2)


def text_and_images(folder):
    """Writes lines of text, and images with a table of labels if there are any to take."""
    (folder / "text").mkdir()
    for number in range(3):
        lines = [f"{i}: the quick brown fox jumps over {i * number} lazy dogs" for i in range(500)]
        (folder / "text" / f"{number}.txt").write_text("\n".join(lines) + "\n")
    yield folder / "text", ()
    if PHOTOS.is_dir():
        for kind in ("cat", "dog"):
            (folder / "images" / kind).mkdir(parents=True)
            for path in sorted((PHOTOS / kind).iterdir())[:20]:
                shutil.copy(path, folder / "images" / kind)
        yield folder / "images", ("--image-size", "32x32")


def test_it_gives_the_bytes_of_the_local_engine(tmp_path, inputs, temporary_folder, engine):
    asked = ("--dedup-by", "word", "--stratify", "word")
    here = convert(inputs, tmp_path / "here", *asked)
    assert here.returncode == 0, here.stderr
    result = convert(inputs, tmp_path / "out", *asked, *options(engine))
    assert result.returncode == 0, result.stderr
    assert shards_of(tmp_path / "out") == shards_of(tmp_path / "here")
    assert result.stdout.splitlines()[:5] == here.stdout.splitlines()[:5]
    assert said(result) == said(here)
    assert not (tmp_path / "out" / "work").exists()
    assert list(temporary_folder.iterdir()) == []


def said(result):
    """Returns what a command said, but for its progress."""
    return [line for line in result.stderr.splitlines() if not line.startswith(PROGRESS)]


def test_text_and_images_give_the_bytes_of_the_local_engine(tmp_path, engine):
    for source, asked in text_and_images(tmp_path):
        for place, own in (("here", ()), ("far", options(engine))):
            result = convert(source, tmp_path / f"{source.name}-{place}", *asked, *own)
            assert result.returncode == 0, result.stderr
        assert shards_of(tmp_path / f"{source.name}-far") == shards_of(tmp_path / f"{source.name}-here")


def test_killed_workers_change_no_byte(tmp_path, inputs, shouted, slowed, engine):
    destination = tmp_path / "out"
    process = start(inputs, destination, *slowed.option, *options(engine))
    for is_now in MOMENTS.values():
        victims: list[psutil.Process] = []

        def has_victim(is_now=is_now, victims=victims):
            victims[:] = WORKERS[engine](processes_below(process)) if is_now(destination) else []
            # One of them is of the command itself.
            return bool(victims) and len(list(destination.glob("work/*/progress/*"))) > 1

        wait_for(process, has_victim)
        victims[0].kill()
        slowed.run()
    stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stderr
    assert list(shards_of(destination).values()) == shouted
    assert "80,000 rows in, 80,000 examples out" in stdout
    assert "Traceback" not in stderr


@pytest.mark.parametrize("number", [signal.SIGINT, *in_campaign(signal.SIGTERM)])
def test_a_signal_leaves_no_process_and_the_same_command_goes_on(
    tmp_path, inputs, shouted, slowed, temporary_folder, engine, number
):
    destination = tmp_path / "out"
    process = start(inputs, destination, *slowed.option, *options(engine))
    wait_for(process, lambda: any(destination.glob("work/*/extract/*.msgpack")))
    below = processes_below(process)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert "Nothing was committed; run the same command again" in stderr
    _, alive = psutil.wait_procs(below, timeout=20)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []
    assert [p.name for p in temporary_folder.iterdir()] == []
    slowed.run()
    result = convert(inputs, destination, *slowed.option)
    assert result.returncode == 0, result.stderr
    assert "Going on" in result.stderr
    assert list(shards_of(destination).values()) == shouted


def test_a_killed_command_takes_its_cluster_along(tmp_path, inputs, slowed, engine):
    process = start(inputs, tmp_path / "out", *slowed.option, *options(engine))
    wait_for(process, lambda: WORKERS[engine](processes_below(process)))
    below = processes_below(process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    # Agents of Ray look every few seconds whether their node lives.
    _, alive = psutil.wait_procs(below, timeout=90)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []


def test_a_row_that_does_not_fit_is_named_as_ever(tmp_path, engine):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("id,x\n" + "".join(f"{i},{i / 8}\n" for i in range(100)))
    (tmp_path / "in" / "b.csv").write_text("id,x\n1,2\n" + "nine,3\n")
    (tmp_path / "schema.json").write_text('{"features": {"id": "int64", "x": "float64"}}')
    schema = ("--schema", tmp_path / "schema.json")
    here = convert(tmp_path / "in", tmp_path / "here", *schema)
    result = convert(tmp_path / "in", tmp_path / "out", *options(engine), *schema)
    assert result.returncode == here.returncode == 3, result.stderr
    assert result.stderr.splitlines()[-1] == here.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr
    assert list_versions(str(tmp_path / "out")) == []


def test_workers_that_share_no_disk_give_the_bytes_of_the_local_engine(
    tmp_path, inputs, shouted, slowed, temporary_folder, monkeypatch, engine
):
    slowed.run()
    with serve("moto", tmp_path) as server:
        use(server, monkeypatch)
        for path in inputs.iterdir():
            storage.put_file(path, f"{server.url}/in/{path.name}")
        work = f"{server.url}/work"
        result = convert(f"{server.url}/in", f"{server.url}/out", *slowed.option, *options(engine), "--work-dir", work)
        assert result.returncode == 0, result.stderr
        assert list(shards_of(f"{server.url}/out").values()) == shouted
        assert storage.list_files(work) == []
    assert list(temporary_folder.iterdir()) == []


def test_one_unit_of_shards_holds_all_records_where_no_disk_is_shared(tmp_path, inputs, monkeypatch, engine):
    with serve("moto", tmp_path) as server:
        use(server, monkeypatch)
        storage.put_file(inputs / "00.csv", f"{server.url}/in/00.csv")
        place = [f"{server.url}/in", f"{server.url}/out"]
        typed = ["convert", *place, *map(str, options(engine)), "--work-dir", f"{server.url}/work"]
        result = subprocess.run([sys.executable, "-m", "shardkit", *typed], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        assert "10,000 rows in, 10,000 examples out" in result.stdout
        assert len(shards_of(place[1])) == 1
