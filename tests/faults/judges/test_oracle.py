"""The reader that judges: it takes what is whole, and nothing that is not, whichever byte of it is another one."""

import json
import random

import pytest

from tests.faults.judges.oracle import newest
from tests.faults.judges.records import Damaged
from tests.faults.trials import disturb, state_of
from tests.faults.worlds import SCENARIOS

pytestmark = pytest.mark.full

NUM_FLIPS = 60


class Kept:
    """Files in memory."""

    def __init__(self, contents):
        self.contents = dict(contents)

    def names(self):
        return list(self.contents)

    def read(self, name):
        if name not in self.contents:
            raise FileNotFoundError(name)
        return self.contents[name]


@pytest.fixture
def whole(local):
    """A dataset."""
    with local.store.trial() as (place, _):
        local.prepare(place, SCENARIOS["next"])
        return {name: place.read(name) for name in place.names()}


def test_it_finds_all_rows(local, whole):
    assert newest(Kept(whole)).rows == local.old_rows


def test_any_bit_of_any_file_counts(whole):
    rng = random.Random(5)
    for _ in range(NUM_FLIPS):
        name = rng.choice(sorted(whole))
        content = bytearray(whole[name])
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        with pytest.raises(Damaged):
            newest(Kept({**whole, name: bytes(content)}))


def test_any_file_that_is_cut_off_or_gone_counts(whole):
    for name, content in whole.items():
        if not name.endswith(".json"):
            with pytest.raises(Damaged):
                newest(Kept({n: c for n, c in whole.items() if n != name}))
        for stop in {0, 1, len(content) // 2, len(content) - 2}:
            with pytest.raises(Damaged):
                newest(Kept({**whole, name: content[:stop]}))


def test_it_tells_the_old_from_the_new_and_both_from_none(local, whole):
    before = newest(Kept(whole))
    assert state_of(Kept(whole), before, local.new_rows)[0] == "old"
    assert state_of(Kept({}), None, local.new_rows)[0] == "old"
    assert state_of(Kept({}), before, local.new_rows)[0].startswith("LOST")
    again = {name.replace("00000001.json", "00000002.json"): content for name, content in whole.items()}
    document = json.loads(again["manifests/00000002.json"])
    assert document["created"]["commit_id"] == before.commit_id
    assert state_of(Kept({**whole, **again}), None, local.new_rows)[0].startswith("MIXED")


def test_what_was_made_of_the_new_rows_is_new(local):
    outcome = disturb(local, SCENARIOS["next"])
    assert (outcome.state, outcome.wrongs) == ("new", ())
