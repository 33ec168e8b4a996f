"""The stores that every promise is tried on: a folder, memory, and five servers."""

import itertools
from contextlib import ExitStack

import pytest

from tests.support.campaign import in_campaign
from tests.support.stores.servers import KINDS, serve, use

NUMBERS = itertools.count()


@pytest.fixture(scope="package")
def servers_by_name(tmp_path_factory):
    """Returns the server of a name, which is started when the first test asks for it."""
    with ExitStack() as stack:
        running = {}

        def server_of(name):
            if name not in running:
                kind = KINDS[name]
                if kind.find() is None:
                    pytest.skip(kind.install)
                running[name] = stack.enter_context(serve(name, tmp_path_factory.mktemp(name)))
            return running[name]

        yield server_of


# The contract is held on all stores in CI; what takes whole commands, on one.
@pytest.fixture(params=["moto", *in_campaign(*(name for name in KINDS if name != "moto"))])
def server(request, servers_by_name, monkeypatch):
    """A server that runs, found by the environment."""
    found = servers_by_name(request.param)
    use(found, monkeypatch)
    return found


@pytest.fixture(params=["local", "memory", *KINDS])
def place(request, tmp_path, servers_by_name, monkeypatch):
    """The path or URL of a folder that nothing lies in."""
    if request.param == "local":
        return str(tmp_path / "place")
    name = f"place-{next(NUMBERS)}"
    if request.param == "memory":
        return f"memory://{name}"
    found = servers_by_name(request.param)
    use(found, monkeypatch)
    return f"{found.url}/{name}"
