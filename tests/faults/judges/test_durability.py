"""What of a log tells that a power cut would leave a name without its content."""

import pytest

from tests.faults.judges.durability import unsynced

WRITTEN = [
    {"name": "open", "path": "/w/tmp/a"},
    {"name": "write", "path": "/w/tmp/a"},
    {"name": "sync", "path": "/w/tmp/a"},
    {"name": "link", "path": "/d/data/a", "source": "/w/tmp/a"},
    {"name": "sync", "path": "/d/data"},
    {"name": "open", "path": "/d/manifests/.1"},
    {"name": "sync", "path": "/d/manifests/.1"},
    {"name": "link", "path": "/d/manifests/1.json", "source": "/d/manifests/.1"},
]


def test_what_lasts_before_it_is_named_is_well():
    assert unsynced(WRITTEN) == []


@pytest.mark.parametrize(("number", "path"), [(2, "/d/data/a"), (4, "/d/data/a"), (6, "/d/manifests/1.json")])
def test_each_sync_counts(number, path):
    assert unsynced(WRITTEN[:number] + WRITTEN[number + 1 :]) == [path]


def test_a_write_after_the_sync_counts():
    late = {"name": "write", "path": "/w/tmp/a"}
    assert unsynced([*WRITTEN[:3], late, *WRITTEN[3:]]) == ["/d/data/a"]
