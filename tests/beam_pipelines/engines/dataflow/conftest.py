from __future__ import annotations

import pytest

from tests.support.engines.dataflow_bucket import Bucket


@pytest.fixture
def bucket(gcs, service, tmp_path):
    return Bucket(gcs, service, tmp_path)
