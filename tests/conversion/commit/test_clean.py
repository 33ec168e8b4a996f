"""What killed conversions left is removed when it is old; what is left is whole, and a rerun makes the same bytes."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.conversion.plan import save_plan
from shardkit.conversion.prepare import prepare
from shardkit.conversion.request import ConvertRequest
from shardkit.conversion.run.local import run_local
from shardkit.conversion.work_folder import remove_work_folder, work_folder
from shardkit.dataset.open import list_versions, open_dataset
from shardkit.verify.shards import verify_dataset
from tests.support.campaign import in_campaign
from tests.support.commands import run_shardkit
from tests.support.examples import draws

pytestmark = [pytest.mark.slow, pytest.mark.full]

NUM_ROWS = 120_000


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("input")
    for part in range(6):
        rows = "".join(f"{i},{i * 7919 % 1000 / 8},word{i % 977}\n" for i in range(NUM_ROWS // 6 * part, NUM_ROWS // 6))
        more = "".join(f"{part},{i * 7919 % 1000 / 8},word{i % 977}\n" for i in range(NUM_ROWS // 6))
        (folder / f"{part}.csv").write_text(f"id,x,word\n{rows}{more}")
    return folder


def convert(source, destination, *options):
    done = run_shardkit("convert", source, destination, "--num-shards", "30", "--workers", "1", *options)
    assert done.returncode == 0, done.stderr


def start(source, destination, *options):
    command = [sys.executable, "-m", "shardkit", "convert", str(source), str(destination)]
    return subprocess.Popen(
        [*command, "--num-shards", "30", "--workers", "1", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def wait_for(process, condition):
    end = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, "it ended before it could be cut off"
        assert time.monotonic() < end
        time.sleep(0.002)


def shards_of(destination, version=None):
    return {s.path: s.sha256 for s in open_dataset(str(destination), version).shards}


def is_whole(destination):
    return all(
        verify_dataset(open_dataset(str(destination), version)).is_whole for version in list_versions(str(destination))
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, source):
    destination = tmp_path_factory.mktemp("undisturbed") / "out"
    convert(source, destination, "--seed", "5")
    return shards_of(destination)


def family(process):
    own = psutil.Process(process.pid)
    return [p for p in (own, *own.children(recursive=True)) if p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize(
    "stage",
    [
        lambda d, n: len(list(d.glob("data/*/*.gz"))) >= n + 3,
        *in_campaign(lambda d, n: len(list(d.glob("work/*/extract/*.msgpack"))) >= 1),
    ],
    ids=["writing", "extracting"],
)
def test_what_a_killed_conversion_left_goes_and_a_rerun_makes_the_same(tmp_path, source, undisturbed, stage):
    destination = tmp_path / "out"
    convert(source, destination, "--seed", "1")
    first = shards_of(destination)
    process = start(source, destination, "--seed", "5", "--overwrite")
    wait_for(process, lambda: stage(destination, len(first)))
    os.killpg(process.pid, signal.SIGSTOP)
    # The signal is sent, not yet heeded, when the call returns.
    wait_for(process, lambda: all(p.status() == psutil.STATUS_STOPPED for p in family(process)))
    before = everything(destination)
    alive = run_shardkit("clean", destination, "--older-than", "0", "--delete")
    assert alive.returncode == 0
    assert "of a live conversion" in alive.stdout
    assert everything(destination) == before
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    young = run_shardkit("clean", destination, "--delete")
    assert "too young" in young.stdout
    assert "ok: there is nothing to remove" in young.stdout
    wait_until_free(destination)
    listed = run_shardkit("clean", destination, "--older-than", "0")
    assert "intermediate files of conversions that died" in listed.stdout
    assert "--delete does it" in listed.stdout
    assert everything(destination) == before
    done = run_shardkit("clean", destination, "--older-than", "0", "--delete")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(p.name for p in destination.iterdir()) == ["data", "manifests"]
    assert len(list((destination / "data").iterdir())) == 1
    assert shards_of(destination) == first
    assert is_whole(destination)
    convert(source, destination, "--seed", "5", "--overwrite")
    assert shards_of(destination) == undisturbed
    assert is_whole(destination)


def everything(destination):
    return sorted(p for p in destination.rglob("*") if p.is_file())


def wait_until_free(destination):
    """Waits until no process that belonged to the killed one holds the lock any more."""
    import fcntl

    end = time.monotonic() + 30
    for lock in destination.glob("work/*/lock"):
        with lock.open("r+b") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    assert time.monotonic() < end
                    time.sleep(0.01)


def test_a_conversion_that_holds_its_work_folder_is_left_alone(tmp_path, source):
    plan = prepare(ConvertRequest(inputs=(str(source),), destination=str(tmp_path / "out"), num_shards=2)).plan
    with work_folder(plan):
        (tmp_path / "out" / plan.data_path).mkdir(parents=True)
        (tmp_path / "out" / plan.data_path / "train-00000-of-00002.tfrecord.gz").write_bytes(b"x")
        done = run_shardkit("clean", tmp_path / "out", "--older-than", "0", "--delete")
        assert "of a live conversion" in done.stdout
        assert "nothing to remove" in done.stdout
        assert (tmp_path / "out" / plan.data_path / "train-00000-of-00002.tfrecord.gz").exists()


def run_plan(plan):
    with work_folder(plan):
        run_local(save_plan(plan), 1, on_lost_worker=pytest.fail)
    remove_work_folder(plan)
    return open_dataset(plan.destination)


SEEDS = st.sampled_from(["1", "2", "3"])
STEPS = st.lists(
    st.tuples(st.just("convert"), SEEDS)
    | st.tuples(st.just("clean"), st.sampled_from([None, 1, 2]))
    | st.tuples(st.just("remains"), SEEDS),
    min_size=2,
    max_size=6,
)


@given(STEPS)
@settings(max_examples=draws(8), deadline=None)
def test_every_version_that_is_left_is_whole(tmp_path_factory, source, steps):
    destination = tmp_path_factory.mktemp("history") / "out"
    small = source / "0.csv"
    newest = None
    for step, argument in steps:
        options = ConvertRequest(
            inputs=(str(small),),
            destination=str(destination),
            num_shards=2,
            seed=int(argument or 0),
            compression="none",
            tfds=True,
            overwrite=True,
        )
        if step == "convert":
            newest = shards_of(run_plan(prepare(options).plan).url)
        elif step == "remains":
            plan = prepare(options).plan
            with work_folder(plan):
                (destination / plan.data_path).mkdir(parents=True, exist_ok=True)
                (destination / plan.data_path / "train-00007-of-00009.tfrecord").write_bytes(b"dead")
        elif destination.exists() and any(destination.iterdir()):
            keep = [] if argument is None else ["--keep-versions", str(argument)]
            done = run_shardkit("clean", destination, "--older-than", "0", "--delete", *keep)
            assert done.returncode == 0, done.stderr
            assert not list(destination.glob("data/*/train-00007-of-00009.tfrecord"))
            assert not (destination / "work").exists()
            if newest is not None:
                assert len(list_versions(str(destination))) <= (argument or 99)
                assert list(destination.glob("data/*/dataset_info.json"))
        if newest is not None:
            assert shards_of(destination) == newest
            assert is_whole(destination)
