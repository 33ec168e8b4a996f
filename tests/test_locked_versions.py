"""The locked versions are within the bounds that pyproject.toml declares, and none is missing."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement

from tests.support.paths import ROOT

LOCK = ROOT / ".ci/locked.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
# They are installed apart from the others: peers of the benchmarks, and a fuzzer.
NOT_LOCKED = {"bench", "dev-fuzz"}


def normalized(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def locked():
    lines = [line for line in LOCK.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("==") for line in lines)


@pytest.mark.parametrize(
    "text", sorted({*PROJECT["dependencies"], *(r for e, rs in EXTRAS.items() if e not in NOT_LOCKED for r in rs)})
)
def test_every_requirement_has_a_version_within_its_bounds(text):
    requirement = Requirement(text)
    if requirement.name == "shardkit":
        return
    assert requirement.specifier.contains(locked()[normalized(requirement.name)], prereleases=True)


def test_the_lock_is_sorted_and_names_each_package_once():
    names = [line.split("==")[0] for line in LOCK.read_text().splitlines()[1:]]
    assert names == sorted(set(names))
    assert names == [normalized(name) for name in names]
