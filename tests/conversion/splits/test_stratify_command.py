"""`--stratify`, as `shardkit convert` treats it: exact for every value, against pandas."""

import gzip
import os
import signal
import subprocess
import sys
import time
from fractions import Fraction
from math import ceil, floor

import numpy as np
import pandas as pd
import psutil
import pytest

from shardkit.cli import main
from shardkit.conversion.splits.apportion import largest_remainders
from shardkit.dataset.block_reader import first_examples
from shardkit.dataset.open import list_versions, open_dataset
from tests.support.campaign import in_campaign

pytestmark = pytest.mark.full

SPLITS = (("train", 0.7), ("validation", 0.2), ("test", 0.1))
OPTIONS = ("--stratify", "country", *(f"--split={name}={fraction}" for name, fraction in SPLITS))


def census(num_rows=6000, seed=0):
    """Returns people like those of a census: a common country, rarer ones, many of one person, and unknown ones."""
    rng = np.random.default_rng(seed)
    common = np.array(["United-States", "Mexico", "Philippines", "Germany", "Laos", None], dtype=object)
    countries = rng.choice(common, num_rows, p=[0.9, 0.05, 0.02, 0.01, 0.001, 0.019])
    rare = rng.choice(num_rows, 150, replace=False)
    countries[rare] = [f"island {i % 100}" for i in range(150)]
    return pd.DataFrame(
        {
            "person": np.arange(num_rows),
            "age": rng.integers(17, 91, num_rows),
            "hours": rng.random(num_rows).round(3),
            "country": countries,
        }
    )


def write(frame, folder, num_files=4):
    folder.mkdir()
    for number in range(num_files):
        part = frame.iloc[len(frame) * number // num_files : len(frame) * (number + 1) // num_files]
        part.to_csv(folder / f"{number}.csv", index=False)
    return folder


def command(source, destination, *options):
    return [sys.executable, "-m", "shardkit", "convert", str(source), str(destination), *OPTIONS, *map(str, options)]


def convert(source, destination, *options):
    assert main(["convert", str(source), str(destination), *OPTIONS, "--workers", "1", *map(str, options)]) == 0
    return open_dataset(str(destination))


def examples(dataset):
    """Returns all examples, with the split that each is in."""
    parts = [pd.DataFrame(list(first_examples(dataset, s.name, 10**6))) for s in dataset.manifest.splits]
    return pd.concat([p.assign(split=s.name) for s, p in zip(dataset.manifest.splits, parts, strict=True)])


def check_shares(found, expected):
    """Checks that all expected rows are there, once, every country in its shares and all in the best there are."""
    assert sorted(found["person"]) == sorted(expected["person"])
    whole = expected.groupby("country", dropna=False).size()
    counts = found.groupby(["country", "split"], dropna=False).size().unstack(fill_value=0)
    parts = {name: Fraction(str(fraction)) for name, fraction in SPLITS}
    for country, num_rows in whole.items():
        own = counts[counts.index.isna()].iloc[0] if pd.isna(country) else counts.loc[country]
        assert own.sum() == num_rows
        for name, part in parts.items():
            assert floor(part * num_rows) <= own[name] <= ceil(part * num_rows), (country, num_rows, dict(own))
    totals = found["split"].value_counts()
    assert [totals[n] for n, _ in SPLITS] == largest_remainders([len(expected) * p for p in parts.values()])


def test_every_country_is_divided_exactly(tmp_path):
    frame = census()
    dataset = convert(write(frame, tmp_path / "in"), tmp_path / "out")
    found = examples(dataset)
    check_shares(found, frame)
    # Who is in which split says nothing about the place in the inputs or the order within the split.
    train = found[found["split"] == "train"]["person"].to_numpy()
    assert abs(np.corrcoef(np.arange(len(train)), train)[0, 1]) < 0.05
    assert abs(train.mean() - frame["person"].mean()) < 60
    assert [s.num_examples for s in dataset.manifest.splits] == [4200, 1200, 600]


def test_the_seed_decides_who_and_files_do_not(tmp_path):
    frame = census(2000)
    source = write(frame, tmp_path / "in")
    first = examples(convert(source, tmp_path / "a", "--seed", 1)).set_index("person")["split"].sort_index()
    second = examples(convert(source, tmp_path / "b", "--seed", 2)).set_index("person")["split"].sort_index()
    unshuffled = examples(convert(source, tmp_path / "c", "--seed", 1, "--no-shuffle")).set_index("person")["split"]
    assert 0.2 < (first != second).mean() < 0.7
    assert (unshuffled.sort_index() == first).all()


def test_duplicates_are_left_out_first(tmp_path):
    frame = census(3000)
    # In the columns that are compared, most are equal to someone before them.
    twice = pd.concat([frame, frame.iloc[::3], frame.iloc[:500]])
    dataset = convert(write(twice, tmp_path / "in"), tmp_path / "out", "--dedup")
    check_shares(examples(dataset), frame)
    assert dataset.manifest.accounting.num_duplicates == 1500
    by_age = convert(tmp_path / "in", tmp_path / "some", "--dedup-by", "age,country")
    check_shares(examples(by_age), twice.drop_duplicates(["age", "country"]))


def test_filtered_and_rejected_rows_do_not_count(tmp_path):
    frame = census(3000)
    texts = frame.assign(age=frame["age"].astype(object))
    texts.loc[frame.index % 7 == 0, "age"] = "old"
    texts.loc[frame.index % 11 == 0, "hours"] = None
    source = write(texts, tmp_path / "in")
    (tmp_path / "schema.toml").write_text('[features]\nage = "int64"\n')
    options = (
        "--schema",
        tmp_path / "schema.toml",
        "--on-bad-record",
        "skip",
        "--max-bad",
        "20%",
        "--drop-null",
        "hours",
    )
    dataset = convert(source, tmp_path / "out", *options)
    check_shares(examples(dataset), frame[(frame.index % 7 != 0) & (frame.index % 11 != 0)])
    accounting = dataset.manifest.accounting
    assert (accounting.num_rows, accounting.num_rejected) == (3000, 429)
    assert accounting.num_filtered == sum(i % 11 == 0 and i % 7 != 0 for i in range(3000))


@pytest.mark.parametrize("options", [(), ("--dedup",)])
def test_rows_of_damaged_files_do_not_count(tmp_path, options):
    frame = census(3000)
    source = write(frame, tmp_path / "in")
    packed = gzip.compress(frame.to_csv(index=False).replace("United", "Divided").encode())
    (source / "broken.csv.gz").write_bytes(packed[: len(packed) // 2])
    dataset = convert(source, tmp_path / "out", "--on-bad-record", "skip", *options)
    check_shares(examples(dataset), frame)
    assert dataset.manifest.accounting.num_damaged_files == 1


def test_a_column_of_numbers_that_are_all_different(tmp_path):
    frame = census(1000)
    dataset = convert(write(frame, tmp_path / "in"), tmp_path / "out", "--stratify", "person")
    assert [s.num_examples for s in dataset.manifest.splits] == [700, 200, 100]
    assert sorted(examples(dataset)["person"]) == list(range(1000))


def test_the_recipe_holds_it(tmp_path, capsys):
    source = write(census(500), tmp_path / "in", 2)
    first = convert(source, tmp_path / "out")
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "out"), "--recipe"]) == 0
    recipe = capsys.readouterr().out
    assert 'stratify = "country"' in recipe
    (tmp_path / "recipe.toml").write_text(recipe)
    again = ["convert", str(source), str(tmp_path / "again"), "--recipe", str(tmp_path / "recipe.toml")]
    assert main(again) == 0
    second = open_dataset(str(tmp_path / "again"))
    assert second.manifest.fingerprint == first.manifest.fingerprint
    assert [s.sha256 for s in second.shards] == [s.sha256 for s in first.shards]
    assert convert(source, tmp_path / "other", "--stratify", "age").manifest.fingerprint != first.manifest.fingerprint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--stratify", "country"), "no meaning without two splits"),
        (("--stratify", "country", "--split", "train=1"), "no meaning without two splits"),
        ((*OPTIONS, "--group-by", "age"), "--group-by and --stratify exclude each other"),
        (("--stratify", "country", "--split-column", "country"), "--split-column and --stratify exclude each other"),
        ((*OPTIONS[2:], "--stratify", "land"), "--stratify names the column 'land', which is not there"),
    ],
)
def test_what_cannot_be_is_said(tmp_path, capsys, options, message):
    source = write(census(200), tmp_path / "in", 1)
    assert main(["convert", str(source), str(tmp_path / "out"), *options]) == 2
    assert message in capsys.readouterr().err


def test_a_function_that_does_not_repeat_itself_is_an_error(tmp_path, capsys):
    source = write(census(500), tmp_path / "in", 1)
    (tmp_path / "some.py").write_text(
        "import pathlib\n"
        "def some(batch):\n"
        f"    marks = pathlib.Path({str(tmp_path)!r}).glob('out/work/*/survey/*.strata')\n"
        "    is_second = any(True for mark in marks)\n"
        "    return batch.filter([not is_second or n % 5 != 0 for n in batch['person'].to_pylist()])\n"
    )
    arguments = ["convert", str(source), str(tmp_path / "out"), *OPTIONS, "--map", f"{tmp_path / 'some.py'}:some"]
    assert main([*arguments, "--workers", "1"]) == 5
    message = capsys.readouterr().err
    assert "gave other rows when they were read again" in message
    assert "Nothing was committed" in message


def shards_of(destination):
    return {s.path: s.sha256 for s in open_dataset(str(destination)).shards}


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    folder = tmp_path_factory.mktemp("people")
    for number in range(12):
        frame = census(20_000, number)
        frame.assign(person=frame["person"] + 20_000 * number).to_csv(folder / f"{number:02d}.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def clean(tmp_path_factory, people):
    destination = tmp_path_factory.mktemp("clean") / "out"
    subprocess.run(command(people, destination, "--dedup-by", "age,hours"), check=True, capture_output=True)
    return shards_of(destination)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [3, *in_campaign(1, 2)])
def test_workers_change_no_byte(tmp_path, people, clean, workers):
    options = ("--dedup-by", "age,hours", "--workers", workers)
    subprocess.run(command(people, tmp_path / "out", *options), check=True, capture_output=True)
    assert shards_of(tmp_path / "out") == clean


STAGES = {
    "half-surveyed": lambda d: len(list(d.glob("work/*/survey/*.msgpack"))) >= 3,
    "half-marked": lambda d: any(d.glob("work/*/survey/*.duplicates")),
    "marked": lambda d: len(list(d.glob("work/*/survey/*.strata"))) == 12,
    "half-extracted": lambda d: len(list(d.glob("work/*/extract/*.msgpack"))) >= 3,
}


def kill_at(stage, people, destination, *options):
    """Starts a conversion and kills all of it when it has come so far."""
    process = subprocess.Popen(
        command(people, destination, *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not STAGES[stage](destination):
        assert process.poll() is None, "it ended before it could be cut off"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    children = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for child in children:
        if child.is_running():
            child.kill()
    psutil.wait_procs(children, timeout=10)
    assert list_versions(str(destination)) == []


@pytest.mark.slow
@pytest.mark.parametrize("workers", [3, *in_campaign(1)])
@pytest.mark.parametrize("stage", ["half-marked", *in_campaign("half-surveyed", "marked", "half-extracted")])
def test_the_same_command_finishes_what_was_killed_between_the_passes(tmp_path, people, clean, stage, workers):
    options = ("--dedup-by", "age,hours", "--workers", workers)
    kill_at(stage, people, tmp_path / "out", *options)
    assert len(list((tmp_path / "out").glob("work/*/survey/*.msgpack"))) >= 3
    subprocess.run(command(people, tmp_path / "out", *options), check=True, capture_output=True)
    assert shards_of(tmp_path / "out") == clean


@pytest.mark.slow
@pytest.mark.parametrize("is_first_pass", [True, *in_campaign(False)])
def test_a_row_that_no_process_survives_does_not_count(tmp_path, is_first_pass):
    frame = census(3000)
    source = write(frame, tmp_path / "in")
    (tmp_path / "crash.py").write_text(
        "import os, pathlib, signal\n"
        "def crash(batch):\n"
        f"    marks = pathlib.Path({str(tmp_path)!r}).glob('out/work/*/survey/*.strata')\n"
        f"    if 2000 in batch['person'].to_pylist() and any([{is_first_pass}, *marks]):\n"
        "        os.kill(os.getpid(), signal.SIGSEGV)\n"
        "    return batch\n"
    )
    options = ("--map", f"{tmp_path / 'crash.py'}:crash", "--on-bad-record", "skip", "--dedup")
    first = subprocess.run(command(source, tmp_path / "out", *options), capture_output=True, text=True, check=False)
    assert first.returncode == (0 if is_first_pass else 5), first.stderr
    if not is_first_pass:
        assert "gave other rows when they were read again" in first.stderr
        assert list_versions(str(tmp_path / "out")) == []
        subprocess.run(command(source, tmp_path / "out", *options), capture_output=True, check=True)
    dataset = open_dataset(str(tmp_path / "out"))
    check_shares(examples(dataset), frame[frame["person"] != 2000])
    assert dataset.manifest.accounting.num_rejected == 1


@pytest.mark.slow
def test_what_changed_since_it_was_marked_is_marked_again(tmp_path, people):
    source = tmp_path / "in"
    source.mkdir()
    for path in people.iterdir():
        (source / path.name).write_bytes(path.read_bytes())
    kill_at("half-extracted", source, tmp_path / "out", "--workers", 1)
    # The same size, so that it is the same conversion: everybody in it comes from somewhere else.
    text = (source / "05.csv").read_text()
    (source / "05.csv").write_text(text.replace("United-States", "Great-Britain"))
    subprocess.run(command(source, tmp_path / "out", "--workers", "1"), check=True, capture_output=True)
    expected = pd.concat([pd.read_csv(p) for p in sorted(source.iterdir())])
    assert (expected["country"] == "Great-Britain").sum() > 15_000
    check_shares(examples(open_dataset(str(tmp_path / "out"))), expected)
