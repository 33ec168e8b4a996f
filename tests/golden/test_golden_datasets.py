"""Code of today makes the datasets that shardkit 0.1.0 made, and goes on with one of them, through the command line.

`make_golden.py` made the files; it says when to make them anew.
"""

import csv
import gzip
import io
import json
import shutil
import tomllib
import unicodedata

import pytest

import shardkit as library
from shardkit.conversion.request import option_fields
from tests.golden.golden_cases import (
    CASES,
    DATASET,
    DECODED,
    EXPECTED,
    INPUTS,
    RUN,
    append,
    convert,
    describe,
    manifest_of,
    shardkit,
    tools,
    train,
)

pytestmark = pytest.mark.full

GOLDEN = json.loads(EXPECTED.read_text())
# What other versions of libraries, or another processor, may change.
BYTES = ("files", "manifest")


def check(found, name):
    """Compares a description with the one of before: what says most first."""
    expected = GOLDEN["datasets"][name]
    differs = BYTES if GOLDEN["tools"] != tools() else ()
    differs += ("records",) if differs and name in DECODED else ()
    assert list(found) == list(expected)
    for part in (p for p in expected if p not in differs):
        assert found[part] == expected[part], f"{name}: {part}"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Returns a function that converts a case once, and gives the dataset."""
    folder = tmp_path_factory.mktemp("made")
    return lambda name: folder / name if (folder / name).exists() else convert(name, folder)


@pytest.fixture
def copied(tmp_path):
    """Returns a copy of the dataset that was made before."""
    return shutil.copytree(DATASET, tmp_path / "people")


@pytest.mark.parametrize("name", CASES)
def test_the_same_options_give_the_same_dataset(made, name):
    check(describe(made(name)), name)


@pytest.mark.parametrize("name", CASES)
def test_a_recipe_file_of_before_gives_the_same_dataset(tmp_path, name):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("\n".join(GOLDEN["datasets"][name]["recipe_file"]).replace("{inputs}", str(INPUTS)))
    shardkit("convert", CASES[name][0], name, "--recipe", recipe, folder=tmp_path)
    check(describe(tmp_path / name), name)


def test_the_cases_give_every_option_that_a_recipe_can_hold():
    given = {option for options in CASES.values() for option in options}
    of_recipes = [f.option.flag.split("/") for f in option_fields() if f.option.role != "run"]
    assert [flags for flags in of_recipes if not given & set(flags)] == []


def test_the_recipe_files_of_before_hold_all_options_that_were_given():
    held = {key for case in GOLDEN["datasets"].values() for key in tomllib.loads("\n".join(case["recipe_file"]))}
    given = {o.removeprefix("--") for options in CASES.values() for o in options if o.startswith("--")}
    # A schema becomes the table of features, `--no-...` and `--keep-exif` become false.
    assert held - {"features"} >= given - {"schema", "no-shuffle", "keep-exif"}
    assert {"shuffle", "apply-exif", "compression", "stratify", "table", "query", "labels"} <= held


def test_a_dataset_of_before_is_read():
    wanted = {}
    one, two = (INPUTS / "people/one.csv").read_bytes(), gzip.decompress((INPUTS / "people/two.csv.gz").read_bytes())
    for row in (r for raw in (one, two) for r in csv.DictReader(io.StringIO(raw.decode()), delimiter=";")):
        if row["name"] and row["age"].isdigit() and int(row["age"]) < 90:
            age, name = int(row["age"]), unicodedata.normalize("NFC", row["name"])
            wanted[name] = (age, float(row["height"]), row["town"].lower(), age >= 18)
    splits = library.open(DATASET)
    rows = [splits[name][i] for name in ("train", "test") for i in range(splits[name].num_examples)]
    assert {r["name"]: (r["age"], r["height"], r["home"], r["adult"]) for r in rows} == wanted
    assert len(rows) == len(wanted)
    batches = list(splits["train"].batches(global_batch_size=8, seed=1))
    assert sum(len(batch["name"]) for batch in batches) == splits["train"].num_examples // 8 * 8


def test_a_dataset_of_before_is_verified(tmp_path):
    assert shardkit("verify", DATASET, folder=tmp_path).startswith("ok: 2 splits")
    assert "old" in shardkit("inspect", DATASET, "--rejected", folder=tmp_path)


def test_a_dataset_of_before_is_appended_to(copied, tmp_path):
    before = {p: p.read_bytes() for p in copied.rglob("*") if p.is_file()}
    append(copied, tmp_path)
    check(describe(copied, 2), "appended")
    assert {p: p.read_bytes() for p in before} == before
    history = json.loads(shardkit("inspect", copied, "--history", "--json", folder=tmp_path))
    assert [(v["version"], v["appended_to"]) for v in history] == [(1, None), (2, 1)]
    assert shardkit("verify", copied, folder=tmp_path).startswith("ok")


def test_a_training_run_of_before_goes_on_as_if_it_had_never_stopped(tmp_path):
    shutil.copytree(RUN, tmp_path / "run")
    before = [json.loads(line) for line in (RUN / "metrics.jsonl").read_text().splitlines()]
    resumed = train("run", 2, tmp_path, "--resume")
    assert (resumed[0], [epoch["step"] for epoch in resumed]) == (before[0], [6, 12])
    unbroken = train("other", 2, tmp_path)
    # Another processor may round otherwise.
    for epoch, other in zip(resumed, unbroken, strict=True):
        for part in ("train", "validation"):
            assert epoch[part] == pytest.approx(other[part], rel=1e-4)


def test_dask_gives_the_dataset_of_before(tmp_path):
    shardkit("convert", *CASES["people"][:1], "people", *CASES["people"][1:], "--runner", "dask", folder=tmp_path)
    check(describe(tmp_path / "people"), "people")


def test_the_recipe_of_a_dataset_of_before_gives_it_again(tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(shardkit("inspect", DATASET, "--recipe", folder=tmp_path))
    shardkit("convert", INPUTS / "people", "people", "--recipe", recipe, folder=tmp_path)
    old, new = manifest_of(DATASET), manifest_of(tmp_path / "people")
    assert new["fingerprint"] == old["fingerprint"]
    assert new["recipe"] == old["recipe"]
    if GOLDEN["tools"] == tools():
        assert new == old
        files = [p.relative_to(DATASET) for p in DATASET.rglob("*") if p.is_file() and p.parent.name != "manifests"]
        assert [f for f in files if (tmp_path / "people" / f).read_bytes() != (DATASET / f).read_bytes()] == []
