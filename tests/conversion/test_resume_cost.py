"""What finishing a killed conversion reads again, as the kernel counts: in short `resume_cost.py`."""

import random

import pytest

from tests.benchmarks.converting import resume_cost, resume_trials
from tests.support.campaign import in_campaign

MB = 1_000_000

pytestmark = [
    pytest.mark.full,
    pytest.mark.slow,
    pytest.mark.skipif(not resume_trials.has_strace(), reason="strace counts what is read, and cannot run here"),
]


def write_parquet(folder):
    resume_cost.write_parquet(folder / "rows.parquet", 32 * MB, seed=1)


def write_csv(folder):
    resume_cost.write_csv(folder / "rows.csv", 32 * MB, seed=1)


def write_gzip(folder):
    for number in range(4):
        resume_cost.write_csv(folder / f"{number}.csv.gz", 8 * MB, seed=number)


@pytest.fixture(scope="module", params=[write_csv, *in_campaign(write_parquet, write_gzip)], ids=lambda w: w.__name__)
def source(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("input")
    request.param(folder)
    return folder


@pytest.fixture(scope="module")
def clean(source, tmp_path_factory):
    """What an undisturbed conversion gives."""
    folder = tmp_path_factory.mktemp("clean")
    conversion = resume_trials.Conversion("clean", source, resume_cost.SHARDS, 2)
    # Undisturbed, every byte is read at least once: the count is not of something else.
    assert resume_trials.run_traced(conversion, folder / "out", folder / "traces") >= resume_trials.input_bytes(source)
    return resume_trials.contents(folder / "out")


@pytest.mark.parametrize("num_workers", [2, *in_campaign(1)])
def test_a_resumed_conversion_reads_what_was_left_and_ends_with_the_same_bytes(tmp_path, source, clean, num_workers):
    conversion = resume_trials.Conversion("killed", source, resume_cost.SHARDS, num_workers)
    destination = tmp_path / "out"
    num_done = random.Random(num_workers).randint(1, 3)
    conditions = {
        f"{num_done} done": lambda: len(list(destination.glob("work/*/extract/*.msgpack"))) >= num_done,
        "first shard": lambda: any(destination.glob("data/*/*.gz")),
    }
    for moment, condition in conditions.items():
        trial = resume_trials.try_once(conversion, tmp_path, moment, condition, clean)
        assert trial is not None, f"{moment}: it ended before it could be killed"
        assert trial.differences == (), moment
        assert trial.work.num_finished >= 1
        assert trial.read_bytes <= trial.allowed_bytes, moment
