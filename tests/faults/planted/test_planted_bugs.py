"""The trials can fail: each planted bug is found by one that passes without it."""

import pytest

from tests.faults.campaign import finishing, has_failed, run
from tests.faults.planted.bug_trials import LOOKED_FOR
from tests.faults.planted.planted_pair_bugs import ALL_BUGS
from tests.faults.trials import kinds_of
from tests.support.campaign import in_campaign


def test_every_bug_is_looked_for():
    assert set(LOOKED_FOR) == set(ALL_BUGS)


_MOST_TRIALS = 3

CI_BUGS = [
    "commit_by_rename",
    "off_by_one",
    "no_rebase",
]


@pytest.mark.full
@pytest.mark.parametrize("bug", [*CI_BUGS, *in_campaign(*(bug for bug in LOOKED_FOR if bug not in CI_BUGS))])
def test_a_planted_bug_is_found_where_nothing_is_without_it(request, bug):
    where, _, trial, expected = LOOKED_FOR[bug]
    world = request.getfixturevalue(where)
    sound = trial(world)
    assert sound.wrongs == (), sound.story
    # Conversions that race show a bug only when they meet, which on a busy machine they may not at once.
    found = []
    while len(found) < _MOST_TRIALS and expected not in kinds_of(found):
        found.append(trial(world.with_bug(bug)))
    assert expected in kinds_of(found), [(one.wrongs, one.story) for one in found]


@pytest.mark.full
def test_conversions_that_ask_nothing_again_fail_the_campaign_of_faults(stored):
    result = run("faults", stored.with_bug("nothing_is_asked_again"), 20, 3)
    assert finishing(result).num_finished < 3
    assert has_failed(result)
