from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.support.engines import conversions
from tests.support.engines.native import Slowed


@pytest.fixture(scope="session")
def inputs(tmp_path_factory):
    return conversions.write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="session")
def clean(tmp_path_factory, inputs):
    """What the local engine makes of the inputs."""
    destination = tmp_path_factory.mktemp("clean") / "out"
    result = conversions.convert(inputs, destination)
    assert result.returncode == 0, result.stderr
    return conversions.shards_of(destination)


@pytest.fixture
def slowed(tmp_path):
    """A function of the user that is slow until it may run."""
    (tmp_path / "map").mkdir()
    return Slowed(tmp_path / "map")


@pytest.fixture(scope="session")
def shouted(tmp_path_factory, inputs):
    """The shards that the local engine makes of the inputs by that function; its file has a part in their names."""
    folder = tmp_path_factory.mktemp("shouted")
    slowed = Slowed(folder)
    slowed.run()
    result = conversions.convert(inputs, folder / "out", *slowed.option)
    assert result.returncode == 0, result.stderr
    return list(conversions.shards_of(folder / "out").values())


@pytest.fixture(scope="module")
def gcs(tmp_path_factory):
    """A server of Google Cloud Storage, found by the environment."""
    from tests.support.stores.servers import KINDS, serve, use

    if KINDS["fake-gcs"].find() is None:
        pytest.skip(KINDS["fake-gcs"].install)
    with ExitStack() as stack:
        server = stack.enter_context(serve("fake-gcs", tmp_path_factory.mktemp("gcs")))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        use(server, patch)
        # Google's libraries would look for a machine of Google's that they run on.
        patch.setenv("NO_GCE_CHECK", "true")
        yield server


@pytest.fixture
def service(gcs, tmp_path):
    """A service of Dataflow that nobody has asked for anything yet."""
    pytest.importorskip("google.cloud.dataflow")
    from tests.support.engines.fake_dataflow import serve_dataflow

    with serve_dataflow(tmp_path) as found:
        yield found
