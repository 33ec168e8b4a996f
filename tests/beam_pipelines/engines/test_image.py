"""The image of the workers goes with the package: versions, extras and what is copied into it."""

import re
import tomllib

import apache_beam
import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.full

DOCKERFILE = (ROOT / "beam_pipelines" / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def argument(name):
    """Returns the default of an argument of the build."""
    return re.search(rf"^ARG {name}=(\S+)$", DOCKERFILE, re.MULTILINE).group(1)


def test_it_has_the_beam_that_the_package_asks_for():
    assert argument("BEAM_VERSION") == apache_beam.__version__


def test_it_has_a_python_that_the_package_takes():
    least = re.fullmatch(r">=(\d+)\.(\d+)", PROJECT["requires-python"])
    assert tuple(map(int, argument("PYTHON_VERSION").split("."))) >= tuple(map(int, least.groups()))


def test_its_extras_are_the_packages():
    extras = argument("EXTRAS").split(",")
    assert set(extras) <= set(PROJECT["optional-dependencies"])
    assert "beam" in extras
    assert "train" not in extras


@pytest.mark.parametrize("path", re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE))
def test_what_is_copied_is_there(path):
    for name in path.split():
        assert (ROOT / name).exists(), name


def test_the_wheel_is_made_of_all_that_it_needs():
    """Of every package, and of the files that the project's description names."""
    from setuptools import find_packages

    copied = {
        name for names in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE) for name in names.split()
    }
    packages = {name.partition(".")[0] for name in find_packages(str(ROOT), exclude=["tests*", "examples*"])}
    assert packages | {"pyproject.toml", PROJECT["readme"], *PROJECT["license-files"]} <= copied
