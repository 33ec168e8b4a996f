"""The stores of the trials."""

import pytest

from tests.faults.places import is_there, open_store
from tests.faults.worlds import World


@pytest.fixture(scope="package")
def local(tmp_path_factory):
    """Local folders."""
    folder = tmp_path_factory.mktemp("local")
    with open_store("local", folder) as store:
        yield World(store, folder)


@pytest.fixture(scope="package")
def stored(tmp_path_factory):
    """A server that speaks S3."""
    if not is_there("moto"):
        pytest.skip("moto is not installed")
    folder = tmp_path_factory.mktemp("stored")
    with open_store("moto", folder) as store:
        yield World(store, folder)
